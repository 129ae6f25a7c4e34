"""Gymnasium ids ``denoised_mdp/<task>[-<distractor>...]-v0``: denoised_mdp/walker_walk-camera_jitter-v0."""

from __future__ import annotations

from itertools import combinations

import gymnasium as gym

from denoised_mdp.envs.options import DISTRACTORS, check_distractors, tasks
from denoised_mdp.errors import UserError


def register_envs() -> None:
    """Register every task with every set of distractors that fits it; repeated calls do nothing.

    Keyword arguments of `gymnasium.make` go to `denoised_mdp.envs.make_env`.
    """
    subsets = [names for count in range(len(DISTRACTORS) + 1) for names in combinations(DISTRACTORS, count)]
    for suite in ("dmc", "toy"):
        for task in tasks(suite):
            for names in subsets:
                _register(suite, task, names)


def _register(suite: str, task: str, names: tuple[str, ...]) -> None:
    distractors = {name: {} for name in names}
    try:
        check_distractors(distractors, task, suite)
    except UserError:
        return
    identity = f"denoised_mdp/{'-'.join([task, *names])}-v0"
    if identity not in gym.registry:
        gym.register(
            identity,
            entry_point="denoised_mdp.envs:make_env",
            kwargs={"task": task, "suite": suite, "distractors": distractors},
        )
