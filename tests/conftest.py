"""Small agents and batches that several tests share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from denoised_mdp.agent import Agent, build_agent
from denoised_mdp.schema import Config, LatentConfig

STRUCTURES = {
    "2b": {"x": (6, 3), "y": (5, 4), "z": (0, 0), "z_prior_uses_y": True},
    "2c": {"x": (6, 3), "y": (5, 4), "z": (4, 2), "z_prior_uses_y": True},
    "2c-blind": {"x": (6, 3), "y": (5, 4), "z": (4, 2), "z_prior_uses_y": False},
    "dreamer": {"x": (6, 3), "y": (0, 0), "z": (0, 0), "z_prior_uses_y": True},
}


def small_config(structure: str = "2b", size: int = 64, **policy) -> Config:
    """A configuration whose networks are tiny."""
    config = Config()
    config.env.size = size
    sizes = STRUCTURES[structure]
    for name in "xyz":
        setattr(config.model, name, LatentConfig(*sizes[name]))
    config.model.z_prior_uses_y = sizes["z_prior_uses_y"]
    config.model.depth, config.model.embed, config.model.reward_hidden = 2, 12, 7
    config.policy.hidden, config.policy.horizon = 8, 4
    for name, value in policy.items():
        setattr(config.policy, name, value)
    return config


def small_agent(structure: str = "2b", size: int = 64, actions: int = 2, **policy) -> Agent:
    """A tiny agent in float64."""
    agent = build_agent(small_config(structure, size, **policy), actions)
    return agent.double()


def random_batch(length: int = 4, batch: int = 3, size: int = 64, actions: int = 2, seed: int = 0) -> dict:
    """A batch of noise with the shapes of the replay's; an episode begins in the middle of segment 0."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((length, batch), bool)
    is_first[min(2, length - 1), 0] = True
    return {
        "observation": rng.integers(0, 256, (length, batch, size, size, 3), dtype=np.uint8),
        "action": rng.uniform(-1, 1, (length, batch, actions)).astype(np.float32),
        "reward": rng.normal(size=(length, batch)).astype(np.float32),
        "is_first": is_first,
    }


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: more threads only cost."""
    torch.set_num_threads(1)
