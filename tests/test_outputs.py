"""What cannot be written is refused before the work for it."""

import os

import pytest

from denoised_mdp.analysis import render
from denoised_mdp.analysis.report import page
from denoised_mdp.bench import update
from denoised_mdp.bench.doctor import Doctor
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.run.folder import check_output, output_file


def places(folder):
    """Names of results in a folder that has a file, a folder, a pipe and links to all of them."""
    (folder / "file").write_text("precious")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("file", "folder", "pipe", "nothing"):
        (folder / f"to_{name}").symlink_to(folder / name)
    names = ("new", "file", "folder", "pipe", "to_file", "to_folder", "to_pipe", "to_nothing")
    return [*(folder / name for name in names), folder / "file" / "new", folder / "folder" / "new"]


def refusal(check):
    try:
        check()
    except UserError as error:
        return str(error)
    return None


def test_what_is_refused_early_is_what_cannot_be_written(tmp_path):
    paths, refused = places(tmp_path), []

    def write(path):
        with output_file(path) as unfinished:
            unfinished.write_text("result")

    for path in paths:
        before = sorted(tmp_path.rglob("*"))
        refused.append(refusal(lambda path=path: check_output(path)))
        assert sorted(tmp_path.rglob("*")) == before
    late = [refusal(lambda path=path: write(path)) for path in paths]
    assert refused == late and 0 < sum(one is not None for one in refused) < len(paths)
    assert check_output(tmp_path / "several" / "folders" / "to" / "make") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is writable to root")
def test_a_folder_without_permission_is_refused_early(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"\(Permission denied\). Choose another --output"):
        check_output(tmp_path / "new" / "file")


def idle(*args, **kwargs):
    raise AssertionError("worked before it knew where to write")


def test_commands_refuse_before_they_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("precious")
    below = tmp_path / "file" / "below"
    monkeypatch.setattr(render, "load_run", idle)
    monkeypatch.setattr(update, "configure", idle)
    monkeypatch.setattr(page, "find_runs", idle)
    with pytest.raises(UserError, match=r"below.png cannot be written \(Not a directory\). Choose another --output."):
        render.render_run(tmp_path, below)
    for nameless in ("", ".", "..", "/"):
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
