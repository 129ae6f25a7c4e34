"""Episodes: recording them, and playing one in a single environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.acting import Carry, LatentCarry
from denoised_mdp.envs.actions import Actions
from denoised_mdp.errors import blamed
from denoised_mdp.models.latent import Latent


@dataclass
class Episode:
    """A recorded episode of n actions. Row t holds the action that led to observation t; the first is zero."""

    observation: np.ndarray
    """uint8 [n + 1, H, W, 3]"""
    action: np.ndarray
    """float32 [n + 1, A]"""
    signal: np.ndarray
    """ground truth of the signal, float32 [n + 1, S]"""
    noise: np.ndarray
    """ground truth of the noise, float32 [n + 1, N]"""
    latent: Latent | None = None
    """posterior samples of the agent that played, [n + 1, D] and [n + 1, S], on the CPU"""

    def first(self, rows: int) -> Episode:
        """Return the first `rows` rows of the episode."""
        arrays = (value[:rows] for value in (self.observation, self.action, self.signal, self.noise))
        return Episode(*arrays, latent=None if self.latent is None else self.latent.map(lambda tensor: tensor[:rows]))


class Recorder:
    """Collects an `Episode`, one row at a time."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []

    def add(
        self,
        observation: np.ndarray,
        info: Mapping[str, Any],
        action: np.ndarray,
        carry: Carry | None = None,
        index: int = 0,
    ) -> None:
        """Add an observation and the action that led to it. carry: after this observation; `index`: its environment."""
        latent = None
        if isinstance(carry, LatentCarry):
            latent = carry.latent.map(lambda tensor: tensor[index].cpu().clone())
        self.rows.append((observation, action, info["signal"], info["noise"], latent))

    def episode(self) -> Episode:
        """Return the episode recorded so far."""
        *columns, latents = zip(*self.rows, strict=True)
        latent = None if latents[0] is None else latents[0].map(lambda *rows: torch.stack(rows), *latents[1:])
        return Episode(*map(np.stack, columns), latent=latent)


class Row(NamedTuple):
    """An observation and the action that led to it; an episode's first row has a zero action."""

    observation: np.ndarray
    """uint8 [H, W, 3]"""
    info: Mapping[str, Any]
    action: np.ndarray
    """float32 [A]"""
    reward: float = 0.0
    last: bool = False
    """whether the episode ends here"""


def rows(
    environment: gym.Env, seed: int, act: Callable[[np.ndarray, Mapping[str, Any]], np.ndarray], count: int
) -> Iterator[Row]:
    """Play and yield `count` rows from ``environment.reset(seed=seed)``; when an episode ends, another begins.

    act: (observation, info) -> action.

    Raises:
        EnvironmentFailure: the environment failed.
    """
    still = Actions.of(environment.action_space).none()
    task = (getattr(environment.unwrapped, "recipe", None) or {}).get("task", "environment")
    playing = f"{task} raised an error in the episode of seed {seed}, or in one after it"
    with blamed(playing):
        row = Row(*environment.reset(seed=seed), still)
    yield row
    for _ in range(count - 1):
        if row.last:
            with blamed(playing):
                row = Row(*environment.reset(), still)
        else:
            action = act(row.observation, row.info)
            with blamed(playing):
                observation, reward, terminated, truncated, info = environment.step(action)
            row = Row(observation, info, action, float(reward), terminated or truncated)
        yield row


def play(environment: gym.Env, seed: int, act: Callable[[np.ndarray], np.ndarray], steps: int) -> Episode:
    """Play one episode of at most `steps` actions from ``environment.reset(seed=seed)``; act: observation -> action."""
    recorder = Recorder()
    for row in rows(environment, seed, lambda observation, _: act(observation), steps + 1):
        recorder.add(row.observation, row.info, row.action)
        if row.last:
            break
    return recorder.episode()
