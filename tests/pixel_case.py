"""Tiny agents that learn from pictures, their batches, and parts of them by name, for several tests."""

from __future__ import annotations

import torch
from conftest import random_batch

from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.transitions import Transitions, make_transitions
from denoised_mdp.config import load_config

TINY_NETS = {
    "sac_pixels": [],
    "curl": ["agent.crop=26"],
    "dbc": ["agent.model_hidden=8"],
    "pisac": ["agent.code=3", "agent.code_hidden=8"],
}
SIZE = 32


def tiny_agent(name: str, *overrides: str, actions: int = 2) -> PixelSAC:
    """An agent with tiny nets in float64."""
    small = ["agent.depth=4", "agent.hidden=16", "agent.features=8", f"env.size={SIZE}", "train.batch_size=6"]
    config = load_config([f"agent={name}", *small, *TINY_NETS[name], *overrides])
    return build_agent(config, actions).double()


def lively_agent(name: str, *overrides: str) -> PixelSAC:
    """`tiny_agent` with other weights: none of its units is dead, and targets are not where their sources are."""
    agent = tiny_agent(name, *overrides)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return agent


def tiny_batch(agent: PixelSAC, seed: int = 0) -> dict:
    """Rows of noise as this agent asks for, one with an episode's begin among its stacked frames."""
    spec = agent.batch_spec
    return random_batch(spec.lead + spec.segment_length, spec.batch_size, SIZE, agent.action_size, seed)


def whole_batch(agent: PixelSAC) -> dict[str, torch.Tensor]:
    """The same on the agent's device, all columns of one episode each."""
    batch = agent.to_device(tiny_batch(agent))
    batch["is_first"][:] = False
    return batch


def tiny_step(agent: PixelSAC, seed: int = 0) -> tuple[Transitions, torch.Tensor, torch.Tensor]:
    """Transitions of a batch, and what is seen of their pictures without chance."""
    batch = agent.to_device(tiny_batch(agent, seed))
    step = make_transitions(batch, agent.options.frames, agent.options.n_step, agent.options.gamma)
    return step, agent.view(step.now), agent.view(step.following)


def reached(agent: PixelSAC, loss: torch.Tensor) -> set[str]:
    """Names of the parts whose weights a loss has a gradient for that is not zero."""
    agent.zero_grad(set_to_none=True)
    loss.backward()
    names = {name for name, p in agent.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    return {".".join(name.split(".")[:2]) if name.startswith("encoder") else name.split(".")[0] for name in names}


def weights(agent: PixelSAC) -> dict[str, torch.Tensor]:
    """A copy of all weights."""
    return {name: value.clone() for name, value in agent.state_dict().items()}


def changed(agent: PixelSAC, before: dict[str, torch.Tensor]) -> set[str]:
    """The parts of an agent that have other weights than `before`."""
    return {name.split(".")[0] for name, value in agent.state_dict().items() if not torch.equal(value, before[name])}
