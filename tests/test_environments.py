"""The environment of a run, from Python; what environments refuse to be given."""

import contextlib
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_agent
from small_runs import tiny

import denoised_mdp
from denoised_mdp.cli.main import main
from denoised_mdp.config import read_config, save_config
from denoised_mdp.envs import make_env
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluation_seeds
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.session import train

README = Path(__file__).parents[1] / "README.md"
VIDEO = "distractors={camera_jitter: {}, video_background: {frames: 20, strength: 0.7}}"


def readme(section: str) -> str:
    """The first block of Python in a section of the README."""
    return re.search(rf"### {section}\n.*?```python\n(.*?)```", README.read_text(), re.DOTALL)[1]


@pytest.mark.usefixtures("cache")
def test_the_readme_plays_what_evaluate_plays(tmp_path, clips, monkeypatch, capsys):
    """With an action repeat, length, size and distractors of the run's own; `evaluate` prints hundredths."""
    monkeypatch.chdir(tmp_path)
    short = ["train.total_steps=80", "train.eval_every=0", "env.action_repeat=4", f"env.clips={clips}"]
    assert train(tiny(Path("runs/quickstart"), VIDEO, *short))
    capsys.readouterr()
    shown = []
    for split in ("train", "test"):
        assert main(["evaluate", "runs/quickstart", "--episodes", "3", "--split", split, "--device", "cpu"]) == 0
        printed = [float(value) for value in re.findall(r"episode +\d +return +(\S+)", capsys.readouterr().out)]
        program = readme("Load").replace('make_env("runs/quickstart")', f'make_env("runs/quickstart", split="{split}")')
        assert split in program and 'load("runs/quickstart")' in program
        names = {}
        exec(program, names)
        env, agent = names["env"], names["agent"]
        played = [names["play"](seed) for seed in evaluation_seeds(agent.config.seed, 3)]
        np.testing.assert_allclose(played, printed, atol=0.00501)
        assert len(set(printed)) == 3 and env.action_repeat == agent.config.env.action_repeat == 4
        shown.append({clip.name for clip in env.world.env._stream.clips})
        assert "sample=False" in README.read_text()
        observation, _ = env.reset(seed=1)
        first, second = (agent.act(observation, sample=False, generator=torch.Generator()) for _ in range(2))
        assert np.array_equal(first[0], second[0]) and torch.equal(first[1].latent.state, second[1].latent.state)
        env.close()
    assert shown[0] and shown[1] and not shown[0] & shown[1]


@pytest.mark.usefixtures("cache")
def test_clips_of_a_relative_path_are_found_from_every_folder(tmp_path, clips, monkeypatch):
    folder = Path(clips)
    monkeypatch.chdir(folder.parent)
    options = [VIDEO, "train.total_steps=80", "train.eval_every=0", f"env.clips={folder.name}"]
    config = tiny(tmp_path / "run", *options)
    assert train(config) and read_config(tmp_path / "run" / "config.yaml").env.clips == str(folder)
    before = dataclasses.replace(config, env=dataclasses.replace(config.env, clips=f"./{folder.name}"))
    save_config(before, tmp_path / "run" / "config.yaml")  # as an earlier version did
    longer = tiny(tmp_path / "run", *options, "train.total_steps=120")
    assert train(longer)
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "run", "--episodes", "1", "--device", "cpu"]) == 0


def run_of(path, *options):
    """A run folder with nothing but its configuration."""
    config = tiny(path, *options)
    save_config(config, RunFolder.create(path).config)
    return config


@pytest.mark.usefixtures("cache")
def test_a_run_has_its_own_environment(tmp_path, monkeypatch):
    """Every field of `env` arrives, as do distractors, their options and the seed of the clips."""
    options = ["env.action_repeat=4", "env.size=96", "env.clips=procedural:3", "seed=5"]
    config = run_of(tmp_path / "dot", VIDEO, *options)  # a task's name, in a path
    for source in (tmp_path / "dot", str(tmp_path / "dot")):
        with_defaults = denoised_mdp.make_env(source)
        assert with_defaults.recipe == environment_maker(config)().recipe
        with_defaults.close()
    expected = {**vars(config.env), "distractors": config.distractors, "clips_seed": 5, "split": "train"}
    assert {name: with_defaults.recipe[name] for name in expected} == expected
    other = denoised_mdp.make_env(tmp_path / "dot", split="test", episode_steps=7, seed=1)
    assert other.recipe == with_defaults.recipe | {"split": "test", "episode_steps": 7, "seed": 1}
    monkeypatch.chdir(tmp_path)
    assert denoised_mdp.make_env("./dot").action_repeat == 4
    assert denoised_mdp.make_env(Path("dot")).action_repeat == 4
    assert denoised_mdp.make_env("dot", suite="toy").action_repeat == 2  # the task
    monkeypatch.setenv("HOME", str(tmp_path))
    assert denoised_mdp.make_env("~/dot").action_repeat == 4


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("runs/none", {}, "There is no run at runs/none: it does not exist"),
        ("cheetah_rnu", {}, "'cheetah_rnu' is neither a run folder nor a task. Did you mean 'cheetah_run'?"),
        ("my_env:Ball", {}, r"'my_env:Ball' is neither .*needs suite='gym': make_env\('my_env:Ball', suite='gym'\)."),
        ("Reacher-v5", {}, "'Reacher-v5' is neither a run folder nor a task. An environment of Gymnasium needs suite"),
        ("dot", {}, "Task 'dot' is none of suite 'dmc': choose suite 'toy'"),
        (None, {}, "make_env needs a run folder or the name of a task, not None"),
        (small_agent, {}, "make_env needs a run folder or the name of a task"),
        ("run", {"split": "tset"}, "Unknown split 'tset'.*Did you mean 'test'?"),
        ("run", {"size": 0}, "size must be a whole number"),
        ("run", {"sise": 3}, "make_env has no option 'sise'. Did you mean 'size'?"),
        ("cheetah_run", {"camra": 1}, "make_env has no option 'camra'. Did you mean 'camera'?"),
        ("run", {"task": "dot"}, "make_env has no option 'task'"),
        ("empty", {}, "There is no run at empty: it has no config.yaml"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, monkeypatch, source, options, words):
    run_of(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        denoised_mdp.make_env(source, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (0.5, "action is 0.5: give"),
        (None, "action is None: give"),
        ([0.1], r"action is float64 \[1\]: give"),
        (np.zeros((2, 1)), r"action is float64 \[2, 1\]: give"),
        (np.zeros(3, int), r"action is int64 \[3\]: give"),
        ([0.1, float("nan")], "action is .*nan.*: give"),
        (np.array([np.inf, 0.0]), "action is .*inf.*: give"),
        ("up", "action is 'up': give"),
        (["0.1", "0.2"], "action is .*'0.1'.*: give"),
        ([True, False], "action is .*True.*: give"),
        ([[0.1], [0.2, 0.3]], "action is .*: give"),
        (np.array([1j, 0]), "action is .*: give"),
    ],
)
def test_wrong_actions_are_named(make, action, words):
    """And the episode goes on as if nothing had been asked."""
    env, other = (make("dot", suite="toy") for _ in range(2))
    env.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError, match=rf"{words} \[2\] finite numbers, from -1 to 1"):
        env.step(action)
    for right in ([0, 1], [0.5, -7.0], np.float32([0.25, 1]), torch.tensor([0.0, -0.5])):
        ours, theirs = env.step(right), other.step(np.clip(np.array(right), -1, 1))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:4] == theirs[1:4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distractors_seed": 1}, "reset has no option 'distractors_seed'. Did you mean 'distractor_seed'?"),
        ({"distractor_seed": 1, "speed": 2}, "reset has no option 'speed'"),
        ({"distractor_seed": -1}, "distractor_seed is -1: give a whole number of at least 0"),
        ({"distractor_seed": 1.0}, "distractor_seed is 1.0"),
        ({"distractor_seed": "1"}, "distractor_seed is '1'"),
        ({"distractor_seed": True}, "distractor_seed is True"),
        ({"distractor_seed": None}, "distractor_seed is None"),
        ("distractor_seed", "options are 'distractor_seed': give None or a dict"),
        ([("distractor_seed", 1)], "options are .*: give None or a dict"),
    ],
)
def test_wrong_options_of_a_reset_are_named(make, options, words):
    """And its streams go on as if nothing had been asked."""
    env, other = (make("dot", suite="toy", distractors=["camera_jitter"]) for _ in range(2))
    env.reset(seed=0), other.reset(seed=0)
    with pytest.raises(ValueError, match=words):
        env.reset(seed=3, options=options)
    for right in (None, {}, {"distractor_seed": np.int64(4)}):
        np.testing.assert_array_equal(env.reset(options=right)[0], other.reset(options=right)[0])


def test_a_distractor_seed_changes_the_noise_alone(make):
    """The same one gives the same noise to other physics; the world's own noise is noise, too."""
    env, actions = make("dot", suite="toy", distractors=["camera_jitter"]), np.zeros((4, 2))
    played = {}
    for seed, own in ((1, None), (1, 1), (1, 2), (3, 2)):
        first = env.reset(seed=seed, options=None if own is None else {"distractor_seed": own})
        infos = [first[1], *(env.step(action)[-1] for action in actions)]
        played[seed, own] = [np.stack([info[kind] for info in infos]) for kind in ("signal", "noise")]
    for one, other, signal, noise in (
        ((1, None), (1, 1), True, True),
        ((1, 1), (1, 2), True, False),
        ((1, 2), (3, 2), False, True),
    ):
        assert np.array_equal(played[one][0], played[other][0]) == signal
        for column in range(4):
            assert np.array_equal(played[one][1][:, column], played[other][1][:, column]) == noise


def test_truth_belongs_to_the_picture_and_follows_the_actions(make):
    """The dot is where the signal says, and moves as the toy's law of motion says."""
    env = make("dot", suite="toy", action_repeat=3)
    observation, info = env.reset(seed=0)
    for action in ([0.5, -0.25], [-1.0, 3.0], [0.0, 1.0], [0.25, 0.0]):
        expected = info["signal"]
        for _ in range(3):
            expected = np.clip(expected + 0.1 * np.clip(action, -1, 1), -0.9, 0.9)
        observation, _, _, _, info = env.step(np.array(action))
        np.testing.assert_allclose(info["signal"], expected, atol=1e-6)
        rows, columns = np.nonzero((observation == (255, 255, 160)).all(-1))
        centre = (np.array([columns.min() + columns.max(), rows.min() + rows.max()]) + 1) / 64 - 1
        np.testing.assert_allclose(centre, info["signal"], atol=1.01 / 64)


def test_a_suite_says_that_the_name_is_one_of_its_tasks():
    with contextlib.closing(denoised_mdp.make_env("gym_envs:Ball", suite="gym", seed=np.int64(3))) as env:
        first = env.reset()[0]
        np.testing.assert_array_equal(env.reset(seed=np.uint8(3))[0], first)
        np.testing.assert_array_equal(env.reset(seed=3)[0], first)


def test_a_run_is_a_path_and_a_device_may_be_one_of_pytorch(tmp_path):
    with pytest.raises(UserError, match="given as the path of its folder, not as None"):
        denoised_mdp.load(None)
    agent = denoised_mdp.load("pretrained:cheetah_run_video", device=torch.device("cpu"))
    assert agent.device.type == "cpu"


def test_an_unknown_split_is_refused_without_clips_too():
    with pytest.raises(UserError, match="Unknown split 'tset'"):
        make_env("dot", suite="toy", split="tset")
