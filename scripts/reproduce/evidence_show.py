"""Draw pictures from the rows of evidence.py, and write all of its files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from evidence_numbers import QUIET, Arms, Row, cells, intervals, known, limits_of, summary, table, with_late

from denoised_mdp.analysis.plots import INK, colors_of, legend_below, literal, new_figure, plain_axes, save_figure
from denoised_mdp.analysis.results import write_json, write_whole
from denoised_mdp.analysis.table.plots import draw_seeds
from denoised_mdp.analysis.table.statistics import FEWEST, interval, mean

DRAWN = ("return", "return_unseen", "recall", "leakage", "action_change", "nats_x")
REFERENCES = {"return": "random", "return_unseen": "random"} | {
    name: f"{name}_untrained" for name in ("recall", "leakage", "action_change")
}
"""metric -> column with its value without learning"""
SHORT = {"return_unseen": "return, unseen clips", "action_change": "action change", "nats_x": "nats of x"}
"""metric -> its name in a picture, where it differs"""
WIDEST = 4
"""most panels side by side"""
CURVES = {"return": "return", "recall": "signal recall (quick probe)", "leakage": "leakage (quick probe)"}
MAIN_VARIANT, MAIN_ARMS, MAIN_METRICS = "video_background", ("2b", "dreamer"), ("return", "leakage")
"""contents of main.png, for several tasks: the claim in four panels"""
PROBED = ("recall", "leakage")
"""those of `CURVES` that the quick probe leaves out where its few episodes cannot support a value"""


def draw_curves(
    rows: Sequence[Row],
    path: Path,
    metrics: Sequence[str] = tuple(CURVES),
    random: Mapping[tuple[str, str], float] = MappingProxyType({}),
) -> Path:
    """Draw a row of panels per task and variant: some of `CURVES` over updates, each seed and the mean over seeds.

    random: (task, variant) -> the return of random actions, where it is known.
    """
    found = in_order(rows)
    figure = new_figure(3.4 * len(metrics), 2.5 * len(found) + 0.5)
    figure.set_layout_engine("constrained", wspace=0.1, hspace=0.06)
    colors = colors_of(arms_of(rows))
    panels = figure.subplots(len(found), len(metrics), squeeze=False, sharex="row")
    for line, ((task, variant), arms) in zip(panels, found.items(), strict=True):
        for axes, metric in zip(line, metrics, strict=True):
            label = CURVES[metric]
            plain_axes(axes, 8)
            if axes is line[0]:
                axes.set_title(literal(f"{task}, {variant}"), fontsize=9, loc="left", fontweight="bold")
            drawn = {arm: curves for arm, points in arms.items() if (curves := list(curves_of(points, metric)))}
            if metric in PROBED and not drawn:
                axes.set_axis_off()
                why = "no noise to find" if variant in QUIET and metric == "leakage" else "not measured in training"
                axes.text(0.5, 0.5, f"{label}:\n{why}", ha="center", fontsize=8, transform=axes.transAxes)
                continue
            axes.set_ylabel(label)
            for arm, curves in drawn.items():
                seeds = len({row["seed"] for row in arms[arm]})
                draw_seeds(axes, curves, seeds, colors[arm], arm, bands=False)
            if metric == "return" and (task, variant) in random:
                axes.axhline(random[task, variant], color=INK, linewidth=0.8, linestyle="--", label="random actions")
            shown = np.concatenate([[0.0, 1.0], *(own for curves in drawn.values() for _, own in curves)])
            axes.set_ylim(1.05 * shown.min(), 1.05 * shown.max())
            axes.set_xlabel("thousand updates")
            if metric in PROBED:
                note_absent(axes, [arm for arm in arms if arm not in drawn])
    alone = any(len({row["seed"] for row in points}) == 1 for arms in found.values() for points in arms.values())
    jumps = any(line.get_linestyle() == ":" for axes in panels.flat for line in axes.get_lines())
    thick = "mean over seeds, or the only one" if alone else "mean over seeds"
    title = f"thin: one seed; thick: {thick}" + "; dotted: without some of the seeds" * jumps
    legend_below(figure, panels.flat, columns=5, title=title)
    return save_figure(figure, path)


def arms_of(rows: Sequence[Row]) -> list[str]:
    """The arms of some rows, sorted."""
    return sorted({row["arm"] for row in rows})


def in_order(rows: Sequence[Row]) -> dict[tuple[str, str], Arms]:
    """The cells: those with the most arms first, those without noise last."""
    return dict(sorted(cells(rows).items(), key=lambda cell: (cell[0][1] in QUIET, -len(cell[1]))))


def note_absent(axes, arms: Sequence[str]) -> None:
    """Note below a panel of the quick probe why it has no line for these arms."""
    if arms:
        text = textwrap.fill(f"no line: too few episodes for a value of {', '.join(arms)}", 52)
        axes.set_xlabel(f"{axes.get_xlabel()}\n{literal(text)}")


def curves_of(points: Sequence[Row], metric: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(updates, values) of each seed that has the metric."""
    for seed in dict.fromkeys(row["seed"] for row in points):
        own = {float(r["updates"]): float(r["value"]) for r in points if (r["seed"], r["metric"]) == (seed, metric)}
        if own:
            yield np.array(sorted(own)), np.array([own[at] for at in sorted(own)])


def draw_arms(rows: Sequence[Row], path: Path, drawn: Sequence[str] = DRAWN) -> Path:
    """Draw panels per task and variant, one per metric: each arm's bar, seeds and interval, and `REFERENCES`."""
    found, drawn = in_order(rows), [metric for metric in drawn if len(known(rows, metric))]
    lines_each = -(-len(drawn) // WIDEST)
    columns = -(-len(drawn) // lines_each)
    heights = [0.3 * len(arms) + 0.75 for arms in found.values() for _ in range(lines_each)]
    figure = new_figure(2.4 * columns + 0.8, sum(heights) + 0.5)
    figure.set_layout_engine("constrained")
    colors, span = colors_of(arms_of(rows)), {metric: [0.0, 1e-3] for metric in drawn}
    panels = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    panels = panels.reshape(len(found), lines_each * columns)
    for line, ((task, variant), arms) in zip(panels, found.items(), strict=True):
        for axes in line[len(drawn) :]:
            axes.set_visible(False)
        for number, (axes, metric) in enumerate(zip(line[: len(drawn)], drawn, strict=True)):
            plain_axes(axes, 8)
            for place, (arm, runs) in enumerate(arms.items()):
                ends = [*span[metric], *draw_arm(axes, place, runs, metric, colors[arm])]
                span[metric] = [min(ends), max(ends)]
            names = map(literal, arms) if number % columns == 0 else [""] * len(arms)
            axes.set_yticks(range(len(arms)), names)
            axes.set_ylim(len(arms) - 0.5, -0.5)
            axes.set_visible(any(len(known(runs, metric)) for runs in arms.values()))
            where = f"{task}, {variant}\n" if number == 0 else "\n" if number < columns else ""
            axes.set_title(literal(f"{where}{SHORT.get(metric, metric)}"), fontsize=8.5, loc="left")
            axes.grid(axis="y", visible=False)
    for line in panels:
        for axes, metric in zip(line, drawn, strict=False):
            axes.set_xlim(1.04 * np.array(span[metric]))  # the same in all panels of a metric
    figure.supxlabel(
        f"circle: a run; bar: mean over seeds; line: its 95 % interval, from {FEWEST} seeds on\n"
        "dotted: random actions, or an untrained net",
        fontsize=8,
    )
    return save_figure(figure, path)


def draw_arm(axes, place: int, runs: Sequence[Row], metric: str, color: str) -> list[float]:
    """Draw one bar of `draw_arms`; return the numbers that it shows."""
    own, reference = known(runs, metric), known(runs, REFERENCES.get(metric, ""))
    shown = [*own, *reference]
    if len(own) < len(runs):
        where = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(0.99, place, f"{len(own)} of {len(runs)} runs", fontsize=6.5, color=INK, **where)
    if len(own):
        value, low, high = interval(mean, [own], within=limits_of(metric, [own]))
        shown += [end for end in (low, high) if np.isfinite(end)]
        axes.barh(place, value, 0.62, color=color, alpha=0.35)
        axes.plot([low, high], [place, place], color=color, linewidth=2.2)
        axes.plot(own, [place] * len(own), "o", color="white", markeredgecolor=color, markersize=4)
    if len(reference):
        axes.plot([reference.mean()] * 2, [place - 0.45, place + 0.45], ":", color=INK, linewidth=1.2)
    return shown


def write(rows: Sequence[Row], curves: Sequence[Row], folder: Path) -> list[Path]:
    """Write all files computed from the rows of runs.csv and curves.csv; print the table."""
    if not rows:
        return []
    rows = with_late(rows, curves)
    main = [row for row in curves if row["variant"] == MAIN_VARIANT and row["arm"] in MAIN_ARMS]
    comparable = len(found := cells(main)) > 1 and all(len(arms) == len(MAIN_ARMS) for arms in found.values())
    played = {
        cell: known([run for runs in arms.values() for run in runs], "random") for cell, arms in cells(rows).items()
    }
    random = {cell: float(returns.mean()) for cell, returns in played.items() if len(returns)}
    text = table(rows)
    print(text)
    return [
        write_json(folder / "summary.json", summary(rows)),
        write_json(folder / "intervals.json", intervals(rows)),
        write_whole(folder / "table.md", text),
        *([draw_curves(curves, folder / "curves.png", random=random)] if curves else []),
        *([draw_curves(main, folder / "main.png", MAIN_METRICS, random)] if comparable else []),
        draw_arms(rows, folder / "arms.png"),
    ]
