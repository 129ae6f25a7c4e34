"""Paired worlds: one physics, other pictures; every equality is to the last bit."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
from conftest import actions_for

from denoised_mdp.envs import register_envs
from denoised_mdp.envs.paired import PairedWorlds, make_variant, render_paired, replay, replay_paired
from denoised_mdp.errors import UserError

BOTH = {"video_background": {"frames": 300}, "camera_jitter": {}}
VARIANTS = {
    "same": {},
    "still": {"without": ["camera_jitter"]},
    "other clips": {"split": "test"},
    "other noise": {"seed": 99},
    "weak": {"change": {"camera_jitter": {"strength": 0.5}}},
    "clean": {"distractors": {}},
}


@pytest.fixture
def env(make):
    return make("reacher_easy", distractors=BOTH)


def noise_of(env, info):
    return dict(zip(env.unwrapped.noise_names, info["noise"], strict=True))


def test_one_state_under_other_distractors(env):
    env.reset(seed=3)
    for action in actions_for(env, 7):
        observation = env.step(action)[0]
    before = env.get_state()
    with PairedWorlds(env, VARIANTS) as paired:
        frames, noises = paired.frames(), paired.noises()
    np.testing.assert_equal(env.get_state(), before)  # nothing of it was used up
    for name in ("original", "same"):
        np.testing.assert_array_equal(frames[name], observation)
    assert noises["same"] == noises["original"]
    own = noises["original"]
    assert noises["still"] == {key: value for key, value in own.items() if "jitter" not in key}
    assert noises["other clips"]["video_background/stream_index"] == own["video_background/stream_index"]
    assert noises["other clips"]["camera_jitter/dx"] == own["camera_jitter/dx"]
    assert noises["other clips"]["video_background/brightness_0_0"] != own["video_background/brightness_0_0"]
    assert noises["weak"]["camera_jitter/dx"] == pytest.approx(own["camera_jitter/dx"] / 2)
    assert noises["other noise"]["camera_jitter/dx"] != own["camera_jitter/dx"]
    assert noises["clean"] == {}
    world = env.world
    while isinstance(world, gym.Wrapper):
        world = world.env
    np.testing.assert_array_equal(frames["clean"], world.frame())
    _, mask = world.frame_and_background()
    np.testing.assert_array_equal(frames["still"][~mask], frames["clean"][~mask])
    assert (frames["still"][mask] != frames["clean"][mask]).any()


def test_stepping_on_from_the_middle_of_an_episode(env, make):
    env.reset(seed=4)
    actions = actions_for(env, 12)
    for action in actions[:5]:
        env.step(action)
    with PairedWorlds(env, VARIANTS) as paired:
        for action in actions[5:8]:
            results = paired.step(action)
        for action in actions[8:10]:
            env.step(action)  # an agent moves on by itself
        for action in actions[10:]:
            results = paired.step(action)
        states = {name: world.world.unwrapped.get_state() for name, world in paired.worlds.items()}
    alone = make("reacher_easy", distractors=BOTH)
    alone.reset(seed=4)
    for action in actions:
        expected = alone.step(action)
    for name in ("original", "same"):
        np.testing.assert_array_equal(results[name][0], expected[0])
        np.testing.assert_equal(results[name][1:], expected[1:])
    for state in states.values():
        np.testing.assert_equal(state, alone.world.unwrapped.get_state())


def test_an_environment_that_is_reset_on_its_own_can_go_on_with_its_variants(make):
    """The variants have not been in the new episode from its start, nor after a state that was put back."""
    env = make("dot", suite="toy", size=16, episode_steps=20)
    action = np.ones(2, np.float32)
    with PairedWorlds(env, {"noise": {"seed": 8}}) as paired:
        paired.reset(seed=0)
        state = env.get_state()
        for begin in (lambda: env.reset(), lambda: env.set_state(state), lambda: env.set_state(state)):
            begin()
            for _ in range(6):
                assert not paired.step(action)["noise"][3]
        for left in range(4):
            assert paired.step(action)["noise"][3] == (left == 3)


def test_a_distractor_that_stands_still_in_one_world_alone_begins_like_the_original(env, make):
    """It is not carried along, and what a step shows is what the frames show."""
    still = {name: {"dynamic": False} for name in BOTH}
    actions = actions_for(env, 4)
    with PairedWorlds(env, {"still": {"change": still}}) as paired:
        for seed in (0, 1):
            first = noise_of(env, paired.reset(seed=seed)["original"][1])
            for action in actions:
                results, frames, noises = paired.step(action), paired.frames(), paired.noises()
                np.testing.assert_array_equal(frames["still"], results["still"][0])
                assert noises["still"] == first != noises["original"]
        first = noise_of(env, env.reset(seed=2)[1])  # on its own
        assert paired.noises()["still"] == first
        env.step(actions[0])
        assert paired.noises()["still"] == first
    frozen = make("reacher_easy", distractors={"camera_jitter": {"dynamic": False}})
    with PairedWorlds(frozen, {"moving": {"change": {"camera_jitter": {"dynamic": True}}}}) as paired:
        paired.reset(seed=0)
        places = [(paired.step(action), paired.noises()["moving"]["camera_jitter/dx"])[1] for action in actions]
    assert len(set(places)) == len(places)


def test_a_seed_of_the_distractors_counts_for_those_that_a_variant_adds(make):
    env = make("dot", suite="toy", size=16)
    variants = {"added": {"change": {"camera_jitter": {}}}, "own": {"change": {"camera_jitter": {}}, "seed": 7}}
    found = {"added": set(), "own": set()}
    with PairedWorlds(env, variants) as paired:
        for noise in (2, 3):
            results = paired.reset(seed=1, options={"distractor_seed": noise})
            alone = make("dot", suite="toy", size=16, distractors=["camera_jitter"])
            expected = alone.reset(seed=1, options={"distractor_seed": noise})[0]
            np.testing.assert_array_equal(results["added"][0], expected)
            for name, jitter in found.items():
                jitter.add(tuple(results[name][1]["noise"][-2:]))
    assert len(found["added"]) == 2 and len(found["own"]) == 1


def test_replayed_episodes_share_their_physics(env):
    actions = actions_for(env, 15)
    rollouts = replay_paired(env, actions, 5, VARIANTS)
    assert list(rollouts) == ["original", *VARIANTS]
    for name, rollout in rollouts.items():
        np.testing.assert_array_equal(rollout.signal, rollouts["original"].signal)
        np.testing.assert_array_equal(rollout.reward, rollouts["original"].reward)
        assert rollout.observation.shape == (16, 64, 64, 3) and len(rollout.noise) == 16
        same = (rollout.observation == rollouts["original"].observation).all()
        assert same == (name in ("original", "same"))
    # One variant on its own, without its pair, is the same episode.
    other = make_variant(env, VARIANTS["other noise"])
    again = replay(other, actions, 5, distractor_seed=99)
    for field in ("observation", "reward", "signal", "noise"):
        np.testing.assert_array_equal(getattr(again, field), getattr(rollouts["other noise"], field))
    other.close()


def test_noisy_sensor_changes_the_reward_and_not_the_physics(make):
    env = make("cheetah_run", distractors={**BOTH, "noisy_sensor": {}})
    variants = {"true reward": {"without": ["noisy_sensor"]}, "clean": {"distractors": {}}}
    actions = actions_for(env, 10)
    rollouts = replay_paired(env, actions, 1, variants)
    true, noisy = rollouts["true reward"], rollouts["original"]
    np.testing.assert_array_equal(true.signal, noisy.signal)
    np.testing.assert_array_equal(true.observation, noisy.observation)
    assert (true.reward != noisy.reward).any()
    alone = replay(make("cheetah_run"), actions, 1).reward  # not shifted by what the original's sensor saw
    np.testing.assert_array_equal(true.reward, alone)
    np.testing.assert_array_equal(rollouts["clean"].reward, alone)


def test_environments_of_gymnasium_and_of_the_toy():
    register_envs()
    for name, kwargs in (
        ("denoised_mdp/walker_walk-v0", {"distractors": ["lighting"], "episode_steps": 8}),
        ("denoised_mdp/dot-v0", {"distractors": ["camera_jitter"], "episode_steps": 8}),
    ):
        env = gym.make(name, **kwargs)
        variants = {"noise": {"seed": 8}, "clean": {"distractors": {}}}
        rollouts = replay_paired(env, actions_for(env, 9), 2, variants)
        assert all(len(rollout.reward) == 4 and rollout.truncated for rollout in rollouts.values())
        assert (rollouts["noise"].observation != rollouts["original"].observation).any()
        np.testing.assert_array_equal(rollouts["noise"].signal, rollouts["original"].signal)
        env.reset(seed=2)
        frames = render_paired(env, variants)
        np.testing.assert_array_equal(frames["original"], rollouts["original"].observation[0])
        np.testing.assert_array_equal(frames["clean"], rollouts["clean"].observation[0])
        env.close()


def test_variants_have_the_foreground_too(make):
    env = make("dot", suite="toy", size=16, foreground=True, distractors=["camera_jitter"])
    found = replay_paired(env, np.zeros((3, 2), np.float32), 0, {"clean": {"distractors": {}}})
    assert {name: rollout.observation.shape for name, rollout in found.items()} == dict.fromkeys(found, (4, 16, 16, 6))
    clean = found["clean"].observation
    dot = clean[..., 3:].any(-1)
    assert dot.any(axis=(1, 2)).all() and (clean[..., :3][dot] == clean[..., 3:][dot]).all()


def test_names_of_distractors_can_be_given_in_any_way(env):
    for without in ("camera_jitter", ["camera_jitter"], {"camera_jitter": None}):
        with contextlib.closing(make_variant(env, {"without": without, "change": "lighting"})) as found:
            assert set(found.recipe["distractors"]) == set(env.unwrapped.recipe["distractors"]) - {"camera_jitter"} | {
                "lighting"
            }


def test_before_the_first_reset_one_line_says_so(make):
    env = make("cheetah_run", distractors=BOTH)
    with PairedWorlds(env, {"clean": {"distractors": {}}}) as paired:
        for call in (paired.frames, lambda: paired.step(np.zeros(6)), lambda: render_paired(env, {})):
            with pytest.raises(gym.error.ResetNeeded, match="before the first reset"):
                call()


@pytest.mark.parametrize(
    "variants, message",
    [
        ({"a": {"sed": 1}}, "Did you mean 'seed'"),
        ({"a": {"without": ["noisy_sensor"]}}, "no distractor 'noisy_sensor' to leave out"),
        ({"a": {"change": {"camera_jiter": {}}}}, "Did you mean 'camera_jitter'"),
        ({"a": {"without": 3}}, "such as"),
        ({"a": {"change": 3}}, "such as"),
        ({"a": None}, "A variant is a mapping such as"),
        ([{}], "Variants are a mapping"),
        ({"original": {}}, "another one"),
    ],
)
def test_bad_variants_are_answered_in_one_line(env, variants, message):
    with pytest.raises(UserError, match=message) as error:
        PairedWorlds(env, variants)
    assert "\n" not in str(error.value)
