"""The Python in the documents runs as it stands there, one page after another from its top."""

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[1] / "docs"


def run(page):
    """Execute a page's Python, each block where the one before has ended, and return its names."""
    names = {"__name__": page}  # no script: what starts processes stands behind its own check
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(block, names)
    return names


@pytest.mark.usefixtures("cache")
def test_environments():
    made = run("environments.md")
    worlds = {"original", *made["variants"]}
    assert set(made["frames"]) == set(made["rollouts"]) == set(made["results"]) == worlds
    assert {rollout.observation.shape for rollout in made["rollouts"].values()} == {(6, 64, 64, 3)}
    assert all(np.isfinite(made["info"][key]).all() for key in ("signal", "noise"))


def test_similarity():
    made = run("similarity.md")
    assert made["a"].shape == (50, 8) and made["b"].shape == (50, 6)
    np.testing.assert_allclose(np.linalg.norm(made["a"], axis=1), 1.0)


def test_distance():
    made = run("distance.md")
    torch, head = made["torch"], made["head"]
    assert head(torch.randn(5, 1, 128), torch.randn(7, 128)).shape == (5, 7)
