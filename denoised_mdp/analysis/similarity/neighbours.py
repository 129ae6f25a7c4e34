"""Similarity of neighbourhoods (Huh et al. 2024): do two representations find the same rows alike?

The neighbours of row i are the k other rows with the largest inner product with it, nearest first. Ties go to the
smaller row number, so that duplicated rows give the same result everywhere.

`episodes` [n] is the episode number of each row. If given, rows of the same episode are not neighbours: they share
whatever stands still within an episode, in every world and in every representation.
"""

from __future__ import annotations

import numpy as np

from denoised_mdp.analysis.similarity.arrays import check_neighbours, pair

K = 10
"""default number of neighbours"""
DIGITS = 12
"""decimals kept of inner products, relative to the largest, so that values equal up to rounding are ties"""


def neighbours(features: np.ndarray, k: int, episodes: np.ndarray | None = None) -> np.ndarray:
    """Indices of the k nearest rows of each row, nearest first: [n, d] -> int [n, k]."""
    return largest(features @ features.T, k, episodes)


def largest(kernel: np.ndarray, k: int, episodes: np.ndarray | None = None) -> np.ndarray:
    """Indices of the k largest entries of each row of a kernel [n, n], largest first: [n, k].

    The diagonal and the row's own episode are excluded. [n, 0] if the kernel is zero: if features do not vary, no row
    is nearer than another.
    """
    if not kernel.any():
        return np.zeros((len(kernel), 0), int)
    names = np.arange(len(kernel)) if episodes is None else episodes
    check_neighbours(k, names)
    rounded = np.round(kernel / np.abs(kernel).max(), DIGITS)
    return np.argsort(np.where(names[:, None] == names, np.inf, -rounded), axis=1, kind="stable")[:, :k]


def membership(nearest: np.ndarray) -> np.ndarray:
    """Neighbours [n, k] -> bool [n, n]: is j one of i's?"""
    marks = np.zeros((len(nearest), len(nearest)), bool)
    np.put_along_axis(marks, nearest, True, 1)
    return marks


def overlap(nearest: np.ndarray, marks: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """Share of each row's neighbours [n, k] that are also its neighbours in `marks` [n, n]: [n]; nan if there are none.

    order: permutes the second representation, so that its row order[i] takes the place of row i.
    """
    if not nearest.size or not marks.any():
        return np.full(len(nearest), np.nan)
    rows = np.arange(len(nearest)) if order is None else order
    return marks[rows[:, None], rows[nearest]].mean(1)


def mutual_knn(a: np.ndarray, b: np.ndarray, k: int = K, episodes: np.ndarray | None = None) -> float:
    """Mean share of common neighbours, 0 to 1; for unrelated representations `knn_chance`.

    nan, with one warning, if all rows of one matrix are the same, as in all metrics of this module.
    """
    lists = _lists(a, b, k, episodes)
    return np.nan if lists is None else float(overlap(lists[0], membership(lists[1])).mean())


def cycle_knn(a: np.ndarray, b: np.ndarray, k: int = K, episodes: np.ndarray | None = None) -> float:
    """Share of rows i that return: some neighbour of i in b has i as a neighbour in a. Not symmetric: compute both."""
    lists = _lists(a, b, k, episodes)
    if lists is None:
        return np.nan
    return float(membership(lists[0])[lists[1], np.arange(len(a))[:, None]].any(1).mean())


def lcs_knn(a: np.ndarray, b: np.ndarray, k: int = K, episodes: np.ndarray | None = None) -> float:
    """Mean length of the longest common subsequence of the ordered lists of neighbours, divided by k: 0 to 1."""
    lists = _lists(a, b, k, episodes)
    if lists is None:
        return np.nan

    def cell(same: np.ndarray, corner: np.ndarray, up: np.ndarray, left: np.ndarray) -> np.ndarray:
        return np.where(same, corner + 1, np.maximum(up, left))

    return float(_aligned(*lists, np.zeros(k + 1), cell).mean() / k)


def edit_knn(a: np.ndarray, b: np.ndarray, k: int = K, episodes: np.ndarray | None = None) -> float:
    """1 - mean Levenshtein distance of the ordered lists of neighbours, divided by k: 0 to 1."""
    lists = _lists(a, b, k, episodes)
    if lists is None:
        return np.nan

    def cell(same: np.ndarray, corner: np.ndarray, up: np.ndarray, left: np.ndarray) -> np.ndarray:
        return np.minimum(corner + ~same, np.minimum(up, left) + 1)

    return float(1 - _aligned(*lists, np.arange(k + 1.0), cell).mean() / k)


def _lists(a: np.ndarray, b: np.ndarray, k: int, episodes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The neighbours [n, k] in both matrices; None if all rows of one are the same."""
    found = pair(a, b)
    return None if found is None else (neighbours(found[0], k, episodes), neighbours(found[1], k, episodes))


def _aligned(first: np.ndarray, second: np.ndarray, edge: np.ndarray, cell) -> np.ndarray:
    """Dynamic programming over all pairs of lists [n, k] at once: the last cell of each table, [n].

    edge: first row and first column [k + 1]. cell: (same items?, upper left, upper, left), each [n] -> [n].
    """
    k = first.shape[1]
    previous = [np.full(len(first), value) for value in edge]
    for i in range(k):
        row = [np.full(len(first), edge[i + 1])]
        for j in range(k):
            row.append(cell(first[:, i] == second[:, j], previous[j], previous[j + 1], row[j]))
        previous = row
    return previous[-1]
