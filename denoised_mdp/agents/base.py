"""What every agent offers: it learns from batches, acts, and says what its representations are.

Time-major tensors [T, B, ...]: T segment length, B batch, A action size, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoised_mdp.agents.acting import Carry, Generators
from denoised_mdp.config import schema


@dataclass(frozen=True)
class BatchSpec:
    """What an agent wants from the replay: `batch_size` segments of `segment_length` rows."""

    segment_length: int
    batch_size: int


class Agent(nn.Module, ABC):
    """A learner that acts. Training, evaluation, probes and renderings ask for no more than this.

    Capabilities are asked for, not assumed: `decodes` says whether latents can be shown as pictures.
    """

    config: schema.Config | None = None
    """what it was built from: of a loaded run, the run's configuration"""
    decodes: bool = False
    """pictures can be rendered from what it remembers"""

    @property
    def batch_spec(self) -> BatchSpec:
        """The batches that `update` wants, as the configuration says."""
        return BatchSpec(self.config.train.segment_length, self.config.train.batch_size)

    @property
    @abstractmethod
    def seen(self) -> str:
        """Which of the `representations` the policy sees; signal recall and leakage are of that one."""

    @abstractmethod
    def update(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """One step on a batch [T, B, ...] of the replay; returns metrics. policy: False leaves the policy as it is."""

    @abstractmethod
    def act(
        self,
        observation: np.ndarray,
        carry: Carry | None = None,
        *,
        is_first: bool | np.ndarray | None = None,
        explore: float | None = None,
        sample: bool = True,
        generator: Generators = None,
    ) -> tuple[np.ndarray, Carry]:
        """Actions for uint8 [H, W, 3] or [B, H, W, 3], and the next carry.

        An action is float32 [A] or [B, A], in [-1, 1] or, of Discrete actions, one-hot.
        """

    @abstractmethod
    def representations(
        self, batch: dict[str, np.ndarray | Tensor], generator: torch.Generator | None = None, *, sample: bool = True
    ) -> dict[str, Tensor]:
        """Everything a probe may read of a batch, by name: each [T, B, F], without gradients; `seen` is one of them.

        sample: False filters with the posterior's mean, so that chance plays no part; see `act`.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """A copy of everything that a later process needs to continue bit for bit."""

    @abstractmethod
    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """The inverse of `state`; `weights_only` for evaluation, rendering and probes."""
