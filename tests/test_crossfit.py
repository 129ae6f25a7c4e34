"""What the factor matrix is compared with, and what a probe without a smaller fit may lack."""

import numpy as np
import pytest

from denoised_mdp.analysis.crossfit import half_of, random_divisions, still_to_learn
from denoised_mdp.analysis.factors import factor_matrix
from denoised_mdp.envs.factors import SIGNAL, Factor


def test_the_baseline_is_the_mean_of_the_fitted_episodes():
    """Not of all: where episodes differ, it is below 0 by what a fold's own episodes move that mean."""
    episode = np.repeat(np.arange(6), 10)
    rng = np.random.default_rng(0)
    y = 3 * rng.normal(size=6)[episode][:, None] + rng.normal(size=(60, 1))
    (division,) = random_divisions(6)
    errors = sum(np.square(y[np.isin(episode, test)] - y[np.isin(episode, fit)].mean()).sum() for fit, test in division)
    matrix = factor_matrix({"x": y}, {Factor("a", "signal", (0,), "scalar", SIGNAL): y}, episode, [division], ["ridge"])
    assert matrix.baseline[0, 0] == pytest.approx(1 - errors / np.square(y - y.mean()).sum())
    assert matrix.baseline[0, 0] < -0.01


def test_without_a_smaller_fit_all_may_be_missing():
    """Two fitted episodes are not halved: what more would find is unknown, and R^2 may rise by 1."""
    whole = np.array([0.3, -0.2, 0.0])
    assert still_to_learn(whole, whole, [(2, 2)] * 3).tolist() == [1, 1, 1]
    assert still_to_learn(whole, whole - 0.1, [(4, 2)] * 3) == pytest.approx([0.1, 0.0, 0.1])


@pytest.mark.parametrize(("count", "half"), [(2, 2), (3, 2), (4, 2), (5, 2), (9, 4)])
def test_half_of_the_episodes_are_some_of_them(count, half):
    episodes = 10 + 3 * np.arange(count)
    found = [half_of(episodes, seed) for seed in range(20)]
    assert all(len(set(one)) == len(one) == half and set(one) <= set(episodes) for one in found)
    assert all((np.diff(one) > 0).all() for one in found)
    assert count == 2 or len({tuple(one) for one in found}) > 1
