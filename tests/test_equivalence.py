"""Twins on a grid, against loops over all pairs of situations."""

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from denoised_mdp.analysis import equivalence as twins
from denoised_mdp.analysis import signatures


def loops(values, step):
    """ratio, AUROC, hard AUROC and retrieval of [P, K, T, F], pair by pair."""
    physics, worlds, moments, size = values.shape
    flat = values.reshape(-1, size)
    values = (values - flat.mean(0)) / flat.std(0)
    cells = list(itertools.product(range(physics), range(moments)))
    near, far, hard, hits = [], [], [], []
    for one, other in itertools.permutations(range(worlds), 2):
        for p, t in cells:
            here = values[p, one, t]
            distance = {(q, s): np.linalg.norm(here - values[q, other, s]) for q, s in cells}
            near.append(distance[p, t])
            far += [d for (q, _), d in distance.items() if q != p]
            hits.append(min(distance, key=distance.get) == (p, t))
    for world, p in itertools.product(range(worlds), range(physics)):
        for t, s in itertools.permutations(range(moments), 2):
            if 20 <= abs(step[p, t] - step[p, s]) <= 50:
                hard.append(np.linalg.norm(values[p, world, t] - values[p, world, s]))

    def auroc(others):
        return np.mean([np.mean(np.array(others) > d) for d in near])

    return np.mean(near) / np.mean(far), auroc(far), auroc(hard), np.mean(hits)


def test_equivalence_by_brute_force():
    """Steps of 10: gaps of 20 to 50 decisions are hard negatives, those of 10 and 60 are none."""
    rng, shape = np.random.default_rng(0), (3, 2, 7, 4)
    moment = np.cumsum(rng.normal(size=(3, 1, 7, 4)), 2)  # later moments are farther
    values = moment + 0.8 * rng.normal(size=shape)
    values[:, 1] *= 1.5  # who is nearest is not symmetric
    step = np.broadcast_to(10 + 10 * np.arange(7), (3, 7))
    found, expected = twins.equivalence(values, step), loops(values, step)
    numbers = [getattr(found, name).value for name in ("ratio", "auroc", "hard_auroc", "retrieval")]
    assert numbers == pytest.approx(list(expected))
    assert 0 < expected[3] < 1 and found.chance == 1 / 21


def test_signatures_are_compared_over_pairs_of_different_episodes():
    """Rows of one episode are alike for other reasons."""
    rng, episode = np.random.default_rng(0), np.repeat(np.arange(4), 3)
    place, within = rng.normal(size=4)[episode], rng.normal(size=12)  # no two distances are equal
    true, mine = place + within, place - 4 * within
    found = signatures.compare(true[:, None], {"seen": mine[:, None]}, episode)["seen"]
    pairs = [(i, j) for i, j in itertools.combinations(range(12), 2) if episode[i] != episode[j]]
    expected = spearmanr([abs(true[i] - true[j]) for i, j in pairs], [abs(mine[i] - mine[j]) for i, j in pairs])
    assert found == pytest.approx(expected.statistic)
