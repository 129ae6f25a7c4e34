"""Equivalence measured with the simulator: which rewards follow from a state, whatever the agent does?

The signature of a state is the rewards of fixed random action sequences that start there. States with equal signatures
are equivalent for every policy, as far as rewards tell. The model's own signatures come from the same sequences,
imagined with the prior means of what the policy sees. A task whose reward reads one number has coarse signatures.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.data import freeze
from denoised_mdp.analysis.equivalence import distances
from denoised_mdp.analysis.ranks import rank_correlation
from denoised_mdp.analysis.similarity.arrays import standardized
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.pixels import ActionRepeat
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.errors import UserError
from denoised_mdp.models.latent import Latent
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode
from denoised_mdp.run.environments import environment_maker, without_distractors
from denoised_mdp.seeding import generator

HORIZON = 10
"""decisions of each random action sequence"""


def random_actions(size: int, sequences: int, horizon: int = HORIZON) -> np.ndarray:
    """Uniform random action sequences, float32 [sequences, horizon, A]; every call returns the same ones."""
    shape = sequences, horizon, size
    return generator(0, "signature actions").uniform(-1.0, 1.0, shape).astype(np.float32)


def rows_with_future(config: Config, rows: np.ndarray) -> np.ndarray:
    """The `rows` [n] with `HORIZON` whole decisions left before the time limit, after which rewards are unknown, not 0.

    Raises:
        UserError: there is no such row.
    """
    env = config.env
    limit = env.episode_steps // env.action_repeat
    kept = rows[rows + HORIZON <= limit]
    if not len(kept):
        raise UserError(
            f"Signatures need {HORIZON} decisions after row {rows[0]}, and episodes have {limit}: leave them out"
            f" (--sequences 0), or train with env.episode_steps={(rows[0] + HORIZON) * env.action_repeat} or more."
        )
    return kept


def true_signatures(
    config: Config, episodes: Sequence[Episode], seeds: Sequence[int], rows: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """Noise-free rewards after the states in `rows` of each episode: [episodes * rows, sequences * horizon].

    They are 0 after a terminal state. No step is rendered. The physics is that of the episodes, which began with
    `seeds`. A distractor that is part of the task, such as RoboDesk's television, has strength 0.

    Raises:
        UserError: the environment cannot restore a state, its actions are discrete, an episode lacks a row or was not
            played with its seed, its physics depends on the distractors, or a time limit cuts signatures off.
    """
    if any(len(episode.action) <= rows[-1] for episode in episodes):
        raise UserError(f"An episode ends before row {rows[-1]}, whose signature is wanted: leave it out.")
    found = []
    with contextlib.closing(environment_maker(_without_noise(config))()) as environment:
        core = environment.unwrapped.world.unwrapped
        if not (hasattr(core, "get_state") and hasattr(core, "set_state")):
            raise UserError("This environment cannot be put back into a state, so there are no true signatures.")
        if isinstance(core.action_space, gym.spaces.Discrete):
            raise UserError(
                "Signatures are of sequences of continuous actions, and this environment's are discrete: leave them out"
                " (--sequences 0)."
            )
        stepper = ActionRepeat(core, config.env.action_repeat)
        for episode, seed in zip(track(episodes, "true signatures", "episodes"), seeds, strict=True):
            environment.reset(seed=seed)
            for row, action in enumerate(episode.action[: rows[-1] + 1]):
                over = bool(row) and stepper.step(action)[2]
                if row not in rows:
                    continue
                try:
                    repeats = np.allclose(core.signal(), episode.signal[row], atol=1e-4)
                    if repeats:
                        found.append(np.zeros(actions[..., 0].size) if over else signature(core, stepper, actions))
                except CannotRestore:  # without a signal, nothing else reveals it
                    repeats = False
                if not repeats:
                    raise UserError(
                        f"The physics of the episode with seed {seed} does not repeat without distractors, so there"
                        " are no true signatures. Leave them out (--sequences 0)."
                    )
    return np.stack(found)


def _without_noise(config: Config) -> Config:
    """Drop distractors; those that are part of the task stay at strength 0, as rewards may depend on their noise."""
    bare = without_distractors(config)
    still = {name: options | dict.fromkeys(DISTRACTORS[name].scales, 0.0) for name, options in bare.distractors.items()}
    return dataclasses.replace(bare, distractors=still)


def signature(core: gym.Env, stepper: ActionRepeat, actions: np.ndarray) -> np.ndarray:
    """Rewards [sequences * horizon] from the current state, which is restored afterwards; 0 after a termination.

    Raises:
        UserError: a time limit cuts a sequence off, so that its later rewards are unknown.
    """
    state, rewards = core.get_state(), np.zeros(actions.shape[:2])
    for sequence, row in zip(actions, rewards, strict=True):
        core.set_state(state)
        for number, action in enumerate(sequence):
            _, row[number], terminated, truncated, _ = stepper.step(action)
            if terminated:
                break
            if truncated and number + 1 < len(sequence):
                raise UserError(
                    "The environment's own time limit cuts signatures off: give fewer --steps, or leave them out"
                    " (--sequences 0)."
                )
    core.set_state(state)
    return rewards.ravel()


def seen_latents(agent: Agent, episodes: Sequence[Episode], rows: np.ndarray) -> Latent | None:
    """Latents seen by the policy in these rows of all episodes, [episodes * rows, ...]; None without a world model."""
    if not isinstance(agent, WorldModelAgent):
        return None
    frozen = freeze(agent, episodes, sample=False)
    latents = [one.latent.select(agent.world_model.table.seen).map(lambda tensor: tensor[rows]) for one in frozen]
    return latents[0].map(lambda *parts: torch.cat(parts), *latents[1:])


@torch.no_grad()
def model_signatures(agent: Agent, latents: Latent, actions: np.ndarray) -> np.ndarray:
    """Signatures imagined with prior means: latents [n, ...] that the policy sees -> [n, sequences * horizon].

    Each reward is weighted by the model's probability that the episode has not ended before it.
    """
    states, sequences = len(latents.belief), len(actions)
    like = next(agent.parameters())
    start = latents.map(lambda tensor: tensor.to(like).repeat_interleave(sequences, 0))
    belief, state = start.belief, start.state  # [n sequences, ...]
    noise, rewards = torch.zeros_like(state), []
    alive = agent.mdp.continuation(torch.cat((belief, state), -1))  # [n sequences]
    for action in torch.as_tensor(actions).to(like).unbind(1):  # [sequences, A]
        belief, state = agent.mdp.step(belief, state, action.repeat(states, 1), noise)
        features = torch.cat((belief, state), -1)  # [n sequences, F]
        rewards.append(alive * agent.mdp.reward(features))  # [n sequences]
        alive = alive * agent.mdp.continuation(features)
    return torch.stack(rewards, -1).reshape(states, -1).double().cpu().numpy()


def pooled_r2(true: np.ndarray, predicted: np.ndarray, level: bool = True) -> float:
    """R^2 of all columns together, each about its own mean: 1 - squared error over squares; nan if nothing varies.

    level: False ignores a constant offset of all predictions.
    """
    if not level:
        predicted = predicted + (true - predicted).mean()
    spread = np.square(true - true.mean(0)).sum()
    return float(1 - np.square(true - predicted).sum() / spread) if spread > 0 else np.nan


def r2_ahead(true: np.ndarray, predicted: np.ndarray, level: bool = True) -> list[float]:
    """`pooled_r2` of the rewards one, two, ... `HORIZON` decisions ahead, of signatures [n, sequences * HORIZON]."""
    return [pooled_r2(true[:, ahead::HORIZON], predicted[:, ahead::HORIZON], level) for ahead in range(HORIZON)]


def compare(
    true: np.ndarray, roles: Mapping[str, np.ndarray], episode: np.ndarray, imagined: np.ndarray | None = None
) -> dict[str, float]:
    """Rank correlation of each role's distances [n, F] with those of signatures [n, R], for rows of different episodes.

    Features of a role have no common unit, so each is divided by its standard deviation. imagined: the model's own
    signatures [n, R]. They are rewards, as the true ones are, and are not rescaled: near-constant columns count little.
    """
    pairs = np.triu(episode[:, None] != episode)
    expected = distances(true, true)[pairs]
    compared = {role: standardized(features) for role, features in roles.items()}
    if imagined is not None:
        compared["imagined"] = imagined
    return {role: rank_correlation(distances(values, values)[pairs], expected) for role, values in compared.items()}
