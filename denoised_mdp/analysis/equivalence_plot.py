"""Figure of `probe equivalence`, drawn from the tree in its JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from denoised_mdp.analysis.plots import FAINT, LINE, ROLE_COLORS, legend_below, literal, plain_axes
from denoised_mdp.analysis.roles import in_words
from denoised_mdp.analysis.similarity.plots import captioned

MEASURES = {"auroc": "AUROC", "hard_auroc": "AUROC, hard", "retrieval": "retrieval@1"}


def equivalence_figure(tree: Mapping[str, Any]) -> Figure:
    """Left: are twins found? Right: do distances follow future rewards?"""
    roles, found = tree["roles"], tree["signatures"]
    ranks = found["spearman"] if found else {}
    figure = captioned(
        1.8 + 0.36 * max(len(roles), len(ranks)),
        "Are situations with the same meaning close in a latent? Left: does distance separate twins (same physics,"
        " other distractors) from other pairs? 1 is perfect; dashed: chance for AUROC. Right: rank correlation of"
        " latent distances with those of future rewards. High is good in what the policy sees. Imagined: the model"
        " predicts them.",
    )
    left, right = figure.subplots(1, 2) if ranks else (figure.subplots(), None)
    for place, (role, one) in enumerate(roles.items()):
        color = ROLE_COLORS.get(role.partition(",")[0], FAINT)
        for shift, (name, marker) in enumerate(zip(MEASURES, "osD", strict=True)):
            estimate, at = one[name], place + 0.2 * (shift - 1)
            if estimate["value"] is None:
                continue
            if estimate["low"] is not None:
                left.plot([estimate["low"], estimate["high"]], [at, at], color=color, linewidth=1.1, alpha=0.6)
            left.plot(estimate["value"], at, marker, ms=4.5, color=color)
    left.axvline(0.5, color=FAINT, linestyle="--", linewidth=0.9)
    for marker, label in zip("osD", MEASURES.values(), strict=True):
        left.plot([], [], marker, color=FAINT, ms=4.5, label=label)
    legend_below(figure, [left], columns=3, size=7.5)
    _names(left, list(roles))
    left.set_xlim(-0.03, 1.03)
    left.set_xlabel("how well twins are recognized")
    if right is not None:
        values = [np.nan if value is None else value for value in ranks.values()]
        right.barh(range(len(ranks)), values, 0.55, color=[ROLE_COLORS.get(role, FAINT) for role in ranks])
        _names(right, list(ranks))
        right.set_xlabel("rank correlation")
    return figure


def _names(axes, names: list[str]) -> None:
    plain_axes(axes, 8.5)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_yticks(range(len(names)), [literal(in_words(name).replace(", ", ",\n")) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
