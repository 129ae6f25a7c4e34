"""From a run folder to a living agent and its environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym

from . import checkpoint as checkpoints
from .agent import Agent, build_agent
from .config import read_config
from .envs import make_env
from .errors import UserError
from .runs import RunFolder
from .runtime import resolve_device, resolve_precision
from .schema import Config


def environment_maker(config: Config, split: str = "train") -> Callable[[], gym.Env]:
    """A function without arguments (picklable) that makes the run's environment with clips of `split`."""
    options = dict(vars(config.env), distractors=config.distractors, split=split, clips_seed=config.seed)
    return functools.partial(make_env, options.pop("task"), **options)


def load_run(run: Path | str, *, checkpoint: int | None = None, device: str = "auto") -> tuple[Config, Agent, int]:
    """A run's configuration, its agent with the weights of a checkpoint (default: the newest) and that one's step."""
    folder = RunFolder.existing(run)
    config = read_config(folder.config)
    step, state = checkpoints.load(folder.checkpoints, checkpoint)
    where = resolve_device(device)
    dtype = resolve_precision(config.train.precision, where, deterministic=config.train.deterministic)
    agent = build_agent(config, state["action_size"], device=where, dtype=dtype)
    try:
        agent.restore(state["agent"], weights_only=True)
    except (RuntimeError, KeyError) as error:
        raise UserError(
            f"The weights in {folder.checkpoints} do not fit the model in {folder.config}: one of them was replaced."
            " Restore the run folder from a copy."
        ) from error
    return config, agent.eval(), step


def load(run: Path | str, *, checkpoint: int | None = None, device: str = "auto") -> Agent:
    """Load the agent of a run folder, ready to act.

    >>> agent = denoised_mdp.load("runs/quickstart")
    >>> action, carry = agent.act(observation, carry)   # carry=None begins an episode

    observation: uint8 [H, W, 3] or [B, H, W, 3]; action: float32 [A] or [B, A] in [-1, 1].

    Args:
        run: the run folder. checkpoint: a step (default: the newest). device: auto, cpu, cuda or cuda:N.

    Raises:
        UserError: there is no such run, or no whole checkpoint in it.
    """
    return load_run(run, checkpoint=checkpoint, device=device)[1]
