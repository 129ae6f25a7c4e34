"""Table and picture of denoising.py, from its CSV files."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from denoised_mdp.analysis.plots import (
    DARK,
    FAINT,
    FRAME,
    INK,
    LINE,
    PART_LABELS,
    color_bar,
    frame_cells,
    new_figure,
    short_name,
    write_cells,
)
from denoised_mdp.envs.factors import QUADRANTS, Factor

ARMS = {"2b": "Denoised MDP 2b", "2c": "Denoised MDP 2c", "dreamer": "Dreamer"}
COLORS = {"2b": "#1f5fa8", "2c": "#7b5ea7", "dreamer": "#e4572e"}
LATENTS = ("x", "y", "z")
RETURNS = {"seen": "as trained", "unseen": "", "none": "no distractors"}
"""column return_... -> name among the variations of `denoised-mdp probe invariance`; `unseen`: see that column"""
LABELS = {
    "parameters": "parameters of the world model",
    "recall_ridge": "signal recall (R² of the signal from x), ridge; high is good",
    "recall_mlp": "the same, MLP",
    "leakage_ridge": "leakage (R² of the noise from x), ridge; low is good",
    "leakage_mlp": "the same, MLP",
    "signal_from_y": "R² of the signal from y, ridge; low is good",
    "noise_from_y": "R² of the noise from y, ridge; high is good",
    "signal_from_z": "R² of the signal from z, ridge",
    "noise_from_z": "R² of the noise from z, ridge; low is good",
    "signal_from_encoder": "R² of the signal from the raw encoder, ridge",
    "noise_from_encoder": "R² of the noise from the raw encoder, ridge",
    "ratio_x": "distance of x: other distractors / other state; low is good",
    "ratio_y": "the same of y; high is good",
    "ratio_z": "the same of z; low is good",
    "ratio_action": "the same of the action; low is good",
    "action_change": "mean change of an action under other distractors (range: 2)",
    "return_seen": "return under the distractors of training",
    "return_unseen": "return under {unseen}",
    "return_none": "return without distractors",
}
"""column -> row of the table"""


def groups(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Rows of each model in order of the seeds; models in the order of `ARMS`, unknown ones last."""
    models = sorted({row["model"] for row in rows}, key=lambda model: [*ARMS, model].index(model))
    return {model: sorted((r for r in rows if r["model"] == model), key=lambda r: int(r["seed"])) for model in models}


def unseen(rows: list[dict[str, str]]) -> str:
    """What the unseen distractors of these runs are, in words."""
    named = next((row["unseen"] for row in rows if row["unseen"]), "")
    return named.replace("_", " ") or "unseen clips"  # all that there was before the column


def values(rows: list[dict[str, str]], column: str) -> list[float]:
    """A column's numbers; none where a model has no such latent."""
    return [float(row[column]) for row in rows if row[column] != ""]


def table(rows: list[dict[str, str]]) -> str:
    """A Markdown table: measures in rows, models in columns; mean and std over seeds, then each seed."""
    arms = groups(rows)
    heads = [f"{ARMS.get(model, model)} (seeds {', '.join(row['seed'] for row in of)})" for model, of in arms.items()]
    lines = [f"| mean ± std over seeds (each seed) | {' | '.join(heads)} |", "|---|" + "---|" * len(arms)]
    for column, label in LABELS.items():
        digits = 0 if column == "parameters" else 1 if column.startswith("return") else 3
        cells = []
        for of in arms.values():
            found = values(of, column)
            spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
            each = f" ({', '.join(f'{value:.{digits}f}' for value in found)})" if len(found) > 1 else ""
            if 0 < len(found) < len(of):
                each += f" [seeds {', '.join(row['seed'] for row in of if row[column] != '')} alone]"
            cell = f"{statistics.mean(found):,.{digits}f}{spread}{each}" if found else "-"
            cells.append(f"{statistics.mean(found):,.0f}" if column == "parameters" else cell)
        if set(cells) != {"-"}:
            lines.append(f"| {label.format(unseen=unseen(rows))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def bars(axis, arms: dict, columns: list[str], names: list[str], title: str, note: str) -> None:
    """Bars of the mean over seeds and a dot per seed: groups of `columns`, in each a bar per model."""
    width = 0.8 / len(arms)
    for group, column in enumerate(columns):
        having = {model: rows for model, rows in arms.items() if values(rows, column)}  # not all have y and z
        for place, (model, rows) in enumerate(having.items()):
            color, found = COLORS.get(model, "#8a94a0"), values(rows, column)
            x = group + (place - (len(having) - 1) / 2) * width
            axis.bar(x, statistics.mean(found), 0.88 * width, color=color, alpha=0.75, lw=0)
            spread = np.linspace(-0.18, 0.18, len(found)) * width if len(found) > 1 else [0.0]
            axis.scatter(x + np.asarray(spread), found, s=13, color="white", edgecolor=INK, lw=0.8, zorder=3)
    axis.set_xticks(range(len(columns)), names, fontsize=8.5)
    axis.tick_params(length=0, labelsize=8.5)
    axis.set_title(f"{title}\n", fontsize=10.5, fontweight="bold", loc="left", color=INK)
    axis.text(0, 1.03, note, transform=axis.transAxes, fontsize=8.5, color=FAINT)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color=LINE, lw=0.6)
    axis.set_axisbelow(True)


def draw(rows: list[dict[str, str]], factors: list[dict[str, str]], title: str, path: Path) -> None:
    """Headline numbers as bars; below them each model's factor heat map by quadrants, mean over seeds."""
    from matplotlib.patches import Patch

    arms = groups(rows)
    maps = {model: heat(factors, {row["run"] for row in of}) for model, of in arms.items()}
    found = next(iter(maps.values()))[1]  # the factors, the same in all
    kinds = [kind for kind in QUADRANTS if any(factor.quadrant == kind for factor in found)]
    counts = [max(2, sum(factor.quadrant == kind for factor in found)) for kind in kinds]
    cell, row_height, left, gap = 0.49, 0.36, 1.55, 0.45
    width = max(left + cell * sum(counts) + gap * (len(counts) - 1) + 0.95, 11.5)
    heights = [row_height * len(parts) for parts, *_ in maps.values()]
    height = 4.85 + sum(heights) + 0.3 * len(maps) + 1.75
    figure = new_figure(width, height)

    def place(x: float, y: float, w: float, h: float):
        return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

    def say(x: float, y: float, text: str, **style):
        figure.text(x / width, 1 - y / height, text, va="center", **style)

    say(0.3, 0.38, title, fontsize=14, fontweight="bold", color=INK)
    counted = ", ".join(f"{len(of)} of {ARMS.get(model, model)}" for model, of in arms.items())
    say(0.3, 0.72, f"bars: mean over seeds ({counted}); a dot is one seed", fontsize=9.5, color=FAINT)
    handles = [Patch(color=COLORS.get(m, "#8a94a0"), alpha=0.75, label=ARMS.get(m, m)) for m in arms]
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(1 - 0.25 / width, 1 - 0.2 / height),
        ncols=len(arms),
        frameon=False,
        fontsize=9.5,
    )
    label = "\n".join(unseen(rows).partition(" at ")[2].split() or unseen(rows).split())
    panels = [
        (["recall_ridge", "recall_mlp"], ["ridge", "MLP"], "Signal recall", "R² of the signal from x: high is good"),
        (["leakage_ridge", "leakage_mlp"], ["ridge", "MLP"], "Leakage", "R² of the noise from x: low is good"),
        (
            ["ratio_x", "ratio_y", "ratio_z", "ratio_action"],
            [*LATENTS, "action"],
            "Invariance",
            "distance, other distractors / other state",
        ),
        (
            [f"return_{name}" for name in RETURNS],
            ["as\ntrained", label, "none"],
            "Return",
            "same physics, other distractors",
        ),
    ]
    shares = [2, 2, 2.6, 2]
    room, between = width - 0.75 - 0.3 - 3 * 0.62, 0.62
    x = 0.75
    for (columns, names, head, note), share in zip(panels, shares, strict=True):
        kept = [(c, n) for c, n in zip(columns, names, strict=True) if any(values(of, c) for of in arms.values())]
        w = room * share / sum(shares)
        if not kept:
            continue
        fewer = {len(of) - len(values(of, kept[0][0])) for of in arms.values()} - {0}
        if head == "Return" and fewer:  # measured last, it may be missing for some runs
            note = "of " + ", ".join(f"{len(values(of, kept[0][0]))}" for of in arms.values()) + " of these runs alone"
        axis = place(x, 1.5, w, 2.35)
        bars(axis, arms, [c for c, _ in kept], [n for _, n in kept], head, note)
        if head in ("Signal recall", "Leakage"):
            axis.set_ylim(0, 1.02)
        x += w + between
    top = 4.6
    say(
        0.3,
        top,
        "Which latent holds what: R² of each true factor, ridge, mean over seeds",
        fontsize=11,
        fontweight="bold",
        color=INK,
    )
    top += 0.4
    x = left
    for kind, count in zip(kinds, counts, strict=True):
        say(x - (0 if count > 2 else 0.3), top, kind, fontsize=9, color=FAINT)
        x += cell * count + gap
    top += 0.18
    for number, (model, (parts, all_factors, scores)) in enumerate(maps.items()):
        h, x = heights[number], left
        say(
            0.3,
            top + h / 2,
            ARMS.get(model, model).replace(" MDP ", "\nMDP "),
            fontsize=10,
            fontweight="bold",
            color=COLORS.get(model, INK),
        )
        for kind, count in zip(kinds, counts, strict=True):
            chosen = [i for i, factor in enumerate(all_factors) if factor.quadrant == kind]
            axes = place(x, top, cell * len(chosen), h)
            quadrant_panel(
                axes, scores[:, chosen], [all_factors[i] for i in chosen], parts, QUADRANTS[kind], x == left, True
            )
            if number < len(maps) - 1:
                axes.set_xticklabels([])
            x += cell * count + gap
        top += h + 0.3
    color_bar(place(left, height - 0.48, 2.2, 0.13))
    say(left + 2.6, height - 0.42, "framed: the latent that should hold it", fontsize=8.5, color=FRAME)
    figure.savefig(path)


def quadrant_panel(
    axes, values: np.ndarray, factors: list[Factor], parts: list[str], homes, labels: bool, numbers: bool
) -> None:
    """Draw one quadrant: values [parts, factors].

    homes: the parts that get a frame. labels: whether to name the parts, numbers: whether to write the values.
    """
    rows = len(parts)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, colors=INK, labelsize=9)
    axes.set_ylim(rows, 0)
    axes.set_yticks(np.arange(rows) + 0.5, [PART_LABELS.get(part, part) for part in parts] if labels else [""] * rows)
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
        write_cells(axes, values, 7.5)
    for row, part in enumerate(parts):
        if part in homes:
            frame_cells(axes, 0, row, count, 1)


def heat(rows: list[dict[str, str]], runs: set[str]) -> tuple[list[str], list[Factor], np.ndarray]:
    """Latents, factors and R^2 [latents, factors] of one model, the mean over `runs`, from rows of factors.csv."""
    rows = [row for row in rows if row["run"] in runs and row["probe"] == "ridge" and row["part"] in LATENTS]
    parts = [part for part in LATENTS if any(row["part"] == part for row in rows)]
    names = {row["factor"]: row for row in rows}
    scores = [
        [[float(r["r2"]) for r in rows if (r["part"], r["factor"]) == (part, name)] for name in names] for part in parts
    ]
    factors = [Factor(row["factor"], row["source"], (), "scalar", row["quadrant"]) for row in names.values()]
    return parts, factors, np.array([[statistics.mean(cell) for cell in line] for line in scores])
