"""Running averages of gradients and their squares, shared by LaProp and the Adam part of Muon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Moments = dict[str, Tensor]
"""of one parameter: `count`, its number of steps, a scalar tensor; `v` and `m`, averages in its shape"""


def no_moments(parameter: Tensor) -> Moments:
    """The moments before the first step."""
    return {"count": parameter.new_zeros(())} | {name: torch.zeros_like(parameter) for name in ("v", "m")}


class MomentsOptimizer(torch.optim.Optimizer):
    """Base of optimizers that correct averages by the number of steps, which may differ between parameters."""

    def __init__(self, parameters: Iterable[Any], defaults: dict[str, Any]):
        super().__init__(parameters, defaults)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """Forget the cohorts, since the states may have changed."""
        self._last: dict[int, tuple[list[int], list[list[nn.Parameter]]]] = {}  # group -> ids that stepped, cohorts
        self._cohort: dict[nn.Parameter, float] = {}  # numbers above 0, new whenever the set that steps changes
        self._numbers = itertools.count(1)

    def cohorts(self, parameters: Sequence[nn.Parameter], group: int) -> list[list[nn.Parameter]]:
        """Split the parameters of a group that step now into cohorts of equal step counts, often just one.

        Cohorts that have split are never merged again, so the counts themselves need not be read.
        """
        now = [id(p) for p in parameters]
        if group not in self._last or self._last[group][0] != now:
            parts: dict[float, list[nn.Parameter]] = {}
            for p in parameters:
                parts.setdefault(self._cohort[p] if p in self._cohort else self._first(p), []).append(p)
            for part in parts.values():
                self._cohort |= dict.fromkeys(part, next(self._numbers))
            self._last[group] = now, list(parts.values())
        return self._last[group][1]

    def _first(self, parameter: nn.Parameter) -> float:
        """The key by which parameters without a cohort are grouped: minus the number of their steps.

        The count of a restored state is read, which waits for a GPU.
        """
        if self.state[parameter]:
            return -float(self.state[parameter]["count"])
        self.state[parameter] = no_moments(parameter)
        return 0.0


def gradient_scales(
    moments: Sequence[Moments], gradients: Sequence[Tensor], betas: tuple[float, float], eps: float
) -> tuple[Sequence[Tensor], Tensor, Tensor]:
    """Count a step of a cohort's parameters and average their squared gradients: v <- beta2 v + (1 - beta2) g^2.

    Returns sqrt(v / (1 - beta2^t)) + eps of each; 1 - beta1^t; and t, a tensor, so that a graph can replay it.
    """
    counts, v = ([one[name] for one in moments] for name in ("count", "v"))
    torch._foreach_add_(counts, 1.0)
    torch._foreach_mul_(v, betas[1])
    torch._foreach_addcmul_(v, gradients, gradients, 1.0 - betas[1])
    count = counts[0]  # equal within a cohort
    unbias = [-torch.expm1(count * math.log(beta)) for beta in betas]  # 1 - beta^t, exact for small t
    scales = torch._foreach_sqrt(torch._foreach_div(v, unbias[1]))
    torch._foreach_add_(scales, eps)
    return scales, unbias[0], count
