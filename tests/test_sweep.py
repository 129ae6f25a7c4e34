"""Sweeps: what Hydra hands to each job, in which folder, and what it refuses."""

import io
import logging
import os
import pickle
import runpy
import signal
from importlib import metadata
from pathlib import Path

import pytest
from small_runs import TINY

import denoised_mdp
from denoised_mdp.analysis.status import statuses
from denoised_mdp.cli.main import main
from denoised_mdp.cli.sweep import LAUNCHERS, JobFailed, sweep
from denoised_mdp.cli.words import check_values, translate_multirun
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.trainer import Trainer

# Every job composes its own configuration: what each was given is all that matters here.


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A function that runs a sweep of nothing and returns the configuration of each job."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides: str) -> list:
        configs = []

        def train(given: list[str]) -> int:
            configs.append(load_config(given))
            return 0

        sweep(list(overrides), train)
        return configs

    return run


@pytest.mark.parametrize(
    "texts",
    [
        ["procedural:1", "procedural:2"],
        ["/data/a b/*.mp4", "/data/[x]{y}"],
        ["'a,b'", "c"],
        ["a\\b", "it(s)"],
        ["~/a", "b"],
        ["kinetics:driving car", "ü%@?|"],
        ["$HOME/x", "#"],
    ],
)
def test_free_texts_reach_each_job_as_they_are(jobs, tmp_path, texts):
    configs = jobs("env=toy", "env.task=dot", f"env.clips={','.join(texts)}")
    assert [config.env.clips for config in configs] == [text.strip("'") for text in texts]
    assert len({config.run_dir for config in configs}) == len(texts)
    for config in configs:
        inside = os.path.relpath(config.run_dir, tmp_path / "runs").split(os.sep)
        assert len(inside) == 2 and not set("\\'\"") & set(inside[1]), inside


def test_single_texts_and_hydra_functions(jobs):
    both = jobs("env=toy", "env.task=choice(dot,counting)", "env.clips=procedural:3")
    assert [(config.env.task, config.env.clips) for config in both] == [
        ("dot", "procedural:3"),
        ("counting", "procedural:3"),
    ]


def folder(*overrides: str) -> str:
    return next(text for text in translate_multirun(list(overrides))[0] if text.startswith("hydra.sweep.dir="))


def test_the_folder_of_a_sweep_follows_from_what_its_jobs_share():
    assert folder("seed=0,1") == folder("seed=2,3,4") == "hydra.sweep.dir='runs/sweep'"
    assert folder("preset=debug", "seed=0,1") == "hydra.sweep.dir='runs/sweep-preset=debug'"
    assert folder("preset=debug", "seed=0,1", "model=2c") != folder("preset=debug", "seed=0,1", "model=2b")
    assert folder("seed=0,1", "train.total_steps=100") == folder("seed=0,1"), "a sweep may be made longer"
    assert folder("seed=0,1", "replay.capacity=100") != folder("seed=0,1"), "they learn from other rows"
    long = [f"model.{name}.{key}={size}" for size in (60, 61) for name in "xyz" for key in ("belief", "state")]
    assert folder("seed=0,1", *long[:6]) != folder("seed=0,1", *long[6:]) and len(folder("seed=0,1", *long)) < 150
    assert folder("seed=0,1", "run_dir=all runs") == "hydra.sweep.dir='all runs'"
    assert folder("seed=0,1", "run_dir=~/runs") == f"hydra.sweep.dir='{os.path.expanduser('~/runs')}'"
    assert folder("seed=0,1", "hydra.sweep.dir=mine") == "hydra.sweep.dir=mine"


def test_of_a_key_that_is_given_twice_the_last_counts(jobs):
    """As of one run; else all jobs would have one folder."""
    found = jobs("env=toy", "env.task=dot", "seed=0", "model.kl.beta=1,0.5", "seed=1,2", "model.kl.beta=0.25")
    assert [(config.seed, config.model.kl.beta) for config in found] == [(1, 0.25), (2, 0.25)]
    assert len({config.run_dir for config in found}) == 2
    found = jobs("distractors={camera_jitter: {strength: 0.5}}", "distractors.camera_jitter.strength=0.1,0.2")
    assert [config.distractors["camera_jitter"]["strength"] for config in found] == [0.1, 0.2]
    assert len({config.run_dir for config in found}) == 2


def test_two_sweeps_need_no_folders_by_hand(jobs):
    first, second = (jobs("env=toy", "env.task=dot", f"model.kl.beta={beta}", "seed=0,1") for beta in (0.5, 0.25))
    assert len({config.run_dir for config in first + second}) == 4


def test_a_sweep_of_one_run_trains_in_a_folder_of_its_own(jobs):
    """And not where Hydra writes its own file, which would be taken for the folder of another run."""
    [config] = jobs("env=toy", "env.task=dot", "seed=0")
    sweep_folder, name = os.path.split(config.run_dir)
    assert name == "run" and "multirun.yaml" in os.listdir(sweep_folder) and not os.listdir(config.run_dir)


def test_notes_of_other_libraries_are_not_shown(jobs, capfd):
    assert len(jobs("env=toy", "env.task=dot", "seed=1,2")) == 2
    logging.getLogger("OpenGL").info("a note")
    logging.getLogger("OpenGL").warning("a warning")
    out = capfd.readouterr().out
    assert "Launching 2 jobs" in out and "a warning" in out and "a note" not in out


def test_options_in_the_name_of_a_run_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config(["run_dir=~/a", "seed=3"]).run_dir == str(tmp_path / "a")
    assert load_config(["run_dir=~"]).run_dir == str(tmp_path)
    assert load_config(["run_dir=b/~/a"]).run_dir == "b/~/a"
    assert load_config(["run_dir=runs/${env.task}-${seed}", "seed=3"]).run_dir == "runs/cheetah_run-3"
    assert load_config([r"run_dir=runs/\${seed}"]).run_dir == "runs/${seed}"
    for text, words in {
        "run_dir=~nobody-of-this-name/x": "no user nobody-of-this-name",
        "run_dir=${SCRATCH}/x": "${SCRATCH} is no option.*environment",
        "run_dir=${oc.env:NO_SUCH_VARIABLE}": "NO_SUCH_VARIABLE",
        "run_dir=a${": "cannot be composed",
        "run_dir=": "name a folder",
        "run_dir=''": "name a folder",
    }.items():
        with pytest.raises(UserError, match=words.replace("$", r"\$").replace("{", r"\{")):
            load_config([text])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["run_dir=/proc/x"], "another run_dir"),
        (["run_dir=/dev/null/x"], "another run_dir"),
        (["run_dir=~nobody-of-this-name/x"], "no user"),
        (["run_dir="], "name a folder"),
        (["run_dir=${nope}/x"], "${nope} is no option"),
        (["hydra/sweeper=nope"], "hydra/sweeper"),
        (["hydra/launcher=nope"], "hydra/launcher=nope: unknown launcher. Choose one of: basic, joblib, ray"),
        (["hydra/launcher=submitit"], "Did you mean 'submitit_"),
        (["hydra.sweep.nope=3"], "nope"),
        (["hydra.launcher.nope=3"], "nope"),
        (["env.clips='a,b"], "env.clips"),
    ],
)
def test_what_hydra_refuses_is_one_line(tmp_path, monkeypatch, capfd, overrides, words):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "-m", "env=toy", "env.task=dot", "seed=0,1", *overrides]) == 2
    out, error = capfd.readouterr()
    assert words in error and len(error.strip().splitlines()) == 1 and "Traceback" not in out + error, out + error
    assert "HYDRA_FULL_ERROR" not in os.environ


@pytest.mark.parametrize("error", [ConnectionError("no running Ray"), ValueError("Invalid address format: nonsense")])
def test_a_launcher_without_its_cluster_says_so_and_blames_no_folder(jobs, monkeypatch, error):
    def refuse(_):
        raise error

    monkeypatch.setattr("hydra.main", lambda **_: lambda job: lambda: refuse(job))
    with pytest.raises(UserError, match=f"^hydra/launcher=ray: {error}$"):
        jobs("env=toy", "env.task=dot", "seed=0,1", "hydra/launcher=ray")
    with pytest.raises(type(error)):
        jobs("env=toy", "env.task=dot", "seed=0,1")  # a closed pipe, or a defect: no launcher is to blame


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_without_its_plug_in_names_the_extra(jobs, name, monkeypatch):
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    runpy.run_path(str(Path(denoised_mdp.__file__).parents[1] / "setup.py"))
    plug_in = f"hydra-{name.partition('_')[0]}-launcher"
    assert any(one.startswith(plug_in) for one in given["extras_require"][LAUNCHERS[name]])
    if any(metadata.distributions(name=plug_in)):
        pytest.skip("it is installed")
    with pytest.raises(UserError, match=rf"hydra/launcher={name} needs .*'denoised-mdp\[{LAUNCHERS[name]}\]'"):
        jobs("env=toy", "env.task=dot", "seed=0,1", f"hydra/launcher={name}")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=0,1,x"], "seed=x"),
        (["seed=range(0,3)", "model.kl.beta=1,0.5,-1"], "model.kl.beta=-1"),
        (["seed=0,1", "train.batch_size=0"], "train.batch_size=0"),
        (["distractors=[camera_jitter],[tv]"], "tv"),
        (["seed=glob(*)"], "not understood; list the values"),
        (["env.clips=/a/b,/a_b"], "'/a/b' and '/a_b' would name one folder"),
    ],
)
def test_a_wrong_value_is_refused_before_the_first_job_begins(jobs, overrides, words):
    with pytest.raises(UserError, match=words):
        sweep(["env=toy", "env.task=dot", *overrides], pytest.fail)


def test_what_a_sweeper_chooses_is_not_checked(jobs):
    translated, _ = translate_multirun(["env=toy", "env.task=dot", "seed=1,2", "model.kl.beta=interval(0,1)"])
    check_values(translated)


def test_a_failed_run_ends_no_other_and_the_sweep_has_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = iter([0, 3, 0, 2])
    with pytest.raises(JobFailed, match="status") as failed:
        sweep(["env=toy", "env.task=dot", "seed=1,2,3,4"], lambda given: next(codes))
    assert list(codes) == [] and failed.value.exit_code == 3
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.exit_code) == (str(failed.value), 3)


def test_a_signal_ends_the_sweep_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = iter([0, 128 + signal.SIGTERM, 0])
    with pytest.raises(SystemExit) as ended:
        sweep(["env=toy", "env.task=dot", "seed=1,2,3"], lambda given: next(codes))
    assert ended.value.code == 128 + signal.SIGTERM and list(codes) == [0]


def test_a_sweep_closes_no_stream(jobs):
    """Hydra configures logging anew; a handler that closes its stream, as absl's does, would take it along."""
    stream = io.StringIO()

    class Handler(logging.StreamHandler):
        def close(self):
            self.stream.close()

    handler = Handler(stream)
    assert len(jobs("env=toy", "env.task=dot", "seed=1,2")) == 2
    assert handler.stream is stream and not stream.closed


class Requeued(BaseException):
    """What stands for the end of a process whose job was requeued."""


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_saved_run_is_handed_to_the_launcher_that_handles_the_signal(tmp_path, monkeypatch, sent):
    """Submitit's handler, which would end the process without a checkpoint, waits until the run is saved."""
    monkeypatch.chdir(tmp_path)
    folder, before = tmp_path / "runs", signal.getsignal(signal.SIGUSR2)

    def requeue(number, frame):
        raise Requeued

    def interrupt(trainer):
        os.kill(os.getpid(), sent)
        return collect(trainer)

    collect = Trainer.collect
    short = ["train.total_steps=80", "train.eval_every=0"]
    command = ["train", "--multirun", *TINY, *short, "seed=1,2", f"run_dir={folder}"]
    try:
        signal.signal(signal.SIGUSR2, requeue)
        with monkeypatch.context() as patch, pytest.raises(Requeued):
            patch.setattr(Trainer, "collect", interrupt)
            main(command)
        [stopped] = statuses([folder])
        assert stopped.state == "stopped" and 0 < stopped.step < 80
        assert main(command) == 0  # what the requeued job calls
        assert [run.state for run in statuses([folder])] == ["finished", "finished"]
    finally:
        signal.signal(signal.SIGUSR2, before)
