"""Gymnasium ids ``denoised_mdp/<task>[-<distractor>...]-v0``: denoised_mdp/walker_walk-camera_jitter-v0.

Tasks of RoboDesk begin with its name: denoised_mdp/robodesk_tv_green_hue-tv-camera_shake-v0.
"""

from __future__ import annotations

from itertools import combinations

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from denoised_mdp.envs.options import fitting_distractors, tasks


def register_envs() -> None:
    """Register every task with every set of distractors that fits it; repeated calls do nothing.

    Keyword arguments of `gymnasium.make` go to `denoised_mdp.envs.make_env`.
    """
    for suite in ("dmc", "robodesk", "toy"):
        for task in tasks(suite):
            fitting = fitting_distractors(suite, task)
            for count in range(len(fitting) + 1):
                for names in combinations(fitting, count):
                    if "noisy_sensor" not in names or "video_background" in names:
                        _register(suite, task, names)


def _register(suite: str, task: str, names: tuple[str, ...]) -> None:
    options = {"task": task, "suite": suite, "distractors": {name: {} for name in names}}
    if suite == "robodesk":
        task, options["size"] = f"robodesk_{task}", 96
    identity = f"denoised_mdp/{'-'.join([task, *names])}-v0"
    if identity not in gym.registry:
        # Not by `gym.register`, which looks through the whole registry each time: thousands of ids would take seconds.
        spec = EnvSpec(identity, entry_point="denoised_mdp.envs:make_env", kwargs=options)
        gym.registry[identity] = spec
