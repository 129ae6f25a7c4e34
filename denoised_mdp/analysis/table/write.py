"""A table of runs as text: Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.analysis.report.choice import Found, common_options, results_at_common_step, results_with
from denoised_mdp.analysis.report.data import BROKEN, RunData
from denoised_mdp.analysis.report.parts import ratio_of_signal, recall_of
from denoised_mdp.analysis.results import write_csv, write_whole
from denoised_mdp.analysis.table.cells import Table, is_at
from denoised_mdp.analysis.table.plots import draw
from denoised_mdp.analysis.table.statistics import FEWEST, improvement, interval, iqm, mean, median

Rows = list[list[str]]
"""rows of cells, the header first"""
PROBES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "recall": ("factors", lambda tree: recall_of(tree, "signal")),
    "leakage": ("factors", lambda tree: recall_of(tree, "noise")),
    "invariance": ("invariance", ratio_of_signal),
}
"""column -> the probe, and the function that reads the number from its result"""


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write ``table.md``, ``runs.csv``, ``table.tex`` and figures into an existing folder; return their paths."""
    parts = {
        f"Return at step {table.budget:,}, mean over tasks": by_variant(table),
        "Aggregates over all tasks and distractors": aggregates(table),
        "Probability that a run of the row's method beats one of the column's": improvements(table),
    }
    steps = ", ".join(f"{probe}: {one[0][1]['step']:,}" for probe, one in probed(table).items() if one) or "none yet"
    notes = [
        "Brackets are 95 % intervals: Student's t with Welch's degrees of freedom for means, otherwise a bootstrap over"
        " runs (stratified by task and distractors, widened for few runs). None is given where a cell has fewer than"
        f" {FEWEST} runs, or where all runs or resamples agree. IQM: mean of the middle half of all runs. A dash: a"
        " cell has no run with a score.",
        "Recall, leakage and invariance (how far other distractors move what the policy sees; low is good) are means"
        f" over runs with probes of the same options and step ({steps}); (2 of 3): of so many runs. Core hours: CPU"
        " hours of the learner, or wall-clock hours times threads where these were not logged.",
    ]
    lines = [line for title, rows in parts.items() for line in (f"## {title}", "", *markdown(rows), "")]
    missing = table.missing or ["nothing"]
    lines += [*notes, "", "## Missing", "", *(f"- {line}" for line in missing), ""]
    latex = [line for title, rows in parts.items() for line in (f"% {title}", *_latex(rows), "")]
    return [
        write_whole(folder / "table.md", "\n".join(lines)),
        write_csv(folder / "runs.csv", per_run(table)),
        write_whole(folder / "table.tex", "\n".join(latex)),
        *draw(table, folder),
    ]


def by_variant(table: Table) -> Rows:
    """The paper's Table 5.1: a row for each set of distractors, a column for each method."""
    rows = [["", *table.methods]]
    for variant in table.variants:
        scores = [table.scores(method, variant) for method in table.methods]
        rows.append([variant, *(with_interval(mean, one) for one in scores)])
    return rows


def aggregates(table: Table) -> Rows:
    """Each method over all cells: returns, what its representation encodes, size and cost."""
    rows = [["", "IQM", "mean", "median", *PROBES, "parameters", "core hours", "runs"]]
    found = probed(table)
    for method in table.methods:
        scores, runs = table.scores(method), table.runs(method)
        cells = [with_interval(statistic, scores) for statistic in (iqm, mean, median)]
        cells += [
            _mean_text(numbers(found[probe], runs, value_of), len(runs), 2) for probe, value_of in PROBES.values()
        ]
        sizes = {parameters(run) for run in runs} - {None}
        cells.append(" to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else "-")
        cells += [_mean_text([core_hours(run) for run in runs], len(runs), 1), f"{len(runs)}"]
        rows.append([method, *cells])
    return rows


def improvements(table: Table) -> Rows:
    """P(row's method > column's), by the Mann-Whitney statistic."""
    scores = {method: table.scores(method) for method in table.methods}
    rows = [["", *table.methods]]
    for one in table.methods:
        cells = (
            "" if two == one else with_interval(improvement, scores[one], scores[two], digits=2, within=(0.0, 1.0))
            for two in table.methods
        )
        rows.append([one, *cells])
    return rows


def per_run(table: Table) -> list[dict[str, Any]]:
    """One row per run, for other programs."""
    found = probed(table)
    return [
        {
            "run": str(entry.run.path),
            "task": entry.cell[0],
            "distractors": entry.cell[1],
            "method": entry.method,
            "seed": entry.run.seed,
            "step": table.budget,
            "return": entry.score,
            **{
                name: next(iter(numbers(found[probe], [entry.run], value_of)), math.nan)
                for name, (probe, value_of) in PROBES.items()
            },
            **{
                f"{probe}_step": next((tree["step"] for run, tree in results if run is entry.run), math.nan)
                for probe, results in found.items()
            },
            "parameters": parameters(entry.run) or math.nan,
            "core_hours": core_hours(entry.run),
        }
        for entry in table.entries
    ]


def probed(table: Table) -> dict[str, Found]:
    """Each probe's results to compare: with the options that most runs share, at the table's step.

    If no run has one there, those at the step that most runs share.
    """
    everyone = [entry.run for entry in table.entries]
    results = {}
    for probe, _ in PROBES.values():
        options = common_options(everyone, probe)
        found = results_with(everyone, probe, options)
        at_budget = [(run, tree) for run, tree in found if is_at(run, tree["step"], table.budget)]
        results[probe] = at_budget or results_at_common_step(everyone, probe, options)
    return results


def numbers(found: Found, runs: Sequence[RunData], value_of: Callable[[dict[str, Any]], Any]) -> list[float]:
    """The number that `value_of` finds in each result of these runs, if known."""
    values = []
    for run, tree in found:
        if not any(run is one for one in runs):
            continue
        try:
            value = value_of(tree)
        except BROKEN:
            continue
        values += [value.value] if value.known else []
    return values


def parameters(run: RunData) -> int | None:
    """Parameters of everything that acts or learns, from the last start that recorded them; None if none did."""
    counts = [start.get("parameters") for start in run.machine]
    return next((count for count in reversed(counts) if isinstance(count, int)), None)


def core_hours(run: RunData) -> float:
    """CPU hours of the learner's process until its last entry, scaled to all updates if logged for a part of them.

    For a run that logged none, wall-clock hours of training times its threads; nan if either is unknown.
    """
    if "train/cpu_seconds" in run.metrics:
        (steps, spent), (at, updates) = run.metrics["train/cpu_seconds"], run.metrics["train/updates"]
        before = max(updates[at < steps[0]], default=0.0)
        return float(spent.sum() / 3600 * updates[-1] / (updates[-1] - before))
    threads = [start.get("threads") for start in run.machine]
    if run.speed is None or not threads or not isinstance(threads[-1], int):
        return math.nan
    return run.speed.seconds * threads[-1] / 3600


def with_interval(
    statistic: Callable[..., np.ndarray],
    *methods: Sequence[np.ndarray] | None,
    digits: int | None = None,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """A statistic with its interval; a dash if scores are missing. digits: decimals; None: 2 below 1, else 0."""
    if any(scores is None for scores in methods):
        return "-"
    value, low, high = interval(statistic, *methods, within=within)
    if digits is None:
        digits = 0 if abs(value) >= 1 else 2
    return interval_text(value, low, high, digits)


def interval_text(value: float, low: float, high: float, digits: int) -> str:
    """A value with its interval, if it has one (nan: none)."""
    bounds = f" [{_rounded(low, digits)}, {_rounded(high, digits)}]" if math.isfinite(low) else ""
    return f"{_rounded(value, digits)}{bounds}"


def _rounded(value: float, digits: int) -> str:
    """Format with `digits` decimals, or more if a number below 0 would look like 0, since its sign matters."""
    text = f"{value:.{digits}f}"
    return _rounded(value, digits + 1) if float(text) == 0 and value < 0 and digits < 4 else text


def share_text(known: int, runs: int) -> str:
    """Suffix of a mean: empty if it is over all runs, else over how many."""
    return "" if known == runs else f" ({known} of {runs})"


def _mean_text(values: Sequence[float], runs: int, digits: int) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{np.mean(known):.{digits}f}{share_text(len(known), runs)}" if known else "-"


def markdown(rows: Rows) -> list[str]:
    """Lines of a table in Markdown."""
    header, *body = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *body)]


def _latex(rows: Rows) -> list[str]:
    special = str.maketrans({char: rf"\{char}" for char in "&%$#_{}"} | {"·": r"$\cdot$", "\\": r"\textbackslash{}"})
    header, *body = (" & ".join(cell.translate(special) for cell in row) + r" \\" for row in rows)
    return [
        rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}",
        r"\toprule",
        header,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
