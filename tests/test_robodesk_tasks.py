"""RoboDesk's rewards in closed form, at situations made up by hand; no MuJoCo."""

import numpy as np
import pytest

from denoised_mdp.envs import tasks
from denoised_mdp.envs.robodesk.tasks import BLOCKS, Situation, all_tasks, find_task
from denoised_mdp.errors import UserError


def situation(hand=(0, 0, 0), joints=None, screen=(0.5, 0.5, 0.5), **places):
    """A situation in which everything is at the origin, unmoved, but for what is given."""
    names = (*BLOCKS, "drawer", "slide", "red_button", "green_button", "blue_button")
    where = {name: np.array([0.0, 0.0, 1.0]) for name in names}
    start = {block: where[block].copy() for block in BLOCKS}
    where |= {name: np.array(place, float) for name, place in places.items()}
    zero = dict.fromkeys(("drawer_joint", "slide_joint", "red_light", "green_light", "blue_light"), 0.0)
    return Situation(np.array(hand, float), where, start, zero | (joints or {}), np.array(screen, float))


def test_the_packages_tasks_and_three_more():
    assert len(tasks("robodesk")) == 18 + 3 and set(all_tasks()) == set(tasks("robodesk"))
    for name, task in all_tasks().items():
        assert task.joints and (task.channel is not None) == name.startswith("tv_")


def dense(name, *args, **kwargs):
    return find_task(name).reward(situation(*args, **kwargs), "dense")


def solved(name, *args, **kwargs):
    return find_task(name).reward(situation(*args, **kwargs), "success")


def test_open_slide():
    at = {"slide": (0.15, 0, 0)}  # the hand is where it should be
    assert dense("open_slide", joints={"slide_joint": 0.3}, **at) == pytest.approx(0.9 * (0.75 * 0.5 + 0.25) + 0.1)
    moved = dense("open_slide", joints={"slide_joint": 0.3}, ball=(0.5, 0, 1), **at)
    assert moved == pytest.approx(0.9 * (0.75 * 0.5 + 0.25) + 0.1 * 0.66)
    assert [solved("open_slide", joints={"slide_joint": value}) for value in (0.55, 0.56)] == [0, 1]


def test_open_drawer():
    assert dense("open_drawer", joints={"drawer_joint": -0.15}, drawer=(0, 0.4, 0)) == pytest.approx(0.375 + 0.15)
    assert dense("open_drawer", joints={"drawer_joint": -0.48}, drawer=(0, 0, 0)) == 1  # cut off
    assert [solved("open_drawer", joints={"drawer_joint": value}) for value in (-0.2, -0.21)] == [0, 1]


@pytest.mark.parametrize("color", ["red", "green", "blue"])
def test_push(color):
    button, light = f"{color}_button", f"{color}_light"
    assert dense(f"push_{color}", **{button: (0, 0, 0.2)}) == pytest.approx(0.75 * 0.8)
    assert dense(f"push_{color}", joints={light: -0.005}, **{button: (0, 0, 0)}) == 1
    assert [solved(f"push_{color}", joints={light: value}) for value in (-0.00452, -0.00454)] == [0, 1]
    other = "red_light" if color != "red" else "blue_light"
    assert solved(f"push_{color}", joints={other: -0.005}) == 0


def test_stack():
    on = {"flat_block": (0, 0, 0), "upright_block": (0, 0, 0.0377804)}
    assert dense("stack", hand=(0, 0.3, 0.0377804), **on) == pytest.approx(0.7)
    assert solved("stack", **on) == 1
    beside = {"flat_block": (0.3, 0, 0), "upright_block": (0, 0, 0.0377804)}
    assert dense("stack", hand=(0, 0, 0.0377804), **beside) == pytest.approx(0.7)
    assert solved("stack", **beside) == 0
    assert dense("stack", flat_block=(3, 0, 0)) == 0  # never negative


@pytest.mark.parametrize("block", BLOCKS)
def test_off_table_in_bin_in_shelf_and_lift(block):
    other = next(name for name in BLOCKS if name != block)
    name = f"{block}_off_table"
    fallen = {block: (0, 0, 0.5)}
    assert dense(name, hand=(0, 0, 0.5), **fallen) == pytest.approx(0.75 * (0.8 * 0.5 + 0.2) + 0.25)
    nudged = fallen | {other: (1, 0, 1)}
    assert dense(name, hand=(0, 0, 0.5), **nudged) == pytest.approx(0.75 * (0.8 * 0.5 + 0.1 + 0.08) + 0.25)
    assert solved(name, **fallen) == 1 and solved(name, **nudged) == 0 and solved(name) == 0

    name, inside = f"{block}_in_bin", (0.4, 0.5, 0.2)
    assert dense(name, hand=inside, **{block: inside}) == 1 and solved(name, **{block: inside}) == 1
    for outside in ((0.27, 0.5, 0.2), (0.4, 0.63, 0.2), (0.4, 0.5, 0.41), (0.4, 0.5, -0.01)):
        assert solved(name, **{block: outside}) == 0
        assert dense(name, hand=outside, **{block: outside}) == 0.5

    name, shelved = f"{block}_in_shelf", (0.4, 1.1, 1.0)
    assert dense(name, hand=shelved, **{block: shelved}) == pytest.approx(0.5 * 1.0 + 0.5)
    expected = 0.5 * (0.33 * 0 + 0.33 * (1 - np.hypot(0.4, 1.1))) + 0.5
    assert dense(name, hand=(0, 0, 5)) == pytest.approx(expected)
    assert solved(name, **{block: shelved}) == 1 and solved(name, **{block: (0.1, 1.1, 1)}) == 0

    name = f"lift_{block}"
    assert dense(name, hand=(0, 0, 1.05), **{block: (0, 0, 1.05)}) == pytest.approx(0.85 * 0.5 + 0.15)
    assert dense(name, hand=(0, 0, 3), **{block: (0, 0, 3)}) == 1
    height = {"upright_block": 0.86, "ball": 0.81, "flat_block": 0.78}[block]
    assert [solved(name, **{block: (0, 0, z)}) for z in (height - 0.01, height + 0.01)] == [0, 1]


@pytest.mark.parametrize("channel, color", enumerate(["red", "green", "blue"]))
def test_television(channel, color):
    name, button = f"tv_{color}_hue", f"{color}_button"
    screen = np.array([0.1, 0.2, 0.3])
    value = dense(name, screen=screen, joints={f"{color}_light": -0.005}, **{button: (0, 0.4, 0)})
    assert value == pytest.approx(0.5 * screen[channel] + 0.25 * 0.6 + 0.25)
    assert dense(name, hand=(9, 9, 9), screen=screen) == pytest.approx(0.5 * screen[channel])
    for kind in ("sparse", "success"):
        assert find_task(name).reward(situation(screen=screen), kind) == pytest.approx(screen[channel])


def test_the_papers_preset():
    from denoised_mdp.config import load_config

    config = load_config(["preset=paper/robodesk_tv_green_hue"])
    assert (config.env.suite, config.env.task, config.env.size) == ("robodesk", "tv_green_hue", 96)
    assert (config.alpha, config.model.kl.beta, config.model.latents["y"].beta) == (2.0, 0.125, 0.125)
    assert set(config.distractors) == {"tv", "button_noise", "moving_lights", "camera_shake"}
    assert config.env.action_repeat == 2 and config.env.episode_steps == 1000


def test_bad_configurations_are_one_line():
    from denoised_mdp.config import load_config

    for overrides, words in [
        (["env.reward=sparse"], "env=robodesk"),
        (["env=robodesk", "env.reward=spares"], "sparse"),
        (["env=robodesk", "env.task=tv_gren_hue"], "tv_green_hue"),
        (["env=robodesk", "distractors=video_background"], "tv"),
        (["distractors=tv"], "video_background"),
        (["env=robodesk", "distractors={camera_shake: {strength: -1}}"], "at least 0"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            load_config(overrides)
        assert "\n" not in str(caught.value)
