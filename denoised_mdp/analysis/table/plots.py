"""Figures of a table of runs: learning curves of each cell, and aggregates with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from denoised_mdp.analysis.plots import colors_of, legend_below, literal, new_figure, plain_axes, save_figure
from denoised_mdp.analysis.report.data import Curve
from denoised_mdp.analysis.report.groups import band
from denoised_mdp.analysis.report.plots import BAND_FROM, draw_mean
from denoised_mdp.analysis.table.cells import Table
from denoised_mdp.analysis.table.statistics import interval, iqm, mean, median, profile

LEVELS = 101
"""number of return levels of a performance profile"""


def draw(table: Table, folder: Path) -> list[Path]:
    """Write ``curves.png`` (the layout of the paper's Figure 5-5) and, if scores allow, ``aggregates.png``."""
    paths = [draw_curves(table, folder / "curves.png")]
    whole = [method for method in table.methods if table.scores(method)]
    aggregates = folder / "aggregates.png"
    if whole:
        return [*paths, draw_aggregates(table, whole, aggregates)]
    aggregates.unlink(missing_ok=True)  # of an earlier table
    return paths


def draw_curves(table: Table, path: Path) -> Path:
    """Draw a panel per task and set of distractors: mean return, 95 % band over seeds and all runs of each method."""
    figure = new_figure(3.2 * len(table.tasks) + 0.3, 2.3 * len(table.variants) + 0.5)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(len(table.variants), len(table.tasks), sharex=True, squeeze=False)
    colors = colors_of(table.methods)
    for row, variant in zip(panels, table.variants, strict=True):
        for axes, task in zip(row, table.tasks, strict=True):
            plain_axes(axes, 8)
            axes.set_title(literal(f"{task}\n{variant}"), fontsize=8)
            for method, color in colors.items():
                runs = [entry.run for entry in table.group((task, variant), method)]
                curves = [run.metrics["eval/return"] for run in runs if "eval/return" in run.metrics]
                if not curves:
                    continue
                draw_seeds(axes, curves, len(runs), color, method)
    for axes in panels[-1]:
        axes.set_xlabel("thousand environment steps")
    for row in panels:
        row[0].set_ylabel("return")
    legend_below(figure, panels.flat)
    return save_figure(figure, path)


def draw_seeds(axes, curves: Sequence[Curve], runs: int, color: str, label: str, *, bands: bool = True) -> None:
    """Draw the mean, the 95 % band and each curve of one method; steps are shown in thousands.

    The mean is dotted where some of the method's `runs` runs are missing: it can jump where one begins or ends.
    """
    steps, values, half, count = band(curves)
    draw_mean(axes, steps, values, count == runs, color=color, label=literal(label), linewidth=1.6)
    many = bands & (count >= BAND_FROM)
    axes.fill_between(steps / 1000, values - half, values + half, where=many, color=color, alpha=0.16, lw=0)
    for own, one in curves if len(curves) > 1 else ():
        axes.plot(own / 1000, one, color=color, linewidth=0.6, alpha=0.5)


def levels_of(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Levels [LEVELS] at which a profile is drawn: from 0, or the lowest return if negative, to the highest."""
    everything = np.concatenate(scores)
    lowest, highest = float(everything.min()), float(everything.max())
    return np.linspace(min(0.0, lowest), max(0.0, highest) if lowest < 0 else max(1.0, highest), LEVELS)


def draw_aggregates(table: Table, methods: list[str], path: Path) -> Path:
    """Draw IQM, mean and median with intervals, and the performance profiles."""
    figure = new_figure(9.5, 0.35 * len(methods) + 2.2)
    figure.set_layout_engine("constrained")
    *bars, profiles = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.6))
    scores, colors = {method: table.scores(method) for method in methods}, colors_of(table.methods)
    for axes, statistic in zip(bars, (iqm, mean, median), strict=True):
        plain_axes(axes, 8)
        axes.use_sticky_edges = False  # otherwise the frame would cut off intervals
        for row, (method, own) in enumerate(scores.items()):
            value, low, high = interval(statistic, own)
            color = colors[method]
            axes.barh(row, high - low, 0.5, low, color=color, alpha=0.35)
            axes.plot([value, value], [row - 0.3, row + 0.3], color=color, linewidth=2)
        axes.set_yticks(range(len(scores)), map(literal, scores) if axes is bars[0] else [""] * len(scores))
        axes.set_ylim(len(scores) - 0.5, -0.5)
        axes.set_xlabel({iqm: "IQM", mean: "mean", median: "median"}[statistic])
    plain_axes(profiles, 8)
    levels = levels_of([one for own in scores.values() for one in own])
    for method, own in scores.items():
        value, low, high = interval(lambda tasks: profile(tasks, levels), own, count=1000, within=(0.0, 1.0))
        color = colors[method]
        profiles.plot(levels, value, color=color, linewidth=1.6, label=literal(method))
        profiles.fill_between(levels, low, high, color=color, alpha=0.16, lw=0)
    profiles.set_xlabel("return τ")
    profiles.set_ylabel("share of runs above τ")
    return save_figure(figure, path)
