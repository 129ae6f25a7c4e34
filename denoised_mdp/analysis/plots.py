"""Figures of probe results."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from denoised_mdp.analysis.factors import UNTRAINED, FactorMatrix
from denoised_mdp.analysis.roles import REST, SEEN
from denoised_mdp.envs.factors import QUADRANTS, SIGNAL, Factor
from denoised_mdp.run.folder import output_file

INK, FAINT, LINE, FRAME = "#1b2430", "#7b8794", "#d8dee6", "#e4572e"
COLORS = {"x": "#1f5fa8", "y": "#e4572e", "z": "#3a9d6b", "all": "#6c5b9e", "encoder": "#8a94a0"}
ROLE_COLORS = {SEEN: COLORS["x"], REST: COLORS["y"], "all": COLORS["all"], "encoder": COLORS["encoder"]}
DARK = LinearSegmentedColormap.from_list("dark", ["#f6f8fb", "#cfe0f2", "#7fb0dc", "#2f76ba", "#0d2f5e"])
PALETTE = ("#1f5fa8", "#e4572e", "#3a9d6b", "#6c5b9e", "#b8860b", "#0e8ba0", "#c2477f", "#5a6b2f", "#8a94a0", "#7a4b2a")
"""colors of compared curves"""
METHODS = ("2b", "dreamer", "2c", "repo", "tia", "curl", "dbc", "pisac", "sac_pixels")
"""methods with colors of their own, in the order of `PALETTE`"""
PART_LABELS = {UNTRAINED: "un-\ntrained"}
NARROWEST, CELL, ROW, LINE_HEIGHT, TITLE, FOOT = 4.4, 0.56, 0.225, 0.21, 0.62, 0.72
"""factor map in inches: minimum width, cell width and height, line of text, space above a panel, space below all"""
GOAL = "the goal: uncontrollable, relevant"
"""heading of the factors that are a `Factor.goal`"""
NUMBERS_FROM = 0.4
"""minimum width in inches of a cell with a number"""


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """One color per compared item, in order: the color of the method that its name contains, else a free one.

    So a method of `METHODS` looks the same in every comparison. Of several items with one method, the one named exactly
    like it ("2b" before "cheetah_run · 2b"), else the first, gets its color. Colors of absent methods are the last free
    ones, and colors repeat if there are many items.
    """
    names = list(dict.fromkeys(names))
    fixed: dict[str, int] = {}
    for name in sorted(names, key=lambda name: name not in METHODS):  # items named exactly like a method come first
        told = [METHODS.index(word) for word in re.findall(r"[\w.=/-]+", name) if word in METHODS]
        if told and told[0] not in fixed.values():
            fixed[name] = told[0]
    order = (*range(len(METHODS), len(PALETTE)), *range(len(METHODS)))
    free = itertools.chain((n for n in order if n not in fixed.values()), itertools.cycle(range(len(PALETTE))))
    return {name: PALETTE[fixed[name] if name in fixed else next(free)] for name in names}


def new_figure(width: float, height: float) -> Figure:
    """A figure of the given size in inches, without a window or global state."""
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes, letters: float) -> None:
    """Style the axes of curves or bars: two spines, a faint grid behind, axis labels of `letters` points."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=FAINT, labelsize=8, length=3)
    axes.xaxis.label.set(color=INK, fontsize=letters)
    axes.yaxis.label.set(color=INK, fontsize=letters)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def literal(text: str) -> str:
    """Text that matplotlib draws literally, including dollar signs."""
    return text.replace("$", r"\$")


def legend_below(
    figure: Figure, panels: Iterable, *, columns: int = 4, title: str | None = None, size: float = 8
) -> None:
    """Draw one legend below all panels: each label once, in as many columns as fit, at most `columns`.

    The figure needs a constrained layout. It grows by each legend line after the first, so that panels keep their size.
    """
    lines = {line.get_label(): line for axes in panels for line in axes.get_legend_handles_labels()[0]}
    widest = max(map(len, lines), default=0) * 0.6 * size + 5 * size  # points: text, then handle and gaps
    columns = int(max(1, min(columns, 72 * figure.get_figwidth() // widest)))
    figure.set_figheight(figure.get_figheight() + 1.6 * size / 72 * (math.ceil(len(lines) / columns) - 1))
    place = {"loc": "outside lower center", "ncols": columns, "fontsize": size, "frameon": False}
    figure.legend(lines.values(), lines.keys(), title=title, title_fontsize=size, **place)


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write a PNG atomically; see `run.folder.output_file`."""
    with output_file(path) as unfinished:
        figure.savefig(unfinished, format="png")
    return Path(path)


def factor_heat_map(matrix: FactorMatrix, probe: str, title: str, note: str = "") -> Figure:
    """R^2 of every factor (rows) from every part (columns), in the quadrants of Wang et al. 2022, Figure 1.

    Empty quadrants are left out. Frames mark the latents that should hold a quadrant: dark cells there and light cells
    in the other latents are good. The figure is only as wide as it must be, so that it is readable on a phone.
    """
    scores = dict(zip(matrix.factors, matrix.mean(probe).T, strict=True))  # factor -> [parts]
    kinds = {
        kind: [factor for factor in matrix.factors if (GOAL if factor.goal else factor.quadrant) == kind]
        for kind in (*QUADRANTS, GOAL)
    }
    kinds = {kind: found for kind, found in kinds.items() if found}
    longest = max(len(short_name(factor.name)) for factor in matrix.factors)
    label = min(2.4, 0.3 + 0.072 * longest)  # inches; names of 8.5 points
    width = max(NARROWEST, label + CELL * len(matrix.parts) + 0.15)
    cell = (width - label - 0.15) / len(matrix.parts)
    bold, faint = {"color": INK, "fontsize": 11, "fontweight": "bold"}, {"color": FAINT, "fontsize": 8}
    head = [(line, bold) for line in textwrap.wrap(title, int(width * 9.4))]
    head += [(line, faint) for part in note.split("\n") for line in textwrap.wrap(part, int(width * 13.5))]
    top = 0.22 + LINE_HEIGHT * len(head)
    height = top + sum(TITLE + ROW * len(found) for found in kinds.values()) + FOOT
    figure = new_figure(width, height)
    for number, (line, style) in enumerate(head):
        figure.text(0.12 / width, 1 - (0.22 + LINE_HEIGHT * number) / height, line, va="center", **style)

    def place(left: float, at: float, w: float, h: float):
        return figure.add_axes((left / width, 1 - (at + h) / height, w / width, h / height))

    for kind, found in kinds.items():
        figure.text(0.12 / width, 1 - (top + TITLE - 0.32) / height, kind, color=INK, fontsize=9.5, va="center")
        top += TITLE
        axes = place(label, top, width - label - 0.15, ROW * len(found))
        factor_panel(
            axes,
            np.stack([scores[factor] for factor in found]),
            found,
            matrix.parts,
            matrix.homes[SIGNAL if kind == GOAL else kind],
            cell >= NUMBERS_FROM,
        )
        top += ROW * len(found)
    color_bar(place(0.12, height - 0.5, 1.7, 0.13))
    legend = "framed: the latent\nthat should hold it"
    figure.text(2.05 / width, 0.4 / height, legend, color=FRAME, fontsize=8, va="center")
    return figure


def factor_panel(
    axes, values: np.ndarray, factors: Sequence[Factor], parts: Sequence[str], homes: Sequence[str], numbers: bool
) -> None:
    """Draw one quadrant: values [factors, parts]. homes: parts that get a frame. numbers: whether to write values."""
    rows, columns = values.shape
    for side in axes.spines.values():
        side.set_visible(False)
    axes.imshow(values.clip(0, 1), cmap=DARK, vmin=0, vmax=1, extent=(0, columns, rows, 0), aspect="auto")
    axes.tick_params(length=0, colors=INK, labelsize=8.5, pad=3)
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(columns) + 0.5, [PART_LABELS.get(part, part) for part in parts])
    axes.set_yticks(np.arange(rows) + 0.5, [short_name(factor.name) for factor in factors])
    for x in range(1, columns):
        axes.axvline(x, color="white", linewidth=1.5)
    for y in range(1, rows):
        axes.axhline(y, color="white", linewidth=1.0)
    if numbers:
        write_cells(axes, values, 8)
    for column, part in enumerate(parts):
        if part in homes:
            frame_cells(axes, column, 0, 1, rows)


def write_cells(axes, values: np.ndarray, size: float) -> None:
    """Write R^2 [rows, columns] into cells of unit size, in a font of `size` points."""
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        text = "<-1" if value < -0.995 else f"{value:.2f}".replace("-0.00", "0.00")
        color = "white" if value > 0.55 else INK if value > 0.1 else FAINT
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size, color=color)


def frame_cells(axes, left: float, top: float, columns: int, rows: int) -> None:
    """Frame a block of cells, to mark the latent that should hold these factors."""
    style = {"fill": False, "edgecolor": FRAME, "linewidth": 2, "clip_on": False, "zorder": 3}
    axes.add_patch(Rectangle((left, top), columns, rows, **style))


def short_name(name: str) -> str:
    """A short, readable form of a factor's name."""
    head, _, tail = name.partition("/")
    known = {"video_background": "background", "camera_jitter": "camera", "noisy_sensor": "sensor"}
    if head in ("qpos", "qvel"):
        return tail if head == "qpos" else f"{tail} (vel.)"
    return f"{known.get(head, head)} {tail}".strip().replace("_", " ")


def color_bar(axes) -> None:
    """Draw the color scale of R^2 into flat, wide axes."""
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=DARK, extent=(0, 1, 0, 1), aspect="auto")
    axes.set(yticks=[])
    axes.set(xticks=[])
    for place, text, align in ((0, "R² = 0, nothing", "left"), (1, "1, all", "right")):
        axes.text(place, -0.35, text, fontsize=8, color=FAINT, ha=align, va="top")
    for side in axes.spines.values():
        side.set_visible(False)
