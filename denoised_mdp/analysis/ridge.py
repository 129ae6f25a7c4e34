"""Ridge regression in closed form, with one penalty per target, chosen by cross-validation over groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from denoised_mdp.analysis.crossfit import varies

PENALTIES = np.append(np.logspace(-6, 2, 9), 1e6)
"""candidates, for features of variance 1; the last one in effect predicts the mean"""
FOLDS = 5


@dataclass
class Standardizer:
    """Scales columns to mean 0 and standard deviation 1; columns that are constant up to rounding become 0."""

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Standardizer:
        """Fit to rows [n, F]."""
        values = np.asarray(values, np.float64)
        return cls(values.mean(0), np.where(varies(values), values.std(0), np.inf))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Transform rows [n, F]."""
        return (values - self.mean) / self.scale

    def undo(self, values: np.ndarray) -> np.ndarray:
        """Transform back; constant columns get their mean."""
        return values * np.where(np.isfinite(self.scale), self.scale, 0.0) + self.mean


@dataclass
class Ridge:
    """A fitted ridge regression: rows [n, F] -> predictions [n, K]."""

    weights: np.ndarray
    """[F, K], for standardized features"""
    intercept: np.ndarray
    """[K]"""
    penalty: np.ndarray
    """chosen penalty of each target, [K]"""
    inputs: Standardizer

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict all targets, float64 [n, K]."""
        return self.inputs(np.asarray(features, np.float64)) @ self.weights + self.intercept


def group_folds(groups: np.ndarray) -> list[np.ndarray]:
    """Divide rows into folds by their group [n]; return a mask [n] of the held-out rows per fold.

    Groups are dealt out in order of their number; with fewer groups than `FOLDS`, each is a fold.
    """
    names = np.unique(groups)
    folds = min(FOLDS, len(names))
    number = np.searchsorted(names, groups) % folds
    return [number == fold for fold in range(folds)]


def fit_ridge(features: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> Ridge:
    """Minimize mean squared error + penalty * |w|^2 for each column of `targets`.

    features [n, F] (standardized here), targets [n, K], groups [n]. Cross-validation chooses each target's penalty by
    the squared error of held-out groups; rows of a group are never on both sides.

    Raises:
        ValueError: fewer than two groups.
    """
    folds = group_folds(groups)
    if len(folds) < 2:
        raise ValueError("cross-validation needs at least two groups")
    x, y = (np.asarray(values, np.float64) for values in (features, targets))
    inputs = Standardizer.of(x)
    x = inputs(x)
    center = y.mean(0)
    y = y - center  # [n, K]; moments about the overall mean lose no digits
    rows = [(torch.from_numpy(x[out]), torch.from_numpy(y[out])) for out in folds]  # torch obeys its thread limit
    moments = [_moments(*fold) for fold in rows]
    total = [sum(parts) for parts in zip(*moments, strict=True)]

    errors = torch.zeros(len(PENALTIES), y.shape[1], dtype=torch.float64)
    for (x_out, y_out), left in zip(rows, moments, strict=True):
        weights, intercepts = _solve([all_ - part for all_, part in zip(total, left, strict=True)])
        errors += (x_out @ weights + intercepts[:, None] - y_out).square().sum(1)
    best = errors.argmin(0).numpy()  # [K]

    weights, intercepts = (tensor.numpy() for tensor in _solve(total))
    columns = np.arange(y.shape[1])
    return Ridge(weights[best, :, columns].T, intercepts[best, columns] + center, PENALTIES[best], inputs)


def _moments(x: torch.Tensor, y: torch.Tensor) -> tuple:
    """Sums over rows that determine a ridge regression: n, x [F], y [K], x x' [F, F], x y' [F, K]."""
    return len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y


def _solve(moments: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [P, F, K] and intercepts [P, K] for every penalty, from one eigendecomposition."""
    n, sum_x, sum_y, gram, cross = moments
    mean_x, mean_y = sum_x / n, sum_y / n
    values, vectors = torch.linalg.eigh(gram / n - torch.outer(mean_x, mean_x))
    rotated = vectors.T @ (cross / n - torch.outer(mean_x, mean_y))  # [F, K]
    spectrum = values.clamp(min=0.0) + torch.from_numpy(PENALTIES)[:, None]  # rounding can make one negative
    weights = vectors @ (rotated / spectrum[..., None])
    return weights, mean_y - mean_x @ weights
