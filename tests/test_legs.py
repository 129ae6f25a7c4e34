"""scripts/reproduce/legs.py: which joints are compared."""

import pytest
from reproducing import script

from denoised_mdp import make_env
from denoised_mdp.envs.factors import factors


@pytest.mark.parametrize("task, count", [("walker_walk", 6), ("cheetah_run", 0)])
def test_each_joint_of_a_right_leg_meets_that_of_the_left(task, count):
    """Angle and velocity of hip, knee and ankle; the cheetah's legs are a front and a back one."""
    environment = make_env(task)
    names = environment.unwrapped.signal_names
    with script("legs") as legs:
        found = legs.pairs(factors(environment))
    environment.close()
    assert len({star for star, *_ in found}) == len(found) == count
    for star, right, left in found:
        (one,), (other,) = right.columns, left.columns
        assert {names[one], names[other]} == {star.replace("*", side) for side in ("right", "left")}
