"""Numbers of a roster: who agrees with whom, in which world, with the truth, and when.

Alignment is `mutual_knn` of standardized columns and unit rows, among rows of other episodes. Intervals of one pair are
over whole episodes. Those of a mean over pairs are over runs: runs are independent, their stages and pairs are not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from denoised_mdp.analysis.crossfit import Estimate, confidence, estimate, with_interval
from denoised_mdp.analysis.roles import REST, SEEN
from denoised_mdp.analysis.similarity.arrays import standardized, unit_rows
from denoised_mdp.analysis.similarity.chance import episode_halves, knn_chance, shuffled_episodes
from denoised_mdp.analysis.similarity.kernels import masked_alignment, masked_kernel
from denoised_mdp.analysis.similarity.linear import linear_similarity, principal_components, supported_components
from denoised_mdp.analysis.similarity.neighbours import membership, neighbours, overlap
from denoised_mdp.analysis.similarity.points import Point
from denoised_mdp.analysis.situations import HOME, Situations
from denoised_mdp.progress import track

LEAST_RUNS = 3
"""fewest runs for an interval over runs"""
LEAST_POINTS = 12
"""fewest agents for a statement about competence"""
BINS = 4
KS = (5, 10, 20, 50)


@dataclass
class Alignments:
    """Neighbours of all agents of a roster, and of the truth, each computed once."""

    points: Sequence[Point]
    situations: Situations
    k: int
    _nearest: dict[tuple, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        self.episode = self.situations.episode
        self.fit = episode_halves(self.episode)
        self.chance = self.chance_of(self.k)

    def chance_of(self, k: int) -> float:
        """Expected alignment of unrelated representations."""
        return knn_chance(len(self.episode), k, self.episode)

    def prepared(self, features: np.ndarray) -> np.ndarray:
        """Columns standardized over half of the episodes, rows of length 1."""
        return unit_rows(standardized(features, self.fit))

    def of(self, point: Point, world: str = HOME, role: str = SEEN, k: int = 0) -> np.ndarray:
        """Neighbours [n, k] in one agent's features."""
        return self._list((point.run, point.step, world, role), point.features[world][role], k)

    def truth(self, kind: str) -> np.ndarray:
        """Neighbours [n, k] in the true "state" or "noise"."""
        return self._list((kind,), getattr(self.situations, kind), 0)

    def _list(self, key: tuple, features: np.ndarray, k: int) -> np.ndarray:
        k = k or self.k
        if (*key, k) not in self._nearest:
            self._nearest[(*key, k)] = neighbours(self.prepared(features), k, self.episode)
        return self._nearest[(*key, k)]

    def reduced(self, features: np.ndarray) -> np.ndarray:
        """As many principal components as half of the rows support."""
        count = supported_components(int(self.fit.sum()))
        return principal_components(standardized(features, self.fit), self.fit, count)

    def estimate(self, first: np.ndarray, second: np.ndarray) -> Estimate:
        """Alignment of two lists of neighbours, with its interval over episodes."""
        return over_episodes(overlap(first, membership(second)), self.episode).within(0.0, 1.0)

    def mean(self, values: Mapping[tuple[int, ...], np.ndarray]) -> Estimate:
        """The mean of overlaps [n] of runs or pairs; its interval is over runs or, with fewer than 3, over episodes.

        Overlaps of features that do not vary are left out; a note says how many remain.
        """
        known = {key: rows for key, rows in values.items() if not np.isnan(rows).any()}
        if len({run for key in known for run in key}) >= LEAST_RUNS or not known:
            found = over_runs({key: float(rows.mean()) for key, rows in known.items()}).within(0.0, 1.0)
        else:
            found = over_episodes(np.mean(list(known.values()), 0), self.episode).within(0.0, 1.0)
            found = dataclasses.replace(found, note="interval over episodes, not over runs")
        if len(known) == len(values):
            return found
        note = f"{len(known)} of {len(values)}: features of the others do not vary" if known else "no features vary"
        return dataclasses.replace(found, note="; ".join(filter(None, (found.note, note))))


def over_episodes(rows: np.ndarray, episode: np.ndarray) -> Estimate:
    """The mean of one number per row [n], with an interval over whole episodes."""
    names, place = np.unique(episode, return_inverse=True)
    sums, counts = np.bincount(place, rows), np.bincount(place)  # [E] each
    return estimate(lambda weights: (weights @ sums) / (weights @ counts), len(names))


def over_runs(values: Mapping[tuple[int, ...], float]) -> Estimate:
    """The mean of values keyed by run or by pair of runs, with an interval over runs if there are 3 or more.

    The interval is a jackknife (Tukey 1958) with Student's t: each run in turn is left out, with all its pairs. For
    values of single runs it equals the interval of their mean. A bootstrap has no values for pairs of a run with
    itself, and with few runs its intervals are too narrow for pairs.
    """
    if not values:
        return Estimate(math.nan)
    runs = sorted({run for key in values for run in key})
    mean = float(np.mean(list(values.values())))
    if len(runs) < LEAST_RUNS:
        return Estimate(mean, note=f"{len(runs)} run{'s' * (len(runs) > 1)}: no interval")
    rest = [[value for key, value in values.items() if run not in key] for run in runs]
    if not all(rest):
        return Estimate(mean, note="all pairs have one run in common: no interval")
    without = np.array([np.mean(numbers) for numbers in rest])  # [runs]
    half = (len(runs) - 1) * confidence(without)  # leave-one-out means vary less than runs by this factor
    return with_interval(mean, mean - half, mean + half)


def matrices(known: Alignments) -> dict[str, np.ndarray]:
    """Alignment and CKNNA of what the policies see, between all agents, in the world of training: [P, P] each.

    The diagonal is 1. Entries of an agent whose features do not vary are nan.
    """
    count = len(known.points)
    alone = np.diag([1.0 if known.of(point).size else math.nan for point in known.points])
    found = {name: alone.copy() for name in ("mutual_knn", "cknna")}
    kernels = [
        masked_kernel(known.prepared(point.features[HOME][SEEN]), max(known.k, 2), known.episode)
        for point in known.points
    ]
    marks = [membership(known.of(point)) for point in known.points]
    for i, j in track(list(itertools.combinations(range(count), 2)), "comparing", "pairs", delay=1):
        aligned = overlap(known.of(known.points[i]), marks[j]).mean(), masked_alignment(kernels[i], kernels[j])
        for name, value in zip(found, aligned, strict=True):
            found[name][i, j] = found[name][j, i] = value
    return found


def null(known: Alignments) -> Estimate:
    """Alignment of trained agents of different runs with whole episodes shuffled: mean and 95 % band.

    Agents whose features do not vary are left out. A single agent is compared with itself.
    """
    orders = shuffled_episodes(known.episode)
    newest = [point for point in known.points if point.newest and known.of(point).size]
    if not newest:
        return Estimate(math.nan, note="no features vary")
    pairs = list(itertools.combinations(newest, 2)) or [(newest[0], newest[0])]
    draws = []
    for first, second in track(pairs, "shuffling episodes", "pairs", delay=1):
        marks = membership(known.of(second))
        draws += [overlap(known.of(first), marks, order).mean() for order in orders]
    return Estimate(float(np.mean(draws)), *map(float, np.quantile(draws, (0.025, 0.975))))


def across_worlds(known: Alignments) -> list[dict]:
    """Alignment within and across worlds, for the same run and for other seeds: one row per group, role and world.

    What a role encodes of the distractors is lost between worlds; what it encodes of the physics is not.
    """
    rows = []
    for group, points in groups_of(known.points):
        for role in points[0].features[HOME]:
            own = {"group": group, "role": role, "world": HOME}
            rows.append({**own, "same run": None, "other seed": _pairs(known, points, role, HOME)})
            for world in list(known.situations.worlds)[1:]:
                same = {
                    (point.run,): overlap(known.of(point, HOME, role), membership(known.of(point, world, role)))
                    for point in points
                }
                other = _pairs(known, points, role, world)
                rows.append({**own, "world": world, "same run": known.mean(same), "other seed": other})
    return rows


def _pairs(known: Alignments, points: Sequence[Point], role: str, world: str, k: int = 0) -> Estimate:
    """Mean alignment of one run's agent in the world of training with another run's in `world`."""
    marks = {point.run: membership(known.of(point, world, role, k)) for point in points}
    both = itertools.combinations(points, 2) if world == HOME else itertools.permutations(points, 2)
    values = {
        (first.run, second.run): overlap(known.of(first, HOME, role, k), marks[second.run]) for first, second in both
    }
    return known.mean(values)


def groups_of(points: Iterable[Point]) -> list[tuple[str, list[Point]]]:
    """The newest agents of each group, by name."""
    found: dict[str, list[Point]] = {}
    for point in points:
        if point.newest:
            found.setdefault(point.group, []).append(point)
    return list(found.items())


def to_truth(known: Alignments) -> list[dict]:
    """How well every role of every agent knows the true state and noise: alignment, and held-out linear R^2."""
    rows = []
    kinds = ["state"] + ["noise"] * bool(known.situations.noise.shape[1])
    for point in known.points:
        for role, kind in itertools.product(point.features[HOME], kinds):
            aligned = known.estimate(known.of(point, HOME, role), known.truth(kind))
            truth = standardized(getattr(known.situations, kind), known.fit)
            linear = linear_similarity(known.reduced(point.features[HOME][role]), truth, known.fit)
            rows.append({**point.about(), "role": role, "truth": kind, "mutual_knn": aligned, "R2": linear})
    return rows


def between_roles(known: Alignments) -> list[dict]:
    """Alignment of what the policy sees with the rest, within each agent; the goal is chance."""
    points = [point for point in known.points if point.newest and REST in point.features[HOME]]
    return [
        {**point.about(), "mutual_knn": known.estimate(known.of(point), known.of(point, HOME, REST))}
        for point in points
    ]


def by_neighbours(known: Alignments) -> list[dict]:
    """Alignment of a group's seeds for several k, since a claim that holds for only one k is worth nothing."""
    rows = []
    for k in [k for k in KS if k < len(known.episode) / 2]:
        for group, points in groups_of(known.points):
            rows.append(
                {
                    "k": k,
                    "group": group,
                    "chance": known.chance_of(k),
                    "other seed": _pairs(known, points, SEEN, HOME, k),
                }
            )
    return rows


def over_training(known: Alignments, matrix: np.ndarray) -> list[dict]:
    """Alignment of every stage with the run's last one, and with the other seeds of its group at the same step."""
    rows, points = [], known.points
    for i, point in enumerate(points):
        last = next(j for j, other in enumerate(points) if other.run == point.run and other.newest)
        seeds = [
            matrix[i, j]
            for j, other in enumerate(points)
            if other.group == point.group and other.step == point.step and other.run != point.run
        ]
        seeds = [value for value in seeds if math.isfinite(value)]
        seeds = float(np.mean(seeds)) if seeds else math.nan
        rows.append({**point.about(), "to the last stage": float(matrix[i, last]), "to other seeds": seeds})
    return rows
