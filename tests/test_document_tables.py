"""Tables in README.md and docs are what the rows in results say."""

import importlib

import numpy as np
import pytest
from reproducing import script

from denoised_mdp.analysis.table.statistics import difference, interval
from denoised_mdp.errors import UserError


@pytest.fixture(scope="module")
def documents():
    with script("document_tables") as module:
        yield module


def test_tables_in_documents_are_what_the_results_say(documents):
    named = set()
    for name in documents.DOCUMENTS:
        text = (documents.ROOT / name).read_text()
        assert documents.filled(text) == text, f"{name}: run python scripts/reproduce/document_tables.py"
        named |= {found[2] for found in documents.BLOCK.finditer(text)}
    assert named == set(documents.TABLES)


def test_a_table_has_the_mean_and_each_seed_of_the_columns_that_have_runs(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    rows = ["task,variant,arm,seed,step,return,recall", "a,v,2b,0,9,10,0.5", "a,v,2b,1,9,31,", "b,v,2b,0,9,99,0.9"]
    (tmp_path / "results" / "mine" / "runs.csv").write_text("\n".join(rows))
    columns = [documents.Column(arm, "mine", "a", "v", arm) for arm in ("2b", "2c")]
    metrics = {"return": "earned", "recall": "", "leakage": ""}
    monkeypatch.setattr(documents, "TABLES", {"one": documents.Table(columns, metrics)})
    text = "before\n<!-- table one: how -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    filled = documents.filled(text)
    assert filled.splitlines() == [
        "before",
        "<!-- table one: how -->",
        "| mean (each seed) | 2b |",
        "| --- | --- |",
        "| seeds | 0, 1 |",
        "| earned | 20 (10, 31) |",
        "| signal recall (R² of the signal from x); high is good | 0.50 (0.50, -) |",
        "<!-- end -->",
        "after <!-- end -->",
    ]
    assert documents.filled(filled) == filled


def test_a_lead_is_a_difference_of_means_with_an_interval_from_three_seeds_on(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    runs = {("a", "2b"): (10, 20, 60), ("a", "dreamer"): (1, 2, 9), ("b", "2b"): (7,), ("b", "dreamer"): (3, 4, 5)}
    rows = [f"{task},v,{arm},{seed},9,{v}" for (task, arm), own in runs.items() for seed, v in enumerate(own)]
    (tmp_path / "results" / "mine" / "runs.csv").write_text("\n".join(["task,variant,arm,seed,step,return", *rows]))
    one, other = (
        tuple(documents.Column("", "mine", task, "v", arm) for arm in ("2b", "dreamer")) for task in ("a", "b")
    )
    pairs = {"a": [one], "b": [other], "both": [one, other]}
    head, _, earned, unknown = documents.Comparison(pairs, {"return": "earned", "recall": "known"}).lines()
    assert head == "| difference of means [95 % interval] | a | b | both |" and unknown == "| known | - | - | - |"
    sides = [[np.array(runs["a", arm], float)] for arm in ("2b", "dreamer")]
    value, low, high = interval(difference, *sides)
    assert value == 26 and low < 26 < high
    assert earned == f"| earned | 26 [{low:.0f}, {high:.0f}] | 3 | {(26 + 3) / 2:.0f} |"


def test_shares_that_two_arms_keep_are_compared_by_their_ratio(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    runs = {
        ("v", "2b"): (60, 64, 68),
        ("v", "dreamer"): (20, 22, 24),
        ("w", "2b"): (80, 78),
        ("w", "dreamer"): (44, 44),
    }
    rows = [f"a,{variant},{arm},{seed},9,{v}" for (variant, arm), own in runs.items() for seed, v in enumerate(own)]
    (tmp_path / "results" / "mine" / "runs.csv").write_text("\n".join(["task,variant,arm,seed,step,return", *rows]))
    four = [documents.Column("", "mine", "a", variant, arm) for arm in ("2b", "dreamer") for variant in ("v", "w")]
    kept = documents.Comparison({"2b": [(*four[:2],)], "both": [(*four,)]}, {"return": "earned"}, relative=True)
    assert kept.lines()[0] == "| ratio of means [95 % interval] | 2b | both |"
    assert kept.lines()[-1] == f"| earned | {64 / 79:.2f} | {64 / 79 / (22 / 44):.2f} |", "of two runs no interval"


def test_a_lead_says_of_how_many_runs_it_is_where_some_are_unknown(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    rows = [
        f"a,v,{arm},{n},9,{v}" for arm, own in (("2b", (0.9, 0.8)), ("dreamer", (0.5, ""))) for n, v in enumerate(own)
    ]
    (tmp_path / "results" / "mine" / "runs.csv").write_text("\n".join(["task,variant,arm,seed,step,recall", *rows]))
    pair = tuple(documents.Column("", "mine", "a", "v", arm) for arm in ("2b", "dreamer"))
    assert documents.Comparison({}, {}).text([pair], "recall") == "0.35 (2 of 2, 1 of 2)"
    evidence_numbers = importlib.import_module("evidence_numbers")
    lines = evidence_numbers.comparisons(pair[0].rows() + pair[1].rows())
    (line,) = [line for line in lines if line["metric"] == "recall"]
    assert (line["known"], line["runs"]) == ([2, 1], [2, 2])
    assert evidence_numbers.compared_text(line) == ["0.35 (2 of 2, 1 of 2)", "1.70", "1.00"]


def test_an_unknown_table_is_refused(documents):
    with pytest.raises(UserError, match="no table 'mine'; there are summary"):
        documents.filled("<!-- table mine: how -->\n<!-- end -->")
