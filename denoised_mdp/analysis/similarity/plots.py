"""Figures of a roster, each as wide as a phone screen; every title says how to read its figure.

All are drawn from the tree of `roster.summarize`, in the form of its JSON file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from denoised_mdp.analysis.plots import DARK, FAINT, INK, LINE, colors_of, legend_below, literal, new_figure, plain_axes
from denoised_mdp.analysis.results import number_of
from denoised_mdp.analysis.roles import SEEN, in_words
from denoised_mdp.analysis.similarity.roster import notes_of

WIDTH = 5.2
"""inches"""
MARKS = (
    ("same world, other seed", "o", "#1f5fa8"),
    ("other world, same run", "s", "#3a9d6b"),
    ("other world, other seed", "D", "#e4572e"),
)


def figures(tree: Mapping[str, Any]) -> dict[str, Figure]:
    """All figures that a roster supports, by name."""
    found = {"matrix": matrix_figure(tree)}
    if any(row["world"] != "trained" for row in tree["worlds"]):
        found["worlds"] = worlds_figure(tree)
    found["truth"] = truth_figure(tree)
    if len(tree["agents"]) > 3:
        found["map"] = map_figure(tree)
    if any(row["newest"] is False and row["step"] for row in tree["agents"]):
        found["training"] = training_figure(tree)
    if tree["identifiability"]:
        found["linear"] = linear_figure(tree)
    return found


def matrix_figure(tree: Mapping[str, Any]) -> Figure:
    """Alignment of what the policies see, for each pair of runs, ordered by group and then by return."""
    agents, values = tree["agents"], np.array(tree["matrix"]["mutual_knn"], float)
    groups = list(dict.fromkeys(agent["group"] for agent in agents))
    newest = [i for i, agent in enumerate(agents) if agent["newest"]]
    newest.sort(key=lambda i: (groups.index(agents[i]["group"]), number_of(agents[i]["score"])))
    values, count = values[np.ix_(newest, newest)], len(newest)
    figure, axes = _figure(
        1.9 + min(0.42 * count, 3.4),
        "Do runs find the same situations alike? Share of common neighbours in what the policy sees: 1 is the"
        f" same geometry, {tree['chance']:.2f} is chance. A dark block of one model's seeds: what it learns is"
        " repeatable. In brackets: the return.",
    )
    axes.imshow(values, cmap=DARK, vmin=0, vmax=1)
    labels = [_label(agents[i]) for i in newest]
    axes.set_yticks(range(count), labels)
    axes.set_xticks(range(count), labels, rotation=40, ha="right")
    axes.tick_params(length=0, labelsize=7.5, colors=INK)
    axes.spines[:].set_visible(False)
    for i, j in np.ndindex(count, count) if count <= 12 else ():
        color = "white" if values[i, j] > 0.55 else INK
        axes.text(j, i, f"{values[i, j]:.2f}".removeprefix("0"), ha="center", va="center", fontsize=7, color=color)
    return figure


def worlds_figure(tree: Mapping[str, Any]) -> Figure:
    """Alignment within a world and across worlds, for each role of each group."""
    rows = {(row["group"], row["role"], row["world"]): row for row in tree["worlds"]}
    lines = list(dict.fromkeys((group, role) for group, role, _ in rows))
    away = list(dict.fromkeys(world for *_, world in rows))[1]
    figure, axes = _figure(
        1.7 + 0.36 * len(lines),
        "Same physics, other distractors: does a latent stay the same? One that ignores them has its square at 1, and"
        " its diamond where its circle is; one that follows them drops to chance (dashed)."
        + "".join(f" Lines: {note}." for note in notes_of(tree)),
    )
    for place, (group, role) in enumerate(lines):
        home, other = rows[group, role, "trained"], rows[group, role, away]
        for shift, (mark, found) in enumerate(
            zip(MARKS, (home["other seed"], other["same run"], other["other seed"]), strict=True)
        ):
            _dot(axes, found, place + 0.22 * (shift - 1), mark)
    axes.set_yticks(range(len(lines)), [f"{literal(group)} · {in_words(role)}" for group, role in lines])
    _finish(axes, tree, len(lines))
    _legend(figure, axes)
    return figure


def truth_figure(tree: Mapping[str, Any]) -> Figure:
    """Alignment with the simulator's state and noise: trained runs, and the same networks untrained."""
    kinds = list(dict.fromkeys(row["truth"] for row in tree["truth"]))
    lines = list(dict.fromkeys((row["group"], row["role"]) for row in tree["truth"]))
    figure, axes = _figure(
        1.7 + 0.36 * len(lines),
        "Does a latent order situations as the simulator's true state does (blue), or as the distractors do (red)?"
        " Hollow: the untrained network. What the policy sees should follow the state alone.",
    )
    for place, line in enumerate(lines):
        for number, kind in enumerate(kinds):
            own = [row for row in tree["truth"] if (row["group"], row["role"]) == line and row["truth"] == kind]
            for row in own:
                if row["newest"] or not row["step"]:
                    color, at = ("#1f5fa8", "#e4572e")[number], place + 0.2 * (number - 0.5)
                    face = color if row["newest"] else "white"
                    value = number_of(row["mutual_knn"]["value"])
                    axes.plot(value, at, "o", ms=5.5, mec=color, mfc=face, alpha=0.85, clip_on=False)
    axes.set_yticks(range(len(lines)), [f"{literal(group)} · {in_words(role)}" for group, role in lines])
    _finish(axes, tree, len(lines))
    return figure


def map_figure(tree: Mapping[str, Any]) -> Figure:
    """Agents as points whose distance is about -log(alignment); lines follow a run's training."""
    agents, places = tree["agents"], np.array(tree["map"], float)
    scores = np.array([number_of(agent["score"]) for agent in agents])
    top = np.nanmax(scores) if np.isfinite(scores).any() and np.nanmax(scores) > 0 else 1.0
    figure, axes = _figure(
        4.6,
        "A map of the agents: near ones order situations alike. Lines lead from the untrained network (hollow) through"
        " training; larger dots earn more.",
    )
    colors = colors_of(agent["group"] for agent in agents)
    for run in dict.fromkeys(agent["run"] for agent in agents):
        own = sorted((i for i, agent in enumerate(agents) if agent["run"] == run), key=lambda i: agents[i]["step"])
        color = colors[agents[own[0]]["group"]]
        axes.plot(*places[own].T, color=color, linewidth=0.8, alpha=0.5)
        for i in own:
            size = 14 + 120 * max(0.0, scores[i] / top) if np.isfinite(scores[i]) else 18
            face = color if agents[i]["step"] else "white"
            axes.scatter(*places[i], s=size, color=face, edgecolors=color, alpha=0.85, zorder=3)
    for group, color in colors.items():
        axes.scatter([], [], color=color, label=literal(group))
    axes.legend(fontsize=8, frameon=False)
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[:].set_color(LINE)
    return figure


def training_figure(tree: Mapping[str, Any]) -> Figure:
    """Alignment of what the policy sees with the state over training, and against the return."""
    figure = captioned(
        3.7,
        "Alignment of what the policy sees with the true state, over training (left) and against the return (right). If"
        " it rises in both, either may come from training longer: read them together.",
    )
    left, right = figure.subplots(1, 2, sharey=True)
    rows = [row for row in tree["truth"] if (row["role"], row["truth"]) == (SEEN, "state")]
    colors = colors_of(row["group"] for row in rows)
    for run in dict.fromkeys(row["run"] for row in rows):
        own = sorted((row for row in rows if row["run"] == run), key=lambda row: row["step"])
        color = colors[own[0]["group"]]
        values = [number_of(row["mutual_knn"]["value"]) for row in own]
        left.plot([row["step"] / 1000 for row in own], values, "o-", ms=3.5, linewidth=1, color=color, alpha=0.8)
        right.plot([number_of(row["score"]) for row in own], values, "o", ms=4, color=color, alpha=0.8)
    for axes, label in ((left, "thousand environment steps"), (right, "return")):
        plain_axes(axes, 8.5)
        axes.axhline(tree["chance"], color=FAINT, linestyle="--", linewidth=0.9)
        axes.set_xlabel(label)
    left.set_ylabel("share of common neighbours\n(dashed: chance)")
    for group, color in colors.items():
        right.plot([], [], "o", color=color, label=literal(group))
    legend_below(figure, [right], columns=3, size=7.5)
    return figure


def linear_figure(tree: Mapping[str, Any]) -> Figure:
    """Held-out linear agreement of seeds, with its baselines."""
    rows = tree["identifiability"]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    colors = {"trained": "#1f5fa8", "untrained": "#8a94a0", "shuffled": "#e4572e"}
    figure = captioned(
        1.9 + 0.5 * len(groups),
        "Can what the policy sees in one seed be predicted linearly from another seed? Learned agreement is what"
        " trained seeds (blue) have beyond untrained networks (gray); red: shuffled episodes.",
    )
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("linear R2", "mean CCA"), strict=True):
        for row in rows:
            shift = 0.2 * (list(colors).index(row["pairs"]) - 1)
            _dot(axes, row[name], groups.index(row["group"]) + shift, (row["pairs"], "o", colors[row["pairs"]]))
        plain_axes(axes, 8.5)
        axes.set_yticks(range(len(groups)), [literal(group) for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.grid(axis="x", color=LINE, linewidth=0.6)
        axes.set_xlim(left=max(-1.0, min(0.0, axes.get_xlim()[0])))
        axes.set_xlabel(f"held-out {name.replace('R2', 'R²')}")
    return figure


def captioned(height: float, text: str) -> Figure:
    """A figure `height` inches high, without axes, with a caption that says how to read it."""
    figure = new_figure(WIDTH, height)
    figure.set_layout_engine("constrained")
    figure.suptitle("\n".join(textwrap.wrap(text, 78)), x=0.02, ha="left", fontsize=8.5, color=INK)
    return figure


def _figure(height: float, text: str):
    figure = captioned(height, text)
    return figure, figure.subplots()


def _label(agent: Mapping[str, Any]) -> str:
    score = number_of(agent["score"])
    return literal(f"{agent['group']} {agent['seed']}") + (f" ({score:.0f})" if np.isfinite(score) else "")


def _dot(axes, estimate: Mapping[str, Any] | None, place: float, mark: tuple[str, str, str]) -> None:
    """Draw one estimate with its interval at the height `place`."""
    if estimate is None or not np.isfinite(number_of(estimate["value"])):
        return
    _, marker, color = mark
    ends = [number_of(estimate[end]) for end in ("low", "high")]
    if np.isfinite(ends).all():
        axes.plot(ends, [place, place], color=color, linewidth=1.2, alpha=0.6)
    axes.plot(estimate["value"], place, marker, ms=5, color=color)


def _finish(axes, tree: Mapping[str, Any], lines: int) -> None:
    plain_axes(axes, 8.5)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xlim(0, 1.05 * max(axes.dataLim.x1, tree["chance"]))  # room for the rightmost dot
    axes.axvline(tree["chance"], color=FAINT, linestyle="--", linewidth=0.9)
    axes.set_xlabel(f"share of common neighbours\n(k = {tree['k']}, {tree['rows']} situations; dashed: chance)")


def _legend(figure: Figure, axes) -> None:
    for name, marker, color in MARKS:
        axes.plot([], [], marker, color=color, ms=5, label=name)
    legend_below(figure, [axes], columns=3, size=7.5)
