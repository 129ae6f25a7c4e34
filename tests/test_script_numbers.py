"""What scripts compute and write: a trend with its interval, means over seeds, rows of earlier runs that stay."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from report_runs import make_run
from reproducing import script


def test_a_trend_is_the_line_through_the_means_of_blocks_and_its_interval_covers(monkeypatch):
    """Of noise around a known line, 95 % of the intervals hold it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts")
    import memory_slope

    random, steps = np.random.default_rng(0), np.arange(0.0, 400.0)
    covered = []
    for _ in range(400):
        values = 3.0 + 0.02 * steps + random.normal(size=steps.size)
        estimate, half = memory_slope.slope(steps, values)
        blocks = [np.array_split(one, memory_slope.BLOCKS) for one in (steps, values)]
        expected = np.polyfit(*([part.mean() for part in one] for one in blocks), 1)[0]
        assert estimate == pytest.approx(expected)
        covered.append(abs(estimate - 0.02) <= half)
    assert 0.92 < np.mean(covered) < 0.98
    assert memory_slope.slope(steps, 5 * steps) == pytest.approx((5.0, 0.0), abs=1e-9)


def test_nats_are_half_the_squared_error_of_a_frame():
    error = np.random.default_rng(0).normal(size=(4, 5, 6, 3))
    where = np.zeros((4, 5, 6), bool)
    where[0, 1, 2] = True
    with script("pose_worth") as worth:
        assert worth.nats(error) == pytest.approx(0.5 * sum(value**2 for value in error.ravel()) / 4)
        assert worth.nats(error, where) == pytest.approx(0.5 * (error[0, 1, 2] ** 2).sum() / 4)
        assert worth.nats(error, where) + worth.nats(error, ~where) == pytest.approx(worth.nats(error))


def test_a_table_of_settings_has_means_over_seeds_and_a_dash_where_one_is_unknown():
    steps = np.array([100.0, 200.0])
    with script("tuning") as tuning:
        metrics = {name: (steps, np.array([0.1, 0.3])) for name in (*tuning.OF_PROBE.values(), *tuning.BEFORE.values())}
        metrics["train/updates"] = (np.array([0.0, 200.0]), np.array([0.0, 40.0]))
        other = metrics | {tuning.OF_PROBE["recall"]: (steps, np.array([0.1, 0.5]))}
        rows = tuning.rows_of(metrics, "a", 0) + tuning.rows_of(other, "a", 1)
        rows += tuning.rows_of({**metrics, tuning.OF_PROBE["leakage"]: (steps[:1], np.array([0.1]))}, "b", 0)
        *_, first, second = tuning.table(rows, 200).splitlines()
    assert [cell.strip() for cell in first.split("|")[1:5]] == ["a", "2", "40", "0.40"]
    assert [cell.strip() for cell in second.split("|")[1:6]] == ["b", "1", "40", "0.30", "-"]


def test_a_script_that_measures_some_runs_keeps_the_rows_of_others(tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name)
    output, value = tmp_path / "out.csv", 1.0

    def call(*runs, columns=("run", "step", "value")):
        def measure(run):
            row = {"run": run.name, "step": 5, "value": value}
            return [{name: row.get(name, math.nan) for name in columns}]

        monkeypatch.setattr(sys, "argv", ["script", *(str(tmp_path / "runs" / name) for name in runs)])
        common.tabulate("Measure.", measure, output)

    with script("common") as common:
        call("a", "b")
        value = 2.0
        call("b")
        rows = {row["run"]: float(row["value"]) for row in common.read(output)}
        assert rows == {"a": 1.0, "b": 2.0}
        before = output.read_text()
        with pytest.raises(SystemExit, match=r"has other columns .step.\. Give another --output"):
            call("b", columns=("run", "value"))
        assert output.read_text() == before
        call("b", columns=("run", "step", "more", "value"))
        rows = {row["run"]: row for row in common.read(output)}
        assert (rows["a"]["value"], rows["a"]["more"], rows["b"]["value"]) == ("1.0", "", "2.0")
        make_run(tmp_path / "runs" / "others" / "b")
        with pytest.raises(SystemExit, match="have the same name"):
            call("b", "others/b")
