"""Plots of a report as SVG, small enough that their letters can be read on a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from .factors import FactorMatrix
from .plots import COLORS, FAINT, color_of, factor_heat_map, literal, new_figure, plain_axes
from .report_groups import Group, band

SIZE = (4.3, 2.75)
"""inches of one plot"""


def svg_uri(figure: Figure) -> str:
    """A figure as the data URI of an SVG; equal figures give equal texts."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "report"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"


def curves_plot(groups: Sequence[Group], metric: str, ylabel: str) -> str | None:
    """One metric of all groups: the mean as a line, its 95 % confidence interval as a band, each run thin.

    None if no run has it.
    """
    figure, axes = _plot()
    drawn = False
    for number, group in enumerate(groups):
        curves, color = group.curves(metric), color_of(number)
        if not curves:
            continue
        drawn = True
        steps, mean, half, count = band(curves)
        few = {"marker": "o", "markersize": 3} if len(steps) < 15 else {}
        axes.plot(steps / 1000, mean, color=color, linewidth=1.7, **few)
        if len(curves) > 1:
            axes.fill_between(steps / 1000, mean - half, mean + half, where=count > 1, color=color, alpha=0.16, lw=0)
            for own_steps, values in curves:
                axes.plot(own_steps / 1000, values, color=color, linewidth=0.6, alpha=0.45)
    if not drawn:
        return None
    axes.set_xlabel("thousand environment steps")
    axes.set_ylabel(ylabel)
    return svg_uri(figure)


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


def heat_map(matrix: FactorMatrix, probe: str, title: str, note: str) -> str:
    """The factor matrix as in `probe factors`."""
    return svg_uri(factor_heat_map(matrix, probe, literal(title), literal(note)))


def _plot():
    figure = new_figure(*SIZE)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    plain_axes(axes, 8.5)
    return figure, axes
