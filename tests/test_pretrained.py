"""Agents that come with the package: how they are made, found and used, and that nothing is written beside them."""

import os
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import finish, forked, tiny

import denoised_mdp
from denoised_mdp.analysis.report.data import read_run
from denoised_mdp.cli.main import main
from denoised_mdp.config import read_config
from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint, lock
from denoised_mdp.run import folder as folders
from denoised_mdp.run.diff import compare
from denoised_mdp.run.load import prepare
from denoised_mdp.run.pretrained import compact, export
from denoised_mdp.session import train

ROOT = Path(denoised_mdp.__file__).parent
SHIPPED = {
    "pretrained:cheetah_run_video": "2b",
    "pretrained:cheetah_run_video_dreamer": "dreamer",
    "pretrained:walker_walk_video": "2b",
}
"""agent -> its model"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished tiny run."""
    config = tiny(tmp_path_factory.mktemp("runs") / "a", "train.snapshot_every=80")
    assert train(config)
    return Path(config.run_dir)


@pytest.fixture
def packaged(run, tmp_path, monkeypatch):
    """The same as the only agent that comes with the package, by the name of dot; an empty working directory."""
    package, here = tmp_path / "package", tmp_path / "here"
    package.mkdir(), here.mkdir()
    monkeypatch.setattr(folders, "_PACKAGED", package)
    monkeypatch.chdir(here)
    return export(run, package / "dot")


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_is_the_run_in_half_precision_and_nothing_else(run, tmp_path):
    out = export(run, tmp_path / "b")
    step = "checkpoints/step_000000200"
    assert set(files(out)) == {"config.yaml", *(f"{step}/{n}.json" for n in ("state", "manifest"))} | {
        f"{step}/tensors.safetensors"
    }
    whole, half = denoised_mdp.load(run).state_dict(), denoised_mdp.load(out).state_dict()
    for name, weight in whole.items():
        assert half[name].dtype == weight.dtype
        torch.testing.assert_close(half[name], weight, rtol=2**-11, atol=2**-25)  # half of the last of 11 bits
    assert read_config(out).run_dir == "b", "not where it was trained"
    sizes = [len(files(one)[f"{step}/tensors.safetensors"]) for one in (out, run)]
    assert sizes[0] < 0.2 * sizes[1], "half of the weights, without the two moments of each"


def test_an_export_is_replaced_by_another_and_exported_unchanged(run, tmp_path):
    first = export(run, tmp_path / "b", checkpoint=80)
    assert export(run, tmp_path / "b") == first
    assert files(first) == files(export(run, tmp_path / "new" / "b"))
    assert files(export(first, tmp_path / "again" / "b")) == files(first)
    for name in ("probes", "videos"):
        (first / name).mkdir()
        (first / name / "old").touch()
    assert files(export(run, first, checkpoint=80)) == files(export(run, tmp_path / "new" / "b", checkpoint=80))
    assert read_run(first).step == 80, "there is no log"


def test_an_export_that_fails_leaves_the_one_before(run, tmp_path, monkeypatch):
    out = export(run, tmp_path / "b", checkpoint=80)
    (out / "probes").mkdir()
    (out / "probes" / "mine").touch()
    before = files(out)

    def full(*arguments, **options):
        raise UserError("the disk is full")

    monkeypatch.setattr("denoised_mdp.run.checkpoint.save", full)
    with pytest.raises(UserError, match="the disk is full"):
        export(run, out)
    assert files(out) == before
    assert denoised_mdp.load(out).config.env.task == "dot"


@pytest.mark.parametrize(("place", "when"), [("new", "before"), ("new", "after"), ("earlier", "after")])
def test_an_export_that_was_killed_is_repeated(run, tmp_path, monkeypatch, place, when):
    """Before or after its weights were written."""
    whole, out = export(run, tmp_path / "whole" / "b"), tmp_path / "b"
    if place == "earlier":
        export(run, out, checkpoint=80)
    save = checkpoint.save

    def killed(*arguments, **options):
        if when == "after":
            save(*arguments, **options)
        os._exit(9)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", killed)
        assert finish(*forked(lambda: export(run, out) and 0))[0] == 9
    assert files(export(run, out)) == files(whole)


@pytest.mark.parametrize("error", [UserError("the disk is full"), KeyboardInterrupt()])
@pytest.mark.parametrize("what", ["run.checkpoint.save", "run.pretrained.save_config"])
def test_an_export_that_fails_leaves_nothing(run, tmp_path, monkeypatch, error, what):
    def fail(*arguments, **options):
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(f"denoised_mdp.{what}", fail)
        export(run, tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())
    export(run, tmp_path / "b")


def test_an_export_is_neither_trained_nor_compared(run, tmp_path, capsys):
    out = export(run, tmp_path / "b")
    before = files(out)
    with pytest.raises(UserError, match="is an exported agent, which has weights alone. Choose another run_dir"):
        train(tiny(out, "train.snapshot_every=80"))
    assert files(out) == before, "no lock, no log of a failure"
    for pair in ((run, out), (out, run)):
        with pytest.raises(UserError, match=f"{out} is an exported agent"):
            compare(*pair)
    (tmp_path / "file").touch()
    assert main(["export", str(run), "--output", str(tmp_path / "file")]) == 2
    assert "Choose another --output" in capsys.readouterr().err


def test_what_is_no_export_is_not_replaced(run, tmp_path):
    before = files(run)
    with pytest.raises(UserError, match="holds a training"):
        export(run, run)
    assert files(run) == before
    for inside in ("videos", "checkpoints/b"):
        with pytest.raises(UserError, match="lies in the run .*/a. Choose a --output beside it."):
            export(run, run / inside)
    assert files(run) == before and not (run / "videos").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").touch()
    with pytest.raises(UserError, match="not a run folder"):
        export(run, tmp_path / "letters")


@pytest.mark.parametrize("left", ["machine.jsonl", "tensorboard", "snapshots", "checkpoints"])
def test_what_is_left_of_a_training_is_no_export(run, tmp_path, left):
    """Its checkpoints are not replaced, and it is not called an agent of weights alone."""
    out, lost = tmp_path / "b", shutil.copytree(run, tmp_path / "lost")
    for path in lost.iterdir():
        if path.name not in ("config.yaml", "checkpoints", left):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if left != "checkpoints":  # what lies there has weights alone
        shutil.rmtree(lost / "checkpoints")
        shutil.copytree(export(run, out) / "checkpoints", lost / "checkpoints")
    before = files(lost)
    with pytest.raises(UserError, match="holds a training"):
        export(run, lost)
    assert (
        files(lost) == before and not folders.RunFolder(lost).exported and folders.RunFolder(export(run, out)).exported
    )


def test_a_training_that_begins_is_not_replaced(run, tmp_path):
    """It has its lock and its configuration, and then the mark of no checkpoint yet, before any other file."""
    out = folders.RunFolder.create(tmp_path / "b")

    def exported():
        lock._LOCKED.clear()  # which another program would not have
        return export(run, out.path) and 0

    with out.lock():
        code, text = finish(*forked(exported))
    assert code != 0 and "holds a training" in text and files(out.path).keys() <= {".lock"}
    prepare(tiny(out.path), out)
    before = files(out.path)
    with pytest.raises(UserError, match="holds a training"):
        export(run, out.path)
    assert files(out.path) == before


def test_an_export_knows_its_folders_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config(export(run, ".")).run_dir == tmp_path.name


def test_a_run_whose_configuration_was_replaced_is_not_exported(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    config.write_text(re.sub(r"(?m)^  embed: \d+", "  embed: 77", config.read_text()))
    with pytest.raises(UserError, match=r"one of them was replaced \(model.embed: \d+ -> 77\)"):
        export(tmp_path / "copy", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_half_precision_cannot_hold_stay():
    large, count = torch.tensor([1.0, 1e6]), torch.tensor([3])
    assert compact(large).dtype == torch.float32 and compact(count).dtype == torch.int64
    assert compact(torch.tensor([0.1, -6e4])).dtype == torch.float16


def test_commands_take_it_and_write_into_the_working_directory(packaged, capsys):
    before = files(packaged)
    assert main(["evaluate", "pretrained:dot", "--episodes", "2"]) == 0
    assert main(["render", "pretrained:dot", "--hero"]) == 0
    assert main(["probe", "health", "pretrained:dot", "--episodes", "3", "--steps", "12"]) == 0
    assert main(["report", "pretrained:dot"]) == 0
    assert main(["export", "pretrained:dot", "--output", "copy"]) == 0
    capsys.readouterr()
    made = {name for name in files(Path()) if not name.startswith("copy")}
    assert made == {
        "dot/videos/train_000000200_hero.png",
        "dot/videos/train_000000200_hero.webp",
        "dot/probes/health_train_episodes3_steps12_000000200.json",
        "report.html",
    }
    assert "Health" in Path("report.html").read_text(), "the report finds the results of probes"
    assert files(packaged) == before


def test_a_report_finds_results_that_were_written_elsewhere(packaged, capsys):
    """By the command that the probe suggests."""
    probe = ["probe", "health", "pretrained:dot", "--episodes", "3", "--steps", "12", "--output", "out"]
    assert main(probe) == 0 and "--probes out" in capsys.readouterr().err
    assert main(["report", "pretrained:dot", "--probes", "out"]) == 0 and "Health" in Path("report.html").read_text()
    assert not folders.RunFolder("pretrained:dot").was_at("pretrained:dog")


def test_what_is_made_from_it_is_no_run_that_has_lost_its_configuration(packaged, capsys):
    assert main(["probe", "health", "pretrained:dot", "--episodes", "3", "--steps", "12"]) == 0
    for command in ("status", "report", "evaluate"):
        capsys.readouterr()
        assert main([command, "dot"]) == 2
        assert ("holds no run yet" if command != "evaluate" else "'pretrained:dot'?") in capsys.readouterr().err


def test_mistakes_are_one_line(packaged, capsys):
    for words in (["evaluate", "pretrained:dog"], ["probe", "factors", "pretrained:dog"], ["report", "pretrained:dog"]):
        assert main(words) == 2
        assert "There is no pretrained agent 'dog'. There are: dot." in capsys.readouterr().err
    with pytest.raises(UserError, match="no pretrained agent 'dog'"):
        denoised_mdp.make_env("pretrained:dog")
    assert main(["train", "preset=debug", "run_dir=pretrained:dot"]) == 2
    assert "pretrained:dot is only read" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "model"), SHIPPED.items())
def test_a_shipped_agent_acts_in_its_environment(name, model, cache):
    agent = denoised_mdp.load(name, device="cpu")
    environment = denoised_mdp.make_env(name)
    observation, info = environment.reset(seed=0)
    action, _ = agent.act(observation)
    environment.close()
    assert agent.config.method[0] == model
    assert name.startswith(f"pretrained:{agent.config.env.task}_") and "video_background" in agent.config.distractors
    assert action.shape == environment.action_space.shape and (np.abs(action) <= 1).all()
    assert any(name.startswith("video_background") for name in environment.unwrapped.noise_names)


def test_the_package_has_all_its_files_and_they_are_few_megabytes(monkeypatch):
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT.parent / "setup.py"))
    matched = {
        path
        for package, patterns in given["package_data"].items()
        for pattern in patterns
        for path in ROOT.parent.joinpath(*package.split(".")).glob(pattern)
    }
    shipped = {path for path in (ROOT / "pretrained").rglob("*") if path.is_file() and path.name != ".lock"}
    shipped |= {*ROOT.rglob("*.c"), *ROOT.rglob("*.j2")}
    assert len(shipped) > 3 and shipped == {path for path in matched if path.is_file()}
    for agent in (ROOT / "pretrained").iterdir():
        assert sum(path.stat().st_size for path in agent.rglob("*") if path.is_file()) < 5e6, agent.name
