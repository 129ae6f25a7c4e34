"""Do agents that earn more become alike and represent the state better? Binned alignment and rank correlations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from denoised_mdp.analysis.crossfit import Estimate, interval, student_over_normal
from denoised_mdp.analysis.ranks import rank_correlation
from denoised_mdp.analysis.similarity.points import Point
from denoised_mdp.analysis.similarity.tables import BINS, LEAST_POINTS, LEAST_RUNS, over_runs
from denoised_mdp.seeding import generator

DRAWS = 1000


def competence(points: Sequence[Point], matrix: np.ndarray, to_state: np.ndarray) -> dict:
    """Alignment (`matrix` [P, P]) within bins of the return, and rank correlations of `to_state` [P], return and step.

    Fewer than 12 trained agents with a return give only a note. Alignments of features that do not vary are nan and
    do not count.
    """
    known = [i for i, point in enumerate(points) if point.step and math.isfinite(point.score)]
    if len(known) < LEAST_POINTS:
        return {"note": f"{len(known)} trained agents with a return: no statement from fewer than {LEAST_POINTS}"}
    scores, runs = np.array([points[i].score for i in known]), np.array([points[i].run for i in known])
    edges = np.quantile(scores, np.linspace(0, 1, BINS + 1))
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, BINS - 1)
    bins = []
    for number in range(BINS):
        members = [i for i, bin_ in zip(known, place, strict=True) if bin_ == number]
        pairs: dict[tuple[int, int], list[float]] = {}
        for i, j in itertools.combinations(members, 2):
            if points[i].run != points[j].run and math.isfinite(matrix[i, j]):
                pairs.setdefault((points[i].run, points[j].run), []).append(matrix[i, j])
        aligned = over_runs({pair: float(np.mean(values)) for pair, values in pairs.items()}).within(0.0, 1.0)
        bins.append({"from": edges[number], "to": edges[number + 1], "agents": len(members), "alignment": aligned})
    aligned, steps = to_state[known], np.array([float(points[i].step) for i in known])
    vary = np.isfinite(aligned)
    return {
        "bins": bins,
        "return and alignment to state": spearman(scores[vary], aligned[vary], runs[vary]),
        "step and alignment to state": spearman(steps[vary], aligned[vary], runs[vary]),
        "step and return": spearman(steps, scores, runs),
    }


def spearman(a: np.ndarray, b: np.ndarray, runs: np.ndarray) -> Estimate:
    """Rank correlation of two numbers [n]; its interval resamples whole runs, whose stages are not independent.

    The interval is widened for few runs, as that of `analysis.table.statistics.interval`.
    """
    names, random = np.unique(runs), generator(0, "similarity runs")
    value = rank_correlation(a, b)
    if len(names) < LEAST_RUNS:
        return Estimate(value, note=f"{len(names)} runs: no interval")
    draws, own = [], {name: np.flatnonzero(runs == name) for name in names}
    for _ in range(DRAWS):
        rows = np.concatenate([own[name] for name in random.choice(names, len(names))])
        draws.append(rank_correlation(a[rows], b[rows]))
    wider = math.sqrt(len(names) / (len(names) - 1)) * student_over_normal(len(names) - 1)
    low, high = (value + wider * (float(end) - value) for end in interval(np.array(draws)))
    return Estimate(value, low, high).within(-1.0, 1.0)


def classical_map(matrix: np.ndarray, chance: float) -> np.ndarray:
    """Positions [P, 2] whose distances approximate -log(alignment), by classical scaling; chance or nan is farthest."""
    distance = -np.log(np.clip(np.nan_to_num(matrix, nan=chance), chance, 1.0))
    np.fill_diagonal(distance, 0.0)  # also for agents whose features do not vary
    center = np.eye(len(matrix)) - 1 / len(matrix)
    values, vectors = np.linalg.eigh(-center @ np.square(distance) @ center / 2)
    order = np.argsort(values)[::-1][:2]
    places = vectors[:, order] * np.sqrt(values[order].clip(0.0))
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
