"""Plots of a report as SVG, small enough that their letters can be read on a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from .factors import FactorMatrix
from .plots import COLORS, FAINT, INK, LINE, factor_heat_map, new_figure
from .report_groups import Group, band

PALETTE = ("#1f5fa8", "#e4572e", "#3a9d6b", "#6c5b9e", "#b8860b", "#0e8ba0", "#c2477f", "#5a6b2f", "#8a94a0", "#7a4b2a")
SIZE = (4.3, 2.75)
"""inches of one plot"""


def color_of(number: int) -> str:
    """The color of the n-th group, from 0; they repeat."""
    return PALETTE[number % len(PALETTE)]


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


def bars_plot(rows: Mapping[str, Mapping[str, tuple[float, float]]], ylabel: str) -> str | None:
    """Groups of bars: rows maps a place on the axis to series -> (height, half width of its error; nan: none)."""
    names = list(dict.fromkeys(series for row in rows.values() for series in row))
    if not names or not any(np.isfinite(height) for row in rows.values() for height, _ in row.values()):
        return None
    figure, axes = _plot()
    width = 0.8 / len(names)
    for number, series in enumerate(names):
        color = COLORS.get(series, color_of(number))
        for place, row in enumerate(rows.values()):
            height, error = row.get(series, (np.nan, np.nan))
            at = place + (number - (len(names) - 1) / 2) * width
            axes.bar(at, height, width * 0.9, color=color, label=series if place == 0 else None)
            if np.isfinite(error):
                axes.errorbar(at, height, error, color=INK, linewidth=0.9, capsize=1.5)
    slanted = len(rows) > 4 or max(map(len, rows)) > 12
    axes.set_xticks(range(len(rows)), [literal(name) for name in rows], rotation=30 if slanted else 0,
                    ha="right" if slanted else "center")  # fmt: skip
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False, fontsize=7.5, labelcolor=INK)
    return svg_uri(figure)


def heat_map(matrix: FactorMatrix, probe: str, title: str, note: str) -> str:
    """The factor matrix as in `probe factors`."""
    return svg_uri(factor_heat_map(matrix, probe, literal(title), literal(note)))


def literal(text: str) -> str:
    """Text that matplotlib draws as it is, dollar signs and all."""
    return text.replace("$", r"\$")


def _plot():
    figure = new_figure(*SIZE)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=FAINT, labelsize=8, length=3)
    axes.xaxis.label.set(color=INK, fontsize=8.5)
    axes.yaxis.label.set(color=INK, fontsize=8.5)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes
