"""What every policy optimizer implements, and what it may see.

A policy sees the signal latent alone: a `PolicyBatch` of x posteriors and the `LatentMDP` (x prior and r_x).
To add one, subclass `Policy`, give it an `actor`-like `act`, an `update`, and an entry in `policies.POLICIES`.

Symbols: T segment length, B batch, D_x / S_x belief / state size of x, F = D_x + S_x, A action size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..world_model import LatentMDP


@dataclass
class PolicyBatch:
    """Posterior latents of one training batch, detached from the world model, and what was done in them."""

    belief: Tensor
    """h^x, [T, B, D_x]"""
    state: Tensor
    """x, a posterior sample, [T, B, S_x]"""
    action: Tensor
    """[T, B, A]: row t holds the action that *led to* latent t; row t + 1 what was done in latent t"""
    reward: Tensor
    """mean of r_x in these latents, [T, B], from the pass that made them; `LatentMDP.reward` has newer weights"""

    @property
    def features(self) -> Tensor:
        """(h^x, x), [T, B, F]."""
        return torch.cat((self.belief, self.state), -1)


class Policy(nn.Module, ABC):
    """A policy on the denoised MDP and the optimizer that improves it."""

    actor: nn.Module

    def __init__(self):
        super().__init__()
        self.optimizers: dict[str, torch.optim.Optimizer] = {}

    def add_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Register an optimizer, so that checkpoints hold its state under `name`."""
        self.optimizers[name] = optimizer

    def act(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """Actions in [-1, 1], [B, A], for features [B, F].

        noise [B, A] standard normal: a sample; None: the mode, in closed form.
        """
        return self.actor.mode(features) if noise is None else self.actor.sample(features, noise)

    @abstractmethod
    def update(
        self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Improve the policy from one batch; draw all noise from `generator`; return metrics as detached tensors.

        The world model's parameters are frozen while this runs: gradients flow through them, never into them.
        Shapes must not depend on data and nothing may be copied to the host, so that an update can be captured
        as one CUDA graph.
        """


def adam(parameters: Iterable[nn.Parameter], *, lr: float, eps: float) -> torch.optim.Adam:
    """Adam as one kernel over each parameter; the same steps as PyTorch's default, several times sooner."""
    return torch.optim.Adam(parameters, lr=lr, eps=eps, fused=True)


def optimize(loss: Tensor, optimizer: torch.optim.Optimizer, clip: float | None, *, keep_graph: bool = False) -> Tensor:
    """One step: gradients of `loss`, clipped to the global norm `clip` (None: not at all), then the optimizer.

    No other parameter gets a gradient. keep_graph: another loss of the same graph follows. Returns the gradient norm
    before clipping, a scalar tensor.
    """
    optimizer.zero_grad(set_to_none=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    loss.backward(inputs=parameters, retain_graph=keep_graph)
    norm = nn.utils.clip_grad_norm_(parameters, float("inf") if clip is None else clip)
    optimizer.step()
    return norm.detach()


class without_gradients:
    """Context in which modules' parameters get no gradients, while gradients still flow through them."""

    def __init__(self, *modules: nn.Module):
        self.parameters = [p for module in modules for p in module.parameters() if p.requires_grad]

    def __enter__(self) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(False)

    def __exit__(self, *_) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(True)
