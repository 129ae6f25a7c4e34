"""Running averages of gradients and their squares, which LaProp and Muon's share of Adam have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Moments = dict[str, Tensor]
"""of a parameter: `count` of its steps, a scalar tensor; `v` and `m`, averages of its shape"""


def no_moments(parameter: Tensor) -> Moments:
    """Those before the first step."""
    return {"count": parameter.new_zeros(())} | {name: torch.zeros_like(parameter) for name in ("v", "m")}


def gradient_scales(
    moments: Sequence[Moments], gradients: Sequence[Tensor], betas: tuple[float, float], eps: float
) -> tuple[Sequence[Tensor], Tensor, Tensor]:
    """Count a step and average the squared gradients: v <- beta2 v + (1 - beta2) g^2.

    Returns sqrt(v / (1 - beta2^t)) + eps of each; 1 - beta1^t; and t, a tensor, so that a graph can replay it.
    """
    counts, v = ([one[name] for one in moments] for name in ("count", "v"))
    torch._foreach_add_(counts, 1.0)
    torch._foreach_mul_(v, betas[1])
    torch._foreach_addcmul_(v, gradients, gradients, 1.0 - betas[1])
    count = counts[0]  # all have done as many steps
    unbias = [-torch.expm1(count * math.log(beta)) for beta in betas]  # 1 - beta^t, exact for small t
    scales = torch._foreach_sqrt(torch._foreach_div(v, unbias[1]))
    torch._foreach_add_(scales, eps)
    return scales, unbias[0], count
