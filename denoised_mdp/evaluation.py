"""Evaluation on held-out episodes: fixed, distinct seeds; training's random streams stay untouched."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.config import read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.config.training import EVALUATED_AT_ONCE
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import UserError
from denoised_mdp.options import check_whole
from denoised_mdp.progress import Phase
from denoised_mdp.rollout import Episode, Recorder
from denoised_mdp.run.environments import environment_maker, warn_without_clips
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run
from denoised_mdp.run.state import choosing_episodes
from denoised_mdp.seeding import episode_seeds


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; nan for one value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


@dataclass
class EvaluationResult:
    """Undiscounted returns of held-out episodes, in the order of the seeds."""

    returns: list[float]
    seeds: list[int]
    episodes: list[Episode] = field(default_factory=list)
    step: int | None = None
    """step of the weights, if they are a run's"""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; nan for one episode."""
        return standard_error(self.returns)


def evaluation_seeds(seed: int, episodes: int, after: int = 0) -> list[int]:
    """Return the seeds of evaluation episodes, see `seeding.episode_seeds`.

    after: number of first seeds to skip, those by which a checkpoint was chosen.
    """
    return episode_seeds(seed, "evaluation", after + episodes)[after:]


def held_out_seeds(run: RunFolder, config: Config, episodes: int, checkpoint: int | str | None = None) -> list[int]:
    """Return seeds of a run's held-out episodes, skipping those that may have chosen the weights of `checkpoint`."""
    return evaluation_seeds(config.seed, episodes, choosing_episodes(run, config.train.eval_episodes, checkpoint))


def evaluate(
    agent: Agent | None,
    make_environment: Callable[[], gym.Env],
    seeds: Sequence[int],
    *,
    record: int = 0,
    max_steps: int | None = None,
    explore: float | None = None,
    workers: int = 0,
    kind: str = "process",
) -> EvaluationResult:
    """Play one episode per seed and return what it earned.

    All randomness of an episode comes from its own seed, whatever is played beside it.

    agent: acts without sampling actions (the latent is a posterior sample), or, with `explore`, as during collection
    (see `Agent.act`); None: uniform random actions. record: number of first episodes to record. max_steps: stop after
    that many actions. workers, kind: what runs the environments (see `EnvironmentPool`); they affect only the time.

    Raises:
        EnvironmentFailure: an environment failed, died or hung.
        UserError: no seeds.
    """
    if not len(seeds):
        raise UserError("There is nothing to evaluate: give at least one episode.")
    returns, recorders = [0.0] * len(seeds), []
    parallel = min(EVALUATED_AT_ONCE, len(seeds))
    task = next(iter(getattr(make_environment, "args", ())), "environment")
    what = "evaluating" if max_steps is None else "playing"
    with (
        Phase(what, len(seeds), "episodes") as phase,
        EnvironmentPool(make_environment, parallel, workers=workers, kind=kind, task=str(task)) as pool,
    ):
        for begin in range(0, len(seeds), parallel):
            chunk = list(seeds[begin : begin + parallel])
            group = [Recorder() if begin + i < record else None for i in range(len(chunk))]
            returns[begin : begin + len(chunk)] = _play(agent, pool, chunk, group, max_steps, explore, phase)
            recorders += [recorder for recorder in group if recorder is not None]
    return EvaluationResult(returns, list(seeds), [recorder.episode() for recorder in recorders])


def _play(
    agent: Agent | None,
    pool: EnvironmentPool,
    seeds: list[int],
    recorders: list[Recorder | None],
    max_steps: int | None,
    explore: float | None,
    phase: Phase,
) -> list[float]:
    """Play one episode per environment in lockstep; an environment that has ended waits for the others.

    phase: counts the episodes that have ended.
    """
    n = len(seeds)
    recorders = list(recorders)
    noise = [torch.Generator(agent.device if agent else "cpu").manual_seed(seed) for seed in seeds]
    rngs = [np.random.default_rng(seed) for seed in seeds]
    observations, infos = map(list, zip(*pool.reset(seeds), strict=True))
    returns, ended, carry, before = [0.0] * n, [False] * n, None, phase.done
    led = np.stack([pool.actions.none()] * n)  # the actions that led to the observations
    for step in itertools.count():
        phase.update(before + sum(ended), f"action {step:,}")
        if agent is None:
            actions = np.stack([pool.actions.random(rng) for rng in rngs])
        else:
            actions, carry = agent.act(np.stack(observations), carry, explore=explore, generator=noise)
        for i, recorder in enumerate(recorders):
            if recorder is not None:
                recorder.add(observations[i], infos[i], led[i], carry, i)
                recorders[i] = None if ended[i] else recorder
        if all(ended) or step == max_steps:
            return returns
        for i, row in enumerate(pool.step([None if ended[i] else actions[i] for i in range(n)])):
            if row is not None:
                observations[i], reward, terminated, truncated, infos[i] = row
                returns[i] += float(reward)
                ended[i] = terminated or truncated
        led = actions


def evaluate_run(
    run: Path | str,
    *,
    episodes: int = 10,
    split: str = "train",
    seed: int | None = None,
    checkpoint: int | str | None = None,
    random: bool = False,
    device: str = "auto",
    workers: int = 0,
) -> EvaluationResult:
    """Evaluate a run's checkpoint (default: the newest).

    split: background clips seen in training ("train") or held out ("test"). seed: of the episodes; the default, the
    run's own, gives the episodes of the evaluations in training. If those may have chosen the weights (the "best" or
    an exported agent's), the episodes after them are played instead. random: play a uniform random policy on the same
    episodes; no checkpoint is read, and the result has no step. workers: see `evaluate`.

    Raises:
        UserError: there is no such run, checkpoint or split, or a number is not whole or too small.
        EnvironmentFailure: see `evaluate`.
    """
    check_whole("episodes", episodes, 1)
    check_whole("workers", workers, 0)
    if seed is not None:
        check_whole("seed", seed, 0)
    folder = RunFolder.existing(run)
    if random:
        config, agent, step = read_config(folder.config), None, None
    else:
        config, agent, step = load_run(run, checkpoint=checkpoint, device=device)
        warn_without_clips(run, config, split)
    if seed is None or seed == config.seed:
        seeds = held_out_seeds(folder, config, episodes, checkpoint)
    else:
        seeds = evaluation_seeds(seed, episodes)
    result = evaluate(agent, environment_maker(config, split), seeds, workers=workers)
    return dataclasses.replace(result, step=step)
