"""What cannot be written is refused before the work for it."""

import contextlib
import os

import pytest

from denoised_mdp.analysis import render
from denoised_mdp.analysis.report import page
from denoised_mdp.bench import update
from denoised_mdp.bench.doctor import Doctor
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.run.folder import RunFolder, check_output, output_file


def places(folder):
    """Names of results in a folder that has a file, a folder, a pipe and links to all of them."""
    (folder / "file").write_text("precious")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("file", "folder", "pipe", "nothing"):
        (folder / f"to_{name}").symlink_to(folder / name)
    names = ("new", "file", "folder", "pipe", "to_file", "to_folder", "to_pipe", "to_nothing")
    (folder / "far").symlink_to(folder / "no" / "folder")
    deep = [folder / "file" / "new", folder / "folder" / "new", folder / "far", folder / "far" / "new"]
    return [*(folder / name for name in names), *deep, folder / ("long" * 63), folder / ("long" * 64) / "new"]


def refusal(check):
    try:
        check()
    except UserError as error:
        return str(error)
    return None


def test_what_is_refused_early_is_what_cannot_be_written(tmp_path):
    paths, refused = places(tmp_path), []

    def write(path):
        with contextlib.suppress(OSError):  # as those who write do
            path.parent.mkdir(parents=True, exist_ok=True)
        with output_file(path) as unfinished:
            unfinished.write_text("result")

    for path in paths:
        before = sorted(tmp_path.rglob("*"))
        refused.append(refusal(lambda path=path: check_output(path)))
        assert sorted(tmp_path.rglob("*")) == before
    late = [refusal(lambda path=path: write(path)) for path in paths]
    assert [bool(one) for one in refused] == [bool(one) for one in late]
    assert 0 < sum(one is not None for one in refused) < len(paths)
    assert check_output(tmp_path / "several" / "folders" / "to" / "make") is None


def test_a_folder_without_permission_is_refused_early(tmp_path, monkeypatch):
    forbidden = tmp_path / "forbidden"
    forbidden.mkdir()
    asked = os.access  # everything is writable to root
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(forbidden) and asked(path, mode))
    check_output(tmp_path / "new")
    with pytest.raises(UserError, match=r"\(Permission denied\). Choose another --output"):
        check_output(forbidden / "new" / "file")
    for use in (RunFolder.checked, RunFolder.create):
        with pytest.raises(UserError, match=r"\(Permission denied\). Choose another run_dir"):
            use(forbidden / "run")
    assert not list(forbidden.iterdir())


def idle(*args, **kwargs):
    raise AssertionError("worked before it knew where to write")


def test_commands_refuse_before_they_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("precious")
    below = tmp_path / "file" / "below"
    monkeypatch.setattr(render, "load_run", lambda *args, **kwargs: (load_config(["preset=debug"]), None, 100))
    monkeypatch.setattr(render, "render", idle)
    (tmp_path / "videos").write_text("no folder")
    monkeypatch.setattr(update, "configure", idle)
    monkeypatch.setattr(page, "find_runs", idle)
    with pytest.raises(UserError, match=r"below.png cannot be written \(Not a directory\). Choose another --output."):
        render.render_run(tmp_path, below)
    with pytest.raises(UserError, match=r"train_000000100.png cannot be written \(Not a directory\)"):
        render.render_run(tmp_path)
    (tmp_path / "folder").mkdir()
    for nameless in ("", ".", "..", "/", f"{tmp_path / 'folder'}/", tmp_path / "folder.png"):
        with pytest.raises(UserError, match="--output=.*: name the pictures, e.g. "):
            render.render_run(tmp_path, nameless)
    with pytest.raises(UserError, match=r"below cannot be written \(Not a directory\). Choose another --output."):
        update.benchmark(load_config(["preset=debug"]), output=below)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "page.html")
    with pytest.raises(UserError, match="page.html cannot be written .*. Choose another -o."):
        page.write_report([tmp_path], tmp_path / "pipe" / "page.html")


def test_doctor_refuses_a_run_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    for run, problem in (("file", "Not a directory"), ("file/run", "Not a directory"), (".", "holds file but no")):
        doctor = Doctor(load_config(["preset=debug", f"run_dir={tmp_path / run}"]))
        doctor.attempt(doctor.check_run_folder)
        assert len(doctor.problems) == 1 and problem in doctor.problems[0]
    assert os.listdir(tmp_path) == ["file"]
