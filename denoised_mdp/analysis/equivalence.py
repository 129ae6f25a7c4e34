"""Semantic equivalence: situations with the same physics should be the same to a policy, whatever the distractors.

On a grid of physics and distractor seeds (`invariance.record_grid`), twins are cells of one row: they are equivalent by
construction. Distances are Euclidean on standardized columns. For the latents that the policy does not see, twins are
cells of one column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.crossfit import Estimate, estimate
from denoised_mdp.analysis.similarity.arrays import standardized
from denoised_mdp.analysis.similarity.tables import over_episodes
from denoised_mdp.analysis.situations import features, rows_of
from denoised_mdp.rollout import Episode

NEAR, FAR = 20, 50
"""decisions between a row and its hard negatives, which are other moments of the same episode in the same world"""


@dataclass
class Equivalence:
    """How well distances in one representation tell twins from other pairs; intervals are over episodes."""

    ratio: Estimate
    """mean distance of twins over that of random pairs; 0: ignores the distractors, 1: encodes nothing else"""
    auroc: Estimate
    """probability that twins are closer than a random pair; 1: perfect, 0.5: chance"""
    hard_auroc: Estimate
    """the same, against other moments of the same episode in the same world"""
    retrieval: Estimate
    """share of situations whose nearest neighbour in another world is their twin"""
    chance: float
    """chance level of `retrieval`"""


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
    """Twins are cells of one row: features [P, K, T, F] of P physics under K seeds; step: decision numbers [P, T].

    For latents that the policy does not see, pass the transposed grid [K, P, T, F]: twins then share their distractors.
    """
    physics, worlds, moments = values.shape[:3]
    episode = np.repeat(np.arange(physics), moments)  # [n], n = P T
    time = step.reshape(-1)  # [n]
    flat = standardized(values.reshape(physics * worlds * moments, -1))
    flat = flat.reshape(physics, worlds, moments, -1).transpose(1, 0, 2, 3).reshape(worlds, physics * moments, -1)
    gap = np.abs(time[:, None] - time)
    hard = (episode[:, None] == episode) & (gap >= NEAR) & (gap <= FAR)  # [n, n]
    pairs = list(itertools.permutations(range(worlds), 2))
    across = np.stack([distances(flat[first], flat[second]) for first, second in pairs])  # [W, n, n]
    alone = np.stack([distances(one, one) for one in flat])  # [K, n, n]
    twins = np.diagonal(across, axis1=1, axis2=2)  # [W, n]
    near = [twins[:, episode == e].ravel() for e in range(physics)]
    blocks = across.reshape(len(pairs), physics, moments, physics, moments)
    far = {(f, g): blocks[:, f, :, g].ravel() for f, g in itertools.permutations(range(physics), 2)}
    close = {(f, f): alone[:, hard & (episode == f)].ravel() for f in range(physics)}
    found = across.argmin(2) == np.arange(physics * moments)  # [W, n]
    return Equivalence(
        ratio_of_distances(near, far).within(0.0, math.inf),
        area(near, far).within(0.0, 1.0),
        area(near, close).within(0.0, 1.0),
        over_episodes(found.ravel().astype(float), np.tile(episode, len(pairs))).within(0.0, 1.0),
        1 / len(episode),
    )


Pairs = Mapping[tuple[int, int], np.ndarray]
"""(episode, episode) -> distances between rows of the two"""


def ratio_of_distances(near: Sequence[np.ndarray], others: Pairs) -> Estimate:
    """Mean distance of twins over that of other pairs. The bootstrap draws episodes, and with them both kinds of pairs.

    near: distances of each episode's twins. others: distances between rows of two episodes, see `_over_pairs`.
    """
    count, size = np.zeros((2, len(near), len(near)))  # [P, P] each
    for (f, g), values in others.items():
        count[f, g], size[f, g] = len(values), values.sum()
    top, twins = np.array([values.sum() for values in near]), np.array([len(values) for values in near])  # [P] each

    def statistic(weights: np.ndarray) -> np.ndarray:
        usual = _over_pairs(weights, size) / _over_pairs(weights, count)  # [draws]
        return (weights @ top) / (weights @ twins) / usual  # [draws]

    return estimate(statistic, len(near)) if size.any() else Estimate(np.nan)


def area(near: Sequence[np.ndarray], others: Pairs) -> Estimate:
    """AUROC: the probability that twins are closer than other pairs; arguments as in `ratio_of_distances`."""
    count, wins = np.zeros((len(near), len(near))), np.zeros((len(near),) * 3)  # [P, P]; [P of the twins, P, P]
    lengths, twins = np.array([len(values) for values in near]), np.concatenate(near)  # [P], [n]
    edges = np.cumsum([0, *lengths]).tolist()
    for (f, g), values in others.items():
        count[f, g] = len(values)
        if len(values):
            shares = share_above(twins, values)
            wins[:, f, g] = [shares[a:b].sum() * len(values) for a, b in itertools.pairwise(edges)]
    if not count.any():
        return Estimate(np.nan)

    def statistic(weights: np.ndarray) -> np.ndarray:
        won = _over_pairs(weights, np.tensordot(weights, wins, 1))  # [draws]
        return won / (weights @ lengths) / _over_pairs(weights, count)  # [draws]

    return estimate(statistic, len(near))


def _over_pairs(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of values [P, P] or [draws, P, P], each times the weights [draws, P] of both of its episodes: [draws].

    A pair within one episode has the episode's weight, not its square: an episode drawn twice brings its own pairs
    twice.
    """
    total = np.einsum("...fg,...f,...g->...", values, weights, weights)  # [draws]
    own = np.einsum("...ff->...f", values)  # [P] or [draws, P]
    return total + (own * (weights - weights**2)).sum(-1)


def distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Euclidean distances between rows [n, F] and [m, F]: [n, m]."""
    squares = np.square(first).sum(1)[:, None] + np.square(second).sum(1) - 2 * first @ second.T
    return np.sqrt(squares.clip(0.0))


def share_above(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value [n], the share of others [m] above it; ties count half. The mean of the shares is an AUROC."""
    others = np.sort(others)
    at_most, below = (np.searchsorted(others, values, side) for side in ("right", "left"))
    return 1 - (at_most + below) / (2 * len(others))
