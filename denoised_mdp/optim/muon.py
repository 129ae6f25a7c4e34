"""Muon: momentum whose directions all have one length; world models need fewer updates than with Adam."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from denoised_mdp.optim.moments import MomentsOptimizer, gradient_scales

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""of x, x^3 and x^5 (Jordan et al. 2024): they raise small singular values fast and leave all in [0.68, 1.21]"""
ITERATIONS = 5
LARGE = 96
"""smaller side of a matrix from which bf16 products beat float32 ones, on hardware where bf16 is fast at all"""
ADAM_RMS = 0.2
"""root mean square of Adam's steps, in learning rates (Liu et al. 2025, section 2.2)"""


@torch.no_grad()
def orthogonalized(matrix: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Approximate U V' of a matrix U S V' [M, N]: all but the smallest singular values become 0.7 to 1.2.

    Newton-Schulz iterations (Jordan et al. 2024). A zero matrix stays zero. dtype: type of a large matrix's products,
    and then of the result; None: the matrix's own. In bf16, rounding adds length in directions that have none: one or
    a few percent of the whole for matrices of full rank, a third for rank 8 of 200.
    """
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T  # [m, n], m <= n
    x = x / (x.norm() + torch.finfo(x.dtype).tiny)  # no singular value is above 1
    wide = 2 * x.shape[1] > 3 * x.shape[0]
    if dtype is not None and len(x) >= LARGE:
        x = _iterated(x.to(dtype))  # [m, n]
    # Products of small matrices are cheaper but amplify rounding: not for a GPU, which may round factors to tf32.
    elif wide and x.device.type == "cpu":
        x = _polynomials(x @ x.T) @ x  # [m, n]
    else:
        x = _iterated(x)  # [m, n]
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def _iterated(x: Tensor) -> Tensor:
    """x <- a x + b (x x') x + c (x x')^2 x, `ITERATIONS` times; [m, n]."""
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T  # [m, m]
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # [m, n]
    return x


def _polynomials(gram: Tensor) -> Tensor:
    """The product p of all iterations' factors, from x x' [m, m]: `_iterated(x)` is p x."""
    a, b, c = COEFFICIENTS
    product = None
    for left in reversed(range(ITERATIONS)):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)  # [m, m]
        factor.diagonal().add_(a)
        product = factor if product is None else factor @ product  # [m, m]
        if left:
            gram = factor @ gram @ factor  # of x after this iteration, [m, m]
    return product


class Muon(MomentsOptimizer):
    """Orthogonalized momentum for matrices (Jordan et al. 2024), Adam for all else.

    m <- 0.95 m + 0.05 g, and a step of lr 0.2 sqrt(max(M, N)) O(0.05 g + 0.95 m), with O `orthogonalized`: as large as
    a step of Adam (Liu et al. 2025), so both parts share the learning rate. A convolution's weight counts as the matrix
    of its first dimension by all others, a weight of three dimensions as independent blocks, even of a single row.
    Vectors, and matrices of a single row or column, take Adam's steps.

    `compute_dtype`: type of large products, see `orthogonalized`. Momentum and weights keep their own.
    """

    compute_dtype: torch.dtype | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        momentum: float = 0.95,
    ):
        matrices, others = [], []
        for p in parameters:
            (matrices if p.ndim > 1 and min(len(p), p[0].numel()) > 1 else others).append(p)
        groups = [{"params": matrices, "matrices": True}, {"params": others, "matrices": False}]
        super().__init__(groups, {"lr": lr, "eps": eps, "betas": betas, "momentum": momentum})

    def __getstate__(self) -> dict:
        return super().__getstate__() | {"compute_dtype": self.compute_dtype}  # for copies

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with the present gradients; the step count is a tensor, so that a graph can replay it."""
        for number, group in enumerate(self.param_groups):
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["matrices"]:
                self._orthogonal_steps(parameters, group)
            else:
                for cohort in self.cohorts(parameters, number):
                    self._adam_steps(cohort, group)

    def _orthogonal_steps(self, parameters: list[nn.Parameter], group: dict) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p)}
        if not parameters:
            return
        gradients, momentum = [p.grad for p in parameters], group["momentum"]
        averages = [self.state[p]["m"] for p in parameters]
        torch._foreach_lerp_(averages, gradients, 1.0 - momentum)
        ahead = torch._foreach_lerp(gradients, averages, momentum)  # Nesterov's momentum
        for p, gradient in zip(parameters, ahead, strict=True):
            blocks = [(p, gradient)] if p.ndim != 3 else zip(p, gradient, strict=True)
            for block, towards in blocks:
                matrix = towards.reshape(len(towards), -1)  # [M, N]
                length = group["lr"] * ADAM_RMS * math.sqrt(max(matrix.shape))
                direction = orthogonalized(matrix, self.compute_dtype)  # [M, N]
                direction = direction.reshape(block.shape)
                if isinstance(length, Tensor):  # if the learning rate changes
                    block.sub_(direction.to(block.dtype) * length)
                else:
                    block.sub_(direction, alpha=length)

    def _adam_steps(self, parameters: list[nn.Parameter], group: dict) -> None:
        gradients, moments = [p.grad for p in parameters], [self.state[p] for p in parameters]
        scales, unbias, _ = gradient_scales(moments, gradients, group["betas"], group["eps"])
        m = [one["m"] for one in moments]
        torch._foreach_lerp_(m, gradients, 1.0 - group["betas"][0])
        torch._foreach_sub_(parameters, torch._foreach_mul(torch._foreach_div(m, scales), group["lr"] / unbias))
