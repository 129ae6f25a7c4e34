"""Held-out episodes, and the latents that a frozen model infers from them.

Episodes are recorded once and filtered afterwards, so several models can be probed on the same ones. The random
numbers of training are not affected: environments are new, and all noise comes from separate generators.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.paired import replay
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.rssm import Distributions
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode, play
from denoised_mdp.seeding import episode_seeds, generator, torch_seed

FRAMES, DECODED = 1024, 256
"""images encoded and decoded at once, to bound memory"""
BEHAVIOURS = ("agent", "random", "mixed")


class Frozen(ABC):
    """An agent's representation of an episode of n actions, on the CPU."""

    @abstractmethod
    def parts(self) -> dict[str, np.ndarray]:
        """The features that a probe may read, by name: float [n + 1, F] each."""


@dataclass
class FrozenFeatures(Frozen):
    """The features of an agent without a world model, see `Agent.representations`."""

    features: dict[str, torch.Tensor]
    """[n + 1, F] each"""

    def parts(self) -> dict[str, np.ndarray]:
        """See `Frozen.parts`."""
        return {name: part.numpy() for name, part in self.features.items()}


@dataclass
class FrozenLatents(Frozen):
    """A model's latents for an episode of n actions, on the CPU."""

    latent: Latent
    """posterior samples [n + 1, ...]"""
    posterior: Distributions
    """of each latent, [n + 1, ...]"""
    prior: Distributions
    """of each latent, [n + 1, ...]"""
    embedding: torch.Tensor
    """the encoder's output [n + 1, E]"""

    def parts(self) -> dict[str, np.ndarray]:
        """The features that a probe may read: `Latent.parts` and the encoder's output."""
        return {name: part.numpy() for name, part in self.latent.parts().items()} | {"encoder": self.embedding.numpy()}


def probe_seeds(seed: int, episodes: int) -> list[int]:
    """Distinct episode seeds for probes; see `seeding.episode_seeds`."""
    return episode_seeds(seed, "probe", episodes)


def record(
    make_environment: Callable[[], gym.Env],
    seeds: Sequence[int],
    steps: int,
    *,
    agent: Agent | None = None,
    explore: float = 0.3,
    behaviour: str = "mixed",
) -> list[Episode]:
    """Record one episode per seed, of at most `steps` actions.

    behaviour: "agent" explores as in collection, with noise of std `explore`; "random" acts uniformly at random;
    "mixed" alternates, random first. Random actions give every model the same episodes; a mixture shows more of
    what the body can do. Each episode depends only on its own seed.
    """
    if behaviour not in BEHAVIOURS:
        raise ValueError(f"behaviour must be one of {', '.join(BEHAVIOURS)}, not {behaviour!r}")
    chosen = {"agent": [agent], "random": [None], "mixed": [None, agent]}[behaviour]
    with contextlib.closing(make_environment()) as environment:  # one: acting for several at once saves less
        players = itertools.cycle(chosen)  # than switching between renderers costs
        tracked = track(seeds, "recording", "episodes")
        return [_play(environment, seed, steps, next(players), explore) for seed in tracked]


def _play(environment: gym.Env, seed: int, steps: int, agent: Agent | None, explore: float) -> Episode:
    """Play one episode, with random actions if there is no agent."""
    random = generator(seed, "probe actions")
    noise = _torch_generator(agent.device if agent else "cpu", seed, "probe actions")
    actions, carry = Actions.of(environment.action_space), None

    def act(observation: np.ndarray) -> np.ndarray:
        nonlocal carry
        if agent is None:
            return actions.random(random)
        action, carry = agent.act(observation, carry, explore=explore, generator=noise)
        return action

    return play(environment, seed, act, steps)


def replayed(environment: gym.Env, episode: Episode, seed: int, noise_seed: int) -> Episode:
    """Replay an episode, whose own seed is `seed`, with the same physics under the distractors of `noise_seed`."""
    rollout = replay(environment, episode.action[1:], seed, noise_seed)
    return Episode(rollout.observation, episode.action, rollout.signal, rollout.noise)


def _torch_generator(device: torch.device | str, seed: int, name: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(torch_seed(seed, name))


@torch.no_grad()
def freeze(
    agent: Agent, recordings: Sequence[Episode], *, seed: int = 0, shared_noise: bool = False, sample: bool = True
) -> list[Frozen]:
    """Filter recorded episodes with the posterior, in chunks of rows; without a world model, read the features.

    seed: of the posterior samples. shared_noise: all episodes get the same draws, so latents of the same step differ
    only because of what their episodes showed. sample: False filters with the posterior mean (of classes, the mode).
    """
    random = _torch_generator(agent.device, seed, "probe filter")
    if not isinstance(agent, WorldModelAgent):
        begin, found = random.get_state(), []
        for recording in track(recordings, "reading", "episodes"):
            if shared_noise:
                random.set_state(begin)
            parts = agent.representations(as_batch(recording), random, sample=sample)
            found.append(FrozenFeatures({name: part[:, 0].float().cpu() for name, part in parts.items()}))
        return found
    model = agent.world_model
    longest = max(len(recording.observation) for recording in recordings)
    chunk = max(1, FRAMES // len(recordings))
    width = 1 if shared_noise else len(recordings)  # drawn row by row: the first rows do not depend on the length
    if sample:
        drawn = torch.stack([model.draw_noise(width, generator=random) for _ in range(longest)])  # [T, B or 1, S]
    else:
        drawn = model.mean_noise(longest, width)  # [T, B or 1, S]
    rows, latent = [], None
    for begin in track(range(0, longest, chunk), "filtering", "chunks of rows"):
        pick = [np.clip(np.arange(begin, min(begin + chunk, longest)), 0, len(r.action) - 1) for r in recordings]
        batch = agent.to_device(
            {
                "observation": np.stack([r.observation[at] for r, at in zip(recordings, pick, strict=True)], 1),
                "action": np.stack([r.action[at] for r, at in zip(recordings, pick, strict=True)], 1),
            }
        )  # [T, B, ...]; an episode that has ended repeats its last row, which is cut off below
        length, count = batch["action"].shape[:2]
        is_first = torch.zeros(length, count, dtype=torch.bool, device=agent.device)
        is_first[0] = begin == 0
        noise = drawn[begin : begin + length].expand(length, count, -1)
        initial = None if latent is None else latent.map(lambda tensor: tensor[-1])
        filtered = model.filter(batch["observation"], batch["action"], is_first, noise, initial)
        latent = filtered.latent
        rows.append(filtered.map(lambda tensor: tensor.float().cpu()))
    whole = rows[0].map(lambda *parts: torch.cat(parts), *rows[1:])  # each [longest, B, ...]
    return [
        FrozenLatents(**vars(whole.map(lambda tensor, i=i, rows=rows: tensor[:rows, i].clone())))
        for i, rows in enumerate(len(recording.action) for recording in recordings)
    ]


@torch.no_grad()
def decode(
    agent: WorldModelAgent, latent: Latent, draw: Callable[[Latent], torch.Tensor] | None = None
) -> torch.Tensor:
    """Latents [n, ...] -> float images [n, 3, H, W] on the CPU; draw: replaces `WorldModel.decode`."""
    draw, like = draw or agent.world_model.decode, next(agent.world_model.parameters())
    parts = []
    for begin in range(0, len(latent.belief), DECODED):
        part = latent.map(lambda tensor, begin=begin: tensor[begin : begin + DECODED].to(like))
        parts.append(draw(part).float().cpu())
    return torch.cat(parts)


def as_batch(recording: Episode) -> dict[str, np.ndarray]:
    """One whole episode as a batch [T, 1, ...] for `Agent.representations`."""
    batch = {"observation": recording.observation[:, None], "action": recording.action[:, None]}
    return batch | {"is_first": np.arange(len(recording.action))[:, None] == 0}
