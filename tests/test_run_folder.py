"""The run folder: recognized, named, and written to by one process only."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from denoised_mdp.errors import UserError
from denoised_mdp.run.find import find_runs
from denoised_mdp.run.folder import RunFolder


def make_run(path):
    run = RunFolder.create(path)
    run.config.write_text("{seed: 0, env: {}, model: {}, policy: {}, train: {}}\n")
    return run


def test_create_makes_and_continues(tmp_path):
    run = RunFolder.create(tmp_path / "runs" / "a")
    assert run.path.is_dir() and not list(run.path.iterdir())
    with run.lock():
        pass
    RunFolder.create(run.path)  # killed before it wrote its configuration
    (run.path / "config.yaml.tmp").write_text("seed")
    RunFolder.create(run.path)  # killed while it wrote its configuration
    make_run(run.path)
    names = {
        name: getattr(RunFolder.create(str(run.path)), name).name
        for name in ("config", "metrics", "tensorboard", "checkpoints", "replay", "videos")
    }
    assert list(names.values()) == ["config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "replay", "videos"]


def test_create_refuses_what_is_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="holds thesis.tex but no config.yaml"):
        RunFolder.create(tmp_path)
    with pytest.raises(UserError, match="cannot be used"):
        RunFolder.create(tmp_path / "thesis.tex")
    with pytest.raises(UserError, match="cannot be used"):
        RunFolder.create(tmp_path / "thesis.tex" / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    run = make_run(tmp_path / "run")
    run.checkpoints.mkdir()
    run.config.unlink()
    with pytest.raises(UserError, match="holds checkpoints but no config.yaml. Restore that file"):
        RunFolder.create(run.path)


def test_create_refuses_a_run_in_a_run(tmp_path):
    """Commands that look for runs do not look inside of one."""
    printed = make_run(tmp_path)  # with what commands leave there, still no run in which others lie
    printed.videos.mkdir(), printed.probes.mkdir()
    run = make_run(tmp_path / "sweep" / "a")
    (run.path / "checkpoints").mkdir()
    (tmp_path / "link").symlink_to(run.checkpoints)
    for inside in (run.path / "b", run.checkpoints, run.videos / "b", run.path / "c" / ".." / "b", tmp_path / "link"):
        with pytest.raises(UserError, match=r"lies in the run .*/sweep/a. Choose a run_dir beside it."):
            RunFolder.create(inside)
    assert [path.name for path in run.path.iterdir() if path.is_dir()] == ["checkpoints"]
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(UserError, match="cannot be used"):
        RunFolder.create(tmp_path / "round" / "a")
    RunFolder.create(run.path.parent / "b")
    assert find_runs([tmp_path]) == [run.path]
    (tmp_path / "config.yaml").write_text("name: my project\n")
    RunFolder.create(tmp_path / "runs" / "c")
    older = run.path / "d"
    older.mkdir()
    shutil.copy(run.config, older)
    RunFolder.create(older)  # what has begun can come to its end


def test_existing_names_the_run_of_a_checkpoint(tmp_path):
    run = make_run(tmp_path / "cheetah_run")
    step = run.checkpoints / "step_000010000"
    step.mkdir(parents=True)
    with pytest.raises(UserError, match="part of the run .*cheetah_run: name that, with --checkpoint 10000.$"):
        RunFolder.existing(step)
    with pytest.raises(UserError, match="part of the run .*cheetah_run: name that.$"):
        RunFolder.existing(run.checkpoints)
    make_run(tmp_path / "walker_walk")
    with pytest.raises(UserError, match="does not exist. Did you mean '.*walker_walk'?"):
        RunFolder.existing(run.path / ".." / "walker_wal")


def test_existing_names_the_nearest_run(tmp_path):
    make_run(tmp_path / "cheetah_run")
    make_run(tmp_path / "walker_walk")
    (tmp_path / "other").mkdir()
    assert RunFolder.existing(tmp_path / "cheetah_run").config.is_file()
    with pytest.raises(UserError, match="does not exist. Did you mean '.*cheetah_run'?"):
        RunFolder.existing(tmp_path / "cheeta_run")
    with pytest.raises(UserError, match=f"does not exist. 'denoised-mdp status {tmp_path}' lists the runs there.$"):
        RunFolder.existing(tmp_path / "quadruped")  # in a folder of the same name, but not alike itself
    with pytest.raises(UserError, match="no run at .*other: it has no config.yaml"):
        RunFolder.existing(tmp_path / "other")
    (tmp_path / "other" / "config.yaml").write_text("name: my project\n")
    with pytest.raises(UserError, match="no run at .*other: it has no config.yaml of a run. .denoised-mdp status"):
        RunFolder.existing(tmp_path / "other")
    with pytest.raises(UserError, match="no run at .*othe: it does not exist. .denoised-mdp status"):
        RunFolder.existing(tmp_path / "othe")  # what is near is no run
    with pytest.raises(
        UserError, match="no run at nowhere/at/all: it does not exist. Nor is there a folder nowhere/at.$"
    ):
        RunFolder.existing("nowhere/at/all")
    assert not (tmp_path / "cheeta_run").exists()
    (tmp_path / "my runs").mkdir()
    with pytest.raises(UserError, match="'denoised-mdp status '.*/my runs'' lists"):
        RunFolder.existing(tmp_path / "my runs" / "a")
    with pytest.raises(UserError, match="'denoised-mdp train 'run_dir=.*/my runs/NAME'' begins one"):
        find_runs([tmp_path / "my runs"])


def test_a_run_may_lie_in_the_users_home(tmp_path, monkeypatch):
    """As ``run_dir`` may: whoever reads or writes there means the same folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make_run(tmp_path / "a" / "cheetah_run")
    assert RunFolder.existing("~/a/cheetah_run").probes == tmp_path / "a" / "cheetah_run" / "probes"
    assert RunFolder(Path("~/a/cheetah_run")).config.is_file()
    assert find_runs(["~/a"]) == [tmp_path / "a" / "cheetah_run"]
    assert RunFolder("pretrained:cheetah_run_video").config.is_file()


HOLD = """
import os, sys, time
from denoised_mdp.run.folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    if os.fork() == 0:  # a worker that outlives its killed trainer
        os.close(1)
        time.sleep(20)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    run = make_run(tmp_path / "a")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        for _ in range(2):
            with pytest.raises(UserError, match=f"in use by another process .id {holder.pid}."), run.lock():
                pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with run.lock():  # at once, although the forked worker still lives
            assert (run.path / ".lock").read_text().strip() == str(os.getpid())
        with run.lock():
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


def test_a_folder_is_locked_once_in_a_process_too(tmp_path):
    """A second lock of one process would be granted by the system, and release the first when it ends."""
    run = RunFolder.create(tmp_path / "a")
    with run.lock():
        with pytest.raises(UserError, match="in use by this process"), RunFolder(tmp_path / "a").lock("--output"):
            pass
        with RunFolder.create(tmp_path / "b").lock():
            pass
        code = "import sys; from denoised_mdp.run.folder import RunFolder; print(RunFolder(sys.argv[1]).in_use())"
        told = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True)
        assert told.stdout == "True\n", "still ours"
    with run.lock():
        pass
