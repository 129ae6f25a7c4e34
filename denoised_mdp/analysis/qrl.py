"""Temporal distances by quasimetric reinforcement learning (Wang et al., ICML 2023).

Distances between random pairs grow while one step may cost at most one: the largest quasimetric under this constraint
is the length of the shortest path. With phi(d) = -softplus(c - d), which grows with d and levels off at c,

    min over d, max over lambda >= 0 of   -E phi(d(s, g)) + lambda (E relu(d(s, s') - 1)^2 - eps^2).

At the optimum, d is about 1 + eps per step. It is a distance within the data: an upper bound on the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.progress import Phase

MULTIPLIER = 0.01
"""initial lambda"""


class QRL(nn.Module):
    """The objective: a loss that distances minimize and its own parameter, lambda, maximizes in one backward pass.

    offset: c, above which distances need not grow; exceeds most true distances. sharpness: of phi's softplus; 0.1 for
    problems of up to about 50 steps (c = 15), 0.01 for longer ones (c = 500). eps: root of the allowed mean squared
    excess of one step.
    """

    def __init__(self, offset: float = 15.0, sharpness: float = 0.1, eps: float = 0.25):
        super().__init__()
        self.offset, self.sharpness, self.eps = offset, sharpness, eps
        self.raw = nn.Parameter(torch.tensor(math.log(math.expm1(MULTIPLIER))))  # lambda = softplus(raw)

    def push(self, distance: Tensor) -> Tensor:
        """phi of distances between random pairs: [...] -> [...], increasing and concave."""
        return -F.softplus(self.offset - distance, beta=self.sharpness)

    def forward(self, far: Tensor, near: Tensor) -> Tensor:
        """Distances of random pairs [N] and of single steps [M] -> the loss, a scalar."""
        excess = F.relu(near - 1).square().mean() - self.eps**2
        ascending = F.softplus(2 * self.raw.detach() - self.raw)  # lambda, with its gradient reversed
        return -self.push(far).mean() + ascending * excess


def learn_distance(
    encoder: nn.Module,
    head: nn.Module,
    objective: QRL,
    sample: Callable[[], tuple[Tensor, Tensor, Tensor]],
    updates: int,
    *,
    lr: float = 5e-4,
    multiplier_lr: float = 0.01,
    phase: Phase | None = None,
) -> None:
    """Train encoder and head in place, so that head(encoder(a), encoder(b)) becomes the distance from a to b.

    sample: draws (states, the states one step later, goals), each [N, F]. The optimizer is Adam. Its learning rate `lr`
    falls to zero along a cosine; `multiplier_lr`, for lambda, stays constant.
    """
    parameters = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(
        [{"params": parameters, "lr": lr}, {"params": [objective.raw], "lr": multiplier_lr}], fused=True
    )
    for done in range(updates):
        optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * done / updates))
        state, following, goal = encoder(torch.stack(sample()))  # each [N, F']
        loss = objective(head(state, goal), head(state, following))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if phase:
            phase.update(done + 1)
