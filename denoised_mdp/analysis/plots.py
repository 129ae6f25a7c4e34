"""Pictures of what probes found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..envs.factors import QUADRANTS, Factor
from ..runs import output_file
from .factors import FactorMatrix

INK, FAINT, LINE, FRAME = "#1b2430", "#7b8794", "#d8dee6", "#e4572e"
COLORS = {"x": "#1f5fa8", "y": "#e4572e", "z": "#3a9d6b", "all": "#6c5b9e", "encoder": "#8a94a0"}
DARK = LinearSegmentedColormap.from_list("dark", ["#f6f8fb", "#cfe0f2", "#7fb0dc", "#2f76ba", "#0d2f5e"])
PALETTE = ("#1f5fa8", "#e4572e", "#3a9d6b", "#6c5b9e", "#b8860b", "#0e8ba0", "#c2477f", "#5a6b2f", "#8a94a0", "#7a4b2a")
"""of curves that are compared"""
PART_LABELS = {"all": "all latents", "encoder": "encoder"}
CELL, GAP, LABEL, HEAD, FOOT = 0.5, 0.55, 1.45, 0.95, 0.75
"""inches: height of a cell, between panels, for the labels at the left, above everything, below everything"""
WIDEST = 16.0
"""inches of all cells side by side; where there are many, they become narrow"""
TITLE, LEAST = 0.42, 1.95
"""inches: for the title of a panel, least width of one"""
NUMBERS_FROM = 0.4
"""inches of a cell that is wide enough for a number"""


def color_of(number: int) -> str:
    """The color of the n-th of several things that are compared, from 0; they repeat."""
    return PALETTE[number % len(PALETTE)]


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches that belongs to no window and no global state."""
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes, letters: float) -> None:
    """Style the axes of a curve or of bars: two sides, a faint grid behind, names of `letters` points."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=FAINT, labelsize=8, length=3)
    axes.xaxis.label.set(color=INK, fontsize=letters)
    axes.yaxis.label.set(color=INK, fontsize=letters)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def literal(text: str) -> str:
    """Text that matplotlib draws as it is, dollar signs and all."""
    return text.replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a PNG, whole or not at all; see `runs.output_file`."""
    with output_file(path) as unfinished:
        figure.savefig(unfinished, format="png")
    return path


def factor_heat_map(matrix: FactorMatrix, probe: str, title: str, note: str = "") -> Figure:
    """R^2 of every factor (columns) from every part (rows), in the four quadrants of Wang et al. 2022, Figure 1.

    Frames mark the latents that should hold a quadrant: there it should be dark, and light in the other latents.
    """
    scores = dict(zip(matrix.factors, matrix.mean(probe).T, strict=True))  # factor -> [parts]
    keys = list(QUADRANTS)
    grid = [[_of(matrix.factors, keys[0]), _of(matrix.factors, keys[1])],
            [_of(matrix.factors, keys[2]), _of(matrix.factors, keys[3])]]  # fmt: skip
    counts = [max(len(row[i]) for row in grid) for i in range(2)]
    cell = min(CELL, WIDEST / max(1, sum(counts)))
    widths = [max(LEAST, cell * count) for count in counts]
    rows = len(matrix.parts)
    panel = rows * CELL
    width = LABEL + widths[0] + GAP + widths[1] + 0.35
    longest = [max((len(short_name(f.name)) for part in row for f in part), default=0) for row in grid]
    names = [0.2 + 0.052 * letters for letters in longest]  # inches below a panel, for its slanted names
    height = HEAD + 2 * (TITLE + panel) + sum(names) + 0.15 + FOOT
    width = max(width, 7.6)
    figure = new_figure(width, height)

    def place(left: float, top: float, w: float, h: float):
        return figure.add_axes((left / width, 1 - (top + h) / height, w / width, h / height))

    figure.text(0.25 / width, 1 - 0.36 / height, title, color=INK, fontsize=13, fontweight="bold", va="center")
    figure.text(0.25 / width, 1 - 0.66 / height, note, color=FAINT, fontsize=9, va="center")
    top = HEAD
    for r in range(2):
        left = LABEL
        for c in range(2):
            key, found = keys[2 * r + c], grid[r][c]
            figure.text(left / width, 1 - (top + 0.22) / height, key, color=INK, fontsize=10, va="center")
            axes = place(left, top + TITLE, cell * len(found) if found else widths[c], panel)
            values = np.stack([scores[factor] for factor in found], 1) if found else None
            quadrant_panel(axes, values, found, matrix.parts, QUADRANTS[key], c == 0, cell >= NUMBERS_FROM)
            left += widths[c] + GAP
        top += TITLE + panel + names[r] + 0.15 * (r == 0)
    color_bar(place(LABEL, height - 0.52, 2.2, 0.13))
    legend = "framed: the latent that should hold it"
    figure.text((LABEL + 2.5) / width, 0.455 / height, legend, color=FRAME, fontsize=8.5, va="center")
    return figure


def _of(factors: Sequence[Factor], quadrant: str) -> list[Factor]:
    return [factor for factor in factors if factor.quadrant == quadrant]


def quadrant_panel(
    axes, values: np.ndarray | None, factors: list[Factor], parts: list[str], homes, labels: bool, numbers: bool
) -> None:
    """Draw one quadrant: values [parts, factors], or a note that this environment has nothing of the kind.

    homes: the parts that get a frame. labels: whether to name the parts, numbers: whether to write the values.
    """
    rows = len(parts)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, colors=INK, labelsize=9)
    axes.set_ylim(rows, 0)
    axes.set_yticks(np.arange(rows) + 0.5, [PART_LABELS.get(part, part) for part in parts] if labels else [""] * rows)
    if values is None:
        axes.set(xticks=[], xlim=(0, 1))
        axes.add_patch(Rectangle((0, 0), 1, rows, facecolor="#fafbfc", edgecolor=LINE, linewidth=0.8, clip_on=False))
        axes.text(0.5, rows / 2, "nothing of this kind\nin this environment", color=FAINT, fontsize=8, ha="center",
                  va="center")  # fmt: skip
        return
    count = len(factors)
    axes.imshow(values.clip(0, 1), cmap=DARK, vmin=0, vmax=1, extent=(0, count, rows, 0), aspect="auto")
    axes.set_xticks(np.arange(count) + 0.5, [short_name(factor.name) for factor in factors], fontsize=8, ha="right")
    for label in axes.get_xticklabels():
        label.set(rotation=40 if numbers else 60, rotation_mode="anchor")
    for x in range(1, count):
        axes.axvline(x, color="white", linewidth=1.5 if numbers else 0.5)
    for y in range(1, rows):
        axes.axhline(y, color="white", linewidth=1.5)
    if numbers:
        for row, column in np.ndindex(values.shape):
            value = values[row, column]
            text = "<-1" if value < -0.995 else f"{value:.2f}".replace("-0.00", "0.00")
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5,
                      color="white" if value > 0.55 else INK if value > 0.1 else FAINT)  # fmt: skip
    for row, part in enumerate(parts):
        if part in homes:
            axes.add_patch(Rectangle((0, row), count, 1, fill=False, edgecolor=FRAME, linewidth=2, clip_on=False,
                                     zorder=3))  # fmt: skip


def short_name(name: str) -> str:
    """A factor's name without what its quadrant already says."""
    head, _, tail = name.partition("/")
    known = {"video_background": "background", "camera_jitter": "camera", "noisy_sensor": "sensor"}
    if head in ("qpos", "qvel"):
        return tail if head == "qpos" else f"{tail} (vel.)"
    return f"{known.get(head, head)} {tail}".strip().replace("_", " ")


def color_bar(axes) -> None:
    """Draw the legend of the colours of R^2 into flat, wide axes."""
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=DARK, extent=(0, 1, 0, 1), aspect="auto")
    axes.set(yticks=[])
    axes.set(xticks=[])
    for place, text, align in ((0, "R² = 0, nothing", "left"), (1, "1, all", "right")):
        axes.text(place, -0.35, text, fontsize=8, color=FAINT, ha=align, va="top")
    for side in axes.spines.values():
        side.set_visible(False)
