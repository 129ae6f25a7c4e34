"""Figure of `probe distance`: the distance in steps of k decisions, and of other distractors."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from denoised_mdp.analysis.distance import STATE
from denoised_mdp.analysis.plots import FAINT, INK, ROLE_COLORS, literal, new_figure, plain_axes
from denoised_mdp.analysis.roles import in_words

COLORS = ROLE_COLORS | {STATE: INK, "pixels": "#b8860b"}
LEAST = 0.01
"""smallest distance in steps that the logarithmic axis shows; smaller ones are drawn there"""


def distance_figure(parts: Mapping[str, Mapping[str, Any]], title: str = "") -> Figure:
    """Left: learned steps between rows k decisions apart, by representation. Right: between paired worlds.

    parts: name -> fields of `distance.Geometry`; the keys of its lags may be text, as in JSON.
    """
    figure = new_figure(9.0, 4.0)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    _lags(left, parts)
    _worlds(right, {name: one for name, one in parts.items() if one["paired"]})
    for axes in (left, right):
        plain_axes(axes, 8.5)
        axes.title.set(fontsize=9, color=INK)
    if title:
        figure.suptitle(literal(title), fontsize=10, color=INK, x=0.01, ha="left")
    return figure


def _lags(axes, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Plot median steps over k, with each part's rank correlation in the legend; the diagonal is the bound.

    A collapsed representation lies far below 1, and one that violates the bound lies above it; both stay in view.
    """
    shown = []
    for name, one in parts.items():
        lags = {int(k): max(middle, LEAST) for k, (_, middle, _) in one["lags"].items()}
        shown += lags.values()
        agrees = one["rank_correlation"]
        label = in_words(name) + ("" if name == STATE or agrees is None else f" (rank corr. {agrees:.2f})")
        axes.plot(list(lags), list(lags.values()), "o-", color=COLORS[name], markersize=3, lw=1.6, label=literal(label))
    ticks = list(lags)
    axes.plot(ticks, ticks, linestyle=(0, (4, 3)), color=FAINT, linewidth=1, label="k steps, the bound")
    axes.set(xscale="log", yscale="log", xlabel="k decisions", ylabel="steps, median over held-out episodes")
    low, high = min(0.45, 0.8 * min(shown)), 1.3 * max(ticks[-1], *shown)
    for axis, more in ((axes.xaxis, ()), (axes.yaxis, (LEAST, 0.1, 1000, 10_000))):
        axis.set_minor_locator(NullLocator())
        marks = sorted({*ticks, *(mark for mark in more if low <= mark <= high)})
        axis.set_ticks(marks, marks)
    axes.set_ylim(low, high)
    axes.set_title("How far is a situation k decisions later?")
    _legend(axes)


def _worlds(axes, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Bars: steps between a situation and the same one in each other world; lines: between two random situations."""
    axes.set_title("How far is the same situation under other distractors?")
    if not parts:
        axes.text(0.5, 0.5, "this environment has no distractors", ha="center", transform=axes.transAxes, color=FAINT)
        return
    names, worlds = list(parts), list(dict.fromkeys(world for one in parts.values() for world in one["paired"]))
    width = 0.8 / len(worlds)
    for number, world in enumerate(worlds):
        heights = [parts[name]["paired"][world] for name in names]
        places = [place + (number - (len(worlds) - 1) / 2) * width for place in range(len(names))]
        strength = 1 - 0.25 * number
        axes.bar(places, heights, 0.9 * width, color=[COLORS[name] for name in names], alpha=strength)
        axes.bar(0, 0, color=INK, alpha=strength, label=world)  # the world's legend entry: a shade, in no part's colour
    for place, name in enumerate(names):
        label = "two random situations" if place == 0 else None
        axes.hlines(parts[name]["random"], place - 0.45, place + 0.45, color=INK, linewidth=1.6, label=label)
    axes.set_xticks(range(len(names)), [literal(textwrap.fill(in_words(name), 10)) for name in names])
    axes.set(ylabel="steps, median", ylim=(0, 1.05 * max(*axes.get_ylim(), *(one["random"] for one in parts.values()))))
    _legend(axes)


def _legend(axes) -> None:
    """Put the legend below the axes, where it hides nothing."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2, "columnspacing": 1.2}
    axes.legend(frameon=False, fontsize=7.5, **place)
