"""What a checkpoint counts is on the disk before it has its name; full disks, lost folders, signals at any time."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import pytest
from small_runs import TINY, finish, finished_run, forked, lines, tiny

from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError
from denoised_mdp.files import replace_file
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report
from denoised_mdp.run.logger import Logger
from denoised_mdp.run.signals import StopRequest
from denoised_mdp.session import Session, train
from denoised_mdp.trainer import Trainer

SHORT = ["policy.hidden=8", "policy.horizon=4", "train.total_steps=160", "train.eval_episodes=1", "train.device=cpu"]
"""80 actions and 4 updates"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbed."""
    return finished_run(tmp_path_factory.mktemp("whole"), *SHORT)


def command(path: Path, *more: str) -> list[str]:
    return ["train", *TINY, *SHORT, f"run_dir={path}", *more]


def start(arguments: list[str], before=lambda: None) -> tuple[int, int]:
    """Run a command in a forked process, after something else there: as `forked`."""

    def body() -> int:
        before()
        return main(arguments)

    return forked(body)


def contents(folder: Path) -> dict[Path, object]:
    """Everything below a run folder that a checkpoint relies on: checksums of files, names in folders."""
    found: dict[Path, object] = {folder: sorted(os.listdir(folder))}
    for path in folder.rglob("*"):
        if path.name not in (".lock", "machine.jsonl"):  # nothing is lost with them
            found[path] = sorted(os.listdir(path)) if path.is_dir() else zlib.crc32(path.read_bytes())
    return found


@pytest.mark.parametrize("environments", [1, 2])
def test_all_that_a_checkpoint_counts_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, environments):
    """A simulated power failure may take whatever was not forced to the disk: at the rename, that is nothing."""
    run, durable, checked = tmp_path / "runs" / "run", {}, []
    real_fsync, real_rename, real_replace = os.fsync, os.rename, os.replace

    def fsync(file):
        real_fsync(file)
        path = Path(os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        durable[path] = sorted(os.listdir(path)) if path.is_dir() else zlib.crc32(path.read_bytes())

    def rename(old, new):
        if Path(new).name.startswith("step_") and Path(old).name.startswith(".tmp-"):
            now = contents(run)
            now.pop(run / "checkpoints")  # is forced to the disk when the name is in it
            for path in list(now):
                if run / "checkpoints" in path.parents and old not in (path, *path.parents):
                    del now[path]  # an earlier checkpoint
            lost = [path for path, value in now.items() if durable.get(path) != value]
            assert not lost, f"not yet on the disk: {lost}"
            checked.append(new)
        real_rename(old, new)
        if checked and new == checked[-1]:
            durable.pop(run / "checkpoints", None)

    def replace(old, new):
        real_replace(old, new)
        durable[Path(new)] = durable.pop(Path(old))

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)  # Python 3.10's does not ask for os.rename
    assert main(command(run, f"train.collect_envs={environments}", "train.total_steps=120")) == 0
    assert len(checked) == 2
    assert checked[-1].name in durable[run / "checkpoints"]
    assert durable[run.parent] == ["run"] and "runs" in durable[tmp_path]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError):
            replace_file(path, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]
    (tmp_path / "file.tmp").write_bytes(b"left by a kill")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


def full_disk(patch: type, method: str, update: int, size: int):
    """Let files grow no larger than `size` bytes from the first call of a method after so many updates."""
    real, count = getattr(patch, method), [0]
    learn = Trainer.learn

    def counted(trainer):
        learn(trainer)
        count[0] += 1

    def limited(*arguments, **options):
        if count[0] >= update:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return real(*arguments, **options)

    Trainer.learn = counted
    setattr(patch, method, limited)


@pytest.mark.parametrize(
    ("method", "size", "words"),
    [
        ((Trainer, "collect"), 0, "replay in .* cannot be written"),
        ((Logger, "log"), 0, "Metrics cannot be written"),
        ((Logger, "flush"), 0, "(Metrics|replay in .*) cannot be written|checkpoint of step 160 cannot be saved"),
        ((Session, "save"), 700_000, "checkpoint of step 160 cannot be saved .*That of step 80 is intact. Make room"),
    ],
)
def test_a_disk_that_fills_up_costs_nothing_but_the_last_interval(tmp_path, whole, method, size, words):
    """One line and exit code 2, whatever meets the limit first; with room again, the same command ends the same."""
    run = tmp_path / "run"
    process = start(command(run), lambda: full_disk(*method, update=4, size=size))
    code, text = finish(*process)
    errors = [line for line in text.splitlines() if "error" in line]
    assert code == 2 and len(errors) == 1 and "Traceback" not in text, text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.load(run / "checkpoints")[0] == 80
    assert re.search(words, errors[0]), errors
    assert not list((run / "checkpoints").glob(".tmp*"))
    assert main(command(run)) == 0
    assert report(compare(whole, run))


def test_a_disk_that_is_full_at_the_start_does_not_spoil_the_folder(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    code, text = finish(
        *start(command(tmp_path / "run"), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1])))
    )
    assert code == 2 and text.count("error") == 1 and "Traceback" not in text, text
    assert main(command(tmp_path / "run", "train.total_steps=80")) == 0


def at_update(monkeypatch, number: int, action) -> None:
    """Do something before an update of the next runs, once."""
    learn, done = Trainer.learn, []

    def spoiled(trainer):
        if trainer.updates == number and not done:
            done.append(action())
        learn(trainer)

    monkeypatch.setattr(Trainer, "learn", spoiled)


def test_checkpoints_that_are_deleted_while_it_runs_are_made_anew(tmp_path, whole, monkeypatch):
    at_update(monkeypatch, 3, lambda: shutil.rmtree(tmp_path / "run" / "checkpoints"))
    assert main(command(tmp_path / "run")) == 0
    assert report(compare(whole, tmp_path / "run"))


def test_a_replay_that_is_deleted_while_it_runs_ends_the_run(tmp_path, monkeypatch, capfd):
    """Else checkpoints would count rows that nobody can read any more."""
    at_update(monkeypatch, 3, lambda: shutil.rmtree(tmp_path / "run" / "replay"))
    assert main(command(tmp_path / "run")) == 2
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert "was deleted, replaced or moved" in error
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") == [80]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's thread
def test_a_run_folder_that_is_moved_while_it_runs_continues_at_its_new_place(tmp_path, whole, monkeypatch, capfd):
    at_update(monkeypatch, 3, lambda: (tmp_path / "run").rename(tmp_path / "moved"))
    assert main(command(tmp_path / "run")) == 2
    assert "Traceback" not in capfd.readouterr().err and not (tmp_path / "run" / "checkpoints").exists()
    assert main(command(tmp_path / "moved")) == 0
    assert report(compare(whole, tmp_path / "moved"))


def test_checkpoints_on_a_disk_that_is_not_there_are_not_begun_anew(tmp_path, whole):
    """A link that leads nowhere must not cost the replay and the metrics."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "mount")
    with pytest.raises(UserError, match="checkpoints is no folder. Put the checkpoints back"):
        train(tiny(run, *SHORT))
    assert lines(run) == lines(whole)
    (tmp_path / "elsewhere").rename(tmp_path / "mount")
    assert train(tiny(run, *SHORT))
    assert report(compare(whole, run))


@pytest.mark.parametrize("part", ["new_replay", "announce"])
def test_a_run_that_was_stopped_while_it_was_built_continues(tmp_path, whole, monkeypatch, capsys, part):
    """Before its replay was made, and before its first row: the folder holds little of a training, and is one."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Session, part, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        assert main(command(run)) == 128 + signal.SIGTERM
    saved = "stopped. Everything is saved; the same command continues."  # by the loop, which was about to begin
    said = {"new_replay": "stopped. Nothing was trained yet.", "announce": saved}
    assert capsys.readouterr().err.endswith(f"{said[part]}\n")
    assert (run / "replay").exists() is (part == "announce")
    assert main(command(run)) == 0
    assert report(compare(whole, run))
    capsys.readouterr()
    assert main(command(run)) == 0, "repeated, it says so and does nothing"
    assert re.search(rf"{run}: complete at step \d+. To extend it, set a larger", capsys.readouterr().out)
    assert report(compare(whole, run))


def read_until(pipe: int, words: bytes) -> str:
    """What a process writes, up to these words or its end."""
    text = b""
    while words not in text and (more := os.read(pipe, 1000)):
        text += more
    return text.decode()


def test_signals_at_any_moment(tmp_path, whole):
    """At the start, while rows are collected, in updates, evaluations and checkpoints: saved, and never a traceback."""
    rng, run, codes = random.Random(1), tmp_path / "run", []
    began = time.monotonic()
    assert finish(*start(command(tmp_path / "pace", "train.total_steps=80")))[0] == 0
    pace = 2 * (time.monotonic() - began)
    numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP]
    for turn, number in enumerate([*numbers, *numbers[:3]]):
        child, pipe = start(command(run))
        listens = turn % 2 == 0 and "to step" in read_until(pipe, b"to step")
        time.sleep(pace * rng.uniform(0.0, 0.1) if listens else pace * rng.uniform(0.02, 0.3))
        os.kill(child, number)
        code, text = finish(child, pipe)
        assert "Traceback" not in text and "Exception" not in text, text
        assert code in ((0, 128 + number) if listens else (0, 128 + number, -number)), text
        codes.append(code)
    assert any(code > 128 for code in codes) and checkpoint.list_steps(run / "checkpoints")
    assert main(command(run)) == 0
    assert report(compare(whole, run))


LEAVING = """
import atexit, json, os, signal, sys, time
import denoised_mdp.session
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config

def send(names):
    for name in names.split():
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.01)

def train(config, stop):
    with stop:
        send(saving)
    return False

denoised_mdp.session.train = train
load_config(["preset=debug"])  # imports what no process need import again
for saving, leaving in json.loads(sys.argv.pop(1)):
    if os.fork() == 0:
        atexit.register(send, leaving)
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_the_first_signal_decides_the_exit_code():
    """Clusters warn with one signal and follow with another: a job script must see the first."""
    cases = {  # signals while it saves, and while the interpreter ends -> exit code
        ("SIGUSR1", ""): 128 + signal.SIGUSR1,
        ("SIGUSR1", "SIGTERM"): 128 + signal.SIGUSR1,
        ("SIGUSR1", "SIGUSR1 SIGINT SIGHUP"): 128 + signal.SIGUSR1,
        ("SIGUSR1 SIGTERM SIGINT", "SIGTERM"): 128 + signal.SIGUSR1,
        ("SIGTERM SIGUSR1", "SIGUSR1"): 128 + signal.SIGTERM,
        ("SIGINT SIGINT", ""): 128 + signal.SIGINT,
    }
    command = [sys.executable, "-c", LEAVING, json.dumps(list(cases)), "train", *TINY, "run_dir=nowhere"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert list(map(int, done.stdout.split())) == list(cases.values()), done.stderr
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_a_terminal_that_is_closed_stops_a_training_unless_nohup_has_it_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for ignored in (True, False):
            signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
            with StopRequest() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0)
                assert stop.requested != ignored
            assert ignored or stop.exit_code == 129
            assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


UNREAD = """
import os, sys
import denoised_mdp.session
from denoised_mdp.cli.main import main

reader, closed = os.pipe()
os.close(reader)
full = os.open("/dev/full" if os.path.exists("/dev/full") else os.devnull, os.O_WRONLY)
for output in (closed, full):
    if os.fork() == 0:
        os.dup2(output, 1)
        sys.argv[-1] += f"/{'closed' if output == closed else 'full'}"
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_a_training_begins_where_nobody_reads_its_output(tmp_path, whole):
    """`| true`, or a log on a full disk; to the end of the interpreter."""
    done = subprocess.run([sys.executable, "-c", UNREAD, *command(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == ["0", "0"], done.stderr
    for name in ("closed", "full"):
        assert report(compare(whole, tmp_path / name))


def test_output_that_nobody_reads_does_not_end_a_training(tmp_path, whole):
    """The terminal is gone, or `| head` has read enough."""
    child, pipe = start(command(tmp_path / "run"))
    assert "starting, to step" in read_until(pipe, b"starting, to step")
    os.close(pipe)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert report(compare(whole, tmp_path / "run"))
