"""What follows from the rows of evidence.py: numbers per seed, intervals, comparisons, a table and pictures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.analysis.plots import INK, color_of, literal, new_figure, plain_axes, save_figure
from denoised_mdp.analysis.results import write_json, write_whole
from denoised_mdp.analysis.table.plots import draw_seeds, legend_below
from denoised_mdp.analysis.table.statistics import FEWEST, improvement, interval, iqm, mean
from denoised_mdp.analysis.table.write import markdown, with_interval

Row = Mapping[str, str]
Arms = dict[str, list[Row]]
"""arm -> its runs, in order of the seeds"""
METRICS = {
    "random": "return of random actions",
    "return": "return, clips of training",
    "return_unseen": "return, unseen clips",
    "recall": "signal recall (R² of the signal from x); high is good",
    "leakage": "leakage (R² of the noise from x); low is good",
    "recall_untrained": "the same recall before training",
    "leakage_untrained": "the same leakage before training",
    "signal_from_y": "R² of the signal from y; low is good",
    "noise_from_y": "R² of the noise from y; high is good",
    "action_change": "mean change of an action under other distractors (range 2); low is good",
    "invariance": "distance of x, other distractors / other states; low is good",
    "invariance_y": "distance of y, other states / other distractors; low is good",
    "nats_x": "nats per step of x",
    "nats_y": "nats per step of y",
    "updates": "updates",
    "cpu_hours": "CPU hours",
}
"""column -> line of the table"""
DRAWN = ("return", "return_unseen", "recall", "leakage", "action_change", "nats_x")
REFERENCES = {"return": "random", "return_unseen": "random"} | {
    name: f"{name}_untrained" for name in ("recall", "leakage")
}
"""metric -> what a run has without learning"""
SHORT = {"return_unseen": "return, unseen clips", "action_change": "action change", "nats_x": "nats of x"}
"""metric -> its name in a picture, where it is another"""
WIDEST = 4
"""panels side by side"""
CURVES = {"return": "return", "recall": "signal recall (quick probe)", "leakage": "leakage (quick probe)"}
PROBED = ("recall", "leakage")
"""those of `CURVES` whose values the quick probe withholds where its few episodes cannot support one"""
LIMITS = {"recall": (0.0, 1.0), "leakage": (0.0, 1.0), "action_change": (0.0, 2.0)}
"""metric -> where it can lie; others: at 0 or above"""
HOW = (
    "Intervals: of a bootstrap over runs, stratified by task and widened for few runs; of a ratio, on a logarithmic"
    " scale; none where all resamples agree, as where every run of one arm is above every run of the other."
)
FIRST = "2b"
"""the arm, and all whose names begin with it, that are compared with each other arm"""
NOISELESS = "noiseless"


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
    """The same of the runs where it is known."""
    found = values(rows, metric)
    return found[np.isfinite(found)]


def summary(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    """task -> variant -> arm -> metric -> its value for each seed; `seeds` names them."""
    tree: dict = {}
    for (task, variant), arms in cells(rows).items():
        for arm, runs in arms.items():
            numbers = {"seeds": [int(row["seed"]) for row in runs]}
            numbers |= {metric: values(runs, metric).tolist() for metric in METRICS}
            tree.setdefault(task, {}).setdefault(variant, {})[arm] = numbers
    return tree


def difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of the first minus that of the second, over tasks."""
    return mean(first) - mean(second)


def ratio(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of the first, divided by that of the second, over tasks; nan where that is 0."""
    below = mean(second)
    return np.divide(mean(first), below, out=np.full_like(below, math.nan), where=below > 0)


COMPARISONS: dict[str, Callable] = {"difference": difference, "ratio": ratio, "improvement": improvement}
"""`improvement`: the probability that a run of the first has more than one of the second"""
BOUNDS = {"difference": (-math.inf, math.inf), "ratio": (0.0, math.inf), "improvement": (0.0, 1.0)}
"""where each of `COMPARISONS` can lie"""


def ends(
    statistic: Callable[..., np.ndarray],
    *methods: Sequence[np.ndarray],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> dict[str, float]:
    """A statistic and its 95 % interval, of scores [runs] per task; within: see `interval`."""
    found = interval(statistic, *methods, within=within, log=statistic is ratio)
    return dict(zip(("value", "low", "high"), map(float, found), strict=True))


def limits_of(metric: str) -> tuple[float, float]:
    """Where a metric, and its mean, can lie."""
    return LIMITS.get(metric.removesuffix("_untrained"), (0.0, math.inf))


def means(scores: Sequence[np.ndarray], metric: str) -> dict[str, dict[str, float]]:
    """Mean and IQM of a metric's values [runs] per cell, with their intervals."""
    return {how.__name__: ends(how, scores, within=limits_of(metric)) for how in (mean, iqm)}


def pairs(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str, list[tuple[list[Row], list[Row]]]]]:
    """What is compared: (task, variant, first arm, second arm, their runs per task); task "all": of several tasks."""
    together: dict[tuple[str, str, str], list] = {}
    found = cells(rows)
    for (task, variant), arms in found.items():
        quiet = found.get((task, NOISELESS), {}) if variant != NOISELESS else {}
        rivals = {f"{arm} {NOISELESS}": runs for arm, runs in quiet.items()}
        for first in arms:
            others = {arm: runs for arm, runs in arms.items() if arm != first} if first.startswith(FIRST) else {}
            others |= {name: runs for name, runs in rivals.items() if name == f"{first} {NOISELESS}"}
            for second, runs in others.items():
                yield task, variant, first, second, [(arms[first], runs)]
                together.setdefault((variant, first, second), []).append((arms[first], runs))
    for (variant, first, second), both in together.items():
        if len(both) > 1:
            yield "all", variant, first, second, both


def comparisons(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each pair of `pairs` in each metric that both have: all `COMPARISONS` with their 95 % intervals."""
    out = []
    for task, variant, first, second, both in pairs(rows):
        for metric in METRICS:
            sides = [[known(side, metric) for side in sides] for sides in zip(*both, strict=True)]
            if all(len(scores) for side in sides for scores in side):
                named = {"task": task, "variant": variant, "first": first, "second": second, "metric": metric}
                found = {name: ends(how, *sides, within=BOUNDS[name]) for name, how in COMPARISONS.items()}
                out.append(named | found)
    return out


def intervals(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean and IQM of each arm with 95 % intervals over seeds, as the tree of `summary`, and all `comparisons`."""
    arms: dict = {}
    for (task, variant), found in cells(rows).items():
        for arm, runs in found.items():
            scores = {metric: [known(runs, metric)] for metric in METRICS if len(known(runs, metric))}
            numbers = {metric: means(own, metric) for metric, own in scores.items()}
            arms.setdefault(task, {}).setdefault(variant, {})[arm] = numbers
    return {"arms": arms, "comparisons": comparisons(rows)}


def digits_of(metric: str) -> int:
    """How many decimals a table shows."""
    return {"random": 0, "return": 0, "return_unseen": 0, "updates": 0, "cpu_hours": 2}.get(metric, 2)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table per task and variant, then the comparisons and the commands."""
    lines = [f"Mean over seeds [95 % interval, from {FEWEST} seeds on] (each seed in order). {HOW}", ""]
    for (task, variant), arms in cells(rows).items():
        heads = [f"{arm} (seeds {', '.join(row['seed'] for row in runs)})" for arm, runs in arms.items()]
        body = []
        for metric, label in METRICS.items():
            texts = []
            for runs in arms.values():
                own, digits = values(runs, metric), digits_of(metric)
                each = ", ".join("-" if value != value else f"{value:,.{digits}f}" for value in own)
                scores = [known(runs, metric)] if len(known(runs, metric)) else None
                whole = with_interval(mean, scores, digits=digits, within=limits_of(metric))
                texts.append(f"{whole} ({each})" if scores else "-")
            body += [[label, *texts]] if set(texts) != {"-"} else []
        lines += [f"## {task}, {variant}", "", *markdown([["", *heads], *body]), ""]
    compared = [line for line in comparisons(rows) if line["metric"] in DRAWN]
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


def compared_text(line: Mapping[str, Any]) -> list[str]:
    """The numbers of one of the `comparisons`."""
    digits = {"difference": digits_of(line["metric"])}
    return [text_of(line[name], digits.get(name, 2)) for name in COMPARISONS]


def text_of(found: Mapping[str, float], digits: int) -> str:
    """A value with its interval, if it has one."""
    bounds = "" if math.isnan(found["low"]) else f" [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"
    return f"{found['value']:.{digits}f}{bounds}"


def draw_curves(rows: Sequence[Row], path: Path) -> Path:
    """A row of panels per task and variant: `CURVES` over updates, each seed and the mean over seeds."""
    found = cells(rows)
    figure = new_figure(3.4 * len(CURVES), 2.5 * len(found) + 0.5)
    figure.set_layout_engine("constrained")
    colors = colors_of(rows)
    panels = figure.subplots(len(found), len(CURVES), squeeze=False, sharex="row")
    for line, ((task, variant), arms) in zip(panels, found.items(), strict=True):
        for axes, (metric, label) in zip(line, CURVES.items(), strict=True):
            plain_axes(axes, 8)
            axes.set_title(literal(f"{task}, {variant}"), fontsize=8)
            drawn = {arm: curves for arm, points in arms.items() if (curves := list(curves_of(points, metric)))}
            if metric in PROBED and not drawn:  # trained without the probe, or there is no noise to find
                axes.set_axis_off()
                absent = f"{label}:\nnot measured in training"
                axes.text(0.5, 0.5, absent, ha="center", fontsize=8, transform=axes.transAxes)
                continue
            axes.set_ylabel(label)
            for arm, curves in drawn.items():
                draw_seeds(axes, curves, colors[arm], arm, bands=False)
            highest = max([1.0, *(float(own.max()) for curves in drawn.values() for _, own in curves)])
            axes.set_ylim(0, 1.05 * highest)
            axes.set_xlabel("thousand updates")
            if metric in PROBED:
                note_absent(axes, [arm for arm in arms if arm not in drawn])
    title = "thin: one seed; thick: mean over seeds, or the only one; dotted: without some of the seeds"
    legend_below(figure, panels, columns=5, title=title)
    return save_figure(figure, path)


def note_absent(axes, arms: Sequence[str]) -> None:
    """Say below a panel of the quick probe why it has no line of these arms."""
    if arms:
        text = textwrap.fill(f"no line: too few episodes for a value of {', '.join(arms)}", 52)
        axes.set_xlabel(f"{axes.get_xlabel()}\n{literal(text)}")


def curves_of(points: Sequence[Row], metric: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(updates, values) of each seed that has the metric."""
    for seed in dict.fromkeys(row["seed"] for row in points):
        own = {float(r["updates"]): float(r["value"]) for r in points if (r["seed"], r["metric"]) == (seed, metric)}
        if own:
            yield np.array(sorted(own)), np.array([own[at] for at in sorted(own)])


def colors_of(rows: Sequence[Row]) -> dict[str, str]:
    """One color for each arm in all pictures."""
    return {arm: color_of(number) for number, arm in enumerate(sorted({row["arm"] for row in rows}))}


def draw_arms(rows: Sequence[Row], path: Path, drawn: Sequence[str] = DRAWN) -> Path:
    """Panels per task and variant, one per metric: of each arm a bar, its seeds and interval, and `REFERENCES`."""
    found, drawn = cells(rows), [metric for metric in drawn if len(known(rows, metric))]
    lines_each = -(-len(drawn) // WIDEST)
    columns = -(-len(drawn) // lines_each)
    heights = [0.3 * len(arms) + 0.75 for arms in found.values() for _ in range(lines_each)]
    figure = new_figure(2.4 * columns + 0.8, sum(heights) + 0.5)
    figure.set_layout_engine("constrained")
    colors, largest = colors_of(rows), dict.fromkeys(drawn, 1e-3)
    panels = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    panels = panels.reshape(len(found), lines_each * columns)
    for line, ((task, variant), arms) in zip(panels, found.items(), strict=True):
        for axes in line[len(drawn) :]:
            axes.set_visible(False)
        for number, (axes, metric) in enumerate(zip(line[: len(drawn)], drawn, strict=True)):
            plain_axes(axes, 8)
            for place, (arm, runs) in enumerate(arms.items()):
                largest[metric] = max(largest[metric], draw_arm(axes, place, runs, metric, colors[arm]))
            names = map(literal, arms) if number % columns == 0 else [""] * len(arms)
            axes.set_yticks(range(len(arms)), names)
            axes.set_ylim(len(arms) - 0.5, -0.5)
            axes.set_visible(any(len(known(runs, metric)) for runs in arms.values()))
            where = f"{task}, {variant}\n" if number == 0 else "\n" if number < columns else ""
            axes.set_title(literal(f"{where}{SHORT.get(metric, metric)}"), fontsize=8.5, loc="left")
            axes.grid(axis="y", visible=False)
    for line in panels:
        for axes, metric in zip(line, drawn, strict=False):
            axes.set_xlim(0, 1.04 * largest[metric])  # the same in all panels of a metric
    figure.supxlabel(
        f"circle: a run; bar: mean over seeds; line: its 95 % interval, from {FEWEST} seeds on\n"
        "dotted: random actions, or an untrained net",
        fontsize=8,
    )
    return save_figure(figure, path)


def draw_arm(axes, place: int, runs: Sequence[Row], metric: str, color: str) -> float:
    """One bar of `draw_arms`; returns the largest number drawn."""
    own, reference = known(runs, metric), known(runs, REFERENCES.get(metric, ""))
    drawn = [0.0, *own, *reference]
    if len(own):
        value, low, high = interval(mean, [own], within=limits_of(metric))
        drawn.append(np.nan_to_num(high))
        axes.barh(place, value, 0.62, color=color, alpha=0.35)
        axes.plot([low, high], [place, place], color=color, linewidth=2.2)
        axes.plot(own, [place] * len(own), "o", color="white", markeredgecolor=color, markersize=4)
    if len(reference):
        axes.plot([reference.mean()] * 2, [place - 0.45, place + 0.45], ":", color=INK, linewidth=1.2)
    return float(max(drawn))


def write(rows: Sequence[Row], curves: Sequence[Row], folder: Path) -> list[Path]:
    """Write all that follows from the rows of runs.csv and curves.csv; prints the table."""
    if not rows:
        return []
    text = table(rows)
    print(text)
    return [
        write_json(folder / "summary.json", summary(rows)),
        write_json(folder / "intervals.json", intervals(rows)),
        write_whole(folder / "table.md", text),
        draw_curves(curves, folder / "curves.png"),
        draw_arms(rows, folder / "arms.png"),
    ]
