"""The discretized MountainCar of the distance experiment: what breadth-first search says about it."""

import numpy as np
import pytest
import torch
from reproducing import script


@pytest.fixture(scope="module")
def car():
    with script("mountain_car") as module:
        yield module


def test_distances_to_the_goal(car):
    steps = car.steps_to(car.GOALS[0])
    assert car.GOALS[0].sum() == 720 and steps.max() == 110
    assert steps.mean() == pytest.approx(47.65, abs=0.005)
    assert np.array_equal(np.minimum(car.steps_taken(car.nearest(steps), car.GOALS[0]), 200), steps)


def test_a_step_is_the_one_of_gymnasium(car):
    """On a state of its own precision; the cells come afterwards."""
    gymnasium = pytest.importorskip("gymnasium")
    environment = gymnasium.make("MountainCar-v0").unwrapped
    environment.reset(seed=0)
    for state in car.STATE[:: 25_600 // 200]:
        for action in range(3):
            environment.state = tuple(state)
            expected = environment.step(action)[0]
            np.testing.assert_allclose(car.moved(state, action), expected, atol=1e-6)


@pytest.mark.parametrize(("action", "expected"), [(0, 14.303), (1, 26.157), (2, 74.921)])
def test_scores_of_constant_actions(car, action, expected):
    taken = car.steps_taken(lambda at: np.full(len(at), action), car.GOALS[0])
    assert car.score(taken, car.GOALS[0]) == pytest.approx(expected, abs=0.001)


def test_scores_of_simple_policies(car):
    random = np.random.default_rng(0)
    taken = car.steps_taken(lambda at: random.integers(3, size=len(at)), car.GOALS[0])
    assert car.score(taken, car.GOALS[0]) == pytest.approx(27.2, abs=0.3)
    assert car.score(car.steps_taken(car.sign_of_velocity, car.GOALS[0]), car.GOALS[0]) == pytest.approx(
        96.69, abs=0.005
    )
    others = [car.score(car.steps_taken(car.sign_of_velocity, goal), goal) for goal in car.GOALS[1:]]
    assert np.mean(others) < 10  # that policy does not know where to go


def test_the_data_bounds_what_can_be_learned(car):
    transitions = car.random_transitions(np.random.default_rng(0))
    assert 198_000 < len(transitions) < 206_000 and 190 < car.GOALS[0][transitions[:, 1]].sum() < 240
    assert (car.NEXT[transitions[:, 0]] == transitions[:, 1:]).any(1).all()
    steps = car.within(transitions)
    assert (steps >= car.steps_to(car.GOALS[0])).all()
    assert 70.5 < car.score(steps, car.GOALS[0]) < 72.5


def test_batches_lead_into_the_marked_goal(car):
    transitions = car.random_transitions(np.random.default_rng(0))
    state, following, goal = car.Sampler(transitions, 40, np.random.default_rng(1))()
    assert torch.equal(following[:2], car.TASK_GOAL.expand(2, 3)) and torch.equal(goal[-2:], following[:2])
    assert (state[:, 2] == 0).all() and (following[2:, 2] == 0).all() and (goal[:-2, 2] == 0).all()
    assert (state[:2, 0] >= 2 * 1.7 / 1.8 - 1).all()  # in the goal
    known = {tuple(row) for row in car.inputs(transitions[:, 1]).unique(dim=0).tolist()}
    assert all(tuple(row) in known for row in goal[:-2].tolist())


def test_perfect_distances_are_judged_perfect(car):
    steps = np.stack([car.steps_to(goal) + (number == 0) for number, goal in enumerate(car.GOALS)])
    steps[~np.isfinite(steps)] = 1e3
    rows = car.judge(1.25 * np.concatenate([steps, np.ones((1, 25_600))]))
    assert all(row["score"] == 100 and row["rank_correlation"] == 1 for row in rows)
    assert rows[0]["error"] == 0 and rows[0]["goal"] == "task" and rows[1]["error"] == ""
