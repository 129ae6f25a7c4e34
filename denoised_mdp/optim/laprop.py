"""LaProp, the optimizer of DreamerV3."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from denoised_mdp.optim.moments import MomentsOptimizer, gradient_scales


class LaProp(MomentsOptimizer):
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
        """Take one step with the present gradients; the step count is a tensor, so that a graph can replay it."""
        for number, group in enumerate(self.param_groups):
            for parameters in self.cohorts([p for p in group["params"] if p.grad is not None], number):
                self._steps(parameters, group)

    def _steps(self, parameters: list[nn.Parameter], group: dict) -> None:
        gradients, moments = [p.grad for p in parameters], [self.state[p] for p in parameters]
        scales, unbias, count = gradient_scales(moments, gradients, group["betas"], group["eps"])
        m = [one["m"] for one in moments]
        torch._foreach_lerp_(m, torch._foreach_div(gradients, scales), 1.0 - group["betas"][0])
        rate = group["lr"] / unbias
        if group["warmup"]:
            rate = rate * ((count - 1.0) / group["warmup"]).clamp(max=1.0)
        torch._foreach_sub_(parameters, torch._foreach_mul(m, rate))
