"""Figures of joint position regression: error by train size, by updates, and by joint."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from denoised_mdp.analysis.plots import DARK, FAINT, INK, colors_of, literal, new_figure, plain_axes
from denoised_mdp.envs.joints import Joint

if TYPE_CHECKING:
    from denoised_mdp.analysis.joints.results import Result

RELATIVE = "test MSE / that of the mean,\nmean over joints"
LOG_FROM = 5.0
"""relative error above which an axis is logarithmic"""
DASHES = {1: "-", 3: "--"}
Groups = Mapping[tuple[str, int, int], Sequence["Result"]]
"""(encoder, frames, pairs) -> finetunings"""


def figures(groups: Groups, joints: Sequence[Joint], title: str) -> dict[str, Figure]:
    """All figures by name: "sizes", "curves" and "each_joint"."""
    return {
        "sizes": size_figure(groups, joints, title),
        "curves": curve_figure(groups, title),
        "each_joint": joint_figure(groups, joints, title),
    }


def size_figure(groups: Groups, joints: Sequence[Joint], title: str) -> Figure:
    """Final test error against train size: relative to predicting the mean, and as MSE of the joints of each unit."""
    units = list(dict.fromkeys(joint.unit for joint in joints))
    figure, panels = _axes(1 + len(units), title)
    for axes, unit in zip(panels, (None, *units), strict=True):
        chosen = [joint.unit == unit for joint in joints]
        for (name, stack), keys in _lines(groups).items():
            own = [
                [(_relative(one) if unit is None else one.curve.mse[:, chosen].mean(1))[-1] for one in groups[key]]
                for key in keys
            ]
            sizes = np.array([key[2] for key in keys])
            _draw(axes, sizes, own, _label(name, stack), _style(groups, name, stack), marker="o")
        count = f"{sum(chosen)} joint{'s' * (sum(chosen) > 1)}"
        axes.set(xscale="log", xlabel="training pairs")
        axes.set_ylabel(RELATIVE if unit is None else f"test MSE ({unit}²),\nmean over {count}")
        sizes = sorted({key[2] for key in groups})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
        axes.minorticks_off()
    for axes in panels[1:]:
        axes.set_ylim(0, 1.06 * axes.dataLim.y1)
    panels[0].axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
    _scale(panels[:1], [value for results in groups.values() for one in results for value in _relative(one)[-1:]])
    _legend(figure, panels[0])
    return figure


def curve_figure(groups: Groups, title: str) -> Figure:
    """Relative test error during training, for the smallest and the largest train size."""
    sizes = sorted({key[2] for key in groups})
    shown = list(dict.fromkeys((sizes[0], sizes[-1])))
    figure, panels = _axes(len(shown), title)
    for axes, size in zip(panels, shown, strict=True):
        for (name, stack, own), results in groups.items():
            if own == size:
                values = [list(each) for each in zip(*(_relative(one) for one in results), strict=True)]
                _draw(axes, results[0].curve.updates, values, _label(name, stack), _style(groups, name, stack))
        axes.set(xlabel="updates", ylabel=RELATIVE)
        axes.set_title(f"{size:,} training pairs", fontsize=9, color=INK, loc="left")
        axes.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")  # predicting the mean
    drawn = [one for key, results in groups.items() if key[2] in shown for one in results]
    _scale(panels, [value for one in drawn for value in _relative(one)])
    _legend(figure, panels[0])
    return figure


def joint_figure(groups: Groups, joints: Sequence[Joint], title: str) -> Figure:
    """Relative test error of each joint at the largest train size; darker is better."""
    largest = max(key[2] for key in groups)
    keys = [key for key in groups if key[2] == largest]
    values = np.array([np.mean([one.curve.relative[-1] for one in groups[key]], 0) for key in keys])  # [encoders, J]
    width = max(7.0, 2.6 + 0.55 * len(joints))
    figure = new_figure(width, 1.9 + 0.42 * len(keys))
    figure.set_layout_engine("constrained")
    head = f"{literal(_wrapped(title, width))}\ntest MSE / that of the mean, {largest:,} training pairs"
    figure.suptitle(head, x=0.01, ha="left", fontsize=11, color=INK)
    axes = figure.subplots()
    axes.imshow(1 - np.nan_to_num(values, nan=1.0).clip(0, 1), cmap=DARK, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(joints)), [*map(literal, short_names(joints))], rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(keys)), [literal(_label(name, stack)) for name, stack, _ in keys], fontsize=9)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_visible(False)
    for row, column in np.ndindex(values.shape) if len(joints) <= 24 else ():
        value = values[row, column]
        text = "-" if np.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:,.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if value < 0.45 else INK)
    return figure


def short_names(joints: Sequence[Joint]) -> list[str]:
    """Names of joints without the first words that all of them share."""
    names = [joint.name for joint in joints]
    shared = os.path.commonprefix(names).rpartition("_")[0] if len(names) > 1 else ""
    return [name[len(shared) + 1 :] if shared else name for name in names]


def _scale(panels: Sequence, values: Sequence[float]) -> None:
    """Scale the error axes: linear from 0, or logarithmic if joints that hardly count in the loss have huge errors."""
    known = [value for value in values if np.isfinite(value) and value > 0]
    wide = bool(known) and max(known) > LOG_FROM
    for axes in panels:
        axes.set_yscale("log" if wide else "linear")
        if not wide:
            axes.set_ylim(0, 1.06 * max([1.0, *known]))  # always shows 1, the error of predicting the mean


def _legend(figure: Figure, axes) -> None:
    """Draw the legend of `axes` below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=8.5)


def _relative(result: Result) -> np.ndarray:
    """Mean over joints of the relative error, [n]."""
    return np.nanmean(result.curve.relative, 1)


def _lines(groups: Groups) -> dict[tuple[str, int], list[tuple[str, int, int]]]:
    """(encoder, frames) -> the keys of its groups, by increasing train size."""
    lines: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for key in sorted(groups, key=lambda key: key[2]):
        lines.setdefault(key[:2], []).append(key)
    order = list(dict.fromkeys(key[:2] for key in groups))
    return {line: lines[line] for line in order}


def _style(groups: Groups, name: str, stack: int) -> dict:
    return {"color": colors_of(key[0] for key in groups)[name], "linestyle": DASHES.get(stack, "-.")}


def _label(name: str, stack: int) -> str:
    return name if stack == 1 else f"{name}, {stack} frames"


def _draw(axes, x: np.ndarray, values: Sequence[Sequence[float]], label: str, style: dict, marker: str = "") -> None:
    """Draw means over seeds as a line, with a band from the minimum to the maximum."""
    mean = [np.mean(each) for each in values]
    axes.plot(x, mean, label=literal(label), linewidth=1.7, marker=marker, markersize=4, **style)
    if max(map(len, values)) > 1:
        low, high = [min(each) for each in values], [max(each) for each in values]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _wrapped(title: str, width: float) -> str:
    """Wrap a 12-point title to the width of its figure, in inches."""
    return "\n".join(textwrap.wrap(title, int(width * 8.5)))


def _axes(count: int, title: str):
    width = 4.6 * max(count, 2) + 0.6
    figure = new_figure(width, 4.2)
    figure.set_layout_engine("constrained")
    figure.suptitle(literal(_wrapped(title, width)), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    panels = np.atleast_1d(figure.subplots(1, count))
    for axes in panels:
        plain_axes(axes, 9)
    return figure, panels
