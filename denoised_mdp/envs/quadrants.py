"""Assign each number of ``info["signal"]`` and ``info["noise"]`` to one of the paper's four kinds of information.

The kind says whether the agent can control the number and whether the reward depends on it (Wang et al. 2022, Figure 1
and Table D.1). The background, for instance, is irrelevant noise until a noisy sensor couples the reward to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch

import gymnasium as gym

from denoised_mdp.envs.distractors.base import distractors_of
from denoised_mdp.envs.factors import NOISE, QUADRANTS, RELEVANT_NOISE, SIGNAL


def quadrants_of(env: gym.Env) -> dict[str, str]:
    """Return name -> key of `QUADRANTS` for all names of the signal, then of the noise.

    The innermost world lists exceptions for its own numbers in `quadrants`, pattern -> quadrant. By default the
    signal is controllable and relevant, and the noise is neither.
    """
    env = env.unwrapped
    exceptions: Mapping[str, str] = getattr(env.world.unwrapped, "quadrants", {})
    found = {}
    for names, default in ((env.signal_names, SIGNAL), (env.noise_names, NOISE)):
        for name in names:
            found[name] = next((value for pattern, value in exceptions.items() if fnmatch(name, pattern)), default)
    sensor = distractors_of(env.world).get("noisy_sensor")
    if sensor is not None and sensor.scale > 0:
        coupled = ("noisy_sensor/", "video_background/")
        found |= {name: RELEVANT_NOISE for name in found if name.startswith(coupled)}
    return found


def quadrant_table(env: gym.Env) -> str:
    """Return `quadrants_of` as four cells of a row of a Markdown table, in the order of `QUADRANTS`.

    Names are grouped by the part before the slash. If a group is split, cells say how many of its names they hold.
    """
    counts: dict[str, dict[str, int]] = {quadrant: {} for quadrant in QUADRANTS}
    for name, quadrant in quadrants_of(env).items():
        group = name.split("/")[0]
        counts[quadrant][group] = counts[quadrant].get(group, 0) + 1

    def text(group: str, count: int) -> str:
        total = sum(cell.get(group, 0) for cell in counts.values())
        return f"`{group}/*`" + (f" ({count} of {total})" if count < total else "")

    return " | ".join(", ".join(text(*item) for item in cell.items()) or "-" for cell in counts.values())
