"""Play an environment, for ``doctor``, to test whether it repeats itself, as exact resume and fixed seeds require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.run.codec import decode, encode

HALF = 10
"""actions before and after the saved state"""

Moment = dict[str, Any]
"""what one step or reset shows"""


def unrepeatable(environment: gym.Env, seed: int) -> list[str]:
    """Play a few short episodes; return a sentence for each way in which they do not repeat.

    Episodes must be equal for equal seeds, even if frames are drawn in between, and equal from a saved state on. A
    difference that appears only later in an episode is not found.
    """
    rng, actions = np.random.default_rng(seed), Actions.of(environment.action_space)
    moves = [actions.random(rng) for _ in range(2 * HALF)]
    first = [_begin(environment, seed), *_play(environment, moves)]
    if found := _difference(first, [_begin(environment, seed), *_play(environment, moves)]):
        return [f"Episodes of one seed differ, in {found}: let reset(seed=...) restart every random stream."]
    problems, before = [], _begin(environment, seed)
    frames = [environment.render(), environment.render()]
    if not np.array_equal(*frames):
        problems.append("Two frames of one moment differ: let noise advance with steps, not while a frame is drawn.")
    elif found := _difference(first, [before, *_play(environment, moves)]):
        problems.append(f"Drawing a frame changes what follows, in {found}: let frame() advance nothing.")
    problem = _check_state(environment, moves, seed)
    return [*problems, problem] if problem else problems


def _check_state(environment: gym.Env, moves: Sequence[np.ndarray], seed: int) -> str | None:
    """Describe what is wrong with a state from the middle of an episode, as a checkpoint holds it; None if nothing."""
    _begin(environment, seed)
    _play(environment, moves[:HALF])
    tensors: dict[str, Any] = {}
    try:
        state = encode(environment.get_state(), "", tensors)
    except TypeError as error:
        return f"A resume will fail: {error} of the environment's state."
    expected = _play(environment, moves[HALF:])
    _begin(environment, seed + 1)
    _play(environment, moves[:HALF])
    try:
        environment.set_state(decode(state, tensors))
    except CannotRestore as error:
        return f"A resume will begin a new episode: {error}."
    if found := _difference(expected, _play(environment, moves[HALF:])):
        return f"A resumed run will differ, in {found}: let get_state hold, and set_state restore, all that decides it."
    return None


def _begin(environment: gym.Env, seed: int) -> Moment:
    observation, info = environment.reset(seed=seed)
    return {"the picture": observation, "the signal": info["signal"], "the noise": info["noise"]}


def _play(environment: gym.Env, moves: Sequence[np.ndarray]) -> list[Moment]:
    """What each move leads to; when an episode ends, the next begins."""
    moments = []
    for move in moves:
        observation, reward, *ends, info = environment.step(move)
        moment = {"the picture": observation, "the reward": reward, "the end": ends}
        moments.append(moment | {"the signal": info["signal"], "the noise": info["noise"]})
        if any(ends):
            environment.reset()
    return moments


def _difference(one: Sequence[Moment], other: Sequence[Moment]) -> str:
    """Name the parts that differ first; empty if none do."""
    for mine, theirs in zip(one, other, strict=True):
        parts = [name for name in mine if not np.array_equal(mine[name], theirs[name])]
        if parts:
            return " and ".join(parts)
    return ""
