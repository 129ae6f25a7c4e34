"""RoboDesk's distractors: their formulas, that they are seen, and that they leave the physics alone."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from robodesk_case import ALL, MARKS, actions
from scipy.ndimage import correlate
from scipy.stats import chisquare, kstest

from denoised_mdp.envs.distractors import SmoothWalk
from denoised_mdp.envs.factors import factors
from denoised_mdp.envs.paired import PairedWorlds
from denoised_mdp.envs.robodesk.distractors import LAMP_PLACES, ButtonNoise, CameraShake, MovingLights
from denoised_mdp.envs.robodesk.env import RoboDeskEnv
from denoised_mdp.envs.robodesk.tv import _CONTRASTED, _GAIN, TV, sharpen
from denoised_mdp.envs.video import decode

pytestmark = MARKS


@pytest.fixture
def make(make, clips):
    """make_env for RoboDesk whose environments are closed after the test."""
    return lambda distractors, task="tv_green_hue", **options: make(
        task, suite="robodesk", distractors=distractors, **{"size": 96, "clips": clips, **options}
    )


def rollout(env, count=6, **reset):
    first, info = env.reset(**reset)
    rows = [(first, 0.0, info["signal"], info["noise"])]
    for action in actions(count):
        observation, reward, _, _, info = env.step(action)
        rows.append((observation, reward, info["signal"], info["noise"]))
    return [np.stack(column) for column in zip(*rows, strict=True)]


def noise(env, info):
    return dict(zip(env.noise_names, info["noise"], strict=True))


def test_same_seed_same_frames_and_other_distractors_same_physics(make):
    env, twin = make(ALL), make(ALL)
    left, right = rollout(env, seed=5), rollout(twin, seed=5)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
    other = rollout(env, seed=5, options={"distractor_seed": 6})
    np.testing.assert_array_equal(other[2], left[2])  # the true state, to the last bit
    assert (other[0] != left[0]).any() and (other[3] != left[3]).any(0).sum() > 40
    assert (other[1] != left[1]).any()  # the television's picture is part of the reward
    bare = rollout(make({}), seed=5)
    np.testing.assert_array_equal(bare[2], left[2])


@pytest.mark.parametrize("name", list(ALL))
def test_each_alone_changes_the_picture_and_only_its_own_noise(make, name):
    env, bare, all_of_them = make({name: ALL[name]}), make({}), make(ALL)
    assert {factor.split("/")[0] for factor in env.noise_names} == {name}
    own, plain = rollout(env, 4, seed=1), rollout(bare, 4, seed=1)
    np.testing.assert_array_equal(own[2], plain[2])
    for frame, still in zip(own[0], plain[0], strict=True):
        assert np.abs(frame.astype(int) - still).max() > 10
    together = rollout(all_of_them, 4, seed=1)
    columns = [index for index, factor in enumerate(all_of_them.noise_names) if factor.startswith(name)]
    np.testing.assert_array_equal(together[3][:, columns], own[3])  # its generator is its own


@pytest.mark.parametrize("name", ["button_noise", "camera_shake"])
def test_strength_zero_is_none_and_noise_grows_with_it(make, name):
    plain = rollout(make({}), 3, seed=2)
    none, one, two = (rollout(make({name: {"strength": strength}}), 3, seed=2) for strength in (0, 1, 2))
    for a, b in zip(none[:3], plain[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(two[3], 2 * one[3], rtol=1e-5)
    assert not none[3].any()


def test_lights_without_swing_and_flicker_are_the_usual_ones(make):
    plain = rollout(make({}), 2, seed=2)
    still = rollout(make({"moving_lights": {"swing": 0, "flicker": 0}}), 2, seed=2)
    np.testing.assert_array_equal(still[0], plain[0])
    for options in ({"swing": 0}, {"flicker": 0}):
        assert (rollout(make({"moving_lights": options}), 2, seed=2)[0] != plain[0]).any()


def test_television_without_strength_is_gray(make):
    plain = rollout(make({}), 2, seed=2)
    gray = rollout(make({"tv": {"frames": 100, "strength": 0}}), 2, seed=2)
    for a, b in zip(gray[:3], plain[:3], strict=True):
        np.testing.assert_array_equal(a, b)


def test_button_noise_follows_its_recursion():
    env = ButtonNoise(RoboDeskEnv("push_green"))
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    env.rng = np.random.default_rng(0)
    drift = env._drift
    for _ in range(5):
        env._advance()
        k = np.sqrt(0.96)
        drift = k * drift + (1 - k) * rng.normal(size=3)
        expected = 0.295 * drift + 0.0125 * rng.normal(size=3)
        np.testing.assert_allclose(env.noise_values(), expected)
    env._show()
    travel = -env.unwrapped._data.qpos[env.unwrapped._lights] / 0.005
    np.testing.assert_allclose(env.unwrapped.sensors(), travel + expected)


def test_button_noise_changes_lamps_and_television_but_not_whether_a_button_is_pressed():
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    env._data.qpos[env._lights] = 0
    quiet = env.situation()
    env.sensor_error = np.array([0.0, 1.0, 0.0])
    loud = env.situation()
    assert loud.pressed("green") == quiet.pressed("green") is False
    assert loud.screen[1] == round(0.25 * 128 + 0.75 * 255) / 255
    assert loud.screen[0] == quiet.screen[0] == 128 / 255


def test_how_often_noise_lights_the_lamps_and_colours_the_television():
    """At rest, over 200 inner steps: a fifth of the time and a hue of 0.023; with the wrong joint 0.8 and 0.086."""
    env = ButtonNoise(RoboDeskEnv("tv_green_hue"))
    env.reset(seed=0)
    world = env.unwrapped
    for _ in range(30):
        world.step(np.zeros(5))
    readings = []
    for _ in range(150):
        env._reset_noise()
        for _ in range(200):
            readings.append(world.sensors())
            env._advance_noise()
    lit = 6 * (np.array(readings) - 0.12) + 0.4 > 0
    hue = np.clip(0.75 * np.array(readings), 0, 1)
    assert lit.mean() == pytest.approx(0.2, abs=0.05)
    assert hue.mean() == pytest.approx(0.023, abs=0.006)


@pytest.mark.parametrize("room", [False, True])
def test_lights_in_closed_form(room):
    env = MovingLights(RoboDeskEnv("push_green", television=room))
    env.reset(seed=3)
    angles, rng = env._angle.copy(), np.random.default_rng(1)
    env.rng = np.random.default_rng(1)
    pace = np.array([np.sqrt(5), 1, 1 / np.sqrt(3)]) / 30
    for time in range(1, 30):
        env._advance_noise()
        angles = (angles + np.clip(rng.normal(pace, pace / 2), 0, 0.8)) % (2 * np.pi)
        wave = 0.3 * np.sin(env._phase + time * np.sqrt([1, 8, 28]) / 15) - 0.15
        glow = np.clip(rng.normal(wave, 0.15), 0, 1)
        places, share = LAMP_PLACES.copy(), 1.0 if room else 0.7
        places[:, :2] += share * np.array([[0.5], [0.707], [1.0]]) * np.column_stack([np.sin(angles), np.cos(angles)])
        shade = glow * (LAMP_PLACES**2).sum(1) / (places**2).sum(1)
        lighting = env.unwrapped.lighting
        np.testing.assert_allclose(lighting.places, places)
        np.testing.assert_allclose(lighting.diffuse, share * shade + (1 - share) * 0.3)
        assert lighting.headlight == pytest.approx(0.9)
    np.testing.assert_allclose(env.noise_values()[2::3], lighting.diffuse)


def test_lights_start_at_standard_normal_angles_and_phases():
    env = MovingLights(RoboDeskEnv("push_green"))
    env.rng = np.random.default_rng(0)
    starts = []
    for _ in range(1000):
        env._start()
        starts.append([*env._angle, *env._phase])
        assert env._time == 0
    assert kstest(np.ravel(starts), "norm").pvalue > 0.01
    correlation = np.corrcoef(np.array(starts).T) - np.eye(6)
    assert np.abs(correlation).max() < 0.12


def test_lights_shine_on_the_origin_and_the_headlight_has_its_shares():
    env = MovingLights(RoboDeskEnv("tv_green_hue"))
    env.reset(seed=0)
    env.frame()
    world = env.unwrapped
    light, model, data = world.lighting, world._model, world._data
    np.testing.assert_allclose(data.light_xpos, light.places)
    np.testing.assert_allclose(np.cross(data.light_xdir, light.places), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(data.light_xdir, axis=1), 1)
    assert ((data.light_xdir * light.places).sum(1) < 0).all() and (model.light_type == 1).all()  # directional
    np.testing.assert_allclose(model.light_diffuse, light.diffuse[:, None].repeat(3, 1), rtol=1e-6)
    head = model.vis.headlight
    for found, expected in ((head.ambient, 0.225), (head.diffuse, 0.9), (head.specular, 0.9)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    still = RoboDeskEnv("tv_green_hue")
    still.reset(seed=0)
    still.frame()
    head = still._model.vis.headlight
    for found, expected in ((head.ambient, 0.1), (head.diffuse, 0.4), (head.specular, 0.5)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    env.close()
    still.close()


def test_the_reward_is_of_the_state_and_the_noise_after_the_step(make):
    env = make(ALL)
    env.reset(seed=0)
    world, before = env.world.unwrapped, []
    for action in actions(6):
        before.append(world.situation().screen[1])
        reward = env.world.step(action)[1]
        near = 1 - np.linalg.norm(world._data.site("end_effector").xpos - [-0.25, 0.625, 0.76])
        pressed = world._data.joint("green_light").qpos[0] < -0.00453
        hue = np.clip(0.75 * (-world._data.joint("green_light").qpos[0] / 0.005 + world.sensor_error[1]), 0, 1)
        green = np.rint(world.picture[..., 1] * (1 - hue) + 255 * hue).mean() / 255
        assert reward == pytest.approx(0.5 * green + 0.25 * near + 0.25 * pressed, abs=1e-9)
        assert green != before[-1]


def test_the_smooth_walk_is_its_recursion():
    walk, rng, twin = SmoothWalk(3, 0.65), np.random.default_rng(0), np.random.default_rng(0)
    walk.reset(rng)
    place, speed = twin.normal(0, 0.075 / np.sqrt(3), 3), twin.normal(0, 0.005, 3)
    outside = 0
    for _ in range(400):
        np.testing.assert_allclose(walk.value(), 0.65 * place)
        walk.step(rng)
        far = np.linalg.norm(place) >= 0.075
        push = -0.1 * place if far else twin.normal(0, 0.005, 3)
        speed = (speed + 0.5 * push) * 0.9**0.5
        place = place + 0.5 * speed
        outside += far
    assert 0 < outside < 400


def test_camera_shake_starts_anew_at_every_reset():
    env = CameraShake(RoboDeskEnv("push_green"))
    env.rng = np.random.default_rng(0)
    starts = []
    for _ in range(500):
        env._start()
        starts.append(env.noise_values())
        env._advance()
    sizes = np.std(starts, 0)
    np.testing.assert_allclose(sizes, np.repeat([0.3, 0.65], 3) * 0.075 / np.sqrt(3), rtol=0.12)
    assert np.abs(np.corrcoef(starts[1:], starts[:-1], rowvar=False)[:6, 6:]).max() < 0.15


def test_camera_shake_moves_eye_and_target():
    env = CameraShake(RoboDeskEnv("push_green"))
    env.reset(seed=0)
    lengths = []
    for _ in range(3000):
        env._advance()
        lengths.append([np.linalg.norm(walk.value()) for walk in env._walks])
    mean = np.mean(lengths, 0)
    assert 0.5 < mean[0] / (0.3 * 0.075) < 1.5 and 0.5 < mean[1] / (0.65 * 0.075) < 1.5
    env._show()
    np.testing.assert_array_equal(np.concatenate(env.unwrapped.camera_shift), env.noise_values())
    still = env.frame()
    renderer = env.unwrapped._renderer
    shifted = renderer.film(env.unwrapped._data, np.zeros(3), np.array([0.1, 0.0, 0.0]))  # looks to the right
    straight = renderer.film(env.unwrapped._data, np.zeros(3), np.zeros(3))
    env.close()
    assert (still != straight).any()
    difference = [
        np.abs(np.roll(straight, -shift, 1)[:, 12:-12].astype(int) - shifted[:, 12:-12]).mean() for shift in range(12)
    ]
    assert int(np.argmin(difference)) >= 4  # what is seen moves to the left


def by_hand(frame):
    """A source's picture, pixel by pixel: uint8 [60, 60, 3] -> same."""
    contrast = np.clip(np.rint(1.3660353 * frame.astype(float) - 46.4864865), 0, 255)
    out = np.zeros_like(frame)
    for row in range(60):
        for column in range(60):
            total = 3 * contrast[row, column]
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                r, c = (118 - i if i > 59 else abs(i) for i in (r, c))  # mirrored about the pixels of the border
                total = total - 0.5 * contrast[r, c]
            out[row, column] = np.clip(np.rint(total), 0, 255)
    return out


def test_television_scrolls_and_its_clips_run(make, clips):
    env = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips=clips)
    env.reset(seed=0)
    assert env._roll == 0
    (left, right), streams = env._index, env._streams
    for step in range(1, 130):
        env._advance_noise()
        sides = [stream.frame((begin + step) % 100) for stream, begin in zip(streams, (left, right), strict=True)]
        if step % 40 == 0:
            expected = np.roll(np.concatenate([by_hand(side) for side in sides], 1), step % 120, axis=1)
            np.testing.assert_array_equal(env.unwrapped.picture, expected)
            values = dict(zip(env.noise_names, env.noise(), strict=True))
            assert values["tv/phase_roll"] == pytest.approx(step % 120 / 120), "a clock, and so no factor"
            assert values["tv/left/stream_index"] == (left + step) % 100
            assert values["tv/green"] == pytest.approx(expected[..., 1].mean() / 255, abs=1e-5)
            corner = expected[40:, 100:].mean() / 255
            assert values["tv/brightness_2_5"] == pytest.approx(corner, abs=1e-5)
    found = {factor.name for factor in factors(make(["tv"]))}
    assert {"tv/green", "tv/brightness"} <= found and not any("phase" in name for name in found)
    assert env.unwrapped.situation().screen[0] == pytest.approx(env.unwrapped.picture[..., 0].mean() / 255)


def test_sharpen_is_a_correlation_with_its_kernel():
    images = np.random.default_rng(0).integers(0, 256, (2, 7, 9, 3), dtype=np.uint8)
    kernel = np.array([[0, -0.5, 0], [-0.5, 3, -0.5], [0, -0.5, 0]])[None, :, :, None]
    exact = correlate(images.astype(float), kernel, mode="mirror")
    np.testing.assert_array_equal(sharpen(images), np.clip(np.rint(exact), 0, 255))
    np.testing.assert_array_equal(sharpen(np.full((1, 5, 5, 3), 77, np.uint8)), 77)


def test_contrast_is_a_saturated_line():
    gain, offset = 1.36604, -46.49  # of which the exact numbers are rounded
    assert _GAIN == pytest.approx(gain, abs=5e-6) and 127 * (1 - _GAIN) == pytest.approx(offset, abs=5e-3)
    exact = np.clip(gain * np.arange(256) + offset, 0, 255)
    assert np.abs(_CONTRASTED - exact).max() < 0.51


def test_both_sides_have_all_clips_in_orders_of_their_own(clips):
    orders = []
    for seed in range(8):
        env = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips="procedural", split="all", clips_seed=seed)
        orders.append([[clip.identity for clip in side] for side in env._clips])
        for side in orders[-1]:
            assert len(side) == 8 and sorted(side) == sorted(orders[0][0])
    assert sum(left == right for left, right in orders) <= 1
    assert len({tuple(order) for pair in orders for order in pair}) >= 15


def test_sources_are_reduced_to_the_nearest_pixels(clips):
    env = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips=clips)
    env.reset(seed=0)
    for stream in env._streams:
        shown = stream.clips[stream.position(45)[0]]
        path = next(path for path in Path(clips).glob("train/*") if path.name == shown.identity.split()[0])
        nearest = decode(path, 60, True, 100, "nearest")
        np.testing.assert_array_equal(stream.frame(45), nearest[stream.position(45)[1]])
        assert (nearest != decode(path, 60, True, 100)).any()


def test_each_side_starts_anywhere_at_every_reset_and_the_picture_unrolled(clips):
    env = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips=clips)
    env.reset(seed=0)
    starts = []
    for _ in range(2000):
        env._start()
        starts.append(env._index)
        env._roll += 7
        env._start()
        assert env._roll == 0
    starts = np.array(starts)
    assert starts.min() == 0 and starts.max() == 99
    assert chisquare(np.bincount(starts[:, 0], minlength=100)).pvalue > 0.01
    assert abs(np.corrcoef(starts.T)[0, 1]) < 0.08


def test_paired_worlds_show_the_same_state_under_other_distractors(make):
    env = make(ALL)
    variants = {
        "clean": {"distractors": {}},
        "no shake": {"without": ["camera_shake"]},
        "other clips": {"split": "test"},
        "other noise": {"seed": 9},
    }
    with PairedWorlds(env, variants) as worlds:
        worlds.reset(seed=0)
        for action in actions(3):
            results = worlds.step(action)
        signals = [result[-1]["signal"] for result in results.values()]
        for signal in signals[1:]:
            np.testing.assert_array_equal(signal, signals[0])
        frames = {name: result[0] for name, result in results.items()}
        assert len({frame.tobytes() for frame in frames.values()}) == len(frames)
        noises = worlds.noises()
        assert noises["no shake"]["tv/left/frame"] == noises["original"]["tv/left/frame"]
        assert noises["other clips"]["camera_shake/eye_x"] == noises["original"]["camera_shake/eye_x"]
        assert noises["other noise"]["camera_shake/eye_x"] != noises["original"]["camera_shake/eye_x"]


def test_paired_worlds_may_lack_the_television(make):
    """The scene has one body less then."""
    with PairedWorlds(make(["tv", "camera_shake"], task="open_drawer"), {"no tv": {"without": ["tv"]}}) as worlds:
        worlds.reset(seed=0)
        for action in actions(3):
            one, other = worlds.step(action).values()
        np.testing.assert_array_equal(one[-1]["signal"], other[-1]["signal"])
        assert (one[0] != other[0]).any()


def test_button_noise_of_a_paired_world_has_its_own_strength(make):
    variants = {name: {"change": {"button_noise": {"strength": s}}} for name, s in (("half", 0.5), ("off", 0.0))}
    with PairedWorlds(make(["button_noise"]), variants) as worlds:
        worlds.reset(seed=0)
        for action in [None, *actions(2)]:
            if action is not None:
                worlds.step(action)
            values = {name: np.array([*found.values()]) for name, found in worlds.noises().items()}
            assert values["original"].all() and not values["off"].any()
            np.testing.assert_allclose(values["half"], values["original"] / 2, rtol=1e-6)
        sensors = {name: world.unwrapped.world.unwrapped.sensors() for name, world in worlds.worlds.items()}
        error = 2 * (sensors["half"] - sensors["off"])
        np.testing.assert_allclose(error, values["original"], rtol=1e-6)


@pytest.mark.parametrize(("task", "count"), [("open_drawer", 1), ("tv_green_hue", 4)])
def test_the_television_draws_what_camera_and_reward_see_and_no_more(make, monkeypatch, task, count):
    env = make({"tv": {"frames": 100}}, task=task, action_repeat=4)
    drawn, draw = [], TV.picture
    monkeypatch.setattr(TV, "picture", lambda tv: [drawn.append(1), draw(tv)][1])
    env.reset(seed=0)
    drawn.clear()
    env.step(np.zeros(5))
    assert len(drawn) == count


def test_what_a_gray_screen_hides_is_no_factor(make):
    for strength, shown in ((0.0, False), (0.5, True)):
        env = make({"tv": {"frames": 100, "strength": strength}})
        env.reset(seed=0)
        assert any(factor.name.startswith("tv/") for factor in factors(env)) == shown


@pytest.mark.parametrize(("camera", "shown"), [("auto", True), ("desk", False), ("room", True)])
def test_the_desks_camera_is_not_asked_about_the_television(make, camera, shown):
    """It sees a sliver of it."""
    env = make(["tv"], camera=camera)
    env.reset(seed=0)
    names = [factor.name for factor in factors(env)]
    assert any(name.startswith("tv/") for name in names) == ("hue/green" in names) == shown


def test_a_world_is_freed_with_its_television(clips):
    world = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips=clips)
    world.reset(seed=0)
    world.unwrapped.situation()
    held = weakref.ref(world.unwrapped)
    gc.disable()  # a cycle would keep it until the collector comes
    try:
        world.close()
        del world
        assert held() is None
    finally:
        gc.enable()


def test_clips_differ_between_splits_and_seeds(make):
    pictures = []
    for options in ({}, {"split": "test"}, {"clips_seed": 3}):
        env = make({"tv": {"frames": 100}}, **options)
        shown = []
        for seed in range(4):
            env.reset(seed=seed)
            shown.append(env.world.unwrapped.picture)
        pictures.append(np.stack(shown))
    assert (pictures[0] != pictures[1]).any() and (pictures[0] != pictures[2]).any()
