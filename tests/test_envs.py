"""Environments: contracts, seeds, state, distractors in closed form."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import actions_for, assert_plain

from denoised_mdp.config import load_config
from denoised_mdp.envs import check_distractors, make_env, tasks
from denoised_mdp.envs.distractors import SmoothWalk, translate
from denoised_mdp.envs.factors import factors
from denoised_mdp.envs.pixels import PixelEnv
from denoised_mdp.envs.sensors import SENSORS, WITHOUT_SENSOR
from denoised_mdp.envs.toy import CountingEnv, ToyEnv, make_toy
from denoised_mdp.errors import UserError
from denoised_mdp.seeding import generator

EVERYTHING = {"camera_jitter": {}, "noisy_sensor": {}, "video_background": {"frames": 300}}


def rollout(env, actions):
    """Return observations, rewards, signals and noises of the steps as arrays."""
    steps = [env.step(action) for action in actions]
    return tuple(
        np.stack(column) for column in zip(*((o, r, i["signal"], i["noise"]) for o, r, _, _, i in steps), strict=True)
    )


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("task, suite", [("cheetah_run", "dmc"), ("reacher_easy", "dmc"), ("dot", "toy")])
@pytest.mark.parametrize("size", [64, 96])
def test_contract(make, task, suite, size):
    env = make(task, suite=suite, size=size, distractors={"camera_jitter": {}}, episode_steps=6)
    observation, info = env.reset(seed=0)
    for count in range(1, 4):
        assert observation.shape == (size, size, 3) and observation.dtype == np.uint8
        for kind in ("signal", "noise"):
            assert info[kind].dtype == np.float32
            assert info[kind].shape == (len(getattr(env, f"{kind}_names")),)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert isinstance(reward, float) and not terminated
        assert truncated == (count == 3)  # 6 inner steps, 2 per action


def test_signal_is_joint_state_and_target(make):
    env = make("reacher_easy")
    _, info = env.reset(seed=3)
    assert env.signal_names == (
        *("qpos/shoulder", "qpos/wrist", "qvel/shoulder", "qvel/wrist"),
        *("target/x", "target/y", "target/z"),
    )
    physics = env.world.unwrapped._physics
    np.testing.assert_array_equal(info["signal"][:2], physics.data.qpos.astype(np.float32))
    np.testing.assert_array_equal(info["signal"][4:6], physics.named.model.geom_pos["target"][:2].astype("f4"))


@pytest.mark.parametrize("task", ["cheetah_run", "walker_walk", "hopper_hop", "fish_upright", "quadruped_walk"])
def test_no_pixel_shows_what_is_unseen(make, task):
    """Behind the body is the clip: cameras that follow it, or all that moves, do not show where it is."""
    env = make(task, distractors={"video_background": {"strength": 1}})
    env.reset(seed=0)
    env.step(np.zeros(env.action_space.shape, np.float32))
    world = env.unwrapped.world.unwrapped
    before, state = world.frame_and_background("matte")[0].astype(int), world.get_state()
    kinds = dict(zip(world.signal_names, world.signal_kinds, strict=True))
    hidden = [name for name, kind in kinds.items() if kind == "unseen" and name.startswith("qpos/")]
    assert hidden
    places = [name for name in kinds if name.startswith("qpos/")]
    for name in (*hidden, next(name for name in places if kinds[name] != "unseen" and "root" not in name)):
        world._physics.data.qpos[places.index(name)] += 0.5
        world._physics.forward()
        changed = (abs(world.frame_and_background("matte")[0].astype(int) - before).max(-1) > 8).sum()
        assert changed == 0 if name in hidden else changed > 3, name
        world.set_state(state)


@pytest.mark.parametrize("task", ["swimmer_swimmer6", "fish_swim"])
def test_of_a_goal_a_camera_that_follows_the_body_shows_where_it_is_from_there(make, task):
    """Moved along with the body, it stands still in the picture: the place itself is unseen."""
    world = make(task).world.unwrapped
    world.reset(seed=0)
    kinds = dict(zip(world.signal_names, world.signal_kinds, strict=True))
    assert kinds["target/x"] == kinds["target/y"] == "unseen" and kinds["target/z"] == "scalar"
    physics = world._physics
    physics.named.model.geom_pos["target", ["x", "y"]] = physics.data.qpos[:2] + 0.1  # in the picture
    physics.forward()
    before = world.frame_and_background()[0].astype(int)
    for body, goal in ((0.3, 0.3), (0.0, 0.3)):
        physics.named.model.geom_pos["target", "x"] += goal
        physics.data.qpos[0] += body
        physics.forward()
        changed = (abs(world.frame_and_background()[0].astype(int) - before).max(-1) > 40).sum()  # a lamp stays behind
        assert changed == 0 if body else changed > 3
    assert make("reacher_easy").world.unwrapped.signal_kinds[-3:] == ("scalar",) * 3


@pytest.mark.parametrize("camera", [0, 2])  # one follows all that moves, one the torso
def test_of_two_free_bodies_a_camera_that_follows_shows_no_place(make, camera):
    """Moved together they stand still in the picture, before a matte that shows no floor."""
    world = make("quadruped_fetch", camera=camera).world.unwrapped
    world.reset(seed=0)
    kinds = dict(zip(world.signal_names, world.signal_kinds, strict=True))
    for root in ("root", "ball_root"):
        assert [kinds[f"qpos/{root}/{number}"] for number in range(3)] == ["unseen", "unseen", "scalar"]
    physics = world._physics
    before = world.frame_and_background()
    for root in ("root", "ball_root"):
        physics.named.data.qpos[root][:2] += 0.5
    physics.forward()
    after = world.frame_and_background()
    body = ~(before[1] | after[1])
    assert body.any() and (before[1] != after[1]).mean() < 0.005
    assert (abs(after[0].astype(int) - before[0])[body].max(-1) > 40).mean() < 0.02  # lamps stay behind


def test_how_a_plain_ball_is_turned_is_unseen_and_how_a_peg_is_turned_is_not(make):
    for task, name, unseen in (("manipulator_bring_ball", "ball_y", True), ("manipulator_bring_peg", "peg_y", False)):
        world = make(task).world.unwrapped
        world.reset(seed=0)
        kinds = dict(zip(world.signal_names, world.signal_kinds, strict=True))
        assert (kinds[f"qpos/{name}"] == kinds[f"qvel/{name}"] == "unseen") == unseen
        assert ("target/angle" in kinds) != unseen
        assert any(joint.name == name for joint in world.joints) != unseen
        before = world.frame().astype(int)
        world._physics.named.data.qpos[name] += 1
        world._physics.forward()
        assert (abs(world.frame().astype(int) - before).max() <= 8) == unseen


def test_names_match_values_with_free_and_ball_joints(make):
    for task in ("ball_in_cup_catch", "fish_swim", "quadruped_walk", "manipulator_insert_peg", "stacker_stack_2"):
        env = make(task)
        assert len(env.reset(seed=0)[1]["signal"]) == len(env.signal_names) == len(set(env.signal_names))


def test_action_repeat_sums_raw_rewards_and_draws_the_last_frame(make):
    single, triple = (make("walker_walk", action_repeat=n, distractors=EVERYTHING) for n in (1, 3))
    for env in (single, triple):
        env.reset(seed=5)
    for action in actions_for(single, 5):
        steps = [single.step(action) for _ in range(3)]
        observation, reward, *_, info = triple.step(action)
        assert reward == pytest.approx(sum(step[1] for step in steps), abs=1e-12)
        np.testing.assert_array_equal(observation, steps[-1][0])
        np.testing.assert_array_equal(info["noise"], steps[-1][-1]["noise"])


def test_action_repeat_stops_at_the_end(make):
    env = make("counting", suite="toy", action_repeat=4, episode_steps=6)
    env.reset()
    assert env.step(env.action_space.sample())[1:4] == (1 + 2 + 3 + 4, False, False)
    assert env.step(env.action_space.sample())[1:4] == (5 + 6, False, True)


def test_counting_env_shows_episode_and_step(make):
    env = make("counting", suite="toy", action_repeat=2, episode_steps=600)
    for episode in range(3):
        observation, _ = env.reset()
        assert CountingEnv.decode(observation) == (episode, 0)
        for count in range(1, 301 if episode == 0 else 4):
            observation, reward, _, truncated, _ = env.step(env.action_space.sample())
            assert CountingEnv.decode(observation) == (episode, 2 * count)
            assert reward == (2 * count - 1) + 2 * count
            assert truncated == (count == 300)


@pytest.mark.parametrize("task, suite", [("cheetah_run", "dmc"), ("dot", "toy")])
def test_same_seed_same_frames(make, task, suite):
    distractors = EVERYTHING if suite == "dmc" else {"camera_jitter": {}}
    envs = [make(task, suite=suite, distractors=distractors) for _ in range(2)]
    actions = actions_for(envs[0], 5)
    runs = []
    for env in envs:
        first = env.reset(seed=7)[0]
        runs.append((first, *rollout(env, actions), env.reset()[0]))  # a second episode continues the streams
    assert_same(*runs)
    assert (runs[0][0] != envs[0].reset(seed=8)[0]).any()


def test_seed_of_the_first_reset(make):
    one, two = make("dot", suite="toy", seed=4), make("dot", suite="toy")
    np.testing.assert_array_equal(one.reset()[0], two.reset(seed=4)[0])
    np.testing.assert_array_equal(one.reset()[0], two.reset()[0])


@pytest.mark.parametrize("task, suite", [("cheetah_run", "dmc"), ("reacher_easy", "dmc"), ("dot", "toy")])
def test_other_distractors_leave_the_physics_unchanged(make, task, suite):
    distractors = {"video_background": {}, "camera_jitter": {}}
    env, bare = (make(task, suite=suite, distractors=chosen) for chosen in (distractors, {}))
    actions = actions_for(env, 10)
    runs = []
    for options in ({"distractor_seed": 1}, {"distractor_seed": 2}, None):
        env.reset(seed=11, options=options)
        runs.append(rollout(env, actions))
    bare.reset(seed=11)
    runs.append(rollout(bare, actions))
    for run in runs[1:]:
        assert_same(runs[0][1:3], run[1:3])  # rewards and joint states, to the last bit
    assert (runs[0][0] != runs[1][0]).any() and (runs[0][3] != runs[1][3]).any()


def test_render_advances_nothing(make):
    env, other = (make("cheetah_run", distractors=EVERYTHING) for _ in range(2))
    for each in (env, other):
        each.reset(seed=2)
    for action in actions_for(env, 3):
        observation = env.step(action)[0]
        np.testing.assert_array_equal(env.render(), observation)
        np.testing.assert_array_equal(env.render(), observation)
        np.testing.assert_array_equal(other.step(action)[0], observation)


STATE_CASES = [
    ("cheetah_run", "dmc", EVERYTHING),
    ("reacher_easy", "dmc", EVERYTHING),
    ("finger_turn_easy", "dmc", {"video_background": {"color": True, "frames": 300}}),
    ("point_mass_hard", "dmc", {}),
    ("acrobot_swingup", "dmc", {}),  # another integrator
    ("swimmer_swimmer6", "dmc", {}),
    ("hopper_hop", "dmc", {}),  # touch sensors
    ("quadruped_escape", "dmc", {}),  # terrain
    ("dot", "toy", {"camera_jitter": {}}),
]


@pytest.mark.parametrize("task, suite, distractors", STATE_CASES, ids=[case[0] for case in STATE_CASES])
def test_state_round_trip(make, task, suite, distractors):
    options = {"suite": suite, "distractors": distractors, "episode_steps": 1000}
    env = make(task, **options)
    env.reset(seed=1)
    rollout(env, actions_for(env, 20, seed=1))
    state = env.get_state()
    assert_plain(state)
    actions = actions_for(env, 20, seed=2)
    expected = (*rollout(env, actions), env.reset()[0])
    env.set_state(state)
    assert_same(expected, (*rollout(env, actions), env.reset()[0]))
    fresh = make(task, **options)
    fresh.set_state(state)
    np.testing.assert_equal(fresh.get_state(), state)
    assert_same(expected, (*rollout(fresh, actions), fresh.reset()[0]))


def test_smooth_walk_stays_near_its_radius():
    walk, rng = SmoothWalk(2, 120.0), np.random.default_rng(0)
    walk.reset(rng)
    values = []
    for _ in range(20_000):
        values.append(walk.value())
        walk.step(rng)
    lengths = np.linalg.norm(values, axis=1)
    assert 4 < lengths.mean() < 12  # about 9 pixels
    assert lengths.max() < 25
    speeds = np.linalg.norm(np.diff(values, axis=0), axis=1)
    assert speeds.max() < 3  # smooth


def test_smooth_walk_step_in_closed_form():
    walk = SmoothWalk(2, 3.0)
    walk.position, walk.velocity = np.array([0.08, 0.0]), np.array([0.01, -0.02])
    walk.step(np.random.default_rng(0))  # outside of the radius: pulled back, nothing random
    velocity = (np.array([0.01, -0.02]) + 0.5 * -0.1 * np.array([0.08, 0.0])) * 0.9**0.5
    np.testing.assert_allclose(walk.velocity, velocity)
    np.testing.assert_allclose(walk.value(), 3 * (np.array([0.08, 0.0]) + 0.5 * velocity))


@pytest.mark.parametrize("dx, dy", [(0, 0), (3, -2), (-0.25, 0.5), (7.3, 5.9), (-2.6, -9.1), (70, 1.5)])
def test_translate_equals_bilinear_sampling(dx, dy):
    image = np.random.default_rng(0).integers(0, 256, (12, 10, 3)).astype(np.uint8)
    height, width, _ = image.shape

    def pixel(row, column):
        inside = 0 <= row < height and 0 <= column < width
        return image[row, column].astype(float) if inside else np.zeros(3)

    expected = np.zeros(image.shape)
    for row in range(height):
        for column in range(width):
            y, x = row - dy, column - dx
            top, left = int(np.floor(y)), int(np.floor(x))
            for i, weight_y in ((top, top + 1 - y), (top + 1, y - top)):
                for j, weight_x in ((left, left + 1 - x), (left + 1, x - left)):
                    expected[row, column] += weight_y * weight_x * pixel(i, j)
    assert np.abs(translate(image, dx, dy) - expected).max() <= 0.501


def test_camera_jitter_moves_the_picture_as_the_noise_says(make):
    still, shaken = make("dot", suite="toy"), make("dot", suite="toy", distractors={"camera_jitter": {}})
    assert shaken.noise_names == still.noise_names + ("camera_jitter/dx", "camera_jitter/dy")
    frame, _ = still.reset(seed=0)
    moved, info = shaken.reset(seed=0)
    np.testing.assert_array_equal(moved, translate(frame, *info["noise"][-2:].astype(float)))


def test_video_is_behind_the_body(make):
    bare = make("cheetah_run")
    frame, _ = bare.reset(seed=0)
    _, mask = bare.world.frame_and_background()
    env = make("cheetah_run", distractors={"video_background": {"frames": 300}})
    composite, info = env.reset(seed=0)
    video = np.broadcast_to(env.world.background(), composite.shape)
    np.testing.assert_array_equal(composite[~mask], frame[~mask])
    np.testing.assert_array_equal(composite[mask], video[mask])
    noise = dict(zip(env.noise_names, info["noise"], strict=True))
    corner = env.world.background()[:16, 48:].mean() / 255
    assert noise["video_background/brightness_0_3"] == pytest.approx(corner, abs=1e-6)
    index = noise["video_background/stream_index"]
    info = env.step(env.action_space.sample())[-1]
    assert info["noise"][0] == (index + 2) % 300  # once per inner step


def test_video_strength_blends_with_the_original_background(make):
    options = [{"video_background": {"frames": 300, "strength": strength}} for strength in (0.0, 0.5, 1.0)]
    none, half, full = (make("walker_walk", distractors=chosen).reset(seed=0)[0] for chosen in options)
    np.testing.assert_array_equal(none, make("walker_walk").reset(seed=0)[0])
    assert np.abs(half - (none / 2 + full / 2)).max() <= 0.51


def test_what_a_video_hides_is_no_factor(make):
    """In the picture, it changes nothing; what shows does."""
    for strength, there, gone in ((0, "texture", "video"), (0.5, "texture video", ""), (1, "video", "texture")):
        env = make("dot", suite="toy", distractors={"video_background": {"strength": strength}})
        env.reset(seed=0)
        names = " ".join(factor.name for factor in factors(env))
        assert all(word in names for word in there.split()) and all(word not in names for word in gone.split())
        video, toy, before = env.world, env.world.unwrapped, env.observe()
        toy._phase = (toy._phase + 0.3) % 1
        assert (env.observe() == before).all() == ("texture" in gone)
        before = env.observe()
        video._index = (video._index + 50) % 1000
        assert (env.observe() == before).all() == ("video" in gone)


def test_worlds_get_clipped_actions():
    class Recorder(ToyEnv):
        def step(self, action):
            self.given = action
            return super().step(action)

    env = PixelEnv(Recorder(size=16))
    env.reset(seed=0)
    env.step([5.0, -0.5])
    np.testing.assert_array_equal(env.world.given, [1.0, -0.5])


def test_grayscale_is_one_brightness_and_color_is_not(make):
    for color in (False, True):
        env = make("cheetah_run", distractors={"video_background": {"frames": 300, "color": color}})
        env.reset(seed=0)
        assert env.world.background().shape[-1] == (3 if color else 1)


def tolerance(value, low, margin, at_margin):
    """dm_control's linear tolerance with an upper bound at infinity."""
    distance = max(low - value, 0) / margin
    return max(1 - distance * (1 - at_margin), 0)


def expected_reward(task, physics, offset):
    """The reward of the three tasks with a shifted sensor, from the formulas in the paper."""
    if task == "cheetah_run":
        return np.clip((physics.speed() + 10 * offset) / 10, 0, 1)
    if task == "reacher_easy":
        radii = physics.named.model.geom_size[["target", "finger"], 0].sum()
        return float(0 <= physics.finger_to_target_dist() + offset * radii <= radii)
    short = max(1.2 - (physics.torso_height() + 1.2 * offset), 0) / 0.6
    standing = np.exp(-0.5 * short**2 * (-2 * np.log(0.1)))  # dm_control's default: gaussian, 0.1 at the margin
    upright = (1 + physics.torso_upright()) / 2
    move = tolerance(physics.horizontal_velocity(), 1, 0.5, 0.5)
    return (3 * standing + upright) / 4 * (5 * move + 1) / 6


@pytest.mark.parametrize("task", ["cheetah_run", "walker_walk", "reacher_easy"])
@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
def test_noisy_sensor_shifts_the_reward(make, task, strength):
    distractors = {"video_background": {"frames": 300}, "noisy_sensor": {"strength": strength}}
    env = make(task, distractors=distractors, action_repeat=1)
    _, info = env.reset(seed=3)
    physics = env.world.unwrapped._physics
    for action in actions_for(env, 25):
        patch = env.world.env.background()[8:24, 8:24]  # shown before the step
        offset = strength * (patch.mean() / 255 - 0.5)
        assert info["noise"][-1] == pytest.approx(offset, abs=1e-6)
        _, reward, *_, info = env.step(action)
        assert reward == pytest.approx(expected_reward(task, physics, offset), abs=1e-6)
        assert "speed" not in vars(physics) and "torso_height" not in vars(physics)


def test_the_sensor_reads_what_is_shown_of_the_video(make):
    """At half its opacity half as much; nothing of one that is not shown."""
    offsets = {}
    for opacity in (1.0, 0.5, 0.0):
        env = make("walker_walk", distractors={"video_background": {"strength": opacity}, "noisy_sensor": {}})
        offsets[opacity] = [env.reset(seed=seed)[1]["noise"][-1] for seed in range(3)]
    np.testing.assert_allclose(offsets[0.5], np.array(offsets[1.0]) / 2, rtol=1e-6)
    assert min(np.abs(offsets[1.0])) > 1e-3 and not any(offsets[0.0])


@pytest.mark.parametrize("task", ["cheetah_run", "walker_walk", "reacher_easy", "quadruped_walk"])
def test_without_offset_physics_and_reward_are_dm_controls(make, task):
    from dm_control import suite

    ours = make(task).world
    ours.reset(seed=0)
    theirs = suite.load(*task.split("_"), task_kwargs={"random": 0})
    theirs.task.random.seed(generator(0, "physics").integers(2**32, size=8, dtype=np.uint32))
    theirs.reset()
    low, high = theirs.action_spec().minimum, theirs.action_spec().maximum
    for action in actions_for(ours, 20):
        reward = ours.step(action)[1]
        assert reward == theirs.step((low + high) / 2 + (high - low) / 2 * action.astype(float)).reward
    np.testing.assert_array_equal(ours._physics.data.qpos, theirs.physics.data.qpos)


def test_task_table_is_the_suites():
    from dm_control import suite

    assert sorted(tasks("dmc")) == sorted("_".join(pair) for pair in suite.ALL_TASKS)


def test_every_task_has_a_sensor_or_a_reason_why_not():
    assert sorted([*SENSORS, *WITHOUT_SENSOR]) == sorted(tasks("dmc"))


BAD = [
    (("cheetah_rum",), {}, "Did you mean 'cheetah_run'"),
    (("cheetah_run",), {"suite": "dcm"}, "Did you mean 'dmc'"),
    (("cheetah_run",), {"distractors": {"video_backgroud": {}}}, "Did you mean 'video_background'"),
    (("cheetah_run",), {"distractors": {"camera_jitter": {"strenght": 1}}}, "Did you mean 'strength'"),
    (("cheetah_run",), {"distractors": {"camera_jitter": {"strength": -1}}}, "at least 0"),
    (("cheetah_run",), {"distractors": {"camera_jitter": {"strength": "big"}}}, "not 'big'"),
    (("cheetah_run",), {"distractors": {"video_background": {"strength": 2}}}, "at least 0 and at most 1"),
    (("cheetah_run",), {"distractors": {"video_background": {"matte": "green"}}}, "blue_ge"),
    (("cheetah_run",), {"distractors": {"video_background": {"frames": 1.5}}}, "whole number"),
    (("cheetah_run",), {"distractors": {"video_background": {"frames": 10**12}}}, "at most 1000000"),
    (("tv_green_hue",), {"suite": "robodesk", "distractors": {"tv": {"frames": 1e12}}}, "at most 1000000"),
    (("cheetah_run",), {"distractors": {"video_background": {"start": "anywhere"}}}, "random, continue"),
    (("cheetah_run",), {"distractors": {"video_background": {"resize": "area"}}}, "antialiased, bilinear"),
    (("cheetah_run",), {"distractors": {"noisy_sensor": {}}}, "add video_background"),
    (("lqr_lqr_2_1",), {"distractors": {"video_background": {}, "noisy_sensor": {}}}, "'lqr_lqr_2_1'.*quadratic"),
    (("dot",), {"suite": "toy", "distractors": {"lighting": {}}}, "lighting does not fit suite 'toy'"),
    (("cheetah_run",), {"distractors": {"lighting": {"dynamic": 1}}}, "true or false"),
    (("counting",), {"suite": "toy", "distractors": {"camera_jitter": {}}}, "takes no distractors"),
    (("cheetah_run",), {"action_repeat": 0}, "at least 1"),
    (("cheetah_run",), {"size": "big"}, "size must be a whole number"),
    (("dot",), {"suite": "toy", "size": 10**9}, "at least 4 and at most 4096, not 1000000000"),
    (("cheetah_run",), {"episode_steps": 2.5}, "episode_steps must be a whole number"),
    (("cheetah_run",), {"seed": -1}, "seed must be a whole number of at least 0"),
    (("cheetah_run",), {"clips_seed": "x"}, "clips_seed must be a whole number"),
    (("cheetah_run",), {"clips": 5}, "text or a path"),
    (("cheetah_run",), {"clips": " "}, "text or a path"),
    (("cheetah_run",), {"size": 3}, "size must be at least 4 and at most 4096, not 3"),
    (("cheetah_run",), {"quality": 5}, "Unknown render quality 5. Choose one of"),
    (("cheetah_run",), {"suite": ["dmc"]}, r"Unknown suite \['dmc'\]"),
    (("stack",), {"suite": "robodesk", "reward": 5}, "Unknown reward 5"),
    (("stack",), {"suite": "robodesk", "camera": 1.0}, "no camera 1.0"),
    (("stack",), {"suite": "robodesk", "camera": True}, "no camera True"),
    (("stack",), {"suite": "robodesk", "camera": np.array([1, 2])}, "no camera array"),
    ((3,), {"suite": "gym"}, "Name an environment"),
    (("cheetah_run",), {"foreground": "no"}, "foreground must be True or False, not 'no'"),
    (("cheetah_run",), {"distractors": {"camera_jitter": {"strength": 1e300}}}, "strength .*at most 10"),
    (("cheetah_run",), {"distractors": [{"camera_jitter": {"strength": 0.5}}]}, "given as name and options"),
    (("cheetah_run",), {"distractors": 3}, "given as name and options"),
    (("cheetah_run",), {"distractors": {"camera_jitter": 3}}, "given as name and options"),
    (("cheetah_run",), {"distractors": ["camera_jiter"]}, "Did you mean 'camera_jitter'"),
    (("tv_green_hue",), {}, "'tv_green_hue' is none of suite 'dmc': choose suite 'robodesk'"),
    (("tv_green_hue",), {"suite": "robodesk", "distractors": ["noisy_sensor"]}, "no scalar sensor"),
    (
        ("tv_green_hue",),
        {"suite": "robodesk", "distractors": ["lighting"]},
        "Choose among distractors=tv, button_noise",
    ),
    (("cheetah_run",), {"camera": 99}, r"no camera 99.*0 \(side\)"),
    (("cheetah_run",), {"camera": None}, "camera must be the number or the name of one, not None"),
    (("cheetah_run",), {"camera": 0.5}, "camera must be the number or the name of one, not 0.5"),
    (("cheetah_run",), {"render_mode": "human"}, "rgb_array"),
]


@pytest.mark.parametrize("arguments, options, message", BAD, ids=range(len(BAD)))
def test_bad_requests_are_answered_in_one_line(arguments, options, message):
    with pytest.raises(UserError, match=message) as error:
        make_env(*arguments, **options)
    assert "\n" not in str(error.value)


def test_distractors_have_one_order_and_all_their_options():
    checked = check_distractors({"camera_jitter": None, "video_background": {"color": True}})
    assert list(checked) == ["video_background", "camera_jitter"]
    expected = {"strength": 1.0, "matte": "matte", "color": True, "frames": 1000, "dynamic": True}
    expected |= {"start": "random", "resize": "antialiased"}
    assert checked["video_background"] == expected


def test_distractors_can_be_chosen_by_names_alone():
    by_mapping = check_distractors({"video_background": {}, "camera_jitter": None})
    for names in (["camera_jitter", "video_background"], "camera_jitter, video_background"):
        assert check_distractors(names) == by_mapping
    assert check_distractors(None) == check_distractors("none") == check_distractors([]) == {}
    env = make_env("dot", suite="toy", distractors=["camera_jitter"], size=np.int64(32))
    assert "camera_jitter/dx" in env.noise_names and env.reset(seed=0)[0].shape == (32, 32, 3)


def test_a_suite_has_its_own_defaults_as_on_the_command_line():
    def of(env):
        return env.observation_space.shape[0], env.unwrapped.action_repeat, env.unwrapped.world.unwrapped.episode_steps

    for task, suite in (("stack", "robodesk"), ("dot", "toy"), ("gym_envs:Ball", "gym"), ("cheetah_run", "dmc")):
        config = load_config([f"env={suite}", f"env.task={task}", "distractors=none"]).env
        wanted = config.size, config.action_repeat, config.episode_steps
        assert of(make_env(task, suite=suite)) == wanted
        name = f"robodesk_{task}" if suite == "robodesk" else task
        assert suite == "gym" or of(gym.make(f"denoised_mdp/{name}-v0")) == wanted
    assert of(make_env("dot", suite="toy", size=32, action_repeat=5, episode_steps=7)) == (32, 5, 7)


def test_a_world_is_closed_when_what_is_asked_of_it_is_refused(monkeypatch):
    closed = []
    monkeypatch.setattr(ToyEnv, "close", lambda self: closed.append(self))
    monkeypatch.delattr(ToyEnv, "frame_and_background")
    with pytest.raises(UserError, match="video_background needs 'frame_and_background', which worlds of 'toy'"):
        make_env("dot", suite="toy", distractors=["video_background"])
    with pytest.raises(UserError, match="which pixels are background"):
        make_env("dot", suite="toy", foreground=True)
    assert len(closed) == 2


def test_an_episode_that_terminates_at_its_time_limit_is_not_truncated():
    world = make_toy("dot_terminating", 16, 1)
    world.reset(seed=0)
    world.set_state(world.get_state() | {"dot": np.array([0.85, 0.0])})
    assert world.step(np.array([1.0, 0.0]))[2:4] == (True, False)


def test_the_count_goes_on_beyond_two_bytes():
    env = CountingEnv(8, 10**6)
    env.reset(seed=0)
    env.set_state({"episode": 0, "step": 70_000})
    assert env.frame()[0, 0].tolist() == [70_000 % 256, 70_000 // 256 % 256, 0]


def test_spaces_are_gymnasiums():
    env = make_env("dot", suite="toy")
    assert isinstance(env, gym.Env) and env.observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
