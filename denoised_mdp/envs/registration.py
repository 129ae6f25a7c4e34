"""Gymnasium ids, one per task: ``denoised_mdp/walker_walk-v0``. RoboDesk tasks have the prefix ``robodesk_``.

Distractors are a keyword: ``gymnasium.make("denoised_mdp/walker_walk-v0", distractors=["camera_jitter"])``. Gymnasium
looks ids up in a table and has no hook for unknown ones, so every id with distractors in its name would have to be
registered: 3,061 of them.
"""

from __future__ import annotations

import gymnasium as gym

from denoised_mdp.envs.suites import SUITES
from denoised_mdp.plugins import without_plugins


@without_plugins()
def register_envs() -> None:
    """Register every task, except those of plug-ins; repeated calls do nothing.

    Keyword arguments of `gymnasium.make` go to `denoised_mdp.envs.make_env`.
    """
    for suite, info in SUITES.items():
        for task in info.tasks:
            name = f"robodesk_{task}" if suite == "robodesk" else task
            identity = f"denoised_mdp/{name}-v0"
            if identity not in gym.registry:
                options = {"task": task, "suite": suite}
                gym.register(identity, entry_point="denoised_mdp.envs:make_env", kwargs=options)
