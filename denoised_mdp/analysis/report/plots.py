"""Plots of a report as SVG, small enough to be legible on a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from denoised_mdp.analysis.factors import FactorMatrix
from denoised_mdp.analysis.plots import COLORS, FAINT, factor_heat_map, literal, new_figure, plain_axes
from denoised_mdp.analysis.report.groups import Group, band

SIZE = (4.3, 2.75)
"""width and height of a plot, in inches"""
RETURNS = ("eval/return", "train/return")
BAND_FROM = 3
"""fewest runs for a band; the interval of two (Student's t) is ± 9 standard deviations"""


def svg_uri(figure: Figure) -> str:
    """A figure as the data URI of an SVG; equal figures give equal URIs."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "report"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"


def curves_plot(groups: Sequence[Group], metric: str, ylabel: str) -> str | None:
    """One metric of all groups: the mean as a line, its 95 % confidence interval as a band, runs as thin lines.

    The line is dotted where some runs are missing, since it can jump where one ends. Returns are shown with the random
    policy's mean. The frame clips a band that is much wider than the curves. Fewer than `BAND_FROM` runs have no band.
    Returns None if no run has the metric.
    """
    figure, axes = _plot()
    extent: list[float] = []
    for group in groups:
        curves, color = group.curves(metric), group.color
        if not curves:
            continue
        steps, mean, half, count = band(curves)
        few = {"marker": "o", "markersize": 3} if len(steps) < 15 else {}
        draw_mean(axes, steps, mean, count == len(group.runs), color=color, linewidth=1.7, **few)
        extent += [value for _, values in curves for value in (values.min(), values.max())]
        if len(curves) > 1:
            low, high, many = mean - half, mean + half, count >= BAND_FROM
            axes.fill_between(steps / 1000, low, high, where=many, color=color, alpha=0.16, lw=0)
            for own_steps, values in curves:
                axes.plot(own_steps / 1000, values, color=color, linewidth=0.7, alpha=0.55)
        if metric in RETURNS:
            earned = [values.mean() for _, values in group.curves("random/return")]
            if earned:
                axes.axhline(np.mean(earned), color=color, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
                extent.append(float(np.mean(earned)))
    if not extent:
        return None
    low, high = axes.get_ylim()  # of everything drawn, bands included
    room = 0.3 * (max(extent) - min(extent)) or 0.05 * abs(max(extent)) or 0.05
    axes.set_ylim(max(low, min(extent) - room), min(high, max(extent) + room))
    axes.set_xlabel("thousand environment steps")
    axes.set_ylabel(ylabel)
    return svg_uri(figure)


def draw_mean(axes, steps: np.ndarray, mean: np.ndarray, whole: np.ndarray, **style) -> None:
    """Draw a mean over runs [n]: solid where all runs count (`whole` [n]), dotted elsewhere, where it can jump."""
    axes.plot(steps[whole] / 1000, mean[whole], **style)
    if not whole.all():
        dotted = {key: value for key, value in style.items() if key in ("color", "linewidth")}
        axes.plot(steps / 1000, mean, linestyle=":", **dotted)


def bars_plot(heights: Mapping[str, float], ylabel: str) -> str | None:
    """One bar per name, in the color of that latent; None if no height is finite."""
    if not any(np.isfinite(height) for height in heights.values()):
        return None
    figure, axes = _plot()
    axes.bar(range(len(heights)), list(heights.values()), 0.6, color=[COLORS.get(name, FAINT) for name in heights])
    axes.set_xticks(range(len(heights)), [literal(name) for name in heights])
    axes.set_xlim(-0.7, max(len(heights), 3) - 0.3)
    axes.set_ylabel(ylabel)
    return svg_uri(figure)


def heat_map(matrix: FactorMatrix, probe: str) -> str:
    """The factor matrix as drawn by `probe factors`, without a title: the page has one."""
    return svg_uri(factor_heat_map(matrix, probe, "", literal(f"R² on held-out episodes · {probe}")))


def _plot():
    figure = new_figure(*SIZE)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    plain_axes(axes, 8.5)
    return figure, axes
