"""Distractors of the scene, the sensor of every task, mattes by colour, and the four kinds of information."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from denoised_mdp.envs import tasks
from denoised_mdp.envs.distractors.appearance import BodyColor, CameraPose, Lighting, rotation
from denoised_mdp.envs.dmc import DMCEnv
from denoised_mdp.envs.factors import NOISE, QUADRANTS, RELEVANT_NOISE, SIGNAL, factors
from denoised_mdp.envs.quadrants import quadrant_table, quadrants_of
from denoised_mdp.envs.sensors import SENSORS, WITHOUT_SENSOR

SCENE = {"body_color": BodyColor, "lighting": Lighting, "camera_pose": CameraPose}
VIDEO = {"video_background": {"frames": 300}}
EVERYTHING = {**{name: {} for name in SCENE}, **VIDEO, "noisy_sensor": {}, "camera_jitter": {}}


def noise(env):
    return dict(zip(env.noise_names, env.world.noise(), strict=True))


def test_a_scene_is_changed_for_the_frame_only(make):
    plain, changed = make("walker_walk"), make("walker_walk", distractors={name: {} for name in SCENE})
    for env in (plain, changed):
        env.reset(seed=0)
    model = changed.world.unwrapped._physics.model.ptr
    fields = [name for name in dir(model) if isinstance(getattr(model, name), np.ndarray)]
    before = {name: getattr(model, name).copy() for name in fields if not name.startswith("_")}
    assert (changed.render() != plain.render()).any()
    np.testing.assert_array_equal(changed.world.unwrapped.frame(), plain.render())  # nothing is left behind
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(model, name), value, err_msg=name)


@pytest.mark.parametrize("name", SCENE)
def test_strength_scales_the_factors_and_zero_changes_nothing(make, name):
    frame = make("cheetah_run").reset(seed=0)[0]
    none, half, full = (make("cheetah_run", distractors={name: {"strength": s}}) for s in (0.0, 0.5, 1.0))
    frames = [env.reset(seed=0)[0] for env in (none, half, full)]
    np.testing.assert_array_equal(frames[0], frame)
    for key, value in noise(full).items():
        assert noise(half)[key] == pytest.approx(value / 2) and noise(none)[key] == 0 != value
    change = [np.abs(f.astype(int) - frame).mean() for f in frames]
    assert 0 < change[1] < change[2]


@pytest.mark.parametrize("name", [*SCENE, "camera_jitter", "video_background"])
def test_static_distractors_hold_still_within_an_episode(make, name):
    options = VIDEO.get(name, {})
    still = make("cheetah_run", distractors={name: {"dynamic": False, **options}})
    moving = make("cheetah_run", distractors={name: options})
    starts = []
    for env in (still, moving):
        first = env.reset(seed=0)[1]["noise"]
        starts.append(first)
        for _ in range(3):
            info = env.step(np.zeros(env.action_space.shape))[-1]
        assert (info["noise"] == first).all() == (env is still)
    np.testing.assert_array_equal(*starts)
    assert (still.reset()[1]["noise"] != starts[0]).any()  # but every episode has its own


@pytest.mark.parametrize("name", SCENE)
def test_factors_start_with_the_spread_that_is_promised(make, name):
    env = make("cheetah_run", distractors={name: {}})
    env.reset(seed=0)
    walker = env.world
    draws = []
    for _ in range(4000):
        walker._reset_noise()
        draws.append(walker.noise_values())
    spread = np.sqrt(np.mean(np.square(draws), 0))
    np.testing.assert_allclose(spread, list(SCENE[name].factors.values()), rtol=0.05)


def place(distractor, **values):
    """Give the factors of a distractor these values and the others zero."""
    amplitudes = distractor.factors
    wanted = np.array([values.get(name, 0.0) / amplitude for name, amplitude in amplitudes.items()])
    distractor._walk.position = wanted / distractor._walk.scale


def test_body_color_shifts_bodies_and_not_targets(make):
    env = make("reacher_easy", distractors={"body_color": {}})
    env.reset(seed=0)
    world = env.world.unwrapped
    plain, mask = world.frame_and_background()
    place(env.world, red=-0.3, blue=0.3)
    frame, _ = env.world.frame_and_background()
    changed = (frame != plain).any(-1)
    model, ids = world._physics.model, world._physics.render(64, 64, camera_id=0, segmentation=True)
    moves = model.body_weldid[model.geom_bodyid] != 0
    body = (ids[..., 1] == mujoco.mjtObj.mjOBJ_GEOM) & moves[np.where(ids[..., 0] >= 0, ids[..., 0], 0)]
    assert changed.any() and not changed[~body].any() and changed[body].mean() > 0.9
    assert frame[body, 0].mean() < plain[body, 0].mean() and frame[body, 2].mean() > plain[body, 2].mean()


def test_body_color_shifts_strings_and_marks_on_bodies(make):
    env = make("ball_in_cup_catch", distractors={"body_color": {}})
    env.reset(seed=0)
    world, shown = env.world.unwrapped, {}

    def record(scene, model, data):
        drawn = scene.geoms[: scene.ngeom]
        shown.update({(geom.objtype, geom.objid, geom.segid): geom.rgba.copy() for geom in drawn})

    world.stage.append(record)
    world.frame()
    plain = dict(shown)
    world.stage.clear()
    place(env.world, red=-0.3, blue=0.3)
    with env.world._on_stage():
        world.stage.append(record)
        world.frame()
    changed = {key[0] for key in plain if (shown[key] != plain[key]).any()}
    assert changed == {mujoco.mjtObj.mjOBJ_TENDON, mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_GEOM}


def test_brightness_is_the_log_of_the_gain_of_every_light(make):
    env = make("cheetah_run", distractors={"lighting": {}})
    env.reset(seed=0)
    place(env.world)
    plain, mask = env.world.frame_and_background()
    place(env.world, brightness=np.log(0.5))
    dark, _ = env.world.frame_and_background()
    np.testing.assert_allclose(dark[~mask].mean(), plain[~mask].mean() / 2, rtol=0.05)  # light is linear
    place(env.world, warmth=0.4, brightness=np.log(0.5))  # dark enough that no channel is clipped
    warm, _ = env.world.frame_and_background()
    ratio = warm[~mask].mean(0) / dark[~mask].mean(0)
    np.testing.assert_allclose(ratio, np.exp([0.4, 0, -0.4]), rtol=0.05)
    place(env.world, swing_x=1.5)
    swung, again = env.world.frame_and_background()
    assert (swung != plain).any()
    np.testing.assert_array_equal(again, mask)


def test_camera_pose_is_where_a_camera_of_that_pose_would_be(make):
    env = make("cheetah_run", distractors={"camera_pose": {}})
    env.reset(seed=0)
    values = {"azimuth": 0.3, "elevation": 0.2, "roll": -0.25, "distance": 0.15}
    place(env.world, **values)
    moved = env.world.frame()
    world = env.world.unwrapped
    data = world._physics.data.ptr
    position, axes = data.cam_xpos[0].copy(), data.cam_xmat[0].reshape(3, 3).copy()
    right, forward = axes[:, 0], -axes[:, 2]
    depth = forward @ (data.subtree_com[0] - position)
    pivot = position + depth * forward
    turn = rotation(np.array([0, 0, 1.0]), 0.3)
    lift = rotation(turn @ right, -0.2)
    total = rotation(lift @ turn @ forward, -0.25) @ lift @ turn
    data.cam_xpos[0] = pivot - np.exp(0.15) * depth * (total @ forward)
    data.cam_xmat[0] = (total @ axes).ravel()
    np.testing.assert_allclose(world.frame().astype(int), moved.astype(int), atol=1)
    place(env.world)
    data.cam_xpos[0], data.cam_xmat[0] = position, axes.ravel()
    np.testing.assert_array_equal(env.world.frame(), world.frame())


def test_rotation_by_its_axioms():
    axis = np.array([1.0, -2.0, 0.5])
    matrix = rotation(axis, 0.7)
    np.testing.assert_allclose(matrix @ axis, axis)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1) and np.trace(matrix) == pytest.approx(1 + 2 * np.cos(0.7))
    np.testing.assert_allclose(rotation(np.array([0, 0, 3.0]), np.pi / 2) @ [1, 0, 0], [0, 1, 0], atol=1e-12)


def test_all_distractors_together_save_their_state(make):
    env, fresh = (make("walker_walk", distractors=EVERYTHING) for _ in range(2))
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (20, *env.action_space.shape))
    for action in actions[:10]:
        env.step(action)
    state = env.get_state()
    steps = [env.step(action) for action in actions[10:]]
    fresh.set_state(state)
    for action, (observation, reward, *_, info) in zip(actions[10:], steps, strict=True):
        other = fresh.step(action)
        np.testing.assert_array_equal(other[0], observation)
        assert other[1] == reward
        np.testing.assert_array_equal(other[-1]["noise"], info["noise"])


def test_each_distractor_has_a_generator_of_its_own(make):
    alone = {name: make("walker_walk", distractors={name: {}}) for name in SCENE}
    together = make("walker_walk", distractors=EVERYTHING)
    action = np.zeros(together.action_space.shape)
    for env in (*alone.values(), together):
        env.reset(seed=5)
        env.step(action)
    for env in alone.values():
        assert noise(env).items() <= noise(together).items()


def test_no_two_distractors_draw_the_same_numbers(make):
    """A generator of PCG64 is on one of its many streams."""
    env = make("dot", suite="toy", distractors={"video_background": {"frames": 300}, "camera_jitter": {}})
    env.reset(seed=0)
    streams = [layer.rng.bit_generator.state["state"]["inc"] for layer in (env.world, env.world.env)]
    assert streams[0] != streams[1]


def test_the_camera_shakes_by_a_share_of_the_picture(make):
    small, large = (make("dot", suite="toy", size=size, distractors=["camera_jitter"]) for size in (64, 96))
    shifts = [env.reset(seed=0)[1]["noise"][-2:] for env in (small, large)]
    np.testing.assert_allclose(shifts[1], shifts[0] * 96 / 64, rtol=1e-6)


@pytest.mark.parametrize("task", [task for task in SENSORS if not task.startswith(("dog", "humanoid_CMU"))])
def test_the_reward_of_every_task_reads_its_sensor_shifted_by_the_offset(task):
    env = DMCEnv(task)
    env.reset(seed=0)
    sensor, physics, read = SENSORS[task], env._physics, []
    plain = getattr(physics, sensor.method)
    env.reward_sensor_offset = 0.25
    with env._shifted_sensor():
        shifted = getattr(physics, sensor.method)
        setattr(physics, sensor.method, lambda *names: read.append((plain(*names), shifted(*names))) or read[-1][1])
        env._task.get_reward(physics)
    assert read and sensor.shift(physics, 1.0) > 0
    for value, found in read:
        assert found == pytest.approx(value + sensor.shift(physics, 0.25), rel=1e-12)
    assert sensor.method not in vars(physics)  # and nothing remains of it
    env._physics.free()


def test_the_papers_matte_is_its_rule_by_colour(make):
    for task, rule in (("cheetah_run", "blue"), ("walker_walk", "blue_ge")):
        options = [{"video_background": {"matte": matte, "frames": 300}} for matte in ("paper", rule)]
        frames = [make(task, distractors=chosen).reset(seed=0)[0] for chosen in options]
        np.testing.assert_array_equal(*frames)


def test_where_the_papers_rule_clears_what_the_exact_matte_does():
    for task, least in (("cheetah_run", 1.0), ("walker_walk", 0.97), ("reacher_easy", 0.97)):
        env = DMCEnv(task)
        env.reset(seed=0)
        exact = env.frame_and_background("matte")[1]
        by_color = env.frame_and_background("blue_ge" if task == "walker_walk" else "blue")[1]
        assert (exact == by_color).mean() >= least
        env.close()


def test_signals_are_complete(make):
    for task in ("quadruped_walk", "manipulator_bring_peg", "point_mass_hard"):
        env = make(task)
        env.reset(seed=3)
        model = env.world.unwrapped._physics.model.ptr
        names = [name.split("/")[0] for name in env.signal_names]
        assert names.count("qpos") == model.nq and names.count("qvel") == model.nv and names.count("act") == model.na
        changed = env.reset(seed=4)[1]["signal"] != env.reset(seed=3)[1]["signal"]
        drawn = [name for name, changes in zip(env.signal_names, changed, strict=True) if changes]
        if task == "point_mass_hard":
            assert {"mixing/0", "mixing/1", "mixing/2", "mixing/3"} <= set(drawn)
        if task == "manipulator_bring_peg":
            assert {"target/x", "target/z", "target/angle"} <= set(drawn)


@pytest.mark.filterwarnings("always")  # else repeated ones are dropped anyway
def test_a_video_that_no_pixel_shows_warns_once(make, recwarn):
    """The reacher's camera looks down at the floor: kept, it leaves no background."""
    for task, matte, seen in (("reacher_easy", "sky", 0), ("reacher_easy", "matte", 1), ("cheetah_run", "sky", 1)):
        env = make(task, distractors={"video_background": {"matte": matte}})
        for seed in range(2):
            env.reset(seed=seed)
        told = [str(one.message) for one in recwarn.list if "no video_background is in sight" in str(one.message)]
        assert len(told) == (not seen), (task, matte)
        recwarn.clear()


def test_quadrants_are_complete_and_those_of_the_paper(make):
    for task, suite in [("cheetah_run", "dmc"), ("reacher_easy", "dmc"), ("dot", "toy"), ("counting", "toy")]:
        env = make(task, suite=suite)
        assert list(env.quadrants) == [*env.signal_names, *env.noise_names]
        assert set(env.quadrants.values()) <= set(QUADRANTS)
    plain = make("cheetah_run", distractors={"video_background": {}, "camera_jitter": {}}).quadrants
    noisy = make("cheetah_run", distractors=EVERYTHING)
    for name, quadrant in noisy.quadrants.items():
        kind = name.split("/")[0]
        relevant = kind in ("video_background", "noisy_sensor")
        assert quadrant == (SIGNAL if kind in ("qpos", "qvel") else RELEVANT_NOISE if relevant else NOISE)
    assert plain["video_background/clip"] == plain["camera_jitter/dx"] == NOISE
    dead = make("cheetah_run", distractors={"video_background": {}, "noisy_sensor": {"strength": 0}}).quadrants
    assert dead["video_background/clip"] == dead["noisy_sensor/offset"] == NOISE
    assert make("reacher_easy").quadrants["target/x"] == RELEVANT_NOISE
    for factor in factors(noisy):  # the probes' factors agree
        names = noisy.signal_names if factor.source == "signal" else noisy.noise_names
        assert {quadrants_of(noisy)[names[column]] for column in factor.columns} == {factor.quadrant}
    row = "`qpos/*`, `qvel/*` | - | - | `video_background/*`, `camera_jitter/*`"
    assert quadrant_table(make("cheetah_run", distractors={"video_background": {}, "camera_jitter": {}})) == row


def test_quadrants_and_sensors_in_the_documentation_are_those_of_the_code(make):
    """RoboDesk's row is tested with it."""
    text = (Path(__file__).resolve().parent.parent / "docs" / "environments.md").read_text("utf-8")
    for name, distractors in {
        "DMC, noiseless": {},
        "video background": {"video_background": {}},
        "video background + noisy sensor": {"video_background": {}, "noisy_sensor": {}},
        "video background + camera jitter": {"video_background": {}, "camera_jitter": {}},
        "body colour, lighting, camera pose": {name: {} for name in SCENE},
    }.items():
        assert f"| {name} | {quadrant_table(make('cheetah_run', distractors=distractors))} |\n" in text
    for name, task, suite in (
        ("DMC with a target", "reacher_easy", "dmc"),
        ("point_mass_hard", "point_mass_hard", "dmc"),
        ("toy", "dot", "toy"),
        ("toy, counting", "counting", "toy"),
    ):
        assert f"| {name} | {quadrant_table(make(task, suite=suite))} |\n" in text, name
    for task, sensor in SENSORS.items():
        unit = sensor.meaning.partition("; ")[2]
        assert any(f"`{task}`" in line and f"`{sensor.method}`" in line and unit in line for line in text.splitlines())
    assert all(task in text for task in WITHOUT_SENSOR if not task.startswith("lqr"))


def test_every_task_of_the_suite_has_a_sensor_or_is_known_to_have_none():
    assert sorted(tasks("dmc")) == sorted([*SENSORS, *WITHOUT_SENSOR]) and len(tasks("dmc")) == 51
