"""Evaluation with worker processes: the same numbers, failures and stops that leave nothing behind."""

import functools
import multiprocessing
import signal

import numpy as np
import pytest
import torch
from conftest import small_agent
from faulty_envs import Dying, Faulty, Signalling
from small_runs import TINY, finished_run, lines, tiny

from denoised_mdp import evaluation
from denoised_mdp.analysis.quick_probe import QuickProbe
from denoised_mdp.cli.main import main
from denoised_mdp.envs import make_env
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.evaluation import EVALUATED_AT_ONCE, evaluate, evaluation_seeds
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train

TOY = functools.partial(make_env, "dot", suite="toy", distractors={"camera_jitter": {}}, episode_steps=8)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("random", [False, True])
def test_workers_change_nothing(random):
    """More episodes than are played at the same time, with exploration noise, two of them recorded."""
    agent = None if random else small_agent()
    seeds = evaluation_seeds(1, EVALUATED_AT_ONCE + 2)
    options = {} if random else {"record": 2, "explore": 0.3}
    alone, shared = (evaluate(agent, TOY, seeds, workers=workers, **options) for workers in (0, 3))
    assert len(set(alone.returns)) == len(seeds)
    assert shared.returns == alone.returns and shared.seeds == alone.seeds == seeds
    for ours, theirs in zip(shared.episodes, alone.episodes, strict=True):
        for name in ("observation", "action", "signal", "noise"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert torch.equal(ours.latent.belief, theirs.latent.belief)
        assert torch.equal(ours.latent.state, theirs.latent.state)


def test_an_evaluation_of_no_episodes_is_refused():
    with pytest.raises(UserError, match="at least one episode"):
        evaluate(None, TOY, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"episodes": 1.5}, "episodes must be a whole number of at least 1, not 1.5"),
        ({"episodes": 0}, "episodes must be a whole number of at least 1"),
        ({"workers": True}, "workers must be a whole number of at least 0, not True"),
    ],
)
def test_numbers_that_are_none_are_refused_before_anything_is_loaded(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        evaluation.evaluate_run(tmp_path, **options)


@pytest.mark.usefixtures("cache")
def test_split_chooses_the_background_clips(tmp_path, monkeypatch, capsys):
    """`evaluate --split test` shows clips of that split, in the environments of the run."""
    made, make = [], evaluation.environment_maker
    monkeypatch.setattr(evaluation, "environment_maker", lambda *which: lambda: made.append(make(*which)()) or made[-1])
    clips = "distractors={video_background: {frames: 30}}"
    assert train(tiny(tmp_path, clips, "train.total_steps=80", "train.eval_every=0"))
    capsys.readouterr()
    for split in ("train", "test"):
        assert main(["evaluate", str(tmp_path), "--episodes", "1", "--split", split]) == 0
        names = [clip.name for clip in made[-1].world._stream.clips]
        assert names and all(name.startswith(f"procedural {split} clip") for name in names)
        assert "changes nothing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("die", "died with its worker process .exit code 3. in the episode of seed 7"),
        ("hang", "no answer within 10 s in the episode of seed 7.*in hang"),
    ],
)
def test_a_worker_that_fails_is_one_error(monkeypatch, what, words):
    if what == "hang":
        monkeypatch.setattr(evaluation, "EnvironmentPool", functools.partial(EnvironmentPool, timeout=10.0))
    with pytest.raises(EnvironmentFailure, match=f"(?s){words}"):
        evaluate(None, functools.partial(Faulty, what), [5, 6, 8, 7], workers=2)


ONCE = ["train.total_steps=80", "train.eval_episodes=2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that evaluates once, without workers, and that nothing disturbs."""
    return finished_run(tmp_path_factory.mktemp("whole"), *ONCE)


def test_an_evaluation_by_workers_that_is_interrupted_stays_due(whole, tmp_path, monkeypatch):
    """While they start and while they play: it is left at once and repeated, and the run becomes the same."""
    command = ["train", *TINY, *ONCE, "train.eval_workers=2", f"run_dir={tmp_path / 'parts'}"]
    for number, when in ((signal.SIGTERM, "made"), (signal.SIGINT, "stepped")):

        def interrupted(agent, make, seeds, number=number, when=when, **options):
            assert options["workers"] == 2
            make = functools.partial(Signalling, make, tmp_path / when, number, when)
            return evaluate(agent, make, seeds, **options)

        monkeypatch.setattr("denoised_mdp.hooks.evaluate", interrupted)
        assert main(command) == 128 + number
        assert (tmp_path / when).exists() and not multiprocessing.active_children()
        step, tree = checkpoint.load(tmp_path / "parts" / "checkpoints")
        assert step == 80 and tree["pending"][0] == "evaluate"
        assert not any("eval/return" in line for line in lines(tmp_path / "parts"))
    monkeypatch.setattr("denoised_mdp.hooks.evaluate", evaluate)
    assert main(command) == 0
    assert report(compare(whole, tmp_path / "parts"))


def test_a_probe_that_fails_costs_nothing(tmp_path, monkeypatch, capfd):
    """An environment that fails ends the run with one line, a defect with its traceback; both save before."""
    options = ["train.probe_every=80", "train.checkpoint_every=200", "train.eval_every=0", "train.total_steps=120"]
    assert main(["train", *TINY, *options, f"run_dir={tmp_path / 'whole'}"]) == 0

    def failing(make):
        environment = make()
        environment.step = lambda action: 1 / 0
        return environment

    command = ["train", *TINY, *options, f"run_dir={tmp_path / 'parts'}"]
    monkeypatch.setattr("denoised_mdp.hooks.QuickProbe", lambda make: QuickProbe(functools.partial(failing, make)))
    assert main(command) == 4
    assert "dot raised an error in the episode of seed" in capfd.readouterr().err
    assert checkpoint.load(tmp_path / "parts" / "checkpoints")[1]["pending"][0] == "probe"
    monkeypatch.setattr("denoised_mdp.hooks.QuickProbe", lambda make: 1 / 0)
    (tmp_path / "parts").rename(tmp_path / "given up")
    with pytest.raises(ZeroDivisionError):
        main(command)
    assert checkpoint.load(tmp_path / "parts" / "checkpoints")[1]["pending"][0] == "probe"
    monkeypatch.setattr("denoised_mdp.hooks.QuickProbe", QuickProbe)
    assert main(command) == 0
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))


def test_a_failing_environment_ends_the_run_after_a_checkpoint(whole, tmp_path, monkeypatch, capfd):
    """One message and exit code 4; without the fault the same command repeats the evaluation and ends the same."""
    command = ["train", *TINY, *ONCE, "train.eval_workers=2", f"run_dir={tmp_path / 'parts'}"]
    monkeypatch.setattr(
        "denoised_mdp.hooks.evaluate",
        lambda agent, make, *rest, **options: evaluate(agent, functools.partial(Dying, make), *rest, **options),
    )
    assert main(command) == 4
    assert "died with its worker process (exit code 3) in the episode of seed" in capfd.readouterr().err
    assert checkpoint.load(tmp_path / "parts" / "checkpoints")[1]["pending"][0] == "evaluate"
    monkeypatch.setattr("denoised_mdp.hooks.evaluate", evaluate)
    assert main(command) == 0
    assert report(compare(whole, tmp_path / "parts"))
