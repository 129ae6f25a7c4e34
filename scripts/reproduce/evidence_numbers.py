"""Numbers computed from the rows of evidence.py: values per seed, intervals, comparisons, a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from denoised_mdp.analysis.table.statistics import FEWEST, difference, improvement, interval, iqm, mean, ratio
from denoised_mdp.analysis.table.write import interval_text, markdown, share_text, with_interval

Row = Mapping[str, str]
Arms = dict[str, list[Row]]
"""arm -> its runs, in order of the seeds"""
KEY = ("task", "variant", "arm", "seed")
"""columns that identify a run"""
METRICS = {
    "random": "return of random actions",
    "return": "return, clips of training",
    "return_unseen": "return, unseen clips",
    "return_late": "return, mean of the last four evaluations in training",
    "return_best": "return of the best weights in other episodes, clips of training",
    "return_best_unseen": "return of the best weights in other episodes, unseen clips",
    "recall": "signal recall (R² of the signal from x); high is good",
    "leakage": "leakage (R² of the noise from x); low is good",
    "recall_untrained": "the same recall before training",
    "leakage_untrained": "the same leakage before training",
    "signal_from_y": "R² of the signal from y; low is good",
    "noise_from_y": "R² of the noise from y; high is good",
    "action_change": "mean change of an action under other distractors (range 2); low is good",
    "action_change_untrained": "the same change before training",
    "action_ratio": "action ratio: distance of actions, other distractors / other states; low is good",
    "action_ratio_untrained": "the same ratio before training",
    "invariance": "distance of x, other distractors / other states; low is good",
    "invariance_y": "distance of y, other states / other distractors; low is good",
    "nats_x": "nats per step of x",
    "nats_y": "nats per step of y",
    "updates": "updates",
    "cpu_hours": "CPU hours",
}
"""column -> label of its line in the table"""
COMPARED = (
    *("return", "return_unseen", "return_late", "return_best", "return_best_unseen"),
    *("recall", "leakage", "action_change", "action_ratio", "nats_x"),
)
"""those of `METRICS` in which arms are compared in the table"""
LATE = 4
"""number of training evaluations to average, up to the measured step; with --step best, the last of them was high"""
LIMITS = {"recall": (0.0, 1.0), "leakage": (0.0, 1.0), "action_change": (0.0, 2.0)}
"""metric -> its range; the others are at least 0 if none of their values is negative"""
HOW = (
    "Intervals: Student's t for means, differences and the logarithm of a ratio; for others a bootstrap over runs,"
    " stratified by task and widened for few runs. None where all runs or resamples agree, as where every run of one"
    " arm is above every run of the other; and none of a ratio where a mean is rough (standard error above its half)."
)
FIRST = "2b"
"""arms whose names begin with this are compared with every other arm"""
QUIET = {"noiseless": None, "video_background_still": ("video_background", "video_background_camera_jitter")}
"""variant without noise -> the variants whose arms are compared with its arms; None: all others"""


def cells(rows: Sequence[Row]) -> dict[tuple[str, str], Arms]:
    """(task, variant) -> arms, in the order of the rows."""
    found: dict[tuple[str, str], Arms] = {}
    for row in rows:
        found.setdefault((row["task"], row["variant"]), {}).setdefault(row["arm"], []).append(row)
    return found


def values(rows: Sequence[Row], metric: str) -> np.ndarray:
    """A metric of all runs, [runs]; nan where it is not known."""
    return np.array([float(row.get(metric) or math.nan) for row in rows])


def known(rows: Sequence[Row], metric: str) -> np.ndarray:
    """A metric of the runs where it is known."""
    found = values(rows, metric)
    return found[np.isfinite(found)]


def with_late(rows: Sequence[Row], curves: Sequence[Row]) -> list[Row]:
    """The rows of runs.csv with `return_late`, the mean of the last `LATE` returns up to their step; blank if fewer."""
    evaluated: dict[tuple[str, ...], dict[float, float]] = {}
    for point in curves:
        if point["metric"] == "return":
            evaluated.setdefault(run_of(point), {})[float(point["step"])] = float(point["value"])
    out = []
    for row in rows:
        own = evaluated.get(run_of(row), {})
        late = [own[step] for step in sorted(own) if step <= float(row["step"])][-LATE:]
        out.append({**row, "return_late": f"{np.mean(late):.5g}" if len(late) == LATE else ""})
    return out


def run_of(row: Row) -> tuple[str, ...]:
    """The values of `KEY`, which identify a run in runs.csv and curves.csv."""
    return tuple(row[name] for name in KEY)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    """task -> variant -> arm -> metric -> its value for each seed; `seeds` names them."""
    tree: dict = {}
    for (task, variant), arms in cells(rows).items():
        for arm, runs in arms.items():
            numbers = {"seeds": [int(row["seed"]) for row in runs]}
            numbers |= {metric: values(runs, metric).tolist() for metric in METRICS}
            tree.setdefault(task, {}).setdefault(variant, {})[arm] = numbers
    return tree


COMPARISONS: dict[str, Callable] = {"difference": difference, "ratio": ratio, "improvement": improvement}
"""`improvement`: the probability that a run of the first exceeds one of the second, ties counting half"""
BOUNDS = {"difference": (-math.inf, math.inf), "ratio": (0.0, math.inf), "improvement": (0.0, 1.0)}
"""range of each of `COMPARISONS`"""


def ends(
    statistic: Callable[..., np.ndarray],
    *methods: Sequence[np.ndarray],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> dict[str, float]:
    """A statistic and its 95 % interval, of scores [runs] per task; within: see `interval`."""
    found = interval(statistic, *methods, within=within)
    return dict(zip(("value", "low", "high"), map(float, found), strict=True))


def limits_of(metric: str, scores: Sequence[np.ndarray]) -> tuple[float, float]:
    """Range of a metric and of its mean, from its name and its values: returns of some tasks are negative."""
    lowest = 0.0 if all((values >= 0).all() for values in scores) else -math.inf
    return LIMITS.get(metric.removesuffix("_untrained"), (lowest, math.inf))


def means(scores: Sequence[np.ndarray], metric: str) -> dict[str, dict[str, float]]:
    """Mean and IQM of a metric's values [runs] per cell, with their intervals."""
    return {how.__name__: ends(how, scores, within=limits_of(metric, scores)) for how in (mean, iqm)}


def references(variant: str) -> list[str]:
    """The variants of `QUIET` that a variant is compared with."""
    return [name for name, of in QUIET.items() if name != variant and (of is None or variant in of)]


def pairs(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str, list[tuple[list[Row], list[Row]]]]]:
    """Yield pairs: (task, variant, first arm, second arm, their runs per task); task "all": over several tasks."""
    together: dict[tuple[str, str, str], list] = {}
    found = cells(rows)
    for (task, variant), arms in found.items():
        quiet = {name: found.get((task, name), {}) for name in references(variant)}
        for first in arms:
            others = {arm: runs for arm, runs in arms.items() if arm != first} if first.startswith(FIRST) else {}
            others |= {f"{first} {name}": own[first] for name, own in quiet.items() if first in own}
            for second, runs in others.items():
                yield task, variant, first, second, [(arms[first], runs)]
                together.setdefault((variant, first, second), []).append((arms[first], runs))
    for (variant, first, second), both in together.items():
        if len(both) > 1:
            yield "all", variant, first, second, both


def comparisons(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All `COMPARISONS` with their 95 % intervals, for each pair of `pairs` and each metric that both have."""
    out = []
    for task, variant, first, second, both in pairs(rows):
        for metric in METRICS:
            sides = [[known(side, metric) for side in sides] for sides in zip(*both, strict=True)]
            if all(len(scores) for side in sides for scores in side):
                named = {"task": task, "variant": variant, "first": first, "second": second, "metric": metric}
                found = {name: ends(how, *sides, within=BOUNDS[name]) for name, how in COMPARISONS.items()}
                runs = [sum(map(len, side)) for side in zip(*both, strict=True)]
                of = {"known": [sum(map(len, side)) for side in sides], "runs": runs}
                out.append(named | found | of)
    return out


def intervals(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean and IQM of each arm with 95 % intervals over seeds, in the tree of `summary`, and all `comparisons`."""
    arms: dict = {}
    for (task, variant), found in cells(rows).items():
        for arm, runs in found.items():
            scores = {metric: [known(runs, metric)] for metric in METRICS if len(known(runs, metric))}
            numbers = {metric: means(own, metric) for metric, own in scores.items()}
            arms.setdefault(task, {}).setdefault(variant, {})[arm] = numbers
    return {"arms": arms, "comparisons": comparisons(rows)}


def digits_of(metric: str) -> int:
    """Number of decimals that a table shows."""
    return 0 if metric in ("random", "updates") or metric.startswith("return") else 2


def table(rows: Sequence[Row]) -> str:
    """A Markdown table per task and variant, then the comparisons and the commands."""
    lines = [f"Mean over seeds [95 % interval, from {FEWEST} seeds on] (each seed in order). {HOW}", ""]
    for (task, variant), arms in cells(rows).items():
        heads = [f"{arm} (seeds {', '.join(row['seed'] for row in runs)})" for arm, runs in arms.items()]
        body = metric_lines(arms.values(), METRICS)
        lines += [f"## {task}, {variant}", "", *markdown([["", *heads], *body]), ""]
    compared = [line for line in comparisons(rows) if line["metric"] in COMPARED]
    if compared:
        named = ("task", "variant", "metric", "first", "second")
        heads = [*named, "first - second", "first / second", "P(first > second)"]
        body = [[*(line[name] for name in named), *compared_text(line)] for line in compared]
        lines += ["## Comparisons", "", *markdown([heads, *body]), ""]
    commands: dict[str, list[str]] = {}
    for row in rows:
        commands.setdefault(row["overrides"], []).append(row["seed"])
    trained = [f"denoised-mdp train -m {words} seed={','.join(seeds)}" for words, seeds in commands.items()]
    return "\n".join([*lines, "## Commands", "", "```bash", *trained, "```", ""])


def metric_lines(
    arms: Collection[Sequence[Row]], labels: Mapping[str, str], intervals: bool = True, each: bool = True
) -> list[list[str]]:
    """Cells of a line for each metric that some arm knows: its label, and the `seeds_text` of each arm."""
    lines = [[label, *(seeds_text(runs, metric, intervals, each) for runs in arms)] for metric, label in labels.items()]
    return [line for line in lines if set(line[1:]) != {"-"}]


def seeds_text(runs: Sequence[Row], metric: str, intervals: bool = True, each: bool = True) -> str:
    """Mean over seeds, its interval and, if `each`, all values in parentheses; a single run's value; a dash if none.

    Without each seed's value, the text says how many seeds the mean covers, if not all.
    """
    own, digits = known(runs, metric), digits_of(metric)
    if not len(own):
        return "-"
    texts = ["-" if value != value else f"{value:,.{digits}f}" for value in values(runs, metric)]
    if len(texts) == 1:
        return texts[0]
    within = limits_of(metric, [own])
    whole = with_interval(mean, [own], digits=digits, within=within) if intervals else f"{own.mean():,.{digits}f}"
    return f"{whole} ({', '.join(texts)})" if each else whole + share_text(len(own), len(runs))


def compared_text(line: Mapping[str, Any]) -> list[str]:
    """The numbers of one of the `comparisons`, with the number of runs where some do not know the metric."""
    digits = {"difference": digits_of(line["metric"])}
    numbers = [text_of(line[name], digits.get(name, 2)) for name in COMPARISONS]
    return [numbers[0] + shares_text(line["known"], line["runs"]), *numbers[1:]]


def shares_text(known: Sequence[int], runs: Sequence[int]) -> str:
    """Suffix of a comparison of two or more sides: empty if it covers all their runs, else how many of each."""
    if list(known) == list(runs):
        return ""
    return f" ({', '.join(f'{own} of {count}' for own, count in zip(known, runs, strict=True))})"


def text_of(found: Mapping[str, float], digits: int) -> str:
    """A value with its interval, if it has one."""
    return interval_text(found["value"], found["low"], found["high"], digits)
