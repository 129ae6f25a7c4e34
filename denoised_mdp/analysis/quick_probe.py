"""A small factor matrix during training: curves of what each latent holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.crossfit import random_divisions
from denoised_mdp.analysis.data import freeze, probe_seeds, record
from denoised_mdp.analysis.factors import REFERENCES, factor_matrix, stack, targets_of
from denoised_mdp.envs.factors import factors


class QuickProbe:
    """A quick probe during training: ridge regression on a few fixed episodes.

    They are played once with random actions, so the curves show the model's progress and not the policy's.
    """

    episodes, steps = 12, 150

    def __init__(self, make_environment: Callable[[], gym.Env]):
        with contextlib.closing(make_environment()) as environment:
            self._factors = factors(environment)
        self._recordings = record(make_environment, probe_seeds(0, self.episodes), self.steps, behaviour="random")

    def __call__(self, agent: Agent) -> dict[str, float]:
        """Mean R^2 of signal and of noise from each latent, e.g. ``probe/noise_from_x``, and the ceilings.

        They show a trend: `probe factors`, which measures recall and leakage, is far larger.
        Values that so few episodes cannot support are left out.
        """
        parts, episode = stack(freeze(agent, self._recordings))
        targets = targets_of(self._factors, self._recordings)
        matrix = factor_matrix(parts, targets, episode, random_divisions(self.episodes), ["ridge"], seen=agent.seen)
        names = dict.fromkeys([*(name for name in parts if name not in REFERENCES), agent.seen])
        scores = {}
        for source in ("signal", "noise"):
            scores |= {f"probe/{source}_from_{name}": matrix.summary("ridge", name, source).value for name in names}
            scores[f"probe/{source}_ceiling"] = matrix.ceiling("ridge", source).value
        return {name: value for name, value in scores.items() if np.isfinite(value)}
