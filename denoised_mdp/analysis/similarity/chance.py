"""What unrelated representations would score, and splits that keep episodes whole.

Rows of one episode are alike, so they are not independent: only whole episodes are shuffled, split or resampled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from denoised_mdp.errors import UserError
from denoised_mdp.seeding import generator

DRAWS = 99


def knn_chance(rows: int, k: int, episodes: np.ndarray | None = None) -> float:
    """Expected `mutual_knn` of independent rows: k / (n - 1).

    episodes: of each row, [n]; rows of the same episode are then no neighbours: the mean of k / (n - own rows).
    """
    if episodes is None:
        return k / (rows - 1)
    _, place, counts = np.unique(episodes, return_inverse=True, return_counts=True)
    return float((k / (rows - counts[place])).mean())


def episode_halves(episodes: np.ndarray, seed: int = 0) -> np.ndarray:
    """A random half of the episodes, as bool [n] over their rows. episodes: the episode of each row, [n].

    Raises:
        UserError: fewer than two episodes.
    """
    names = np.unique(episodes)
    if len(names) < 2:
        raise UserError("One episode cannot be split into one part to fit and one to test: give at least 2.")
    order = generator(seed, "similarity halves").permutation(names)
    return np.isin(episodes, order[: (len(names) + 1) // 2])


def shuffled_episodes(episodes: np.ndarray, draws: int = DRAWS, seed: int = 0) -> list[np.ndarray]:
    """Row orders that move whole episodes so that none keeps its place: `draws` permutations [n].

    Rows of an episode stay together and in order, so what all episodes have in common (the beginning, say) still meets.

    Raises:
        UserError: fewer than three episodes, or episodes of different lengths, whose rows would not line up.
    """
    names, place, counts = np.unique(episodes, return_inverse=True, return_counts=True)
    if len(names) < 3:
        raise UserError(f"{len(names)} episodes are too few to shuffle: give at least 3.")
    if len(set(counts)) > 1:
        raise UserError(f"Episodes of {counts.min()} to {counts.max()} rows cannot be shuffled: give all as many rows.")
    blocks = [np.flatnonzero(place == number) for number in range(len(names))]
    slots = np.concatenate(blocks)  # rows, sorted by episode
    random, orders = generator(seed, "similarity shuffle"), []
    while len(orders) < draws:
        moved = random.permutation(len(names))
        if (moved == np.arange(len(names))).any():
            continue
        order = np.empty(len(place), int)
        order[slots] = np.concatenate([blocks[number] for number in moved])
        orders.append(order)
    return orders


def permutation_null(
    metric: Callable[[np.ndarray, np.ndarray], float],
    a: np.ndarray,
    b: np.ndarray,
    episodes: np.ndarray,
    draws: int = DRAWS,
    seed: int = 0,
) -> np.ndarray:
    """metric(a, b) with the episodes of b shuffled as wholes: [draws]; see `shuffled_episodes`.

    episodes: of each row, [n]. The .025 and .975 quantiles of the result are the band of unrelated representations.
    """
    b = np.asarray(b)
    return np.array([metric(a, b[order]) for order in shuffled_episodes(episodes, draws, seed)])
