"""The action format of an environment, as agents and replays hold actions: float32 [A]."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Actions:
    """A numbers in [-1, 1], or one of A choices as a one-hot row.

    Environments with discrete actions accept the index of a choice or its one-hot row, see `PixelEnv.step`.
    """

    size: int
    """A"""
    discrete: bool = False
    """whether an action is one of A choices"""

    @classmethod
    def of(cls, space: gym.Space) -> Actions:
        """Build from an action space: Discrete, or Box of shape [A]."""
        if isinstance(space, gym.spaces.Discrete):
            return cls(int(space.n), discrete=True)
        return cls(*space.shape)

    def none(self) -> np.ndarray:
        """Return the placeholder for "no action" in an episode's first row: zeros [A]."""
        return np.zeros(self.size, np.float32)

    def random(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a uniformly random action [A]."""
        if self.discrete:
            return np.eye(self.size, dtype=np.float32)[rng.integers(self.size)]
        return rng.uniform(-1.0, 1.0, self.size).astype(np.float32)
