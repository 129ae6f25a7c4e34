"""Suite "gym": any Gymnasium environment with a picture. Its interface, its errors, and exact resume."""

import contextlib
import subprocess
import sys

import gym_envs
import gymnasium as gym
import numpy as np
import pytest
from conftest import actions_for, assert_plain
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp.config import load_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.gym_adapter import GymWorld
from denoised_mdp.envs.paired import PairedWorlds, replay_paired
from denoised_mdp.envs.pixels import PixelEnv
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.errors import UserError
from denoised_mdp.session import train


def play(env, actions):
    return [env.step(action) for action in actions]


def test_actions_stand_for_the_whole_range_and_repeats_sum_the_rewards():
    env, plain = make_env("gym_envs:Ball", suite="gym", size=64, action_repeat=3, seed=5), gym_envs.Ball("rgb_array")
    observation, info = env.reset()
    assert observation.shape == (64, 64, 3) and observation.dtype == np.uint8
    assert env.signal_names == env.noise_names == () and info["signal"].shape == info["noise"].shape == (0,)
    plain.reset(seed=env.world.get_state()["seed"])
    for action in actions_for(env, 4):
        reward = env.step(action)[1]
        assert reward == pytest.approx(sum(plain.step(2 * action)[1] for _ in range(3)), abs=1e-6)


def test_a_reward_is_one_number():
    boxed, plain = (make_env(f"gym_envs:{name}", suite="gym", size=64, seed=5) for name in ("Boxed", "Ball"))
    boxed.reset(), plain.reset()
    for action in actions_for(plain, 3):
        reward = boxed.step(action)[1]
        assert type(reward) is float and reward == pytest.approx(plain.step(action)[1])
    for name, kind in (("Pairs", "ndarray"), ("Unrewarded", "NoneType"), ("Wordy", "str")):
        wrong = make_env(f"gym_envs:{name}", suite="gym", size=64)
        wrong.reset()
        with pytest.raises(UserError, match=rf"{name}: step\(\) returns a reward that is no number but {kind}"):
            wrong.step(actions_for(wrong, 1)[0])


@pytest.mark.parametrize("name", ["Picky", "PickyInDoubles", "PickyInHalves"])
def test_the_largest_actions_are_in_the_space_of_the_environment(name):
    """Rescaled, the last bit of a limit can lie outside: many environments refuse that."""
    env = make_env(f"gym_envs:{name}", suite="gym")
    env.reset(seed=0)
    for action in (-1.0, 1.0):
        env.step(np.full(env.action_space.shape, action, np.float32))


def test_pictures_are_squares_and_gray_ones_too():
    seen = []
    for name in ("Ball", "Picture"):
        env = make_env(f"gym_envs:{name}", suite="gym", size=64)
        frame = env.reset(seed=3)[0]
        assert (frame[..., 0] == frame[..., 2]).all() and 200 < frame.max() <= 255
        # 4 of 20 rows and 4 of 30 columns are white: averaging keeps the share
        assert frame.mean() / 255 == pytest.approx(16 / 600, rel=0.05)
        seen.append(frame)
    np.testing.assert_array_equal(*seen)


def test_episodes_end_at_the_first_of_both_limits():
    for steps, ends in ((7, 7), (100, 12)):
        env = make_env("gym_envs:SmallBall-v0", suite="gym", action_repeat=1, episode_steps=steps)
        env.reset(seed=0)
        assert [row[3] for row in play(env, actions_for(env, ends))] == [False] * (ends - 1) + [True]
    assert (
        load_config(["preset=debug", "env=gym", "env.id=gym_envs:SmallBall-v0", "distractors=none"]).episode_rows == 13
    )


def test_every_episode_has_a_seed_of_its_own_which_follows_from_the_first():
    world, found = GymWorld("gym_envs:SmallBall-v0"), []
    for first in (0, 0, 1):
        found.append([])
        for seed in (first, None, None):
            world.reset(seed=seed)
            found[-1].append(world.get_state()["seed"])
    world.close()
    assert found[0] == found[1] and len({*found[0], *found[2]}) == 6


@pytest.mark.parametrize("distractors", [[], ["camera_jitter"]])
@pytest.mark.parametrize("name", ["Ball", "Picture", "InvertedPendulum-v5"])
def test_a_state_continues_exactly(name, distractors):
    task = name if "-" in name else f"gym_envs:{name}"
    options = {"suite": "gym", "distractors": distractors, "episode_steps": 9, "size": 64}
    env, other = make_env(task, **options), make_env(task, **options)
    env.reset(seed=1)
    actions = actions_for(env, 4)
    play(env, actions[:2])
    state = env.get_state()
    assert_plain(state)
    other.set_state(state)
    np.testing.assert_array_equal(env.render(), other.render())
    for ours, theirs in zip(play(env, actions[2:]), play(other, actions[2:]), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:4] == theirs[1:4]
    np.testing.assert_array_equal(env.reset()[0], other.reset()[0])  # the next episode of the stream
    env.close()
    other.close()


def test_a_state_whose_episode_ends_elsewhere_cannot_be_restored():
    """Where everything else looks the same."""
    env, other = (make_env("gym_envs:Shortening", suite="gym", action_repeat=1) for _ in range(2))
    gym_envs.Shortening.left = 5
    env.reset(seed=0)  # it ends after four steps
    assert not any(row[2] for row in play(env, actions_for(env, 3)))
    with pytest.raises(CannotRestore, match="does not repeat"):
        other.set_state(env.get_state())  # which ends after three


def test_what_does_not_repeat_itself_cannot_be_paired():
    with contextlib.closing(make_env("gym_envs:Forgetful", suite="gym")) as env:
        env.reset(seed=0)
        with PairedWorlds(env, {"shaken": {"distractors": ["camera_jitter"]}}) as worlds:
            env.step(actions_for(env, 1)[0])
            with pytest.raises(UserError, match="Forgetful does not repeat .*: it cannot be paired"):
                worlds.frames()


def test_a_picture_without_rows_is_none():
    env = make_env("gym_envs:Empty", suite="gym")
    with pytest.raises(UserError, match=r"render\(\) gives uint8 \[0, 30, 3\]"):
        env.reset()


def test_gymnasiums_own_model_files_are_loaded_without_warnings(tmp_path):
    code = (
        "import mujoco; from denoised_mdp.envs import make_env;"
        " mujoco.set_mju_user_warning(print); env = make_env('HalfCheetah-v5', suite='gym');"
        " env.reset(seed=0); env.close(); assert mujoco.get_mju_user_warning() is print"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "") and "deprecated" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())  # MuJoCo's log


OWN = ["env=gym", "env.task=gym_envs:Ball", "env.episode_steps=15", "env.action_repeat=2", "train.segment_length=4"]
OWN += ["train.probe_every=0", "train.total_steps=140", "train.eval_every=140", "policy.horizon=4"]


def test_paired_worlds_play_no_episode_again(monkeypatch):
    """Before each step a variant is set to the state in which it is."""
    begun, reset = [], gym_envs.Ball.reset
    monkeypatch.setattr(gym_envs.Ball, "reset", lambda self, **options: begun.append(self) or reset(self, **options))
    with contextlib.closing(make_env("gym_envs:Ball", suite="gym")) as env:
        actions = actions_for(env, 12)
        found = replay_paired(env, actions, 3, {"shaken": {"distractors": ["camera_jitter"]}})
    assert len(begun) <= 4
    np.testing.assert_array_equal(found["original"].reward, found["shaken"].reward)
    assert (found["original"].observation != found["shaken"].observation).any()


def test_a_closed_world_begins_anew_even_in_its_last_state():
    class Closing(gym_envs.Ball):
        is_open = False

        def reset(self, **options):
            self.is_open = True
            return super().reset(**options)

        def step(self, action):
            assert self.is_open
            return super().step(action)

        def close(self):
            self.is_open = False

    env = PixelEnv(GymWorld(Closing("rgb_array")))
    env.reset(seed=0)
    state = env.get_state()
    env.close()
    env.set_state(state)
    env.step(env.action_space.sample())


def test_an_environment_that_does_not_fit_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(gym_envs.Ball, "close", lambda self: closed.append(type(self).__name__))
    for name, more in (("Sheet", {}), ("Blind", {}), ("Ball", {"foreground": True})):
        with pytest.raises(UserError):
            make_env(f"gym_envs:{name}", suite="gym", **more)
    assert closed == ["Sheet", "Blind", "Ball"]


def test_resume_is_exact_and_says_where_it_cannot_be(tmp_path, recwarn):
    for name in ("Ball", "Forgetful"):
        whole, parts = (tmp_path / f"{name}-{kind}" for kind in ("whole", "parts"))
        options = [*OWN, f"env.task=gym_envs:{name}"]
        assert train(tiny(whole, *options))
        assert train(tiny(parts, *options, "train.total_steps=108"))
        assert train(tiny(parts, *options))
        said = [str(warning.message) for warning in recwarn if "cannot be put back" in str(warning.message)]
        assert len(said) == (name == "Forgetful")
        assert (lines(whole)[-1]["eval/return"] == lines(parts)[-1]["eval/return"]) == (name == "Ball")


def test_a_run_that_cannot_be_put_back_can_be_stopped_between_updates_again_and_again(tmp_path):
    config = tiny(tmp_path / "run", *OWN, "env.task=gym_envs:Forgetful", "train.updates=6")
    with pytest.warns(UserWarning, match="cannot be put back"):
        run_in_parts(config, 40 + 6 + 20 + 1, 1, 1, 1)  # after the first update of the second round, and one by one
    assert lines(tmp_path / "run")[-1]["step"] == config.train.total_steps


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("", "env.id=HalfCheetah-v5"),
        ("HalfCheeta-v5", "Did you mean 'HalfCheetah"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("gym_envs:Bal", "no function 'Bal'"),
        ("gym_envs:number", "returns int, not a gymnasium.Env"),
        ("builtins:dict", "returns dict, not a gymnasium.Env"),
        ("gym_envs:Sized", "needs arguments (width, height): write a function without arguments"),
        ("gym_envs:Blind", "neither the observation (Box of float64 [1]) nor render() is a picture"),
        ("gym_envs:Sheet", "actions of shape [2, 3]"),
        ("gym_envs:Idle", "actions of shape [0]"),
        ("gym_envs:Unlimited", "actions without limits"),
        ("gym_envs:Steps", "Box of int64 [2], from [-3, -3] to [3, 3]: wrap it so that actions are floating-point"),
        ("gym_envs:Stuck", "from [-1.0, 2.0] to [1.0, 2.0]: wrap it so that actions are floating-point numbers, each"),
        ("gym_envs:Buttons", "Buttons has the action space MultiDiscrete: wrap it so that it is a Box or Discrete."),
    ],
)
def test_what_cannot_be_used_is_answered_in_one_line(task, words):
    with pytest.raises(UserError) as caught:
        make_env(task, suite="gym")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("entry_point", "words"),
    [
        ("gym_envs_without_their_package:make", "Lost-v0: a package is missing: No module named 'gym_envs_without"),
        ("gym_envs:Missing", "Lost-v0 is registered, but not there: "),
    ],
)
def test_an_environment_that_is_registered_without_its_package_says_so(entry_point, words):
    gym.register("Lost-v0", entry_point)
    try:
        with pytest.raises(UserError) as caught:
            make_env("Lost-v0", suite="gym")
    finally:
        del gym.registry["Lost-v0"]
    assert str(caught.value).startswith(words)


def test_an_observation_that_cannot_be_flattened_does_no_harm():
    """Pictures are what is learned from; a checksum of the rest only tells whether a resumed episode is the same."""
    with contextlib.closing(denoised_mdp.make_env("gym_envs:Loose", suite="gym")) as env:
        assert env.reset(seed=0)[0].any() and env.step(np.zeros(1))[0].any()


def test_messages_name_the_option_that_was_given():
    for words, said in (
        (["env=gym", "distractors=none"], "env.id=: Name an environment"),
        (["env=gym", "distractors=none", "env.id=gym_envs:Bal"], "env.id=gym_envs:Bal: "),
        (["env.id=Reacher-v5"], "A Gymnasium environment needs env=gym."),
    ):
        with pytest.raises(UserError, match=said):
            load_config(words)


def test_distractors_that_need_to_know_the_scene_do_not_fit():
    with pytest.raises(UserError, match="camera_jitter"):
        make_env("gym_envs:Ball", suite="gym", distractors=["video_background"])
