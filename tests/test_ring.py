"""The ring's results: what is finished is measured, the rest of the grid is named, and no seed is left out."""

import csv
import importlib
import json
import math

import numpy as np
import pytest
import yaml
from report_runs import make_run
from reproducing import script
from small_runs import TINY, tiny

from denoised_mdp.analysis.report.data import read_run
from denoised_mdp.analysis.table.statistics import interval, iqm, mean
from denoised_mdp.session import train

GRID = {
    "options": dict(word.split("=") for word in TINY),
    "axes": {
        "distractors": {"noiseless": {"distractors": "none"}, "jitter": {"distractors": "camera_jitter"}},
        "seed": [0, 1],
        "method": {"dreamer": {"model": "dreamer"}, "2b": {"model": "2b"}},
    },
}


@pytest.fixture(scope="module")
def ring():
    """The script as a module."""
    with script("ring") as module:
        yield module


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(GRID, sort_keys=False))
    return str(tmp_path / "mine.yaml")


def row(arm, variant="camera_jitter", seed=0, **numbers):
    usual = {"run": "a", "task": "dot", "step": 200, "random": 10.0, "random_error": 3.0, "return_error": 4.0}
    return {name: str(v) for name, v in {**usual, "variant": variant, "arm": arm, "seed": seed, **numbers}.items()}


def test_one_command_measures_what_is_finished_and_names_the_rest(ring, grid, tmp_path, monkeypatch, capsys, cache):
    """Of two runs, one is trained to its end; repeated, the command measures nothing again."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    run = runs / "a"
    assert train(tiny(run, "distractors=camera_jitter", "train.eval_every=0"))
    make_run(runs / "b")  # without a checkpoint of its last step
    arguments = ["ring.py", runs, "--out", out, "--size", "least", "--sweep", grid]
    monkeypatch.setattr("sys.argv", list(map(str, arguments)))
    ring.main()
    first = (out / "runs.csv").read_text()
    measures = importlib.import_module("evidence_measures")
    monkeypatch.setattr(measures, "MEASURES", {n: (None, o) for n, (_, o) in measures.MEASURES.items()})
    ring.main()
    assert (out / "runs.csv").read_text() == first
    with (out / "runs.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert (found["variant"], found["arm"], found["seed"], found["step"]) == ("camera_jitter", "2b", "0", "200")
    played = json.loads(next((run / "probes").glob("returns*.json")).read_text())["returns"]["train"]
    assert float(found["return_error"]) == pytest.approx(np.std(played, ddof=1) / np.sqrt(len(played)), rel=1e-3)
    random = read_run(run).metrics["random/return"][1]
    assert float(found["random"]) == pytest.approx(random.mean(), rel=1e-3)
    assert int(found["parameters"]) > 1000
    text = (out / "table.md").read_text()
    assert "- dot, noiseless, 2b: seed 0, 1" in text and "- dot, camera_jitter, 2b: seed 1" in text
    assert (out / "ring.png").stat().st_size > 1000


def test_rows_stand_in_the_grids_order_and_none_is_lost(ring, grid):
    keys = ring.expected(grid)
    order = [
        ("dot", "noiseless", "dreamer", "0"),
        ("dot", "noiseless", "2b", "0"),
        ("dot", "noiseless", "own", "7"),
        ("dot", "camera_jitter", "2b", "2"),
        ("dot", "camera_jitter", "2b", "10"),
    ]
    for found in (order[::-1], sorted(order)):
        assert ring.in_order(found, keys) == order
    rows = [row(arm, variant, seed) for _, variant, arm, seed in order]
    absent = ring.missing(rows, keys)
    assert absent == [
        "- dot, noiseless, dreamer: seed 1",
        "- dot, noiseless, 2b: seed 1",
        "- dot, camera_jitter, dreamer: seed 0, 1",
        "- dot, camera_jitter, 2b: seed 0, 1",
    ]
    assert ring.missing([row("2b") | {"task": "another"}], keys) == [], "tasks without any run are not expected"


def test_better_than_random_is_by_three_errors_of_the_difference(ring):
    """Errors of 3 and 4 make one of 5, so 25.1 above 10 counts and 24.9 does not; of an unknown one nothing is said."""
    runs = [row("2b", seed=n, **{"return": value}) for n, value in enumerate((25.1, 24.9, 500.0))]
    assert ring.above_random(runs[:2]) == "1 of 2"
    assert ring.above_random([*runs[:2], runs[2] | {"random_error": ""}]) == "1 of 2"
    still = {"random_error": "0", "return_error": "0", "random": "0"}
    assert ring.above_random([runs[0] | still, runs[1] | still | {"return": "0"}]) == "1 of 2", "without any error"


def test_means_and_interquartile_means_with_their_intervals(ring):
    returns = {"noiseless": (10.0, 20.0, 60.0), "camera_jitter": (1.0, 2.0, 3.0)}
    rows = [
        row("2b", variant, seed, **{"return": value})
        for variant, values in returns.items()
        for seed, value in enumerate(values)
    ]
    rows.append(row("2b", "noiseless", 0, **{"return": 7.0}) | {"arm": "tia"})
    found = ring.over_distractors(rows)["dot"]
    scores = [np.array(values) for values in returns.values()]
    for statistic, name in ((mean, "mean"), (iqm, "iqm")):
        value, low, high = interval(statistic, scores, within=(0.0, math.inf))
        assert found["2b"]["return"][name] == pytest.approx({"value": value, "low": low, "high": high})
    assert found["2b"]["return"]["iqm"]["value"] == pytest.approx((2 + 3 + 10 + 20) / 4)
    assert "return" not in found["tia"], "one cell has no run of it"
    lines = ring.overview("dot", ring.numbers.cells(rows))
    assert lines[2].startswith("| 2b | 30 [0, 96] | 2 [0, 4] | 9 [")
    assert lines[3].startswith("| tia | 7 | - | - |")


def test_a_mean_of_some_runs_says_of_how_many(ring):
    runs = [row("2b", seed=seed, leakage=0.25 if seed else "", recall=0.5) for seed in range(3)]
    assert [ring.cell_text([runs], metric) for metric in ("leakage", "recall")] == ["0.25 (2 of 3)", "0.50"]


def test_random_actions_count_once_for_a_seed(ring):
    rows = [row("2b", seed=seed, random=10 + 4 * seed, **{"return": 1}) for seed in range(3)]
    rows += [row(arm, seed=0, random=10) for arm in ("dreamer", "tia")]
    (line,) = [line for line in ring.cell_table({"all": rows}) if "random actions" in line]
    assert "| 14 [4, 24] |" in line, "not 12, the mean over runs"
