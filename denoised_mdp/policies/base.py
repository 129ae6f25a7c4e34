"""The interface of every policy optimizer, and what it may see.

A policy sees the signal latent alone: a `PolicyBatch` of x posteriors and the `LatentMDP` (x prior and r_x).
To add one, subclass `Policy`, give it an `actor` (or its own `act`) and an `update`, and register it with its options
(`denoised_mdp.register_policy`).

Symbols: T segment length, B batch, D_x / S_x belief / state size of x, F = D_x + S_x, A action size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from denoised_mdp.models.mdp import LatentMDP, PolicyBatch


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
        """Actions in [-1, 1] or one-hot, [B, A], for features [B, F].

        noise: standard normal [B, A], to sample. None: the mode in closed form, tanh(mean) or the most likely choice.
        """
        return self.actor.mode(features) if noise is None else self.actor.sample(features, noise)

    def modes(self, features: Tensor) -> Tensor:
        """Actions without sampling, [N, M, A], for rows of features [N, M, F], which `act` sees as one batch."""
        return self.act(features.flatten(0, 1), None).unflatten(0, features.shape[:2])  # [N * M, F] -> [N, M, A]

    @abstractmethod
    def update(self, batch: PolicyBatch, mdp: LatentMDP, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Improve the policy from one batch; draw all noise from `generator`; return metrics as detached tensors.

        The world model's parameters are frozen while this runs: gradients flow through them, never into them.
        Shapes must not depend on data and nothing may be copied to the host, so that an update can be captured as one
        CUDA graph.
        """
