"""Environments: `make_env` builds any of them. Nothing here depends on the agent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

from denoised_mdp.envs.options import DISTRACTORS, check_distractors, named_distractors
from denoised_mdp.envs.registration import register_envs
from denoised_mdp.envs.suites import USUAL, check_reward, check_task, find_suite, tasks
from denoised_mdp.errors import UserError
from denoised_mdp.options import check_whole

MIN_SIZE, MAX_SIZE = 4, 4096

__all__ = ["DISTRACTORS", "check_distractors", "make_env", "register_envs", "tasks"]


def make_env(
    task: str,
    *,
    suite: str = "dmc",
    distractors: Mapping[str, Mapping | None] | Iterable[str] | None = None,
    size: int | None = None,
    action_repeat: int | None = None,
    episode_steps: int | None = None,
    camera: int | str = 0,
    quality: str = "fast",
    reward: str = "dense",
    clips: str | os.PathLike = "procedural",
    split: str = "train",
    clips_seed: int = 0,
    seed: int | None = None,
    render_mode: str | None = "rgb_array",
    foreground: bool = False,
) -> gym.Env:
    """Build an environment with pixel observations and any distractors.

    Args:
        task: a task of the suite, see `tasks`: 'domain_task' of the DeepMind Control Suite.
        suite: "dmc", "robodesk", "toy", "gym", or a name registered with `denoised_mdp.envs.suites.register_suite`.
        distractors: name -> options, e.g. ``{"video_background": {"color": True}, "camera_jitter": {}}``; see
            `DISTRACTORS`. A list of names also works: ``["video_background", "camera_jitter"]``. The order of
            application is fixed.
        size, action_repeat, episode_steps: height and width of the observation in pixels, inner steps per action, and
            inner steps per episode. None: the suite's default, else 64, 2 and 1000, as on the command line.
        camera, quality: see `denoised_mdp.envs.rendering.Renderer`; "toy" and "gym" ignore both.
        reward: "dense", "sparse" or "success" for suite "robodesk"; the other built-in suites accept only "dense".
        clips, split: see `denoised_mdp.envs.video.open_clips`.
        clips_seed: selects the background clips for all episodes. Where an episode starts in them depends on its
            own seed.
        seed: seed of the first reset without one.
        render_mode: only "rgb_array", which `gymnasium.make` passes.
        foreground: add three channels that show the same picture on black, cut out by the exact matte, whichever
            matte a video uses. Camera jitter, colours and lights are included.

    Returns:
        A `denoised_mdp.envs.pixels.PixelEnv`: Gymnasium, observations uint8 [size, size, 3 or 6].

    Raises:
        UserError: an unknown name or option, an invalid value, or a distractor that does not fit the task.
    """
    distractors = named_distractors(distractors)
    clips = os.fspath(clips) if isinstance(clips, os.PathLike) else clips
    size, action_repeat, episode_steps = _completed(
        suite, size=size, action_repeat=action_repeat, episode_steps=episode_steps
    )
    recipe = dict(locals())

    _check_numbers(size, action_repeat, episode_steps, clips_seed, seed)
    _check_clips(clips, split)
    if not isinstance(foreground, bool):
        raise UserError(f"foreground must be True or False, not {foreground!r}.")
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"There is no render_mode {render_mode!r}: use 'rgb_array'.")
    check_task(task, suite)
    check_reward(reward, suite)
    chosen = check_distractors(distractors, task, suite)
    world = find_suite(suite).world(task, recipe | {"distractors": tuple(chosen)})
    try:
        return _as_seen(world, chosen, recipe)
    except BaseException:
        world.close()
        raise


def _completed(suite: str, **numbers: int | None) -> list[int]:
    """Return the numbers, with None replaced by the suite's default or else by the usual one."""
    usual = USUAL | dict(find_suite(suite).options)
    return [usual[name] if number is None else number for name, number in numbers.items()]


def _as_seen(world: gym.Env, chosen: Mapping[str, Mapping[str, Any]], recipe: Mapping[str, Any]) -> gym.Env:
    """Wrap a world in the `chosen` distractors and a `PixelEnv`; `recipe`: the arguments of `make_env`."""
    from denoised_mdp.envs.pixels import PixelEnv

    if recipe["foreground"] and not hasattr(world, "frame_and_background"):
        raise UserError(
            f"Task {recipe['task']!r} of suite {recipe['suite']!r} does not know which pixels are background: leave"
            " model.target=observation."
        )
    for name, options in chosen.items():
        kind = DISTRACTORS[name]
        if missing := [part for part in kind.needs if not hasattr(world.unwrapped, part)]:
            raise UserError(f"Distractor {name} needs {missing[0]!r}, which worlds of {recipe['suite']!r} do not have.")
        clips = {key: recipe[key] for key in ("clips", "split", "clips_seed")} if kind.shows_clips else {}
        world = kind(world, **options, **clips)
    return PixelEnv(world, recipe["action_repeat"], recipe["seed"], recipe, recipe["foreground"])


def _check_numbers(size: Any, action_repeat: Any, episode_steps: Any, clips_seed: Any, seed: Any) -> None:
    """Refuse arguments of `make_env` that are not whole numbers or are out of range."""
    for name, number in (("size", size), ("action_repeat", action_repeat), ("episode_steps", episode_steps)):
        check_whole(name, number, 1)
    if not MIN_SIZE <= size <= MAX_SIZE:  # brightness needs a 4 x 4 grid; not every renderer draws larger pictures
        raise UserError(f"size must be at least {MIN_SIZE} and at most {MAX_SIZE}, not {size}.")
    check_whole("clips_seed", clips_seed, 0)
    if seed is not None:
        check_whole("seed", seed, 0)


def _check_clips(clips: Any, split: Any) -> None:
    """Refuse values that cannot name clips. Whether clips exist and can be read is checked when they are opened."""
    from denoised_mdp.envs.video_files import check_split

    if not isinstance(clips, str) or not clips.strip():  # an empty path would be the working directory
        raise UserError(f"clips must be a text or a path, such as 'procedural' or a folder, not {clips!r}.")
    check_split(split)
