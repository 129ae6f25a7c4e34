"""One data set for a roster of agents: the same physics in several worlds, and the same rows for all agents.

By default, rows are `APART` decisions apart: neighbouring frames are nearly equal, so a comparison of neighbours would
measure time instead of content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from denoised_mdp.agents.base import Agent
from denoised_mdp.analysis.data import freeze, probe_seeds, record, replayed
from denoised_mdp.analysis.roles import by_role
from denoised_mdp.config.schema import Config
from denoised_mdp.envs.factors import factors
from denoised_mdp.errors import UserError
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode
from denoised_mdp.run.environments import environment_maker, other_worlds

FIRST, APART = 10, 20
"""first row of an episode that counts (filters have settled), and decisions from one row to the next"""
HOME, AWAY = "trained", "other noise"
"""worlds with the noise of training, from one seed and from another"""


@dataclass
class Situations:
    """Episodes in several worlds, and the ground truth of the rows that count."""

    worlds: dict[str, list[Episode]]
    """name -> episodes; the i-th has the same physics in all worlds"""
    rows: list[np.ndarray]
    """numbers of the rows that count in each episode"""
    state: np.ndarray
    """the signal's factors, which a camera can show, float64 [n, S]"""
    noise: np.ndarray
    """the same for the noise in `HOME`, [n, N]; N is 0 without noise"""

    @property
    def episode(self) -> np.ndarray:
        """Episode number of each row that counts, [n]."""
        return np.repeat(np.arange(len(self.rows)), [len(rows) for rows in self.rows])


def worlds_of(config: Config, noisy: bool) -> dict[str, tuple[Config, str]]:
    """The worlds in which an agent is examined: name -> (configuration, split of the clips).

    Its own (twice if it is `noisy`, with independent noise), then `other_worlds`.
    """
    own = (HOME, AWAY) if noisy else (HOME,)
    return {name: (config, "train") for name in own} | other_worlds(config)


def rows_of(episode: Episode, apart: int = APART) -> np.ndarray:
    """Numbers of the rows of an episode that count."""
    return np.arange(FIRST, len(episode.observation), apart)


def check_lengths(episodes: Iterable[Episode], steps: int) -> None:
    """Raise UserError if one of the episodes, of at most `steps` actions, has no row that counts."""
    shortest = min(len(episode.observation) - 1 for episode in episodes)
    if shortest < FIRST:
        what = "give more --steps" if steps < FIRST else "this task ends them itself, too early for this probe"
        raise UserError(f"An episode has {shortest} of the {FIRST} actions that are needed: {what}.")


def make_situations(
    config: Config, agents: Sequence[Agent], episodes: int, steps: int, apart: int = APART, equal: bool = False
) -> Situations:
    """Play `episodes` episodes of at most `steps` actions, and replay each in all worlds.

    Every other episode has random actions; the rest are played by the agents in turn, as in collection, so that the
    data holds good and bad behaviour. Seeds are fixed: equal agents give equal situations. apart: decisions from one
    row to the next. equal: all episodes keep as many rows as the shortest, so that whole episodes can be shuffled.

    Raises:
        UserError: fewer than three episodes, an episode too short for a row that counts, or no ground truth.
    """
    if episodes < 3:
        raise UserError(f"{episodes} episodes are too few to compare whole episodes: give at least 3 (--episodes).")
    make, seeds = environment_maker(config), probe_seeds(3, episodes)
    with contextlib.closing(make()) as environment:
        found = factors(environment)  # refuses an environment without ground truth, before it is played
        noisy = bool(environment.unwrapped.noise_names)  # of distractors, or of the world itself
    players: list[Agent | None] = [None] * episodes
    for number in range(1, episodes, 2):
        players[number] = agents[number // 2 % len(agents)] if agents else None
    played: dict[int, Episode] = {}
    for player in dict.fromkeys(players):
        own = [number for number in range(episodes) if players[number] is player]
        explore = config.train.exploration_noise
        kind = "random" if player is None else "agent"
        recorded = record(make, [seeds[i] for i in own], steps, agent=player, explore=explore, behaviour=kind)
        played |= zip(own, recorded, strict=True)
    check_lengths(played.values(), steps)
    worlds: dict[str, list[Episode]] = {}
    for number, (name, (changed, split)) in enumerate(worlds_of(config, noisy).items()):
        noise_seeds = probe_seeds(4 + number, episodes)
        with contextlib.closing(environment_maker(changed, split)()) as environment:
            worlds[name] = [
                replayed(environment, played[i], seeds[i], noise_seeds[i])
                for i in track(range(episodes), f"world: {name}", "episodes")
            ]
    rows = [rows_of(episode, apart=apart) for episode in worlds[HOME]]
    if equal:
        rows = [own[: min(map(len, rows))] for own in rows]
    truth = {"signal": [np.zeros((sum(map(len, rows)), 0))], "noise": [np.zeros((sum(map(len, rows)), 0))]}
    for factor in found:
        values = [factor.values(one.signal[at], one.noise[at]) for one, at in zip(worlds[HOME], rows, strict=True)]
        truth[factor.source].append(np.concatenate(values))
    return Situations(worlds, rows, *(np.concatenate(truth[source], 1) for source in ("signal", "noise")))


def features(agent: Agent, episodes: Sequence[Episode], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """An agent's features in the rows that count, from whole episodes filtered with posterior means.

    By role, float64 [n, F] each; see `roles.by_role`.
    """
    frozen = [one.parts() for one in freeze(agent, episodes, sample=False)]
    names = frozen[0]
    parts = {name: np.concatenate([own[name][at] for own, at in zip(frozen, rows, strict=True)]) for name in names}
    return by_role({name: values.astype(np.float64) for name, values in parts.items()}, agent.seen)
