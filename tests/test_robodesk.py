"""RoboDesk: physics, rewards, pictures, seeds, state; its distractors are in test_robodesk_distractors.py."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from conftest import assert_plain
from gymnasium.utils.env_checker import check_env
from robodesk_case import ALL, MARKS, actions

from denoised_mdp.envs import make_env, tasks
from denoised_mdp.envs.distractors import SmoothWalk
from denoised_mdp.envs.robodesk import SUBSTEPS, RoboDeskEnv
from denoised_mdp.envs.robodesk_arm import Arm
from denoised_mdp.envs.robodesk_camera import DESK, OVERSAMPLING, ROOM, RoomRenderer, View
from denoised_mdp.envs.robodesk_scene import ARM, COLORS, WOOD_GAIN, asset_folder, build_model, wood_brightness
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
    assert env.world.unwrapped.gl_device() == task.world.unwrapped.gl_device() != ""
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
        ({"distractors": {"tv": {"strength": 2}}}, "between 0 and 1"),
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
    places = {name: env._model.qpos0[env._model.joint(name).qposadr[0] :][:2].copy() for name in
              ("ball", "upright_block", "flat_block")}  # fmt: skip
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
            patch.setattr("denoised_mdp.envs.robodesk_arm.MAX_ITERATIONS", iterations)
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
    places = 1000 * world._data.qpos[[joint(world, "green_button"), joint(world, "green_light")]]
    np.testing.assert_allclose(places, [-11.1, -6.9], atol=0.3)

    world.reset(seed=0)
    for name, pressed in (("green_button", False), ("green_light", True)):
        world._data.qpos[[joint(world, "green_button"), joint(world, "green_light")]] = 0
        world._data.qpos[joint(world, name)] = -0.006
        assert world.situation().pressed("green") == pressed
        np.testing.assert_allclose(world.sensors(), [0, 1.2 * pressed, 0])
        assert dict(zip(world.signal_names, world.signal(), strict=True))["hue/green"] == pytest.approx(0.9 * pressed)
        assert world.screen()[0, 0, 1] == (round(0.1 * 128 + 0.9 * 255) if pressed else 128)


def test_lamps_follow_the_noisy_sensors_and_without_noise_the_pressed_buttons():
    world = RoboDeskEnv("push_green")
    world.reset(seed=0)
    world._data.qpos[world._lights] = [0.0, -0.0045, -0.0046]  # up, almost pressed, pressed
    world.frame()
    rgba = world._model.geom_rgba[world._lamps]
    np.testing.assert_allclose(rgba[:, 3], [0, 0, 0.4])
    np.testing.assert_array_equal(rgba[2, :3], [0, 0, 1])
    world._data.qpos[world._lights] = [0.0, -0.0005, -0.005]
    world.sensor_error = np.array([-0.02, 0.0, 0.0])
    world.frame()
    lamps = world._model.geom_rgba[world._lamps]
    np.testing.assert_allclose(lamps, [[0.3, 0.3, 0.3, 0.44], [0, 1, 0, 0.28], [0, 0, 1, 1]], atol=1e-6)
    world.close()


def test_the_reward_reads_the_rounded_texture():
    world = RoboDeskEnv("tv_green_hue")
    world.reset(seed=0)
    world.picture = np.random.default_rng(0).integers(0, 256, (60, 120, 3), dtype=np.uint8)
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


def test_a_dry_run_of_the_wrist_and_the_fingers():
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


@pytest.mark.parametrize("view, size", [(ROOM, 96), (DESK, 96), (DESK, 64)])
def test_the_part_that_is_drawn_equals_the_whole_cut(view, size):
    import mujoco
    from PIL import Image

    model = build_model(view is ROOM, "fast")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    part = RoomRenderer(model, size, view, "fast")
    whole_view = View(view.target, view.distance, view.elevation, (0.0, 0.0, 1.0, 1.0))
    whole = RoomRenderer(model, size, whole_view, "fast")
    side = round(OVERSAMPLING * size)
    try:
        whole.film(data, np.zeros(3), np.zeros(3))
        box = [side * edge for edge in view.part]
        expected = Image.fromarray(whole._rgb[::-1]).resize((size, size), Image.Resampling.LANCZOS, box)
        drawn = part.film(data, np.zeros(3), np.zeros(3))
        assert drawn.flags.writeable and drawn.dtype == np.uint8
        difference = np.abs(drawn.astype(int) - np.asarray(expected))
        assert difference.mean() < 0.5 and (difference > 8).mean() < 0.01
    finally:
        part.close()
        whole.close()


def test_what_is_kept_of_180_pixels():
    renderer = RoomRenderer(build_model(True, "fast"), 96, ROOM, "fast")
    assert renderer._rgb.shape == (141, 180, 3) and renderer._rows == (39, 180)
    renderer.close()


def turned(distance, azimuth, elevation):
    """From the eye to the target [3]."""
    azimuth, elevation = np.deg2rad([azimuth, elevation])
    level = np.cos(elevation)
    return distance * np.array([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)])


def test_the_camera_stands_where_it_should_and_shakes_before_the_views_offset():
    """Brute force: shake the package's pose, measure distance and angles of what comes out, and add to them."""
    target, eye = np.array([0, 0.535, 1.1]), np.array([0, 0.535, 1.1]) - turned(1.8, 90, -60)
    still = ROOM.pose(np.zeros(3), np.zeros(3))
    np.testing.assert_allclose(still[0], [0.875, 0.935, 1.975])
    np.testing.assert_allclose(still[1:], [2.95, 90, -47])
    for shifts in np.random.default_rng(0).normal(0, 0.05, (20, 2, 3)):
        at, distance, azimuth, elevation = DESK.pose(*shifts)
        np.testing.assert_allclose(at, target + shifts[1])
        np.testing.assert_allclose(turned(distance, azimuth, elevation), target + shifts[1] - eye - shifts[0])
        far = ROOM.pose(*shifts)
        np.testing.assert_allclose(far[0], at + [0.875, 0.4, 0.875])
        np.testing.assert_allclose(far[1:], [distance + 1.15, azimuth, elevation + 13])


def pixel(point, at, distance, azimuth, elevation):
    """Where a camera of 45 degrees sees `point`, in pixels of 96 that are squeezed from 180 columns and 141 rows."""
    ahead = turned(1, azimuth, elevation)
    right = turned(1, azimuth - 90, 0)
    line = point - at + distance * ahead
    focus = 90 / np.tan(np.deg2rad(22.5))
    x, y = focus * np.array([line @ right, line @ np.cross(ahead, right)]) / (line @ ahead)
    return x * 96 / 180, y * 96 / 141


def test_how_far_the_shaken_picture_moves():
    """Root mean squares in pixels, against those of the paper's picture on the desk and on the television.

    With the view's offset added before the shake, the television moves by 1.06 pixels in x.
    """
    rng, eye, target = np.random.default_rng(0), SmoothWalk(3, 0.3), SmoothWalk(3, 0.65)
    desk, television, places = np.array([0.875, 0.85, 0.76]), np.array([1.3, 1.825, 1.6]), []
    for _ in range(12):
        for walk in (eye, target):
            walk.reset(rng)
        for step in range(1000):
            if step % 25 == 0:
                pose = ROOM.pose(eye.value(), target.value())
                places.append([pixel(point, *pose) for point in (desk, television)])
            eye.step(rng)
            target.step(rng)
    (desk_x, desk_y), (television_x, television_y) = np.std(places, axis=0)
    np.testing.assert_allclose([desk_x, desk_y, television_x], [0.62, 1.46, 1.46], rtol=0.12)
    assert television_y == pytest.approx(1.08, rel=0.3)  # the one that hangs most on the episode


def test_the_room():
    """Neighbours without blocks and with unlit lamps, the television's looks, and no more joints than at the desk."""
    import mujoco

    model = build_model(True, "faithful")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert model.nq == build_model(False, "faithful").nq == 38
    visible = (model.geom_group <= 2) & (model.geom_rgba[:, 3] > 0)
    aside = visible & (data.geom_xpos[:, 0] > 0.7) & (data.geom_xpos[:, 1] < 1.2)
    for name in ("ball", "upright_block", "flat_block"):
        color = model.geom_rgba[model.body(name).geomadr[0]]
        assert not (aside & (model.geom_rgba == color).all(1)).any()
    assert (model.geom_rgba[aside, 3] == 1).all()  # what rises in a lamp is translucent
    assert (aside & (data.geom_xpos[:, 0] < 2)).sum() * 2 == aside.sum() > 30
    tv = [model.geom(i) for i in np.flatnonzero(model.geom_bodyid == model.body("tv").id)]
    np.testing.assert_allclose(model.body("tv").pos, [1.3, 1.825, 1.6])
    bezel, stand, screen = tv
    for geom, size, place, color in (
        (bezel, [2.4, 0.03, 1.4], [0, 0.035, 0], [0.1, 0.1, 0.1, 1]),
        (stand, [2.6, 0.2, 0.05], [0, 0, -1.5], [0.32, 0.137, 0.12, 1]),
        (screen, [2.3, 1.34, 1e-6], [0, 0, 0], [0.5, 0.5, 0.5, 1]),
    ):
        for is_, should in ((geom.size, size), (geom.pos, place), (geom.rgba, color)):
            np.testing.assert_allclose(is_, should, rtol=1e-6)
    look = model.material("tv")
    found = [float(value[0]) for value in (look.reflectance, look.shininess, look.specular, look.emission)]
    np.testing.assert_allclose(found, [0.7, 1, 1, 0], rtol=1e-6)
    assert model.material("plane_material").reflectance == pytest.approx(0.01)
    assert build_model(False, "fast").material("plane_material").reflectance == pytest.approx(0.05)
    lamp = model.geom("lamp/green")
    np.testing.assert_allclose(lamp.size[:2], [0.06, 0.0075])
    np.testing.assert_allclose(lamp.pos, [0, 0, 0.005])
    assert lamp.bodyid == model.body("green_light").id


def test_the_television_is_upright_and_not_mirrored():
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    env.picture = np.zeros((60, 120, 3), np.uint8)
    env.picture[30:, :60] = 255, 0, 0  # lower left
    env.picture[30:, 60:] = 0, 0, 255  # lower right
    frame = env.frame().astype(int)
    env.close()
    left, right, above = frame[36:48, 15:35], frame[36:48, 65:85], frame[2:12, 20:76]
    assert (left[..., 0] - left[..., 2]).min() > 150 and (right[..., 2] - right[..., 0]).min() > 150
    assert above.max() < 60


def test_what_there_is_to_see():
    """Each thing hidden in turn changes the picture: arm, desk, drawer, blocks, buttons, bin, lamps, neighbours."""
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    env._data.qpos[:9] = [-0.3, -0.4, 0.28, -2.5, 0.13, 1.87, 0.91, 0.01, 0.01]
    env._data.qpos[env._model.joint("drawer_joint").qposadr[0]] = -0.3
    env.step(np.zeros(5))
    whole, model = env.frame().astype(int), env._model
    bodies = ("panda0_link4", "desk", "drawer", "slide", "ball", "upright_block", "flat_block", "red_light", "tv")
    for body in bodies:
        geoms = np.flatnonzero(model.geom_bodyid == model.body(body).id)
        saved = model.geom_group[geoms].copy()
        model.geom_group[geoms] = 5
        assert np.abs(env.frame() - whole).max() > 20, body
        model.geom_group[geoms] = saved
    np.testing.assert_array_equal(env.frame(), whole)
    env.close()


def test_wood_is_as_bright_as_with_shadows():
    """The closed form: light by light cut off at 1, against the sum cut off at 1 and a brighter texture."""
    places, diffuse = np.array([[0.0, 0.0, 1.0]] * 3), np.array([0.3, 0.1, 0.0])
    color = wood_brightness(0.4, diffuse, places)
    assert WOOD_GAIN * color * (0.4 + 0.3 + 0.1) == pytest.approx(0.8 + 0.6 + 0.2)
    color = wood_brightness(0.9, diffuse, places)  # 2 * 0.9 is cut off
    assert WOOD_GAIN * color * (0.9 + 0.3 + 0.1) == pytest.approx(1 + 0.6 + 0.2)


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

    name = "denoised_mdp/robodesk_tv_green_hue-tv-button_noise-moving_lights-camera_shake-v0"
    assert gym.spec(name).kwargs["distractors"] == {distractor: {} for distractor in ALL}
    env = gym.make(name, episode_steps=8, distractors=ALL, clips=clips)
    assert env.observation_space.shape == (96, 96, 3)
    check_env(env.unwrapped)
    again = gym.make(pickle.loads(pickle.dumps(env.spec)))
    np.testing.assert_array_equal(env.reset(seed=1)[0], again.reset(seed=1)[0])
    env.close()
    again.close()
    for task in tasks("robodesk"):
        assert f"denoised_mdp/robodesk_{task}-camera_shake-v0" in gym.registry


def test_every_number_has_its_quadrant(make):
    kinds = make(distractors=ALL).quadrants
    assert kinds["qpos/panda0_joint1"] == kinds["qpos/green_button"] == kinds["hue/green"] == "controllable, relevant"
    assert kinds["qpos/green_light"] == kinds["end_effector/x"] == "controllable, relevant"
    assert kinds["qpos/ball/0"] == kinds["qpos/drawer_joint"] == kinds["qpos/red_button"] == "controllable, irrelevant"
    assert kinds["tv/green"] == kinds["button_noise/green"] == "uncontrollable, relevant"
    assert kinds["moving_lights/light_0/x"] == kinds["camera_shake/eye_x"] == "uncontrollable, irrelevant"
    drawer = make("open_drawer", distractors=ALL).quadrants
    assert drawer["qpos/drawer_joint"] == "controllable, relevant"
    assert drawer["qpos/green_button"] == drawer["hue/green"] == "controllable, irrelevant"
    assert drawer["tv/green"] == drawer["button_noise/green"] == "uncontrollable, irrelevant"
