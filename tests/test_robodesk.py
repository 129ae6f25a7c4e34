"""RoboDesk: physics, rewards, seeds, state; pictures and distractors have files of their own."""

import importlib.util
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from conftest import assert_plain
from gymnasium.utils.env_checker import check_env
from robodesk_case import ALL, MARKS, actions

from denoised_mdp.envs import make_env, tasks
from denoised_mdp.envs.factors import factors
from denoised_mdp.envs.joints import visible_joints
from denoised_mdp.envs.quadrants import quadrant_table
from denoised_mdp.envs.robodesk.arm import Arm
from denoised_mdp.envs.robodesk.distractors import COLORS
from denoised_mdp.envs.robodesk.env import SUBSTEPS, RoboDeskEnv
from denoised_mdp.envs.robodesk.scene import ARM, asset_folder
from denoised_mdp.errors import UserError

pytestmark = MARKS


@pytest.fixture
def make(make, clips):
    """make_env for RoboDesk whose environments are closed after the test."""
    return lambda task="tv_green_hue", **options: make(
        task, suite="robodesk", **{"size": 96, "clips": clips, **options}
    )


def push(world, color, steps=120):
    """Drive the hand above a button and down onto it by what the true state says."""
    for _ in range(steps):
        seen = world.situation()
        offset = seen.places[f"{color}_button"] - seen.hand
        if np.linalg.norm(offset[:2]) > 0.03:
            offset[2] += 0.15
        world.step(np.array([*np.clip(offset / 0.01, -1, 1), 0, -1]))


def test_it_says_what_draws_it():
    env, task = make_env("open_drawer", suite="robodesk"), make_env("cheetah_run")
    for each in (env, task):
        each.reset(seed=0)
    assert env.world.unwrapped.renderer().device() == task.world.unwrapped.renderer().device() != ""
    env.close()
    task.close()


def test_the_package_is_located_but_never_imported():
    import subprocess
    import sys

    code = """
import sys
from denoised_mdp.envs import make_env
make_env("open_drawer", suite="robodesk").reset(seed=0)
assert not {"robodesk", "gym", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_missing_package_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps robodesk"):
        asset_folder()
    with pytest.raises(UserError, match="pip install"):
        make_env("stack", suite="robodesk")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"task": "open_drawr"}, "open_drawer"),
        ({"reward": "spares"}, "sparse"),
        ({"quality": "quick"}, "quality"),
        ({"camera": 3}, "desk"),
        ({"distractors": {"video_background": {}}}, "tv"),
        ({"distractors": {"tv": {"strength": 2}}}, "at least 0 and at most 1"),
    ],
)
def test_mistakes_are_one_line(options, words):
    with pytest.raises(UserError, match=words) as caught:
        make_env(**{"task": "stack", "suite": "robodesk", **options})
    assert "\n" not in str(caught.value)


def test_other_suites_have_no_choice_of_rewards():
    with pytest.raises(UserError, match="reward"):
        make_env("dot", suite="toy", reward="sparse")
    with pytest.raises(UserError, match="tv"):
        make_env("dot", suite="toy", distractors={"tv": {}})


@pytest.mark.parametrize("task", tasks("robodesk"))
def test_every_task_runs_and_rewards_within_its_range(task):
    for reward in ("dense", "sparse", "success"):
        env = RoboDeskEnv(task, reward, episode_steps=5)
        env.reset(seed=0)
        for count, action in enumerate(actions(5), 1):
            signal, value, terminated, truncated, _ = env.step(action)
            assert 0 <= value <= 1 and not terminated and truncated == (count == 5)
            assert signal.shape == (len(env.signal_names),) and np.isfinite(signal).all()


def test_starts_are_where_the_task_puts_them():
    env, rows = RoboDeskEnv("stack"), []
    rest = {name: env._model.qpos0[env._model.joint(name).qposadr[0]] for name in ("drawer_joint", "slide_joint")}
    places = {
        name: env._model.qpos0[env._model.joint(name).qposadr[0] :][:2].copy()
        for name in ("ball", "upright_block", "flat_block")
    }
    for seed in range(60):
        signal = dict(zip(env.signal_names, env.reset(seed=seed)[0], strict=True))
        ball, upright, flat = (
            np.array([signal[f"qpos/{name}/{axis}"] for axis in (0, 1)]) - places[name]
            for name in ("ball", "upright_block", "flat_block")
        )
        drawer, slide = (signal[f"qpos/{name}"] - rest[name] for name in ("drawer_joint", "slide_joint"))
        rows.append([-drawer / 0.1, slide / 0.2, *ball / (0.48, 0.08), *flat / (0.3, 0.07)])
        rows[-1] += [(upright[0] - 0.05) / 0.3, upright[1] / 0.05]
        arm = np.array([signal[name] for name in env.signal_names[:9]])
        low, high = env._model.actuator_ctrlrange[:9].T
        share = (arm - [-0.3, -0.4, 0.28, -2.5, 0.13, 1.87, 0.91, 0.01, 0.01]) / 0.15
        assert ((low - 1e-5 <= share) & (share <= high + 1e-5)).all()
    rows = np.array(rows)
    assert rows.min() > -1e-5 and rows.max() < 1 + 1e-5
    assert (rows.max(0) > 0.9).all() and (rows.min(0) < 0.1).all()  # the whole of each range


def test_starts_never_explode():
    env = RoboDeskEnv("open_slide", quality="fast")
    for seed in range(40):
        env.reset(seed=seed)
        for action in actions(5, seed):
            env.step(action)
        assert not any(warning.number for warning in env._data.warning)
        assert np.abs(env._data.qvel).max() < 50


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("sign", [-1, 1])
def test_inverse_kinematics_reaches_its_target(axis, sign):
    import mujoco

    env = RoboDeskEnv("stack")
    arm, scratch = Arm(env._model), mujoco.MjData(env._model)
    for seed in range(4):
        env.reset(seed=seed)
        before = env._data.qpos.copy()
        goal = env._data.site("end_effector").xpos.copy()
        goal[axis] += sign * 0.01
        scratch.qpos[:] = before
        scratch.qpos[:6] = arm.reach(env._data.qpos, goal)
        mujoco.mj_kinematics(env._model, scratch)
        assert np.linalg.norm(scratch.site("end_effector").xpos - goal) < 1e-6
        assert np.abs(scratch.qpos[:6] - before[:6]).max() < 0.3  # a small change, not another pose
        np.testing.assert_array_equal(env._data.qpos, before)


def test_a_simulation_that_diverges_ends_the_run_and_not_the_environment(make):
    """MuJoCo would go on from the model's own pose."""
    for env in (make("tv_green_hue"), make_env("cheetah_run")):
        env.reset(seed=0)
        state, action = env.get_state(), np.zeros(env.action_space.shape)
        world = env.world.unwrapped
        (world._data if hasattr(world, "_data") else world._physics.data).qvel[5] = 1e12
        with pytest.raises(UserError, match=f"The simulation of {world.task_name} has diverged"):
            env.step(action)
        env.set_state(state)
        assert np.isfinite(env.step(action)[1])
        env.close()


def test_inverse_kinematics_iterates_as_dm_control():
    """Where the rounding errors in the null space of dm_control's least squares are cut off, to the last digits."""
    from dm_control import mujoco as dm
    from dm_control.utils.inverse_kinematics import qpos_from_site_pose

    env, rng = RoboDeskEnv("stack"), np.random.default_rng(0)
    physics = dm.Physics.from_model(dm.wrapper.MjModel(env._model))
    differences = []
    for seed in range(12):
        env.reset(seed=seed)
        start = env._data.qpos[:6].copy()
        for reach in (0.01, 0.3):
            goal = env._data.site_xpos[env._hand] + rng.uniform(-reach, reach, 3)
            physics.data.qpos[:] = env._data.qpos
            theirs = qpos_from_site_pose(physics, "end_effector", goal, joint_names=list(ARM[:6])).qpos[:6]
            ours = env._arm.reach(env._data.qpos, goal)
            differences.append(np.abs(ours - theirs).max())
            if reach < 0.1:  # never a longer way
                assert np.linalg.norm(ours - start) < np.linalg.norm(theirs - start) + 1e-6
    assert np.median(differences) < 1e-9


def test_out_of_reach_is_the_last_iterate():
    env = RoboDeskEnv("stack")
    env.reset(seed=0)
    with pytest.MonkeyPatch.context() as patch:
        ends = []
        for iterations in (3, 4):
            patch.setattr("denoised_mdp.envs.robodesk.arm.MAX_ITERATIONS", iterations)
            ends.append(env._arm.reach(env._data.qpos, np.array([0.0, 5.0, 5.0])))
    assert np.isfinite(ends).all() and (ends[0] != ends[1]).any()


def test_actions_move_hand_wrist_and_gripper():
    env = RoboDeskEnv("stack")
    env.reset(seed=1)
    env._data.qpos[:9] = [-0.3, -0.4, 0.28, -2.5, 0.13, 1.87, 0.91, 0.01, 0.01]
    env._data.qpos[env._model.joint("ball").qposadr[0]] = -0.4
    start = env.get_state()
    for axis in range(3):
        ends = []
        for sign in (-1, 1):
            env.set_state(start)
            for _ in range(15):
                env.step(np.eye(5)[axis] * sign)
            ends.append(env._data.site("end_effector").xpos.copy())
        moved = ends[1] - ends[0]
        assert moved[axis] > 0.04 and moved[axis] > 2 * np.abs(np.delete(moved, axis)).max()
    for number, joint in ((3, 6), (4, 7)):
        ends = []
        for sign in (-1, 1):
            env.set_state(start)
            for _ in range(15):
                env.step(np.eye(5)[number] * sign)
            ends.append(env._data.qpos[joint])
        assert ends[1] - ends[0] > 0.01
    assert SUBSTEPS * env._model.opt.timestep == pytest.approx(0.02)


def test_physics_do_not_depend_on_quality_or_television():
    """Collision meshes as visuals, neighbours and television change what is seen, to the last bit nothing else."""
    runs = []
    for quality, television in (("fast", False), ("faithful", False), ("fast", True)):
        env = RoboDeskEnv("push_green", quality=quality, television=television)
        rows = [env.reset(seed=3)[0]]
        for action in actions(15):
            signal, reward, *_ = env.step(action)
            rows.append([*signal, reward])
        runs.append(np.concatenate(rows))
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_pressing_a_button_pays_and_changes_the_television():
    world = RoboDeskEnv("tv_green_hue")
    world.reset(seed=0)
    np.testing.assert_allclose(world.screen(), 128, atol=0.5)
    before = world.frame()
    push(world, "green")
    signal, reward, *_ = world.step(np.array([0, 0, -1, 0, -1]))
    seen = world.situation()
    assert seen.pressed("green") and not seen.pressed("red") and not seen.pressed("blue")
    assert seen.joints["green_light"] < -0.00453
    hue = dict(zip(world.signal_names, signal, strict=True))["hue/green"]
    assert hue == pytest.approx(min(0.75 * -seen.joints["green_light"] / 0.005, 1))
    green = round(128 * (1 - hue) + 255 * hue)
    np.testing.assert_array_equal(world.screen()[..., 1], green)
    np.testing.assert_array_equal(world.screen()[..., [0, 2]], 128)
    near = 1 - np.linalg.norm(seen.hand - seen.places["green_button"])
    assert reward == pytest.approx(0.5 * green / 255 + 0.25 * near + 0.25)
    frame = world.frame()
    television = frame[5:40, 20:76].reshape(-1, 3).mean(0) - before[5:40, 20:76].reshape(-1, 3).mean(0)
    assert television[1] > 60 and np.abs(television[[0, 2]]).max() < 10
    world.close()


def joint(world, name):
    """Where a joint's position is in qpos."""
    return world._model.joint(name).qposadr[0]


def test_the_lamps_joint_is_read_and_not_the_buttons():
    """They are coupled, but softly: at rest and pressed the positions in millimetres are others."""
    world = RoboDeskEnv("tv_green_hue")
    world.reset(seed=0)
    for _ in range(30):
        world.step(np.zeros(5))
    places = 1000 * world._data.qpos[[joint(world, "green_button"), joint(world, "green_light")]]
    np.testing.assert_allclose(places, [-0.524, 0.023], atol=1e-3)
    push(world, "green", 180)
    button, light = 1000 * world._data.qpos[[joint(world, "green_button"), joint(world, "green_light")]]
    assert -13 < button < -10.5  # how deep the arm comes depends on the version of MuJoCo
    assert light == pytest.approx(button / 3 - 3.2, abs=0.05)  # where the springs balance does not

    world.reset(seed=0)
    for name, pressed in (("green_button", False), ("green_light", True)):
        world._data.qpos[[joint(world, "green_button"), joint(world, "green_light")]] = 0
        world._data.qpos[joint(world, name)] = -0.006
        assert world.situation().pressed("green") == pressed
        np.testing.assert_allclose(world.sensors(), [0, 1.2 * pressed, 0])
        assert dict(zip(world.signal_names, world.signal(), strict=True))["hue/green"] == pytest.approx(0.9 * pressed)
        assert world.screen()[0, 0, 1] == (round(0.1 * 128 + 0.9 * 255) if pressed else 128)


def test_the_reward_reads_the_rounded_texture():
    world = RoboDeskEnv("tv_green_hue")
    world.reset(seed=0)
    world.show_on_tv(lambda: np.random.default_rng(0).integers(0, 256, (60, 120, 3), dtype=np.uint8))
    world._data.qpos[world._lights[1]] = -0.001
    hue, green = 0.75 * 0.2, world.picture[..., 1].astype(float)
    texture = np.rint(green * (1 - hue) + 255 * hue).repeat(2, 0)  # [120, 120]
    assert world.situation().screen[1] == pytest.approx(texture.mean() / 255, abs=1e-12)
    world.frame()
    address = world._model.tex_adr[world._model.texture("tv").id]
    uploaded = world._model.tex_data[address : address + 3 * texture.size].reshape(120, 120, 3)
    np.testing.assert_array_equal(uploaded[..., 1], texture)
    np.testing.assert_array_equal(uploaded[..., [0, 2]], world.picture.repeat(2, 0)[..., [0, 2]])
    world.close()


def test_targets_of_the_wrist_and_the_fingers():
    """Targets in closed form: the measured angle and 0.02 of 2.9671, cut off there; both fingers, absolutely."""
    env = RoboDeskEnv("stack")
    env.reset(seed=0)
    for angle, turn, grip in ((0.5, 1.0, 0.5), (2.96, 1.0, -1.0), (-2.9671, -0.3, 1.0)):
        env._data.qpos[6] = angle
        targets = env._arm.targets(env._data, np.array([0, 0, 0, turn, grip]))
        assert targets[6] == pytest.approx(np.clip(angle + 0.02 * 2.9671 * turn, -2.9671, 2.9671))
        np.testing.assert_allclose(targets[7:], 0.04 * (grip + 1) / 2)


@pytest.mark.parametrize("color", COLORS)
def test_each_television_task_has_its_own_colour(color):
    world = RoboDeskEnv(f"tv_{color}_hue")
    world.reset(seed=0)
    channel = COLORS.index(color)
    for index, other in enumerate(COLORS):
        world._data.qpos[:] = world._model.qpos0
        world._data.qpos[joint(world, f"{other}_light")] = -0.005
        screen = world.screen().mean((0, 1))
        assert (screen[channel] > 200) == (index == channel)
        np.testing.assert_allclose(np.delete(screen, channel), 128)


def test_sparse_pays_in_every_step_and_success_once():
    earned = {}
    for reward in ("sparse", "success"):
        env = RoboDeskEnv("open_drawer", reward)
        env.reset(seed=0)
        env._data.qpos[env._model.joint("drawer_joint").qposadr[0]] = -0.3
        earned[reward] = [env.step(np.zeros(5))[1] for _ in range(4)]
    assert earned == {"sparse": [1, 1, 1, 1], "success": [1, 0, 0, 0]}
    env.reset(seed=0)
    env._data.qpos[env._model.joint("drawer_joint").qposadr[0]] = -0.3
    assert env.step(np.zeros(5))[1] == 1  # in the next episode again


def test_starts_are_copies_so_that_a_lifted_block_counts():
    env = RoboDeskEnv("lift_ball", "dense")
    env.reset(seed=0)
    low = env.step(np.zeros(5))[1]
    env._data.qpos[env._model.joint("ball").qposadr[0] + 2] += 0.5
    high = env.step(np.zeros(5))[1]
    assert low < 0.15 and high > 0.85
    assert env.situation().moved("ball") > 0.3 and env.situation().moved("flat_block") < 0.01


def test_rendering_changes_nothing(make):
    env, other = make(distractors=ALL), make(distractors=ALL)
    for each in (env, other):
        each.reset(seed=2)
    for action in actions(3):
        observation = env.step(action)[0]
        np.testing.assert_array_equal(env.render(), observation)
        np.testing.assert_array_equal(other.step(action)[0], observation)


@pytest.mark.parametrize("task, distractors", [("tv_green_hue", ALL), ("lift_ball", {"camera_jitter": {}})])
def test_state_round_trip_in_the_middle_of_an_episode(make, task, distractors):
    env = make(task, distractors=distractors)
    env.reset(seed=1)
    for action in actions(10, seed=1):
        env.step(action)
    state = env.get_state()
    assert_plain(state)

    def go(each):
        steps = [each.step(action) for action in actions(8, seed=2)]
        columns = [(o, r, i["signal"], i["noise"]) for o, r, _, _, i in steps]
        return [*map(np.stack, zip(*columns, strict=True)), each.reset()[0]]

    expected = go(env)
    env.set_state(state)
    fresh = make(task, distractors=distractors)
    fresh.set_state(state)
    np.testing.assert_equal(fresh.get_state(), state)
    for each in (env, fresh):
        for left, right in zip(expected, go(each), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.filterwarnings("error::UserWarning")
def test_gymnasium_checker(clips):
    import pickle

    name = "denoised_mdp/robodesk_tv_green_hue-v0"
    env = gym.make(name, episode_steps=8, distractors=ALL, clips=clips)
    assert env.observation_space.shape == (96, 96, 3)
    check_env(env.unwrapped)
    again = gym.make(pickle.loads(pickle.dumps(env.spec)))
    np.testing.assert_array_equal(env.reset(seed=1)[0], again.reset(seed=1)[0])
    env.close()
    again.close()
    for task in tasks("robodesk"):
        assert f"denoised_mdp/robodesk_{task}-v0" in gym.registry


def test_the_turn_of_the_plain_ball_is_no_factor_and_its_place_is_one(make):
    """What a turn shows of it is the edges of its polygons: less than a shift by two millimetres shows."""
    env = make("lift_ball", quality="faithful")
    env.reset(seed=0)
    world = env.world.unwrapped
    kinds = dict(zip(world.signal_names, world.signal_kinds, strict=True))
    turn = [f"qpos/ball/{i}" for i in range(3, 7)] + [f"qvel/ball/{i}" for i in range(3, 6)]
    place = [f"qpos/ball/{i}" for i in range(3)] + [f"qvel/ball/{i}" for i in range(3)]
    assert {kinds[name] for name in turn} == {"unseen"} and {kinds[name] for name in place} == {"scalar"}
    assert {kinds[f"qpos/flat_block/{i}"] for i in range(3, 7)} == {"quaternion"}
    assert not {"qpos/ball", "qvel/ball/3"} & {factor.name for factor in factors(env)}
    names = [joint.name for joint in visible_joints(world._model, 0)]
    assert "ball/x" in names and "ball/rotation" not in names and "flat_block/rotation" in names
    place, pictures = world._model.joint("ball").qposadr[0], [world.frame().astype(float)]
    for shift, turn in ((0.0, [0.6, 0.0, 0.8, 0.0]), (0.002, [1.0, 0.0, 0.0, 0.0])):
        world._data.qpos[place + 1] += shift
        world._data.qpos[place + 3 : place + 7] = turn
        mujoco.mj_forward(world._model, world._data)
        pictures.append(world.frame().astype(float))
    turned, shifted = (np.abs(one - pictures[0]).sum() for one in pictures[1:])
    assert turned < shifted / 2


def test_every_number_has_its_quadrant(make):
    noisy = make(distractors=ALL)
    kinds = noisy.quadrants
    text = (Path(__file__).parents[1] / "docs" / "environments.md").read_text("utf-8")
    assert f"| RoboDesk, noisy | {quadrant_table(noisy)} |\n" in text
    assert kinds["qpos/panda0_joint1"] == kinds["qpos/green_button"] == kinds["hue/green"] == "controllable, relevant"
    assert kinds["qpos/green_light"] == kinds["end_effector/x"] == "controllable, relevant"
    assert kinds["qpos/ball/0"] == kinds["qpos/drawer_joint"] == kinds["qpos/red_button"] == "controllable, irrelevant"
    assert kinds["tv/green"] == kinds["button_noise/green"] == "uncontrollable, relevant"
    assert kinds["moving_lights/light_0/x"] == kinds["camera_shake/eye_x"] == "uncontrollable, irrelevant"
    drawer = make("open_drawer", distractors=ALL).quadrants
    assert drawer["qpos/drawer_joint"] == "controllable, relevant"
    assert drawer["qpos/green_button"] == drawer["hue/green"] == "controllable, irrelevant"
    assert drawer["tv/green"] == drawer["button_noise/green"] == "uncontrollable, irrelevant"


@pytest.mark.parametrize(("task", "decisive"), [("open_slide", "slide_joint"), ("ball_in_shelf", "ball")])
def test_only_a_dense_reward_depends_on_blocks_that_should_stay(task, decisive):
    world = RoboDeskEnv(task)
    world.reset(seed=0)
    solved = world._data.joint(decisive).qpos
    solved[:2] = (0.3, 1.1) if task == "ball_in_shelf" else 0.6
    earned = []
    for shift in (0.0, 0.2):
        world._data.joint("flat_block").qpos[1] += shift
        mujoco.mj_forward(world._model, world._data)
        situation = world.situation()
        earned.append((world._task.reward(situation, "dense"), world._task.reward(situation, "sparse")))
    assert earned[0][0] > earned[1][0] and earned[0][1] == earned[1][1] == 1
    for reward in ("dense", "sparse", "success"):
        irrelevant = RoboDeskEnv(task, reward=reward).quadrants
        assert f"qpos/{decisive}*" not in irrelevant
        assert ("qpos/flat_block*" in irrelevant) == (reward != "dense")


def test_the_hue_is_seen_where_there_is_a_television():
    for television in (False, True):
        world = RoboDeskEnv("open_drawer", television=television)
        assert world.signal_kinds[-1] == ("scalar" if television else "unseen")
        assert len(world.signal_kinds) == len(world.signal_names)
