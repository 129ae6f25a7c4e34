"""Similarity of kernels: CKA (Kornblith et al. 2019), also unbiased (Song et al. 2012), and CKNNA (Huh et al. 2024).

CKA compares all pairs of rows. It has two traps: biased CKA approaches 1 if columns outnumber rows, and one dominant
shared factor brings both kinds near 1 whatever else differs. Read it beside `mutual_knn`, never alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from denoised_mdp.analysis.similarity.arrays import check_neighbours, pair
from denoised_mdp.analysis.similarity.neighbours import K, largest, membership
from denoised_mdp.errors import UserError


def cka(
    a: np.ndarray,
    b: np.ndarray,
    kernel: Literal["linear", "rbf"] = "linear",
    unbiased: bool = False,
    bandwidth: float | None = 1.0,
) -> float:
    """Centered kernel alignment: 0 to 1, biased upward. `unbiased`: 0 on average if unrelated, may be negative.

    bandwidth: s in the kernel "rbf", exp(-|a_i - a_j|^2 / (2 s^2)); None: the median distance within each matrix.
    Returns nan, with one warning, if all rows of one matrix are the same.
    """
    if kernel not in ("linear", "rbf"):
        raise UserError(f"kernel is {kernel!r}: give linear or rbf.")
    found = pair(a, b)
    if found is None:
        return np.nan
    first, second = (_kernel(values, kernel, bandwidth) for values in found)
    hsic = _unbiased_hsic if unbiased else _biased_hsic
    return _normalized(hsic(first, second), hsic(first, first), hsic(second, second))


def cknna(a: np.ndarray, b: np.ndarray, k: int = K, episodes: np.ndarray | None = None) -> float:
    """Unbiased CKA of linear kernels, restricted to pairs that are neighbours in both; about 0 if unrelated.

    k is at least 2; k = n - 1 gives unbiased CKA. Neighbourhood is not symmetric, so swapping a and b may change the
    third digit. nan as in `cka`. episodes: as in `mutual_knn`.
    """
    found = pair(a, b)
    if found is None:
        return np.nan
    check_neighbours(k, np.arange(len(a)) if episodes is None else episodes, least=2)
    first, second = (masked_kernel(values, k, episodes) for values in found)
    return masked_alignment(first, second)


Masked = tuple[np.ndarray, np.ndarray, float]


def masked_kernel(features: np.ndarray, k: int, episodes: np.ndarray | None = None) -> Masked:
    """Linear kernel [n, n], mask of neighbours (bool [n, n]), and unbiased HSIC of the masked kernel with itself."""
    kernel = features @ features.T
    near = membership(largest(kernel, k, episodes))
    return kernel, near, _unbiased_hsic(near * kernel, near * kernel)


def masked_alignment(first: Masked, second: Masked) -> float:
    """CKNNA of two results of `masked_kernel`."""
    both = first[1] & second[1]
    return _normalized(_unbiased_hsic(both * first[0], both * second[0]), first[2], second[2])


def _kernel(features: np.ndarray, kernel: str, bandwidth: float | None) -> np.ndarray:
    """[n, d] -> [n, n]."""
    products = features @ features.T
    if kernel == "linear":
        return products
    sizes = np.diag(products)
    squares = np.maximum(sizes[:, None] + sizes - 2 * products, 0.0)  # |a_i - a_j|^2; rounding may make it negative
    if bandwidth is None:
        bandwidth = np.sqrt(np.median(squares[np.triu_indices(len(squares), 1)]))
    return np.exp(-squares / (2 * bandwidth**2))


def _biased_hsic(first: np.ndarray, second: np.ndarray) -> float:
    """tr(K H L H) of two symmetric kernels [n, n], H = I - 1/n."""
    centered = first - first.mean(0) - first.mean(1)[:, None] + first.mean()  # H K H
    return float((centered * second).sum())


def _unbiased_hsic(first: np.ndarray, second: np.ndarray) -> float:
    """Song et al. 2012, equation 5, for kernels [n, n] that need not be symmetric; their diagonals do not count."""
    n = len(first)
    first, second = (kernel - np.diag(np.diag(kernel)) for kernel in (first, second))
    trace = (first * second.T).sum()
    outer = first.sum() * second.sum() / ((n - 1) * (n - 2))
    inner = first.sum(0) @ second.sum(1)  # the sum of all entries of the matrix product
    return float((trace + outer - 2 * inner / (n - 2)) / (n * (n - 3)))


def _normalized(cross: float, first: float, second: float) -> float:
    """cross / sqrt(first * second); nan unless both are positive."""
    product = first * second
    return cross / float(np.sqrt(product)) if first > 0 and product > 0 else np.nan
