"""Environments as Gymnasium citizens: ids, the checker, vectors, pickling; and what importing them costs."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from denoised_mdp.envs import DISTRACTORS, check_distractors, make_env, register_envs, tasks
from denoised_mdp.envs.options import fitting_distractors
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.errors import UserError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(autouse=True, scope="module")
def ids(cache):
    register_envs()


def test_every_task_has_one_id():
    ids = {name for name in gym.registry if name.startswith("denoised_mdp/")}
    expected = {
        f"denoised_mdp/{'robodesk_' * (suite == 'robodesk')}{task}-v0" for suite in SUITES for task in tasks(suite)
    }
    assert ids == expected and len(ids) == sum(len(tasks(suite)) for suite in SUITES)
    with pytest.raises(gym.error.NameNotFound, match="Did you mean: `cheetah_run`"):
        gym.make("denoised_mdp/cheetah_run-camera_jitter-v0")


@pytest.mark.parametrize(
    "suite, task",
    [("dmc", "cheetah_run"), ("dmc", "dog_stand"), ("robodesk", "stack"), ("toy", "dot"), ("toy", "counting")],
)
def test_fitting_distractors_are_those_that_are_allowed(suite, task):
    """Every single one, beside the background video that the sensor reads; and all of them together."""
    fitting = fitting_distractors(suite, task)
    for name in DISTRACTORS:
        names = ["video_background", name] if name == "noisy_sensor" else [name]
        try:
            allowed = set(check_distractors(names, task, suite)) == set(names)
        except UserError:
            allowed = False
        assert allowed == (name in fitting), name
    assert set(check_distractors(fitting, task, suite)) == set(fitting)


def test_keywords_choose_clips_and_distractors(clips):
    """What `gymnasium.make` is told stays in the spec, as JSON too."""
    name = "denoised_mdp/dot-v0"
    frames = {}
    for split in ("train", "test", "all"):
        env = gym.make(name, distractors=["video_background"], clips=clips, split=split, size=32)
        frames[split] = env.reset(seed=0)[0]
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        np.testing.assert_array_equal(again.reset(seed=0)[0], frames[split])
    assert (frames["train"] != frames["test"]).mean() > 0.5
    env = gym.make(name, distractors=["camera_jitter"])
    assert [part.split("/")[0] for part in env.unwrapped.noise_names[-2:]] == ["camera_jitter"] * 2
    assert not any(part.startswith("video_background/") for part in env.unwrapped.noise_names)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    "task, distractors",
    [
        ("cheetah_run", fitting_distractors("dmc", "cheetah_run")),
        ("ball_in_cup_catch", ()),
        ("dot", ("camera_jitter",)),
        ("counting", ()),
    ],
)
def test_gymnasium_checker(task, distractors):
    env = gym.make(f"denoised_mdp/{task}-v0", distractors=distractors, episode_steps=20)
    check_env(env.unwrapped)
    again = gym.make(pickle.loads(pickle.dumps(env.spec)))
    np.testing.assert_array_equal(env.reset(seed=1)[0], again.reset(seed=1)[0])
    assert env.get_wrapper_attr("signal_names") == again.unwrapped.signal_names
    env.close()
    again.close()


@pytest.mark.parametrize(
    "task, distractors", [("dot", "video_background"), ("counting", "none"), ("pendulum_swingup", "camera_jitter")]
)
def test_without_an_episode_there_is_one_line(task, distractors):
    """Before the first reset and after close, of the environment and through gymnasium's wrappers."""
    wrapped = gym.make(f"denoised_mdp/{task}-v0", distractors=distractors, episode_steps=6)
    env, action = wrapped.unwrapped, wrapped.action_space.sample()

    def check_that_nothing_goes():
        for call in (env.render, env.info, env.get_state, lambda: env.step(action), lambda: wrapped.step(action)):
            with pytest.raises(gym.error.ResetNeeded, match="reset") as error:
                call()
            assert "\n" not in str(error.value)

    check_that_nothing_goes()
    first = wrapped.reset(seed=1)[0]
    frame = wrapped.step(action)[0]
    state = env.get_state()
    wrapped.close()
    wrapped.close()
    check_that_nothing_goes()
    np.testing.assert_array_equal(wrapped.reset(seed=1)[0], first)  # it can be used again
    wrapped.close()
    env.set_state(state)  # as by a state
    np.testing.assert_array_equal(env.render(), frame)
    env.close()


def test_environments_pickle_before_and_after_use():
    env = make_env("reacher_easy", distractors={"video_background": {}, "camera_jitter": {}}, action_repeat=3)
    first = env.reset(seed=2)[0]
    copy = pickle.loads(pickle.dumps(env))
    np.testing.assert_array_equal(copy.reset(seed=2)[0], first)
    assert copy.action_repeat == 3
    env.close()
    copy.close()


def _make():
    return make_env("cheetah_run", distractors={"video_background": {}}, episode_steps=10)


def test_asynchronous_vector_with_spawn_equals_single_environments():
    vector = gym.vector.AsyncVectorEnv([_make, _make], context="spawn")
    singles = [_make(), _make()]
    try:
        frames, _ = vector.reset(seed=[3, 4])
        for row, seed in enumerate((3, 4)):
            np.testing.assert_array_equal(frames[row], singles[row].reset(seed=seed)[0])
        actions = np.random.default_rng(0).uniform(-1, 1, vector.action_space.shape).astype(np.float32)
        frames, rewards, _, _, info = vector.step(actions)
        for row, single in enumerate(singles):
            frame, reward, _, _, own = single.step(actions[row])
            np.testing.assert_array_equal(frames[row], frame)
            assert rewards[row] == reward
            np.testing.assert_array_equal(info["noise"][row], own["noise"])
    finally:
        vector.close()
        for single in singles:
            single.close()


def test_importing_is_cheap_and_needs_no_torch():
    code = """
import sys, denoised_mdp.envs as envs
envs.register_envs()
assert not {"mujoco", "dm_control", "av", "torch"} & set(sys.modules)
env = envs.make_env("cheetah_run", distractors={"video_background": {}})
env.reset(seed=0)
assert "mujoco" in sys.modules and "torch" not in sys.modules
"""
    run(code)


def test_exit_without_close_is_silent():
    result = run('import denoised_mdp.envs as e; a = e.make_env("cheetah_run"); a.reset(); b = a.render()')
    assert result.stderr == ""


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_vectors_of_registered_ids_agree():
    """One process or several, made by id: the same observations, rewards and noise."""
    options = {"distractors": ["body_color", "camera_pose", "camera_jitter"], "episode_steps": 6}
    name = "denoised_mdp/reacher_easy-v0"
    vectors = [
        gym.make_vec(name, num_envs=2, vectorization_mode=mode, vector_kwargs=kwargs, **options)
        for mode, kwargs in (("sync", {}), ("async", {"context": "spawn"}))
    ]
    try:
        results = []
        for vector in vectors:
            frames, info = vector.reset(seed=7)
            rows = [(frames.copy(), info["noise"].copy())]
            vector.action_space.seed(0)
            for _ in range(5):  # beyond the end of the episode, which starts another one
                frames, rewards, terminated, truncated, info = vector.step(vector.action_space.sample())
                rows.append((frames.copy(), rewards, terminated, truncated, info["noise"].copy()))
            results.append(rows)
        for one, other in zip(*results, strict=True):
            for left, right in zip(one, other, strict=True):
                np.testing.assert_array_equal(left, right)
    finally:
        for vector in vectors:
            vector.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_closed_environments_leave_nothing_behind():
    """The quick form of scripts/leak_test.py, which makes a thousand of them."""
    specification = importlib.util.spec_from_file_location("leak_test", SCRIPTS / "leak_test.py")
    leak_test = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(leak_test)
    rows = leak_test.run(16, task="reacher_easy", every=4)
    _, memory, files, threads = zip(*rows[1:], strict=True)  # the first ones fill caches and pools
    assert len(set(files)) == 1 and len(set(threads)) == 1
    # Contexts that stay take 30 MiB each, 360 for these twelve; pools of the allocator vary by about 40.
    assert memory[-1] - memory[0] < 150
