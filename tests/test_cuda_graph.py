"""What only a GPU can show: a graph of the update, batches from pinned memory, acting on another device."""

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent
from small_runs import tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def modern_agent():
    """LaProp with AGC, twohot, percentiles, a slow value net, stored latents; and rates that fall in mid-run."""
    options = ["preset=modern_debug", "policy.late_lr=0.5", "policy.late_after=5"]
    return build_agent(load_config(options), 2).double()


def rival(model):
    """A builder of another method's agent: TIA's adversary takes several steps in each update."""
    return lambda: build_agent(load_config(["preset=debug", f"model={model}"]), 2).double()


def two_agents(make=small_agent):
    """Twins on the GPU, the second with a graph."""
    eager, graphed = (make().to("cuda") for _ in range(2))
    for agent in (eager, graphed):
        agent.random = torch.Generator("cuda").manual_seed(0)
    graphed.use_graph()
    return eager, graphed


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("make", "size"), [(small_agent, 64), (modern_agent, 32), (rival("tia"), 64), (rival("repo"), 64)]
)
def test_graph_equals_eager(make, size):
    """Ten updates on different batches, the first three without the policy: metrics, weights, noise."""
    eager, graphed = two_agents(make)
    start = {"start": torch.zeros(1, 3, eager.latent_size)} if make is modern_agent else {}
    for step in range(10):
        batch = random_batch(size=size, seed=step) | start
        found, expected = (agent.update(batch, policy=step >= 3) for agent in (graphed, eager))
        assert_close(found, expected)
    assert_close(graphed.state_dict(), eager.state_dict())
    assert torch.equal(graphed.random.get_state(), eager.random.get_state())


def test_batches_from_pinned_memory_are_the_same(tmp_path):
    """A graph and an eager update take them; each is dropped at once, so that its memory is used again."""
    replay, rng = Rings(tmp_path, 1, 40, (64, 64, 3), 2), np.random.default_rng(0)
    for row in range(40):
        image = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        replay.add(0, image, rng.uniform(-1, 1, 2), rng.normal(), row % 20 == 0)
    pinned, streams = Prefetch(replay, pin=True), [np.random.default_rng(1) for _ in range(2)]
    eager, graphed = two_agents()
    other, _ = two_agents()
    for _ in range(10):
        batch = pinned.sample(3, 4, streams[0])
        assert all(column.is_pinned() for column in batch.values())
        pinned.begin(3, 4, streams[0])
        found = [agent.update(batch) for agent in (graphed, eager)]
        del batch
        expected = other.update(replay.sample(3, 4, streams[1]))
        for metrics in found:
            assert_close(metrics, expected)
    assert pinned.hits == 9
    pinned.close()


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_that_acts_on_another_device(tmp_path, devices, overlap):
    """It comes to its end after a stop, and plays with the learner's weights."""
    learner, player = devices
    config = tiny(
        tmp_path / "run",
        f"train.device={learner}",
        f"train.act_device={player}",
        "train.deterministic=false",
        "train.collect_workers=1",
        f"train.overlap={overlap}",
    )
    for limit in (120, 200):
        config.train.total_steps = limit
        run = RunFolder.create(config.run_dir)
        prepare(config, run)
        session = Session(config, run)
        trainer = session.trainer
        trainer.run_to_end()
        assert trainer.step == limit
        weights = trainer.agent.state_dict()
        for name, value in trainer.collector.acting(trainer.updates).state_dict().items():
            assert value.device.type == player and weights[name].device.type == learner
            torch.testing.assert_close(value.cpu(), weights[name].cpu(), rtol=0, atol=0)
        session.close()
