"""The environment of a configuration or a run; needs no PyTorch."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from denoised_mdp import envs
from denoised_mdp.config import read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import all_tasks, of_gymnasium
from denoised_mdp.envs.video import open_clips
from denoised_mdp.errors import UserError, did_you_mean, nearest
from denoised_mdp.run.folder import RunFolder, is_pretrained


def environment_maker(config: Config, split: str = "train", **options: Any) -> Callable[[], gym.Env]:
    """Return a picklable function without arguments that makes the run's environment with clips of `split`.

    options: arguments of `denoised_mdp.envs.make_env` that replace the run's own.
    """
    own = environment_options(config, split)
    return functools.partial(envs.make_env, own.pop("task"), **own | options)


def environment_options(config: Config, split: str = "train") -> dict[str, Any]:
    """The arguments of `denoised_mdp.envs.make_env` for a run's environment, including the task."""
    return dict(vars(config.env), distractors=config.distractors, split=split, clips_seed=config.seed)


def shows_clips(config: Config) -> bool:
    """Whether a run's environment shows clips."""
    return any(DISTRACTORS[name].shows_clips for name in config.distractors)


def refuse_no_clips(config: Config) -> None:
    """Raise UserError if a run's environment shows clips and there are none; no file is opened."""
    if shows_clips(config):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the environment repeats the warning
            open_clips(config.env.clips, "train", size=1, color=False, frames=1)


def other_worlds(config: Config) -> dict[str, tuple[Config, str]]:
    """Further environments in which to examine a trained agent: name -> (configuration, split of the clips).

    Unseen clips if the run shows clips, and no distractors if it has any that are not part of the task.
    """
    found = {"unseen clips": (config, "test")} if shows_clips(config) else {}
    bare = without_distractors(config)
    if bare.distractors != config.distractors:
        found["no distractors"] = (bare, "train")
    return found


def without_distractors(config: Config) -> Config:
    """The configuration with only those distractors that are part of the task."""
    kept = {name: options for name, options in config.distractors.items() if DISTRACTORS[name].part_of_task}
    return dataclasses.replace(config, distractors=kept)


def warn_without_clips(run: Path | str, config: Config, split: str) -> None:
    """Warn if held-out clips are requested for a run whose environment shows none."""
    if split in ("test", "across") and not shows_clips(config):
        warnings.warn(f"{run} shows no clips: --split {split} changes nothing.", stacklevel=3)


def make_env(source: str | os.PathLike, /, **options: Any) -> gym.Env:
    """Make the environment of a run, or of a task.

    >>> env = denoised_mdp.make_env("runs/quickstart")                  # as in training
    >>> env = denoised_mdp.make_env("runs/quickstart", split="test")    # with held-out clips
    >>> env = denoised_mdp.make_env("walker_walk", distractors=["camera_jitter"])

    A run's environment has its task, camera, size, action repeat, episode length, distractors and clips.

    Args:
        source: a run folder, ``pretrained:NAME``, or the name of a task. A task's name always means the task: write
            ``./cheetah_run`` for a folder of that name. With `suite`, it names a task of that suite.
        options: see `denoised_mdp.envs.make_env`; they replace the run's own.

    Returns:
        A `denoised_mdp.envs.pixels.PixelEnv`: a Gymnasium environment with observations uint8 [size, size, 3 or 6].

    Raises:
        UserError: there is no such run or task; or see `denoised_mdp.envs.make_env`.
    """
    takes = [name for name, one in inspect.signature(envs.make_env).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in takes:
            raise UserError(f"make_env has no option {name!r}.{did_you_mean(name, takes)}")
    known = all_tasks()
    if source in known or "suite" in options:  # a suite may have tasks that it cannot list
        return envs.make_env(source, **options)
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"make_env needs a run folder or the name of a task, not {source!r}.")
    if not is_pretrained(source) and not os.path.exists(os.path.expanduser(source)):
        if of_gymnasium(str(source)):
            hint = f"An environment of Gymnasium needs suite='gym': make_env({str(source)!r}, suite='gym')."
            raise UserError(f"{str(source)!r} is neither a run folder nor a task. {hint}")
        if near := nearest(str(source), known):
            raise UserError(f"{str(source)!r} is neither a run folder nor a task. Did you mean {near!r}?")
    return environment_maker(read_config(RunFolder.existing(source).config), **options)()
