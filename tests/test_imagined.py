"""scripts/reproduce/imagined.py: what came, by brute force, and which decisions are before a fall."""

import numpy as np
import pytest
import torch
from reproducing import script


@pytest.fixture
def imagined():
    with script("imagined") as module:
        yield module


@pytest.mark.parametrize("own", [True, False])
def test_what_came_is_a_discounted_mean(imagined, own):
    reward = np.random.default_rng(0).normal(size=(2, 6))
    found = imagined.came(reward, 0.8, own)
    assert np.isnan(found[:, -1]).all() != own
    for t in range(6 if own else 5):
        following = reward[:, t if own else t + 1 :]
        weights = 0.8 ** np.arange(following.shape[1])
        np.testing.assert_allclose(found[:, t], following @ weights / weights.sum())


def test_the_decisions_before_each_fall(imagined):
    upright = np.ones((2, 40), bool)
    upright[0, 4:8] = upright[1, 20:] = False
    played = imagined.Played(*[torch.zeros(2, 40, 1)] * 3, np.zeros((2, 40)), upright)
    where = played.where()
    assert np.flatnonzero(where["before a fall"][0]).tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(where["before a fall"][1]).tolist() == list(range(20 - imagined.SOON, 20))
    assert (sum(kind.astype(int) for kind in where.values()) == 1).all()
