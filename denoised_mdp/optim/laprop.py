"""LaProp, the optimizer of DreamerV3."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


class LaProp(torch.optim.Optimizer):
    """Momentum of normalized gradients (Ziyin et al. 2020), as in DreamerV3 (Hafner et al. 2025).

    v <- beta2 v + (1 - beta2) g^2, m <- beta1 m + (1 - beta1) g / (sqrt(v / (1 - beta2^t)) + eps), and a step of
    lr m / (1 - beta1^t). The learning rate rises linearly from 0 at the first step to `lr` at step 1 + `warmup`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-20,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup: int = 0,
    ):
        super().__init__(parameters, {"lr": lr, "eps": eps, "betas": betas, "warmup": warmup})

    @torch.no_grad()
    def step(self) -> None:
        """One step with the gradients that are there; its number is a tensor, so that a graph can replay it."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    zeros = {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in ("v", "m")}
                    self.state[p] = {"count": p.new_zeros(())} | zeros
            if not parameters:
                continue
            counts, v, m = ([self.state[p][name] for p in parameters] for name in ("count", "v", "m"))
            gradients, (beta1, beta2) = [p.grad for p in parameters], group["betas"]
            torch._foreach_add_(counts, 1.0)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, gradients, gradients, 1.0 - beta2)
            count = counts[0]  # all have done as many steps
            unbias = [-torch.expm1(count * math.log(beta)) for beta in group["betas"]]  # 1 - beta^t, exact for small t
            scale = torch._foreach_sqrt(torch._foreach_div(v, unbias[1]))
            torch._foreach_add_(scale, group["eps"])
            torch._foreach_lerp_(m, torch._foreach_div(gradients, scale), 1.0 - beta1)
            rate = group["lr"] / unbias[0]
            if group["warmup"]:
                rate = rate * ((count - 1.0) / group["warmup"]).clamp(max=1.0)
            torch._foreach_sub_(parameters, torch._foreach_mul(m, rate))
