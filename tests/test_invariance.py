"""`measure_invariance`: chance counts as `resampled` alone, and posterior means are compared."""

import numpy as np
import pytest
import torch
from conftest import small_agent

from denoised_mdp.analysis import data
from denoised_mdp.analysis.invariance import grid_distances, measure_invariance, record_grid
from denoised_mdp.envs import make_env


def toy():
    return make_env("dot", suite="toy", size=64, action_repeat=1, episode_steps=30)


def test_chance_alone_moves_nothing_but_resampled():
    torch.manual_seed(0)
    agent = small_agent("2b").float()
    grid = record_grid(toy, None, physics=2, worlds=2, steps=5)
    found = measure_invariance(agent, [[row[0], row[0]] for row in grid])
    for name in ("x", "y", "all", "action"):
        assert found.parts[name].other_noise == pytest.approx(0, abs=1e-6), "all episodes share their draws"
        assert found.parts[name].resampled > 1e-4, "other draws, other beliefs"
    assert found.parts["encoder"].resampled == 0 < found.parts["encoder"].other_state
    assert found.action_change == pytest.approx(0, abs=1e-6)


def test_posterior_means_are_compared_and_not_samples():
    torch.manual_seed(0)
    agent = small_agent("2b").float()
    grid = record_grid(toy, None, physics=2, worlds=2, steps=5)
    cells = [cell for row in grid for cell in row]
    frozen = data.freeze(agent, cells, seed=0, shared_noise=True)
    for name in "xy":
        means = [torch.cat((one.latent[name][0], one.posterior[name].mean), -1).numpy() for one in frozen]
        samples = [torch.cat(one.latent[name], -1).numpy() for one in frozen]
        expected, other = (grid_distances(np.stack(one).reshape(2, 2, *one[0].shape)) for one in (means, samples))
        found = measure_invariance(agent, grid).parts[name]
        assert (found.other_noise, found.other_state) == pytest.approx(expected, rel=1e-6)
        assert expected != pytest.approx(other, rel=1e-3)
