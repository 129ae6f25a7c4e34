"""An update replayed as a CUDA graph does what the eager one does."""

import pytest
import torch
from conftest import random_batch, small_agent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_graph_equals_eager():
    """Ten updates on different batches, the first three without the policy: metrics, weights, noise."""
    eager, graphed = (small_agent().to("cuda") for _ in range(2))
    for agent in (eager, graphed):
        agent.random = torch.Generator("cuda").manual_seed(0)
    graphed.use_graph()
    for step in range(10):
        batch = random_batch(seed=step)
        found, expected = (agent.update(batch, policy=step >= 3) for agent in (graphed, eager))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-6, atol=1e-9, msg=name)
    for (name, a), b in zip(graphed.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, msg=name)
    assert torch.equal(graphed.random.get_state(), eager.random.get_state())
