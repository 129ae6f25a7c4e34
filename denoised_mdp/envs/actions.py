"""What the actions of an environment are, as agents and replays hold them: float32 [A]."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Actions:
    """A numbers from -1 to 1 in a row, or one of A choices as a one-hot row.

    Environments of choices take their number or this row, see `PixelEnv.step`.
    """

    size: int
    """A"""
    discrete: bool = False
    """one of A choices"""

    @classmethod
    def of(cls, space: gym.Space) -> Actions:
        """Those of an action space: Discrete, or Box of shape [A]."""
        if isinstance(space, gym.spaces.Discrete):
            return cls(int(space.n), discrete=True)
        return cls(*space.shape)

    def none(self) -> np.ndarray:
        """What stands where no action was taken, in an episode's first row: zeros [A]."""
        return np.zeros(self.size, np.float32)

    def random(self, rng: np.random.Generator) -> np.ndarray:
        """A uniformly random action [A]."""
        if self.discrete:
            return np.eye(self.size, dtype=np.float32)[rng.integers(self.size)]
        return rng.uniform(-1.0, 1.0, self.size).astype(np.float32)
