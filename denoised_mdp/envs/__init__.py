"""Environments: `make_env` builds any of them. Nothing here depends on the agent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import gymnasium as gym

from denoised_mdp.envs.options import DISTRACTORS, SUITES, check_distractors, named_distractors, tasks
from denoised_mdp.envs.registration import register_envs
from denoised_mdp.errors import UserError, did_you_mean

MAX_SIZE = 4096

__all__ = ["DISTRACTORS", "check_distractors", "make_env", "register_envs", "tasks"]


def make_env(
    task: str,
    *,
    suite: str = "dmc",
    distractors: Mapping[str, Mapping | None] | Iterable[str] | None = None,
    size: int = 64,
    action_repeat: int = 2,
    episode_steps: int = 1000,
    camera: int | str = 0,
    quality: str = "fast",
    reward: str = "dense",
    clips: str | os.PathLike = "procedural",
    split: str = "train",
    clips_seed: int = 0,
    seed: int | None = None,
    render_mode: str | None = "rgb_array",
) -> gym.Env:
    """Build an environment with pixel observations and any distractors.

    Args:
        task: 'domain_task' of the DeepMind Control Suite, or a task of suite "robodesk" or "toy", see `tasks`.
        suite: "dmc", "robodesk" or "toy".
        distractors: name -> options, e.g. ``{"video_background": {"color": True}, "camera_jitter": {}}``; see
            `DISTRACTORS`. Names also work: ``["video_background", "camera_jitter"]``. The order of application is
            fixed.
        size: height and width of the observation in pixels.
        action_repeat: inner steps per action.
        episode_steps: inner steps per episode.
        camera, quality: see `denoised_mdp.envs.rendering.Renderer`.
        reward: "dense", "sparse" or "success" for suite "robodesk"; others have one reward, "dense".
        clips, split: see `denoised_mdp.envs.video.open_clips`.
        clips_seed: chooses the clips of the background for all episodes. An episode's own seed chooses where it
            starts in them.
        seed: seed of the first reset without one.
        render_mode: only "rgb_array", which `gymnasium.make` passes.

    Returns:
        A `denoised_mdp.envs.pixels.PixelEnv`: Gymnasium, observations uint8 [size, size, 3].

    Raises:
        UserError: a name, option or value that does not exist, or a distractor that does not fit the task.
    """
    distractors = named_distractors(distractors)
    clips = os.fspath(clips) if isinstance(clips, os.PathLike) else clips
    recipe = dict(locals())
    from denoised_mdp.envs.pixels import PixelEnv
    from denoised_mdp.envs.video import check_split

    for name, number in (("size", size), ("action_repeat", action_repeat), ("episode_steps", episode_steps)):
        _check_whole(name, number, 1)
    if size > MAX_SIZE:
        raise UserError(f"size must be at most {MAX_SIZE}, not {size}: not every renderer draws larger pictures.")
    _check_whole("clips_seed", clips_seed, 0)
    if seed is not None:
        _check_whole("seed", seed, 0)
    if not isinstance(clips, str):
        raise UserError(f"clips must be a text or a path, such as 'procedural' or a folder, not {clips!r}.")
    check_split(split)
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"There is no render_mode {render_mode!r}: use 'rgb_array'.")
    if task not in (known := tasks(suite)):
        for other in SUITES:
            if task in tasks(other):
                hint = f"choose suite {other!r} (env={other} on the command line)."
                raise UserError(f"Task {task!r} is none of suite {suite!r}: {hint}")
        raise UserError(f"Unknown task {task!r}.{did_you_mean(str(task), known)}")
    if reward != "dense" and suite != "robodesk":
        raise UserError(f"Suite {suite!r} has no choice of rewards: reward must be 'dense', not {reward!r}.")
    chosen = check_distractors(distractors, task, suite)
    if suite == "toy":
        from denoised_mdp.envs.toy import CountingEnv, TerminatingToyEnv, ToyEnv

        worlds = {"dot": ToyEnv, "dot_terminating": TerminatingToyEnv, "counting": CountingEnv}
        world = worlds[task](size, episode_steps)
    elif suite == "robodesk":
        from denoised_mdp.envs.robodesk.env import RoboDeskEnv

        world = RoboDeskEnv(task, reward, size, episode_steps, camera, quality, television="tv" in chosen)
    else:
        from denoised_mdp.envs.dmc import DMCEnv

        world = DMCEnv(task, size, episode_steps, camera, quality)
    for name, options in chosen.items():
        if DISTRACTORS[name].shows_clips:
            options = {**options, "clips": clips, "split": split, "clips_seed": clips_seed}
        world = DISTRACTORS[name](world, **options)
    return PixelEnv(world, action_repeat, seed, recipe)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}.")
