"""Files that are not what they should be: pipes, devices, links, depth, endless numbers, the folders of others."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_runs import TINY, finished_run, lines, tiny

import denoised_mdp
from denoised_mdp import files as reading
from denoised_mdp.analysis.report.data import read_run
from denoised_mdp.analysis.results import make_folder, write_whole
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config, read_config, save_config
from denoised_mdp.errors import UserError, remedy
from denoised_mdp.files import replace_file, sync_folder
from denoised_mdp.run import checkpoint
from denoised_mdp.run.folder import output_file

pytestmark = pytest.mark.timeout(60)  # what reads a pipe waits for ever

SHORT = ["policy.hidden=8", "train.eval_every=0", "train.probe_every=0", "train.total_steps=120", "train.device=cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("finished"), *SHORT)


@pytest.fixture
def run(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    save_config(tiny(path, *SHORT), path / "config.yaml")
    return path


def one_error(capfd, *words: str) -> str:
    """The line on standard error that a command has left, and nothing like a traceback."""
    error = capfd.readouterr().err
    found = [line for line in error.splitlines() if "error:" in line]
    assert len(found) == 1 and "Traceback" not in error, error
    for word in words:
        assert word in found[0], error
    return found[0]


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


STRANGE = {"pipe": as_pipe, "device": as_device}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "metrics.jsonl",
        "machine.jsonl",
        ".lock",
        "checkpoints/step_000000120",
        "replay/reward.npy",
        "checkpoints/step_000000120/manifest.json",
        "checkpoints/step_000000120/state.json",
        "checkpoints/step_000000120/tensors.safetensors",
        "replay/observation.npy",
        "tensorboard",
    ],
)
def test_pipes_and_devices_in_a_run_are_never_waited_for(run, kind, name, capfd):
    """By a training that continues, by reports and by comparisons."""
    path = run / name
    if name == "tensorboard":
        path = next(path.glob("events*"))
    elif path.is_dir():
        shutil.rmtree(path)
    STRANGE[kind](path)
    assert main(["compare", str(run), str(run)]) in (0, 2)
    if name == "config.yaml":
        with pytest.raises(UserError):
            read_run(run)
    else:
        assert bool(read_run(run).problems) == name.startswith(("metrics", "machine", "tensorboard"))
    code = main(["train", *longer(run)])
    error = capfd.readouterr().err
    assert code in (0, 2) and "Traceback" not in error
    if code == 0:  # it did without, and said so
        assert "warning" in error and name.startswith(("machine", "checkpoints", "tensorboard"))
    assert not stat.S_ISREG(path.lstat().st_mode)


def longer(run: Path) -> list[str]:
    return [*TINY, *SHORT, "train.total_steps=160", f"run_dir={run}"]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        "[" * 200 + "]" * 200,
        "3",
        "null",
        '"step"',
        "[1]",
        '{"step": "a"}',
        '{"eval/return": 1}',
        '{"step": ' + "1" * 400 + "}",
        '{"step": ' + "1" * 5000 + "}",
        '{"step": null}',
        '{"step": 1e999}',
        "\udcff",
    ],
    ids=lambda line: line[:12],
)
def test_lines_of_a_log_that_are_no_metrics(run, line, capfd):
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    assert main(["compare", str(run), str(run)]) == 2
    one_error(capfd, "metrics.jsonl is damaged")
    assert "metrics.jsonl cannot be read" in read_run(run).problems[0]


@pytest.mark.parametrize("value", ["1" * 400, "1" * 5000, "1e999", DEEP], ids=["400", "5000", "infinite", "deep"])
def test_values_in_a_log_that_are_no_float(run, value):
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f'{{"step": 120, "eval/return": {value}}}\n')
    (run / "probes").mkdir()
    (run / "probes" / "factors_train_000000120.json").write_text(f'{{"probe": "factors", "run": 1, "step": {value}}}')
    problems = read_run(run).problems
    assert len(problems) == 2 and all("no finite number" in text or "cannot be read" in text for text in problems)


BILLION = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    "text",
    [
        BILLION,
        "[" * 5000,
        "a: " + "[" * 400 + "]" * 400,
        "{a: " * 60 + "}" * 60,
        "policy: [sac]",
        "policy: {name: [a]}",
        "policy: {name: {a: b}}",
        "policy: {name: 3}",
        "policy: 3",
        "? [a]\n: b",
        "seed: !!int ''",
        "seed: !!float ''",
        "seed: !!timestamp x",
        "seed: " + "1" * 400,
        "seed: " + "1" * 5000,
        "model: [1]",
        "model: {x: {belief: [1]}}",
        'seed: "a\\nb"',
        '"a\\nb": 3',
        "x" * 10**6,
        "distractors: [a]",
        "distractors: {[a]: {}}",
        "env: {task: {a: b}}",
        "a: " + "b" * 100_000,
        "seed: 2001-99-99",
        "seed: " + "x" * 5000,
    ],
    ids=lambda text: text[:20].replace("\n", " "),
)
def test_configurations_that_cannot_be(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    began = time.monotonic()
    with pytest.raises(UserError, match="config.yaml") as error:
        read_config(tmp_path)
    assert time.monotonic() - began < 5
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 3000


def test_messages_are_one_line_that_every_terminal_can_show(tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff\n\x1b[31m\r\nb\xe2\x80\xa8c")
    with pytest.raises(UserError) as error:
        denoised_mdp.load(path)
    assert str(error.value).isprintable()
    str(error.value).encode()


@pytest.mark.parametrize("content", ["learning_rate: 0.1\n", "", "seed: [", "\x00", "seed: 0\n", "[env, model]\n"])
@pytest.mark.parametrize("beside", [(), ("main.py",)])
def test_a_folder_with_any_config_yaml_is_no_run(tmp_path, monkeypatch, content, beside, capfd):
    """Also as run_dir=. and with an empty run_dir."""
    (tmp_path / "config.yaml").write_text(content)
    for name in beside:
        (tmp_path / name).write_text("precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    for place in (str(tmp_path), ".", ""):
        assert main(["train", *longer(Path("x"))[:-1], f"run_dir={place}"]) == 2
        one_error(capfd, "run_dir")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_run_dir_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="run_dir=: "):
        load_config(["run_dir="])


@pytest.mark.parametrize("lost", ["folder", "content"])
@pytest.mark.parametrize("more", [[], ["seed=1"]])
def test_a_run_that_has_lost_its_checkpoints_is_not_begun_anew(run, lost, more, capfd):
    shutil.rmtree(run / "checkpoints")
    if lost == "content":
        (run / "checkpoints").mkdir()
    before, rows = lines(run), (run / "replay" / "number.npy").read_bytes()
    assert main(["train", *longer(run), *more]) == 2
    one_error(capfd, "has lost its checkpoints", "move", "metrics.jsonl", "replay", "tensorboard")
    assert lines(run) == before and (run / "replay" / "number.npy").read_bytes() == rows
    (run / "metrics.jsonl").rename(run / "metrics.old")
    assert main(["train", *longer(run), *more]) == 2, "the replay would be overwritten"
    one_error(capfd, "has lost its checkpoints", "move", "replay", "tensorboard")
    assert (run / "replay" / "number.npy").read_bytes() == rows
    for name in ("replay", "tensorboard"):
        (run / name).rename(run / f"{name}.old")
    (run / "snapshots").mkdir()
    (run / "snapshots" / "step_000000100").mkdir()
    assert main(["train", *longer(run), *more]) == 2
    one_error(capfd, "has lost its checkpoints", "move", "snapshots")
    shutil.rmtree(run / "snapshots")
    assert main(["train", *longer(run), *more]) == 0


def test_a_run_that_never_had_a_checkpoint_is_begun_anew_by_the_same_command_only(tmp_path, monkeypatch, capfd):
    run = tmp_path / "run"

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", crash)
        assert main(["train", *longer(run)]) == 130
    assert lines(run)
    assert main(["train", *longer(run), "seed=1"]) == 2
    one_error(capfd, "seed: 0 -> 1", "no checkpoint yet")
    assert main(["train", *longer(run)]) == 0
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


def test_links_and_stray_files_among_checkpoints_do_not_stop_them(run, tmp_path, capfd):
    folder = run / "checkpoints"
    (folder / "step_000000080").rename(tmp_path / "moved")
    (folder / "step_000000080").symlink_to(tmp_path / "moved")
    (folder / ".tmp-step_000000160").write_text("a file")
    (folder / ".tmp-link").symlink_to(tmp_path / "moved")
    (folder / "step_000000160").symlink_to(tmp_path / "nowhere")
    (folder / "step_000000160.old").write_text("a file")
    assert main(["train", *longer(run)]) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["step_000000120", "step_000000160"]
    assert len(list((tmp_path / "moved").iterdir())) == 3, "what a link leads to is not ours to delete"


def test_a_file_takes_the_place_of_a_file_only(tmp_path):
    """A link stays and what it leads to is replaced; devices, pipes and folders stay as they are."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"1", b"2"):
        replace_file(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("pipe", "folder", "round", "/dev/null"):
        before = os.lstat(tmp_path / name)
        with pytest.raises(OSError):
            replace_file(tmp_path / name, b"3")
        with pytest.raises(UserError, match="cannot be written"), output_file(tmp_path / name) as unfinished:
            unfinished.write_text("3")
        assert os.lstat(tmp_path / name).st_ino == before.st_ino
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "target.tmp").symlink_to(victim)
    replace_file(target, b"4")
    assert victim.read_text() == "precious" and target.read_bytes() == b"4"
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link", "pipe", "folder", "round", "victim"}


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "metrics.jsonl",
        "machine.jsonl",
        ".lock",
        "replay/reward.npy",
        "tensorboard/report.html",
        "checkpoints/step_000000120/manifest.json",
        "checkpoints/report.html",
        "checkpoints",
        "../link",
    ],
)
def test_results_never_take_the_place_of_what_a_run_needs(run, name, capfd):
    (run.parent / "link").symlink_to(run / "metrics.jsonl")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    path = str(run / name)
    assert main(["report", str(run), "-o", path]) == 2
    with pytest.raises(UserError):
        make_folder(Path(path))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["report.html", "videos/report.html", "probes/report.html"])
def test_results_beside_a_run_are_written(run, name):
    (run / "videos").mkdir(exist_ok=True)
    (run / "probes").mkdir(exist_ok=True)
    assert write_whole(run / name, "page").read_text() == "page"


def test_a_log_whose_lock_leads_elsewhere_is_not_emptied(run, tmp_path, capfd):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(victim)
    assert main(["train", *longer(run)]) == 2
    one_error(capfd, "cannot be written")
    assert victim.read_text() == "precious"


def header(shape: str, kind: str = "'<f4'", order: str = "False") -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(1000)


@pytest.mark.parametrize(
    "content",
    [
        header(f"({10**400},)"),
        header("(-5,)"),
        header("()"),
        header("(100,)", "'O'"),
        header("(100,)", "[]"),
        header(f"({'9' * 40},)"),
        header("(60,)", "'>f4'"),
        header("(10, 6)", "'<f4'", "True"),
        header("x" * 90),
        header("[" * 90),
        b"",
        b"PK\x03\x04" + bytes(100),
        b"\x80\x04N.",
    ],
    ids=range(13),
)
def test_columns_of_the_replay_that_are_none(run, content, capfd):
    (run / "replay" / "reward.npy").write_bytes(content)
    assert main(["train", *longer(run)]) == 2
    one_error(capfd, "reward.npy")
    assert main(["compare", str(run), str(run)]) == 2
    one_error(capfd, "reward.npy")


def test_plain_values_are_read_as_they_are(tmp_path):
    tree = {"a": [1, 2.5, None, True, "ü", {"b": []}], "large": 2**128, "small": -(10**200)}
    (tmp_path / "tree").write_text(json.dumps(tree))
    assert reading.read_json(tmp_path / "tree") == tree
    with pytest.raises(ValueError, match="more than 5 bytes"):
        reading.read_bytes(tmp_path / "tree", 5)
    with pytest.raises(IsADirectoryError):
        reading.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        reading.read_bytes(tmp_path / "nothing")
    with pytest.raises(PermissionError) as error:
        reading.regular("/dev/null")
    assert error.value.errno == errno.EPERM
    assert not np.any(tree["a"][5]["b"])


def test_a_full_table_of_files_is_one_line(tmp_path):
    """Without a file more to be had, Python finds no folder for temporary files, and says that none exists."""
    full = f"import sys, tempfile; tempfile._candidate_tempdir_list = lambda: [{str(tmp_path / 'full')!r}]"
    # As a worker's trace is made.
    worker = "from denoised_mdp.cli import machine, main as cli; machine._doctor = lambda _: tempfile.mkstemp()"
    command = [sys.executable, "-c", f"{full}; {worker}; sys.exit(cli.main(['doctor']))"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "TMPDIR" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "df -i" in remedy(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize(
    "number, advice", [("ENOSPC", "Make room"), ("EMFILE", "ulimit"), ("EACCES", "another --output")]
)
def test_another_name_is_advised_where_it_would_help(tmp_path, monkeypatch, number, advice):
    """Not on a full disk, nor in a training, which has no --output."""
    number = getattr(errno, number)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(UserError, match=f"{os.strerror(number)}.*{advice}") as error,
        output_file(tmp_path / "a") as file,
    ):
        file.touch()
    assert ("--output" in str(error.value)) == (number == errno.EACCES)


def test_a_disk_whose_folders_cannot_be_synced(tmp_path, monkeypatch):
    """As VirtualBox shares. A disk that fails does not pass for one."""

    def refuse(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    number = errno.EINVAL
    sync_folder(tmp_path)
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_folder(tmp_path)


def test_terminals_without_the_letters_that_are_printed():
    """Of ASCII alone: what it lacks is escaped."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "denoised_mdp", "train", "model=r\xfcn"]  # refused before PyTorch is imported
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert done.stderr.isascii() and b"model=r\\xfcn: unknown choice" in done.stderr
    answer = "cli._run = lambda *_: print('1 \\xb1 2 \\u2028\\udcff') or 0"
    program = f"from denoised_mdp.cli import main as cli; {answer}; cli.main([])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert done.stdout == b"1 \\xb1 2 \\u2028\\udcff\n" and not done.stderr
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=os.environ | {"PYTHONUTF8": "1"})
    assert done.stdout.startswith("1 \xb1 2".encode()) and not done.stderr
