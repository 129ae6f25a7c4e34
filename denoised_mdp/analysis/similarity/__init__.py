"""Similarity of two representations of the same situations: pure functions on arrays, float64, without PyTorch.

A metric maps two matrices a [n, d1] and b [n, d2], with row i of both from the same situation, to one number. Rows are
compared as they are: call `standardized` and `unit_rows` first, see ``docs/similarity.md``.
"""

from denoised_mdp.analysis.similarity.arrays import clamped, standardized, unit_rows
from denoised_mdp.analysis.similarity.chance import episode_halves, knn_chance, permutation_null
from denoised_mdp.analysis.similarity.kernels import cka, cknna
from denoised_mdp.analysis.similarity.linear import linear_similarity, mean_cca, svcca
from denoised_mdp.analysis.similarity.neighbours import cycle_knn, edit_knn, lcs_knn, mutual_knn

__all__ = [
    "cka",
    "cknna",
    "clamped",
    "cycle_knn",
    "edit_knn",
    "episode_halves",
    "knn_chance",
    "lcs_knn",
    "linear_similarity",
    "mean_cca",
    "mutual_knn",
    "permutation_null",
    "standardized",
    "svcca",
    "unit_rows",
]
