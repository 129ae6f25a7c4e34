"""The scripts that train and probe the published comparisons: what they take, and what table and picture say."""

import csv
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from denoised_mdp.envs.factors import NOISE, SIGNAL

FOLDER = Path(__file__).parents[1] / "scripts" / "reproduce"
UNSEEN = "camera_jitter at strength 2"


@pytest.fixture(scope="module")
def scripts():
    """The scripts as modules: learning_curves, denoising, denoising_show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        names = ("learning_curves", "denoising", "denoising_show")
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]


def test_variants_are_trained_when_they_are_asked_for(scripts):
    curves = scripts["learning_curves"]

    def trained(*only):
        return {(v, a) for v in curves.VARIANTS for a in curves.ARMS if curves.wanted(v, curves.slug(v, a, 0), only)}

    assert {variant for variant, _ in trained()} == {"noiseless", "video background"}
    assert trained() == {(v, a) for v in ("noiseless", "video background") for a in curves.ARMS}
    assert trained("backprop", "2c") == {(v, "Denoised MDP 2c, backprop") for v in ("noiseless", "video background")}
    for only in (["camera jitter"], ["camera_jitter"], ["jitter"]):
        assert trained(*only) == {("camera jitter", arm) for arm in curves.ARMS}
    assert trained("camera jitter", "dreamer", "sac") == {("camera jitter", "Dreamer, sac")}


def test_published_rows_are_still_known(scripts):
    curves = scripts["learning_curves"]
    for name in ("curves", "returns"):
        with open(FOLDER.parents[1] / "results" / "learning_curves" / f"{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and {row["variant"] for row in rows} <= set(curves.VARIANTS)
        assert {row["arm"] for row in rows} <= set(curves.ARMS)


def rows_of(columns, seeds):
    """A row per model and seed in `seeds`: every number is its place among all; z is in model 2c alone."""
    rows, number = [], 0
    for model, own in seeds.items():
        for seed in own:
            row = {"run": f"{model}-{seed}", "model": model, "seed": str(seed), "unseen": UNSEEN}
            for column in columns:
                number += 1
                row.setdefault(column, "" if "z" in column.split("_") and model != "2c" else str(number))
            rows.append(row)
    return rows


def test_table_and_picture_of_three_arms_with_camera_jitter(scripts, tmp_path):
    show = scripts["denoising_show"]
    rows = rows_of(scripts["denoising"].COLUMNS, {"2b": (1, 0), "2c": (0, 1), "dreamer": (0,)})
    table = show.table(rows)
    lines = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in table.splitlines()}
    heads = lines["mean ± std over seeds (each seed)"]
    assert heads == ["Denoised MDP 2b (seeds 0, 1)", "Denoised MDP 2c (seeds 0, 1)", "Dreamer (seeds 0)"]
    for label, column in (("return under camera jitter at strength 2", "return_unseen"),
                          ("return without distractors", "return_none")):  # fmt: skip
        for cell, model in zip(lines[label], ("2b", "2c", "dreamer"), strict=True):
            known = [float(row[column]) for row in sorted(rows, key=lambda row: row["seed"]) if row["model"] == model]
            text = f"{np.mean(known):,.1f}"
            if len(known) > 1:
                text += f" ± {np.std(known, ddof=1):.1f} ({known[0]:.1f}, {known[1]:.1f})"
            assert cell == text
    z = [cells for label, cells in lines.items() if label == "the same of z; low is good"]
    assert len(z) == 1 and z[0][0] == z[0][2] == "-" != z[0][1]
    assert "background" not in table and "clips" not in table

    factors = []
    for row in rows:
        for part in ("x", "y", "z") if row["model"] == "2c" else ("x",) if row["model"] == "dreamer" else ("x", "y"):
            for factor, source, quadrant in (("qpos/a", "signal", SIGNAL), ("camera_jitter/shift", "noise", NOISE)):
                factors.append({"run": row["run"], "probe": "ridge", "part": part, "factor": factor, "source": source,
                                "quadrant": quadrant, "r2": "0.5"})  # fmt: skip
    show.draw(rows, factors, "cheetah_run with camera jitter", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 20_000


def test_rows_of_the_video_background_without_newer_columns(scripts):
    """denoising.csv of before: unseen clips, nothing without distractors."""
    columns = [c for c in scripts["denoising"].COLUMNS if c not in ("return_none", "unseen")]
    rows = [row | {"unseen": "", "return_none": ""} for row in rows_of(columns, {"2b": (0, 1)})]
    table = scripts["denoising_show"].table(rows)
    assert "return under unseen clips" in table and "without distractors" not in table
