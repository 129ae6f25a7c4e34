"""Invariance: how latents, actions and returns change when only the distractors change.

Episodes are replayed under several distractor seeds. This gives a grid: the same physics along rows, the same noise
along columns. In x, cells of a row should be close and cells of a column far apart; in y the reverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.data import Frozen, FrozenFeatures, as_batch, freeze, probe_seeds, record, replayed
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.factors import RELEVANT_NOISE
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import EvaluationResult, evaluate, standard_error
from denoised_mdp.models.latent import Latent
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode
from denoised_mdp.run.environments import environment_maker, other_worlds


@dataclass
class Distances:
    """Root mean squared distances of a representation in the grid."""

    other_noise: float
    """same physics, other distractors"""
    other_state: float
    """other physics, same distractors"""
    resampled: float
    """same images, but other posterior samples in earlier rows: the effect of chance alone"""

    @property
    def ratio(self) -> float:
        """0: ignores the distractors; 1: they move it as much as another state does; nan: another state does not."""
        return self.other_noise / self.other_state if self.other_state > 0 else float("nan")


@dataclass
class Invariance:
    """What `measure_invariance` found."""

    parts: dict[str, Distances]
    """distances of each latent, of all together, of the encoder's output and of the policy's action"""
    action_change: float
    """mean absolute change of an action (its range is 2) under other distractors; another discrete choice counts 2. An
    agent that hardly acts has a small one, too: `parts["action"].ratio` compares it with the change between states."""


def grid_distances(values: np.ndarray) -> tuple[float, float]:
    """Values [P, K, T, F] of P physics under K distractor seeds -> (other noise, other state).

    Root mean squared Euclidean distances at the same step, over all pairs of columns within a row and over all pairs
    of rows within a column.
    """
    pairs = (2 * np.var(values.astype(np.float64), axis=axis, ddof=1).sum(-1).mean() for axis in (1, 0))
    other_noise, other_state = (float(np.sqrt(square)) for square in pairs)  # E|a - b|^2 = 2 var for all pairs
    return other_noise, other_state


def record_grid(
    make_environment: Callable[[], gym.Env],
    agent: Agent | None,
    physics: int,
    worlds: int,
    steps: int,
    explore: float = 0.3,
) -> list[list[Episode]]:
    """Play `physics` episodes (random and agent in turn), then replay each under `worlds` distractor seeds.

    Without an agent, all actions are random, so every model sees the same grid. Row i, column k holds physics i under
    distractors k. All episodes are cut to the length of the shortest.

    Raises:
        UserError: the environment has no noise.
    """
    seeds, noise_seeds = probe_seeds(0, physics), probe_seeds(1, worlds)
    with contextlib.closing(make_environment()) as environment:
        if not environment.unwrapped.noise_names:
            raise UserError("This run's environment has no distractors, so there are none to change.")
        played = record(make_environment, seeds, steps, agent=agent, explore=explore)
        grid = []
        for seed, recording in track(list(zip(seeds, played, strict=True)), "other distractors", "episodes"):
            grid.append([replayed(environment, recording, seed, noise_seed) for noise_seed in noise_seeds])
    length = min(len(cell.observation) for row in grid for cell in row)
    return [[cell.first(length) for cell in row] for row in grid]


def measure_invariance(agent: Agent, grid: Sequence[Sequence[Episode]]) -> Invariance:
    """Distances of every part of the latent and of the policy's action over a grid from `record_grid`.

    All episodes are filtered with the same posterior noise, so they differ only in observations and actions. The states
    compared are posterior means (of classes, modes).
    """
    cells = [cell for row in grid for cell in row]
    shape = len(grid), len(grid[0])
    first, second = (freeze(agent, cells, seed=seed, shared_noise=True) for seed in (0, 1))
    parts = {}
    one, other = (_stack_means(frozen) for frozen in (first, second))
    actions = [_actions(agent, cells, frozen) for frozen in (first, second)]
    one["action"], other["action"] = actions
    for name, values in one.items():
        resampled = np.sqrt(np.square(values - other[name]).sum(-1).mean())
        parts[name] = Distances(*grid_distances(values.reshape(*shape, *values.shape[1:])), float(resampled))
    return Invariance(parts, _mean_change(agent, actions[0].reshape(*shape, *actions[0].shape[1:])))


def action_change(agent: Agent, grid: Sequence[Sequence[Episode]]) -> tuple[float, float]:
    """The part of `measure_invariance` that concerns the action: its change, and the ratio of its distances."""
    cells = [cell for row in grid for cell in row]
    actions = _actions(agent, cells, freeze(agent, cells, shared_noise=True))
    actions = actions.reshape(len(grid), len(grid[0]), *actions.shape[1:])  # [P, K, T, A]
    return _mean_change(agent, actions), Distances(*grid_distances(actions), math.nan).ratio


def _mean_change(agent: Agent, actions: np.ndarray) -> float:
    """`Invariance.action_change` of actions [P, K, T, A]."""
    k, m = np.triu_indices(actions.shape[1], 1)
    change = np.abs(actions[:, k] - actions[:, m]).mean()
    return float(change * (actions.shape[-1] if agent.actions.discrete else 1))


def _stack_means(frozen: Sequence[Frozen]) -> dict[str, np.ndarray]:
    """Belief and posterior mean of each part (without a world model: the features), [episodes, T, F]."""
    episodes = []
    for one in frozen:
        if isinstance(one, FrozenFeatures):
            episodes.append(one.parts())
            continue
        modes = torch.cat([posterior.mode() for posterior in one.posterior.values()], -1)  # [T, S]
        latent = Latent(one.latent.belief, modes, one.latent.layout)
        episodes.append(dataclasses.replace(one, latent=latent).parts())
    return {name: np.stack([parts[name] for parts in episodes]) for name in episodes[0]}


@torch.no_grad()
def _actions(agent: Agent, cells: Sequence[Episode], frozen: Sequence[Frozen]) -> np.ndarray:
    """The policy's action in every row, without sampling: [episodes, T, A]."""
    if isinstance(frozen[0], FrozenFeatures):
        return np.stack([agent.modes(as_batch(cell))[:, 0].float().cpu().numpy() for cell in cells])
    seen = agent.world_model.table.seen
    features = torch.stack([one.latent.select(seen).features() for one in frozen])  # [episodes, T, F]
    return agent.policy.modes(features.to(agent.device)).float().cpu().numpy()


def variations(config: Config) -> dict[str, tuple[Config, str]]:
    """Conditions to measure returns in: name -> (configuration, split of the clips); the first is as trained.

    The others change the `Distractor.scales` of one distractor each (twice, or half where twice is not allowed), or are
    `other_worlds`.
    """
    found = {"as trained": (config, "train")}
    for name, options in config.distractors.items():
        kind = DISTRACTORS[name]
        high = {field.name: field.metadata.get("high", math.inf) for field in dataclasses.fields(kind.Options)}
        scales = {key: options[key] for key in kind.scales if options.get(key)}
        if not scales:
            continue
        factor = 2 if all(2 * value <= high[key] for key, value in scales.items()) else 0.5
        scales = {key: factor * value for key, value in scales.items()}
        changed = config.distractors | {name: options | scales}
        label = " and ".join(f"{key} {value:g}" for key, value in scales.items())
        found[f"{name} at {label}"] = (dataclasses.replace(config, distractors=changed), "train")
    return found | other_worlds(config)


def reward_noise(environment: gym.Env) -> list[str]:
    """Distractors that the reward itself depends on: if they change, the same behaviour earns another return."""
    quadrants = environment.unwrapped.quadrants
    touching = (name for name in environment.unwrapped.noise_names if quadrants[name] == RELEVANT_NOISE)
    return [*dict.fromkeys(name.partition("/")[0] for name in touching)]


def returns_under(agent: Agent, config: Config, episodes: int) -> dict[str, EvaluationResult]:
    """Returns under all `variations` on the same physics seeds; actions are not sampled."""
    seeds = probe_seeds(2, episodes)
    conditions = track(list(variations(config).items()), "returns", "conditions")
    return {name: evaluate(agent, environment_maker(changed, split), seeds) for name, (changed, split) in conditions}


def paired_change(result: EvaluationResult, trained: EvaluationResult) -> tuple[float, float]:
    """Mean paired change of the return against `trained`, and its standard error."""
    change = np.subtract(result.returns, trained.returns)
    return float(change.mean()), standard_error(change)
