"""`probe joints` that is stopped: the same command ends with the same files, and another one is refused."""

import contextlib
import os
import shutil

import numpy as np
import pytest
from joints_case import make_run, small_data

from denoised_mdp.analysis.joints import probe as joints_probe
from denoised_mdp.analysis.joints.regression import Curve
from denoised_mdp.analysis.joints.resume import FinishedCurves
from denoised_mdp.cli.main import main
from denoised_mdp.errors import UserError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two policies, three episodes of each, of 20 frames."""
    with contextlib.closing(small_data(tmp_path_factory.mktemp("joints"))) as store:
        yield store


@pytest.fixture
def command(data, tmp_path):
    """Arguments without --output: a run and both references, two sizes, two seeds."""
    run = make_run(tmp_path / "a")
    shutil.rmtree(data.folder / "contrastive", ignore_errors=True)
    flags = (
        "--sizes 10,20 --seeds 2 --updates 3 --batch 10 --evaluations 2 --contrastive-updates 2 --contrastive-batch 8"
    )
    yield ["probe", "joints", str(run), "--data", str(data.folder), *flags.split(), "--device", "cpu"]
    shutil.rmtree(data.folder / "contrastive", ignore_errors=True)


@pytest.fixture
def started(monkeypatch):
    """Finetunings that were started; `started.stop_at` lets the n-th from now be interrupted in the middle."""

    class Started(list):
        stop_at = 0

    calls, real = Started(), joints_probe.finetune

    def watched(encoder, store, rows, *arguments, progress, seed, **options):
        calls.append((len(rows), seed))
        calls.stop_at -= 1

        def show(done):
            if done == 2 and calls.stop_at == 0:
                raise KeyboardInterrupt
            progress(done)

        return real(encoder, store, rows, *arguments, progress=show, seed=seed, **options)

    monkeypatch.setattr(joints_probe, "finetune", watched)
    return calls


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_stopped_anywhere_it_ends_as_if_undisturbed(data, command, started, tmp_path, monkeypatch, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*command, "--output", str(whole)]) == 0
    printed = capsys.readouterr().out
    undisturbed = list(started)
    assert len(undisturbed) == 3 * 2 * 2  # encoders, seeds, sizes
    again = [*command, "--output", str(parts)]
    shutil.rmtree(data.folder / "contrastive")
    for stop in (1, 4, 7):  # in the first, among those of the run, among those of the contrastive encoder
        started.clear()
        started.stop_at = stop
        assert main(again) == 130
        assert len(started) == stop
    assert not (parts / "joints.json").exists() and len(files(parts / "joints_curves")) == 1 + 0 + 3 + 6

    def killed(source, target, real=os.replace):
        if "joints_curves" in str(target):
            raise KeyboardInterrupt  # the new file lies there under its temporary name
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        assert main(again) == 130
    started.clear()
    capsys.readouterr()
    assert main(again) == 0
    assert started == undisturbed[9:]
    assert capsys.readouterr().out == printed.replace(str(whole), str(parts))
    found = [
        {name: text for name, text in files(folder).items() if not name.endswith((".lock", ".tmp"))}
        for folder in (whole, parts)
    ]
    assert found[0].keys() == found[1].keys() and {"joints.json", "joints.csv", "joints_sizes.png"} <= found[0].keys()
    for name, text in found[0].items():
        assert text == found[1][name], name
    started.clear()
    damaged = sorted((parts / "joints_curves").glob("*.json"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert main(again) == 0 and len(started) == 1  # a finished probe draws its pictures again; a damaged curve is made
    assert files(parts)["joints.csv"] == found[0]["joints.csv"]


def test_another_command_is_refused_and_changes_nothing(command, started, tmp_path, capsys):
    output = ["--output", str(tmp_path / "out")]
    started.stop_at = 2
    assert main([*command, *output]) == 130
    before = files(tmp_path / "out")
    started.clear()
    run, another = command[2], make_run(tmp_path / "c", "seed=1")
    for arguments, message in (
        ([*command, "--updates", "4"], "finetuning, updates: 3 instead of 4"),
        ([*command, "--sizes", "10"], "sizes: [10, 20] instead of [10]"),
        ([*command, "--seeds", "1"], "seeds: 2 instead of 1"),
        ([*command, "--references", "scratch"], "references"),
        ([*command, "--flip"], "contrastive, flip: False instead of True"),
        ([word if word != run else str(another) for word in command], "runs, path"),
    ):
        capsys.readouterr()
        assert main([*arguments, *output]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and message in lines[0] and "Choose another --output" in lines[0], lines
    shutil.rmtree(run)
    make_run(tmp_path / "a", "seed=5")  # other weights at the same path
    assert main([*command, *output]) == 2 and "runs, encoder" in capsys.readouterr().err
    assert started == []
    after = files(tmp_path / "out")
    assert {name: text for name, text in after.items() if name != ".lock"} == {
        name: text for name, text in before.items() if name != ".lock"
    }


def test_a_curve_is_read_back_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    mse = rng.lognormal(-20, 30, (4, 3))
    mse[1, 2], mse[2, 0] = np.nan, np.inf
    curve, key = Curve(np.arange(4), mse, rng.random(3)), ("Denoised 2b · ä", "runs/a", 3, 50, 0)
    FinishedCurves(tmp_path, {"sizes": (50,)}).put(key, curve)
    same = FinishedCurves(tmp_path, {"sizes": [50]})
    for name, array in vars(curve).items():
        np.testing.assert_array_equal(getattr(same.get(key), name), array)
        assert getattr(same.get(key), name).dtype == array.dtype
    assert same.get(("Denoised 2b · ä", "runs/a", 3, 50, 1)) is None
    with pytest.raises(UserError, match="sizes"):
        FinishedCurves(tmp_path, {"sizes": [51]})
