"""Semantic equivalence: situations with the same physics should be the same to a policy, whatever the distractors.

On a grid of physics and distractor seeds (`invariance.record_grid`), twins are cells of one row: they are equivalent by
construction. Distances are Euclidean, of standardized columns. For y, twins are cells of one column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.crossfit import Estimate
from denoised_mdp.analysis.similarity.arrays import standardized
from denoised_mdp.analysis.similarity.tables import over_episodes
from denoised_mdp.analysis.situations import features, rows_of
from denoised_mdp.rollout import Episode

NEAR, FAR = 20, 50
"""decisions between hard negatives: other moments of the same episode in the same world"""


@dataclass
class Equivalence:
    """How well distances of one representation tell twins from other pairs; intervals over episodes."""

    ratio: Estimate
    """mean distance of twins over that of random pairs: 0 ignores the distractors, 1 sees nothing else"""
    auroc: Estimate
    """probability that twins are nearer than a random pair: 1 perfect, 0.5 chance"""
    hard_auroc: Estimate
    """the same against other moments of the same episode in the same world"""
    retrieval: Estimate
    """share of situations whose nearest one in another world is their twin"""
    chance: float
    """of `retrieval`"""


def grid_features(
    agent: Agent, grid: Sequence[Sequence[Episode]]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Features of a grid [P, K]: role -> [P, K, T, F], and the episode [P, T] and decision [P, T] of its cells."""
    rows = rows_of(grid[0][0])
    cells = [cell for row in grid for cell in row]
    shape = len(grid), len(grid[0]), len(rows)
    found = {role: values.reshape(*shape, -1) for role, values in features(agent, cells, [rows] * len(cells)).items()}
    episode = np.broadcast_to(np.arange(shape[0])[:, None], (shape[0], shape[2]))
    return found, episode, np.broadcast_to(rows, (shape[0], shape[2]))


def equivalence(values: np.ndarray, step: np.ndarray) -> Equivalence:
    """Twins are cells of one row: features [P, K, T, F] of P physics under K seeds; step: decision of each [P, T].

    For y, give the transposed grid [K, P, T, F]: then twins share their distractors.
    """
    physics, worlds, moments = values.shape[:3]
    episode = np.repeat(np.arange(physics), moments)  # [n], n = P T
    time = step.reshape(-1)  # [n]
    flat = standardized(values.reshape(physics * worlds * moments, -1))
    flat = flat.reshape(physics, worlds, moments, -1).transpose(1, 0, 2, 3).reshape(worlds, physics * moments, -1)
    other = episode[:, None] != episode  # [n, n]
    gap = np.abs(time[:, None] - time)
    hard = ~other & (gap >= NEAR) & (gap <= FAR)
    twins, randoms, hards, found = [], [], [], []
    for first, second in itertools.permutations(range(worlds), 2):
        across = distances(flat[first], flat[second])  # [n, n]
        twins.append(np.diag(across))
        randoms.append(across[other])
        hards.append(distances(flat[first], flat[first])[hard])
        found.append(across.argmin(1) == np.arange(len(across)))
    near, far, close = (np.concatenate(parts) for parts in (twins, randoms, hards))
    rows = np.tile(episode, len(twins))
    ratio = over_episodes(near / far.mean(), rows) if far.mean() > 0 else Estimate(np.nan)
    return Equivalence(
        ratio.within(0.0, math.inf),
        over_episodes(share_above(near, far), rows).within(0.0, 1.0),
        over_episodes(share_above(near, close), rows).within(0.0, 1.0) if len(close) else Estimate(np.nan),
        over_episodes(np.concatenate(found).astype(float), rows).within(0.0, 1.0),
        1 / len(episode),
    )


def distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Euclidean distances of rows [n, F] and [m, F]: [n, m]."""
    squares = np.square(first).sum(1)[:, None] + np.square(second).sum(1) - 2 * first @ second.T
    return np.sqrt(squares.clip(0.0))


def share_above(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value [n], the share of others [m] above it; equal ones count half. Its mean is an AUROC."""
    others = np.sort(others)
    at_most, below = (np.searchsorted(others, values, side) for side in ("right", "left"))
    return 1 - (at_most + below) / (2 * len(others))
