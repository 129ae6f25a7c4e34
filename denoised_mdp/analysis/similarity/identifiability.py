"""Do seeds of one method learn the same up to a linear map? Baselines: untrained networks and shuffled episodes.

World models are outside the family of models for which theory promises this, so it is measured here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from denoised_mdp.analysis.roles import SEEN
from denoised_mdp.analysis.similarity.arrays import standardized
from denoised_mdp.analysis.similarity.chance import shuffled_episodes
from denoised_mdp.analysis.similarity.linear import linear_similarity, mean_cca
from denoised_mdp.analysis.similarity.points import Point
from denoised_mdp.analysis.similarity.tables import Alignments, over_runs
from denoised_mdp.analysis.situations import HOME


def identifiability(known: Alignments) -> list[dict]:
    """One row per group and kind of pairs: trained seeds, untrained ones, and trained ones with shuffled episodes."""
    rows = []
    kinds = {"trained": lambda point: point.newest, "untrained": lambda point: point.step == 0}
    for kind, group in itertools.product((*kinds, "shuffled"), dict.fromkeys(point.group for point in known.points)):
        wanted = kinds.get(kind, kinds["trained"])
        points = [point for point in known.points if point.group == group and wanted(point)]
        if len(points) > 1:
            rows.append({"group": group, "pairs": kind, **_agreement(known, points, shuffled=kind == "shuffled")})
    return rows


def _agreement(known: Alignments, points: Sequence[Point], shuffled: bool) -> Mapping:
    """Means over pairs of seeds: held-out linear R^2, in both directions, and held-out mean canonical correlation."""
    whole = [standardized(point.features[HOME][SEEN], known.fit) for point in points]
    parts = [known.reduced(point.features[HOME][SEEN]) for point in points]
    order = shuffled_episodes(known.episode, 1)[0] if shuffled else np.arange(len(known.episode))
    linear, canonical = {}, {}
    for i, j in itertools.permutations(range(len(points)), 2):
        key = points[i].run, points[j].run
        linear[key] = linear_similarity(parts[i], whole[j][order], known.fit)
        if i < j:
            canonical[key] = mean_cca(parts[i], parts[j][order], known.fit)
    return {"linear R2": over_runs(linear).within(-math.inf, 1.0), "mean CCA": over_runs(canonical).within(-1.0, 1.0)}
