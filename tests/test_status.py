"""What `denoised-mdp status` says of runs, and what a failing run leaves in its folder."""

import errno
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys

import pytest
from report_runs import make_run
from small_runs import TINY, run_units, tiny

from denoised_mdp import hooks
from denoised_mdp.analysis import status
from denoised_mdp.analysis.status import status_of, statuses
from denoised_mdp.cli.main import main
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.run import checkpoint
from denoised_mdp.run.failure import last_error, recorded
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.pretrained import export
from denoised_mdp.session import Session, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run; tests change copies of it."""
    config = tiny(tmp_path_factory.mktemp("whole") / "run")
    run_units(config, 10**9)
    return config.run_dir


def test_a_run_is_stopped_then_finished(tmp_path, capsys):
    config = tiny(tmp_path / "sweep" / "a")
    run_units(config, 70)
    stopped = status_of(tmp_path / "sweep" / "a")
    assert (stopped.state, stopped.total, stopped.error) == ("stopped", 200, None) and 0 < stopped.step < 200
    run_units(config, 10**9)
    [finished] = statuses([tmp_path / "sweep"])
    logged = [json.loads(line) for line in open(tmp_path / "sweep" / "a" / "metrics.jsonl")]
    assert (finished.state, finished.step) == ("finished", 200)
    assert finished.value == [row["eval/return"] for row in logged if "eval/return" in row][-1]
    assert finished.speed > 0
    assert main(["status", str(tmp_path / "sweep")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 finished"


def test_a_run_that_was_stopped_in_its_last_evaluation_is_not_finished(tmp_path, monkeypatch):
    """A grid would leave it out, and its table lack the score."""
    config, evaluate = tiny(tmp_path / "a", "train.probe_every=0"), hooks.evaluate
    played = []

    def stop_in_the_third(*args, **options):
        played.append(0)
        if len(played) == 3:  # of those at 80, 160 and 200 steps
            signal.raise_signal(signal.SIGTERM)
        return evaluate(*args, **options)

    monkeypatch.setattr(hooks, "evaluate", stop_in_the_third)
    assert not train(config)
    assert (status_of(tmp_path / "a").state, status_of(tmp_path / "a").step) == ("stopped", 200)
    assert train(config) and status_of(tmp_path / "a").state == "finished"


def test_a_lock_of_another_process_means_running(tmp_path):
    run = RunFolder(make_run(tmp_path / "a"))
    assert not run.in_use()
    program = (
        "import sys; from denoised_mdp.run.folder import RunFolder\n"
        f"with RunFolder({str(run.path)!r}).lock(): print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "locked\n"
        assert run.in_use() and status_of(run.path).state == "running"
        with pytest.raises(UserError, match="in use"), run.lock():
            pass
        holder.stdin.close()
    assert not run.in_use() and status_of(run.path).state == "stopped"


def test_asking_in_the_process_that_trains_keeps_its_lock(tmp_path):
    run = RunFolder(make_run(tmp_path / "a"))
    program = f"from denoised_mdp.run.folder import RunFolder; print(RunFolder({str(run.path)!r}).in_use())"
    with run.lock():
        assert not RunFolder(tmp_path / "a").in_use(), "it does not see its own"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout == "True\n"
    with run.lock():
        pass


def test_a_failing_run_leaves_its_error_and_a_later_success_removes_it(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise UserError("no clips at /data")

    run, bad = make_run(tmp_path / "runs" / "good"), tmp_path / "runs" / "bad"
    command = [*TINY, "train.total_steps=80", f"run_dir={bad}"]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "announce", fail)
        assert main(["train", *command]) == 2
    assert main(["status", str(tmp_path / "runs")]) == 1
    shown = capsys.readouterr().out
    assert last_error(bad / "error.json") == "no clips at /data" and "no clips at /data" in shown
    assert "1 failed, 1 stopped" in shown and str(run) in shown
    assert main(["train", *command]) == 0
    assert main(["train", *command, "seed=7"]) == 2, "another configuration"
    assert not (bad / "error.json").exists() and status_of(bad).state == "finished"


def test_defects_have_a_traceback_and_stops_are_no_failures(tmp_path):
    path = tmp_path / "error.json"
    with pytest.raises(ZeroDivisionError), recorded(path):
        _ = 1 / 0
    record = json.loads(path.read_text())
    assert record["error"] == "ZeroDivisionError: division by zero" and "1 / 0" in record["traceback"]
    with pytest.raises(KeyboardInterrupt), recorded(path):
        raise KeyboardInterrupt
    assert not path.exists() and last_error(path) is None
    path.write_text("[")
    assert "cannot be read" in last_error(path)


def test_the_error_of_an_environment_is_one_line_beside_its_traceback(tmp_path):
    path = tmp_path / "error.json"
    below = 'Traceback (most recent call last):\n  File "robot.py", line 3\nRuntimeError: on fire\n'
    with pytest.raises(EnvironmentFailure), recorded(path):
        raise EnvironmentFailure("robot raised an error in the episode of seed 3", below)
    assert last_error(path) == "robot raised an error in the episode of seed 3: RuntimeError: on fire"
    assert json.loads(path.read_text())["traceback"] == below.strip()
    failure = EnvironmentFailure("robot raised an error in the episode of seed 3", below)
    assert str(failure) == f"robot raised an error in the episode of seed 3.\n{below.strip()}"
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)
    with pytest.raises(EnvironmentFailure), recorded(path):
        raise EnvironmentFailure("robot ended before its first action")
    assert last_error(path) == "robot ended before its first action"


@pytest.mark.parametrize("size", [0, 4, 1000, None])
def test_a_run_is_damaged_when_no_checkpoint_is_whole(whole, tmp_path, size):
    """Of the newest alone, training would go on from the one before."""
    shutil.copytree(whole, tmp_path / "a")
    finished, folder = status_of(tmp_path / "a"), RunFolder(tmp_path / "a")
    newest, *others = sorted(folder.checkpoints.glob("step_*/tensors.safetensors"), reverse=True)
    assert finished.state == "finished" and others

    def spoil(file):
        file.unlink() if size is None else file.write_bytes(file.read_bytes()[:size])

    spoil(newest)
    assert status_of(tmp_path / "a").state == "stopped"
    for file in others:
        spoil(file)
    seen = status_of(tmp_path / "a")
    assert seen.state == "damaged" and "All its checkpoints are damaged" in seen.error


def test_a_run_that_was_saved_before_its_first_step_is_stopped(tmp_path, monkeypatch):
    config = tiny(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(Session, "announce", lambda _: signal.raise_signal(signal.SIGTERM))
        assert not train(config)
    assert checkpoint.list_steps(tmp_path / "a" / "checkpoints") == [0]
    assert (status_of(tmp_path / "a").state, status_of(tmp_path / "a").error) == ("stopped", None)


def test_what_is_wrong_with_one_run_is_no_error_of_all(whole, tmp_path, monkeypatch, capsys):
    """A flipped bit in the length of a header, which then is larger than any memory; a folder that may not be read."""
    other = shutil.copytree(whole, tmp_path / "b")
    shutil.copytree(whole, tmp_path / "a")
    for file in (tmp_path / "a").glob("checkpoints/step_*/tensors.safetensors"):
        content = bytearray(file.read_bytes())
        content[7] ^= 0x40
        file.write_bytes(content)
    assert [one.state for one in statuses([tmp_path])] == ["damaged", "finished"]
    found = status.checkpoints.list_steps

    def list_steps(folder):
        if folder.parent == other:
            raise PermissionError(errno.EACCES, "Permission denied")
        return found(folder)

    monkeypatch.setattr(status.checkpoints, "list_steps", list_steps)
    assert main(["status", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "2 damaged" in shown and f"{other / 'checkpoints'} cannot be read (Permission denied)." in shown


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_checkpoint_whose_json_is_garbled_is_not_whole(whole, tmp_path, name):
    shutil.copytree(whole, tmp_path / "a")
    newest, *others = sorted((tmp_path / "a" / "checkpoints").glob(f"step_*/{name}"), reverse=True)
    assert status_of(tmp_path / "a").state == "finished" and others
    newest.write_bytes(others[0].read_bytes() if name == "manifest.json" else b"{")
    assert status_of(tmp_path / "a").state == "stopped", "training would go on from the one before"
    for file in others:
        file.write_text("{")
    assert status_of(tmp_path / "a").state == "damaged"


def test_a_run_that_has_lost_its_configuration_is_damaged(whole, tmp_path, capsys):
    runs = tmp_path / "runs"
    make_run(runs / "b", returns=())
    shutil.copytree(whole, runs / "a")
    (runs / "a" / "config.yaml").unlink()
    assert main(["status", str(runs)]) == 1
    shown = capsys.readouterr().out
    assert "1 damaged, 1 stopped" in shown and f"{runs / 'a' / 'config.yaml'} is gone: restore that file" in shown
    assert main(["evaluate", str(runs / "a")]) == 2
    assert f"{runs / 'a'} has lost its config.yaml: restore that file" in capsys.readouterr().err
    assert main(["table", str(runs), "-o", str(tmp_path / "table")]) == 2
    assert "a/config.yaml is gone: restore that file from a copy. Or leave this run out." in capsys.readouterr().err
    (runs / "a" / "metrics.jsonl").write_text('{"step": 200, "eval/return": 1.0}\n')  # one curve to draw
    assert main(["report", str(runs), "-o", str(tmp_path / "page.html")]) == 0
    assert "config.yaml is gone" in (tmp_path / "page.html").read_text()


def test_what_cannot_be_read_is_unknown(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text("{")
    (run / "config.yaml").write_text("- no\n")
    seen = status_of(run)
    assert (seen.state, seen.step, seen.total) == ("damaged", 0, None) and math.isnan(seen.value)
    assert str(run / "config.yaml") in seen.error
    assert seen.line.split()[2:5] == ["-", "-", "-"]
    with pytest.raises(UserError, match="no run"):
        statuses([tmp_path / "nowhere"])


@pytest.mark.parametrize("command", ["status", "table", "report"])
def test_a_folder_without_runs_says_what_begins_one(tmp_path, capsys, command, monkeypatch):
    assert main([command, str(tmp_path)]) == 2
    assert f"{tmp_path} holds no run yet: 'denoised-mdp train run_dir=" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("name: my project\n")
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    assert main([command, str(tmp_path)]) == 2
    assert f"{tmp_path} holds no run yet: 'denoised-mdp train run_dir=" in capsys.readouterr().err
    inside = make_run(tmp_path / "a") / "checkpoints"
    inside.mkdir(exist_ok=True)
    assert main([command, str(inside)]) == 2
    assert f"It is a part of the run {tmp_path / 'a'}: name that." in capsys.readouterr().err
    monkeypatch.chdir(inside)
    assert main([command, "."]) == 2
    assert f"It is a part of the run {tmp_path / 'a'}: name that." in capsys.readouterr().err


def test_a_run_that_has_lost_its_checkpoints_is_damaged_and_an_exported_agent_is_none(whole, tmp_path, capsys):
    run = RunFolder(shutil.copytree(whole, tmp_path / "runs" / "a"))
    export(run.path, tmp_path / "runs" / "b")
    assert [one.state for one in statuses([tmp_path / "runs"])] == ["finished", "exported"]
    shutil.rmtree(run.checkpoints)
    assert main(["status", str(tmp_path / "runs")]) == 1
    shown = capsys.readouterr().out
    assert f"It has lost its checkpoints: put {run.checkpoints} back.\n" in shown and "1 damaged, 1 exported" in shown


def test_a_run_that_has_lost_its_replay_is_damaged_unless_it_is_finished(whole, tmp_path):
    run = RunFolder(shutil.copytree(whole, tmp_path / "whole"))
    shutil.rmtree(run.replay)
    assert status_of(run.path).state == "finished"
    config = tiny(tmp_path / "half")
    run = RunFolder(config.run_dir)
    run_units(config, 70)
    assert status_of(run.path).state == "stopped"
    shutil.rmtree(run.replay)
    status = status_of(run.path)
    assert (status.state, status.error) == ("damaged", f"It has lost its replay: put {run.replay} back.")


def test_a_finished_run_needs_nothing_and_cannot_fail(whole, tmp_path, capsys):
    """Neither its replay, which may be deleted, nor a device: it is complete, whatever an earlier start said."""
    run = shutil.copytree(whole, tmp_path / "a")
    shutil.rmtree(run / "replay")
    (run / "error.json").write_text(json.dumps({"error": "a start was refused"}))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["train", str(run), "train.act_device=cuda:7"]) == 0
    assert "complete at step 200" in capsys.readouterr().out
    assert main(["status", str(run)]) == 0 and capsys.readouterr().out.endswith("\n1 finished\n")
    assert all(path.read_bytes() == data for path, data in before.items() if path.name != ".lock")
    assert {path for path in run.rglob("*") if path.is_file() and path.name != ".lock"} <= set(before)


def test_checkpoints_that_fail_to_be_read_are_damage_and_no_error_of_status(whole, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint, "newest_seen_whole", fail)
    status = status_of(whole)
    assert status.state == "damaged" and "cannot be read (Input/output error)" in status.error


def test_linked_runs_are_found_and_circles_end(tmp_path):
    run, links = make_run(tmp_path / "runs" / "a"), tmp_path / "links"
    links.mkdir()
    (links / "b").symlink_to(run)
    (links / "up").symlink_to(tmp_path)
    assert [one.path.resolve() for one in statuses([links])] == [run]


def test_a_run_with_updates_to_do_at_its_last_step_is_not_finished(tmp_path):
    """Here the round falls into the last turn: stopped between its updates, nothing else is due yet."""
    config = tiny(tmp_path / "a", "train.total_steps=80", "train.prefill_steps=80", "train.updates=3")
    run_units(config, 41)  # the actions of the prefill, and one update
    assert status_of(tmp_path / "a").state == "stopped" and status_of(tmp_path / "a").step == 80
    run_units(config, 10**9)
    assert status_of(tmp_path / "a").state == "finished"


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"There is no run at .*notes.txt: it is a file"):
        statuses([tmp_path / "notes.txt"])


def test_a_run_without_its_configuration_is_no_empty_folder(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"has lost its config.yaml: restore that file"):
        statuses([run])
