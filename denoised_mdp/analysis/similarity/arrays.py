"""Preprocessing of features before they are compared, and checks of arguments."""

from __future__ import annotations

import warnings

import numpy as np

from denoised_mdp.analysis.crossfit import LEAST_SPREAD
from denoised_mdp.errors import UserError


def pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Both as float64 [n, d1] and [n, d2]; None, with one warning, if one of them is the same in all rows.

    Raises:
        UserError: they are not two matrices of finite numbers with equally many rows, 4 or more.
    """
    a, b = (np.asarray(values, np.float64) for values in (a, b))
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b) or len(a) < 4:
        raise UserError(
            f"Features of shapes {list(a.shape)} and {list(b.shape)} cannot be compared: give two matrices [rows,"
            " columns] with the same 4 or more rows."
        )
    for which, values in (("first", a), ("second", b)):
        if not np.isfinite(values).all():
            raise UserError(f"The {which} features hold nan or infinity: leave those rows or columns out of both.")
        if np.ptp(values, axis=0).max(initial=0.0) <= 1e-12 * np.abs(values).max(initial=0.0):
            warnings.warn(f"The {which} features are the same in all rows: their similarity is nan.", stacklevel=3)
            return None
    return a, b


def check_neighbours(k: int, episodes: np.ndarray, least: int = 1) -> None:
    """Raise UserError unless every row has k others outside its episode, and k is at least `least`.

    episodes: the episode number of each row, [n]; without episodes, a different number in each row.
    """
    most = len(episodes) - np.unique(episodes, return_counts=True)[1].max()
    if not least <= k <= most:
        raise UserError(f"k = {k} neighbours of {len(episodes)} rows: give k from {least} to {most}.")


def clamped(features: np.ndarray, quantile: float = 0.95) -> np.ndarray:
    """Clip elements to [-q, q], q = element floor(quantile * count) of the sorted absolute values.

    It limits the outliers of transformers (Huh et al. 2024); world models do not need it.
    """
    sizes = np.sort(np.abs(np.asarray(features, np.float64)), axis=None)
    limit = sizes[min(int(quantile * sizes.size), sizes.size - 1)]
    return np.clip(features, -limit, limit).astype(np.float64)


def standardized(features: np.ndarray, fit: np.ndarray | None = None) -> np.ndarray:
    """Columns [n, d] with mean 0 and standard deviation 1 over the rows marked in `fit` (bool [n]; default: all).

    Columns whose standard deviation there is below 1e-6 are dropped: [n, d'].
    """
    features = np.asarray(features, np.float64)
    known = features if fit is None else features[fit]
    spread = known.std(0)
    keep = spread >= LEAST_SPREAD
    return (features[:, keep] - known.mean(0)[keep]) / spread[keep]


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows [n, d] divided by their Euclidean length; a row of zeros stays."""
    features = np.asarray(features, np.float64)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(length > 0, length, 1.0)
