"""Tiny agents that see stacks of small pictures, in float64, and batches for them."""

from __future__ import annotations

import torch
from conftest import random_batch
from torch import Tensor, nn

from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config

SIZE, ACTIONS, BATCH = 32, 2, 5


def small_agent(name: str, *overrides: str) -> PixelSAC:
    """An agent of `agent=name` with tiny networks, whose weights are lively: none of its units is dead."""
    sizes = [f"env.size={SIZE}", "agent.depth=4", "agent.features=4", "agent.hidden=8", "train.batch_size=5"]
    agent = build_agent(load_config([f"agent={name}", *sizes, *overrides]), ACTIONS).double()
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return agent


def batch_for(agent: PixelSAC, seed: int = 0) -> dict[str, Tensor]:
    """Random rows as the agent wants them from the replay, none the first of an episode."""
    wanted = agent.batch_spec
    batch = random_batch(wanted.lead + wanted.segment_length, BATCH, SIZE, ACTIONS, seed)
    batch["is_first"][:] = False
    return agent.to_device(batch)


def weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(agent: PixelSAC, before: dict[str, Tensor]) -> set[str]:
    """The parts of an agent that have other weights than `before`."""
    return {name.split(".")[0] for name, value in agent.state_dict().items() if not torch.equal(value, before[name])}


def sizes(agent: PixelSAC) -> dict[str, int]:
    """Number of parameters of each part."""
    return {name: sum(p.numel() for p in part.parameters()) for name, part in agent.named_children()}
