"""Spearman's rank correlation without `scipy.stats`, whose import takes longer than everything that would use it."""

from __future__ import annotations

import math

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of numbers [n] without nan: float64 [n], from 1; ties share their mean rank."""
    ordered = np.sort(values)  # [n]
    below, at_most = (np.searchsorted(ordered, values, side) for side in ("left", "right"))  # [n] each
    return (below + at_most + 1) / 2  # [n]


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's coefficient of two arrays [n]; nan if one of them does not vary or contains nan."""
    if np.isnan(a).any() or np.isnan(b).any():
        return math.nan
    first, second = (one - one.mean() for one in (ranks(a), ranks(b)))  # [n] each
    scale = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / scale) if scale > 0 else math.nan
