"""The random parts of the smooth walk, by their spread."""

import numpy as np
import pytest

from denoised_mdp.envs.distractors.base import SmoothWalk

DRAWS = 4000


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_walk_begins_about_its_radius_and_with_the_speed_of_one_push(dimensions):
    """Root mean square length 0.075; each number of the velocity has the standard deviation 0.005."""
    walk, rng, places, speeds = SmoothWalk(dimensions, 120.0), np.random.default_rng(0), [], []
    for _ in range(DRAWS):
        walk.reset(rng)
        places.append(walk.position)
        speeds.append(walk.velocity)
    assert np.sqrt(np.square(places).sum(1).mean()) == pytest.approx(0.075, rel=0.05)
    np.testing.assert_allclose(np.std(speeds, 0), 0.005, rtol=0.05)
    assert np.abs(np.mean(speeds, 0)).max() < 5 * 0.005 / DRAWS**0.5


def test_within_its_radius_a_walk_is_pushed_at_random():
    """From rest at the middle: half of a push, slowed down."""
    walk, rng, speeds = SmoothWalk(2, 1.0), np.random.default_rng(0), []
    for _ in range(DRAWS):
        walk.position, walk.velocity = np.zeros(2), np.zeros(2)
        walk.step(rng)
        speeds.append(walk.velocity)
        np.testing.assert_allclose(walk.position, 0.5 * walk.velocity)
    np.testing.assert_allclose(np.std(speeds, 0), 0.5 * 0.005 * 0.9**0.5, rtol=0.05)
    assert abs(np.corrcoef(np.transpose(speeds))[0, 1]) < 0.1
