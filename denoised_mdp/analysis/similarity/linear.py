"""Similarity up to linear maps: held-out linear regression, and canonical correlations.

Models of an identifiable family that agree in their predictions have equal representations up to an invertible linear
map (Roeder et al. 2021). World models are not in such a family: for them it is an empirical question.
"""

from __future__ import annotations

import numpy as np

from denoised_mdp.analysis.similarity.arrays import pair, standardized
from denoised_mdp.errors import UserError

RIDGE = 1e-6
"""penalty of the regression, for features of variance 1"""
MOST = 50
"""largest number of principal components in a linear comparison"""
RANK = 1e-9
"""singular values below this share of the largest count as zero"""


def linear_similarity(a: np.ndarray, b: np.ndarray, split: np.ndarray) -> float:
    """Held-out R^2 of least squares from a to b, pooled over the columns of b. Not symmetric: compute both.

    split: bool [n], True for rows to fit; keep each episode on one side (`episode_halves`). R^2 = 1 - squared errors /
    squares about the *fitted* rows' mean. nan, with one warning, if all rows of one matrix are the same.
    """
    errors, squares = _held_out(a, b, split)
    return float(1 - errors.sum() / squares.sum()) if squares.sum() > 0 else np.nan


def _held_out(a: np.ndarray, b: np.ndarray, split: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors of the held-out rows, and squares about the fitted rows' mean: [d'] each, for b's live columns."""
    found = pair(a, b)
    if found is None:
        return np.zeros(0), np.zeros(0)
    split = _checked_split(split, len(a))
    inputs, targets = standardized(found[0], split), found[1]
    spread = targets[split].std(0)
    targets = targets[:, spread > 1e-12 * (1 + np.abs(targets).max(0))]
    center = targets[split].mean(0)
    gram = inputs[split].T @ inputs[split] / split.sum()  # [d1, d1]
    cross = inputs[split].T @ (targets[split] - center) / split.sum()  # [d1, d']
    weights = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), cross)
    rest = targets[~split] - center
    return np.square(rest - inputs[~split] @ weights).sum(0), np.square(rest).sum(0)


def mean_cca(a: np.ndarray, b: np.ndarray, split: np.ndarray | None = None, components: int | None = None) -> float:
    """Mean canonical correlation: 0 to 1, with `split` -1 to 1; invariant to invertible linear maps of both.

    split: bool [n], True for rows to fit; correlations are those of the other rows. Default: all rows for both.
    components: keep only so many principal components of each. This is needed with fewer than 10 rows per column, where
    correlations of fitted rows are high whatever the features. nan as in `linear_similarity`.
    """
    return _mean(canonical_correlations(a, b, split, components))


def canonical_correlations(
    a: np.ndarray, b: np.ndarray, split: np.ndarray | None = None, components: int | None = None
) -> np.ndarray:
    """Correlations of the canonical directions, the strongest first: [smaller rank]; see `mean_cca`."""
    found = pair(a, b)
    if found is None:
        return np.zeros(0)
    fit = np.ones(len(a), bool) if split is None else _checked_split(split, len(a))
    first, second = (principal_components(values, fit, components) for values in found)
    u, strengths, v = np.linalg.svd(first[fit].T @ second[fit], full_matrices=False)
    if split is None:
        return strengths.clip(0.0, 1.0)
    left, right = first[~fit] @ u, second[~fit] @ v.T  # [rows, rank]
    left, right = left - left.mean(0), right - right.mean(0)
    scale = np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=0)
    return (left * right).sum(0) / np.where(scale > 0, scale, 1.0)


def svcca(a: np.ndarray, b: np.ndarray, components: int = 10) -> float:
    """Mean canonical correlation of the first principal components of standardized columns (Raghu et al. 2017).

    The decomposition is exact, so the result is deterministic. nan as in `linear_similarity`.
    """
    found = pair(a, b)
    if found is None:
        return np.nan
    first, second = (_z_scores(values) for values in found)
    return mean_cca(first, second, components=components)


def _z_scores(features: np.ndarray) -> np.ndarray:
    """Columns minus their mean, over their standard deviation (n - 1 degrees of freedom)."""
    return (features - features.mean(0)) / (features.std(0, ddof=1) + 1e-8)


def principal_components(features: np.ndarray, fit: np.ndarray, components: int | None = None) -> np.ndarray:
    """First principal components, fitted to and orthonormal over the rows in `fit` (bool [n]): [n, d] -> [n, rank]."""
    centered = features - features[fit].mean(0)
    _, strengths, directions = np.linalg.svd(centered[fit], full_matrices=False)
    rank = int((strengths > RANK * strengths[0]).sum()) if len(strengths) else 0
    rank = rank if components is None else min(rank, components)
    return centered @ directions[:rank].T / strengths[:rank]


def supported_components(rows: int) -> int:
    """How many principal components a fit to `rows` rows supports: a tenth of them, from 1 to `MOST`."""
    return int(np.clip(rows // 10, 1, MOST))


def _mean(correlations: np.ndarray) -> float:
    return float(correlations.mean()) if len(correlations) else np.nan


def _checked_split(split: np.ndarray, rows: int) -> np.ndarray:
    """Raise UserError unless some of the `rows` rows are fitted and some are not."""
    split = np.asarray(split)
    if split.dtype != bool or split.shape != (rows,) or split.all() or not split.any():
        raise UserError(f"split must be {rows} booleans: True where to fit, False where to test, both of them present.")
    return split
