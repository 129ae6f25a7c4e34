"""RoboDesk's distractors: their formulas, that they are seen, and that they leave the physics alone."""

import numpy as np
import pytest
from robodesk_case import ALL, MARKS, actions

from denoised_mdp.envs.paired import PairedWorlds
from denoised_mdp.envs.robodesk import RoboDeskEnv
from denoised_mdp.envs.robodesk_distractors import LAMP_PLACES, ButtonNoise, CameraShake, MovingLights
from denoised_mdp.envs.robodesk_tv import TV, sharpen

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
    env, bare = make({name: ALL[name]}), make({})
    assert {factor.split("/")[0] for factor in env.noise_names} == {name}
    own, plain = rollout(env, 4, seed=1), rollout(bare, 4, seed=1)
    np.testing.assert_array_equal(own[2], plain[2])
    for frame, still in zip(own[0], plain[0], strict=True):
        assert np.abs(frame.astype(int) - still).max() > 10
    together = rollout(make(ALL), 4, seed=1)
    columns = [index for index, factor in enumerate(make(ALL).noise_names) if factor.startswith(name)]
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
    travel = -env.unwrapped._data.qpos[env.unwrapped._buttons] / 0.005
    np.testing.assert_allclose(env.unwrapped.sensors(), travel + expected)


def test_button_noise_changes_lamps_and_television_but_not_whether_a_button_is_pressed():
    env = RoboDeskEnv("tv_green_hue")
    env.reset(seed=0)
    env._data.qpos[env._buttons] = 0
    quiet = env.situation()
    env.sensor_error = np.array([0.0, 1.0, 0.0])
    loud = env.situation()
    assert loud.pressed("green") == quiet.pressed("green") is False
    assert loud.screen[1] == pytest.approx(0.25 * quiet.screen[1] + 0.75)
    assert loud.screen[0] == quiet.screen[0]
    np.testing.assert_allclose(env.screen().mean((0, 1)) / 255, loud.screen, atol=0.5 / 255)


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
        places = LAMP_PLACES.copy()
        places[:, :2] += np.array([[0.5], [0.707], [1.0]]) * np.column_stack([np.sin(angles), np.cos(angles)])
        shade = glow * (LAMP_PLACES**2).sum(1) / (places**2).sum(1)
        lighting = env.unwrapped.lighting
        np.testing.assert_allclose(lighting.places, places)
        np.testing.assert_allclose(lighting.diffuse, np.clip(shade if room else 0.7 * shade + 0.09, 0, 1))
        assert lighting.headlight == pytest.approx(0.9)
    np.testing.assert_allclose(env.noise_values()[2::3], lighting.diffuse)


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
    difference = [np.abs(np.roll(straight, -shift, 1)[:, 12:-12].astype(int) - shifted[:, 12:-12]).mean()
                  for shift in range(12)]  # fmt: skip
    assert int(np.argmin(difference)) >= 4  # what is seen moves to the left


def test_television_scrolls_and_its_clips_run(clips):
    env = TV(RoboDeskEnv("tv_green_hue"), frames=100, clips=clips)
    env.reset(seed=0)
    assert env._roll == 0
    (left, right), streams = env._index, env._streams
    for step in range(1, 130):
        env._advance_noise()
        sides = [stream.frame((begin + step) % 100) for stream, begin in zip(streams, (left, right), strict=True)]
        if step % 40 == 0:
            contrast = np.clip(np.rint(259 * 275 / (255 * 239) * (np.concatenate(sides, 1) - 128.0) + 128), 0, 255)
            expected = np.roll(sharpen(contrast.astype(np.uint8)), step % 120, axis=1)
            np.testing.assert_array_equal(env.unwrapped.picture, expected)
            values = dict(zip(env.noise_names, env.noise(), strict=True))
            assert values["tv/phase_roll"] == pytest.approx(step % 120 / 120)
            assert values["tv/left/stream_index"] == (left + step) % 100
            assert values["tv/green"] == pytest.approx(expected[..., 1].mean() / 255, abs=1e-5)
            corner = expected[40:, 100:].mean() / 255
            assert values["tv/brightness_2_5"] == pytest.approx(corner, abs=1e-5)
    assert not {clip.identity for clip in streams[0].clips} & {clip.identity for clip in streams[1].clips}
    assert env.unwrapped.situation().screen[0] == pytest.approx(env.unwrapped.picture[..., 0].mean() / 255)


def test_sharpen_equals_its_definition():
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge").astype(float)
    for row in range(7):
        for column in range(9):
            mean = padded[row : row + 3, column : column + 3].mean((0, 1))
            expected = np.clip(image[row, column] + 0.5 * (image[row, column] - mean), 0, 255)
            assert np.abs(sharpen(image)[row, column] - expected).max() < 0.51
    np.testing.assert_array_equal(sharpen(np.full((5, 5, 3), 77, np.uint8)), 77)


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


def test_clips_differ_between_splits_and_seeds(make):
    pictures = []
    for options in ({}, {"split": "test"}, {"clips_seed": 3}):
        env = make({"tv": {"frames": 100}}, **options)
        env.reset(seed=0)
        pictures.append(env.world.unwrapped.picture)
    assert (pictures[0] != pictures[1]).any() and (pictures[0] != pictures[2]).any()
