"""Playing the training environments: an action in each at a time, or a block of them while the learner learns."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from denoised_mdp.agents.acting import Carry
from denoised_mdp.agents.base import Agent
from denoised_mdp.config.schema import Config
from denoised_mdp.device import set_generator_state
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.seeding import generator, generator_state, restore_generator, torch_seed


class ReplayRow(NamedTuple):
    """A row of the replay (see `Replay`), and whether its episode ends with it, for whatever reason."""

    observation: np.ndarray
    action: np.ndarray
    reward: float
    is_first: bool
    is_terminal: bool
    is_last: bool


Turn = list[list[ReplayRow]]
"""What one action in every environment gave: for each its row, after an episode's first row where one began."""


class Collector:
    """Plays `train.collect_envs` environments side by side, in `train.collect_workers` processes.

    Everything random in an environment and in its actions comes from streams of its own, so that neither the number
    of processes nor what its neighbours do matters. Those of the first are the ones of a run with one environment.

    Raises:
        UserError: what `make_environment` finds wrong.
        EnvironmentFailure: an environment in a process failed, died or hung; also by `turn`.
    """

    def __init__(self, config: Config, make_environment: Callable[[], gym.Env], device: torch.device | str):
        self.config, self.count = config, config.train.collect_envs
        workers, kind = config.train.collect_workers, config.train.workers
        self.pool = EnvironmentPool(make_environment, self.count, workers=workers, kind=kind, task=config.env.task)
        names = ["", *(f"/{number}" for number in range(1, self.count))]
        self.seeds = [config.seed, *(int(generator(config.seed, f"env{name}").integers(2**31)) for name in names[1:])]
        self.prefill = [generator(config.seed, f"prefill{name}") for name in names]
        seeds = [torch_seed(config.seed, f"exploration{name}") for name in names]
        self.exploration = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.step = 0
        self.observations: list[np.ndarray | None] = [None] * self.count  # None: the next turn begins an episode
        self.carry: Carry | None = None
        self.begun = False

    def turn(self, agent: Agent) -> Turn:
        """One action in every environment; random ones until `train.prefill_steps`."""
        is_first = np.array([observation is None for observation in self.observations])
        turn = self._begin_episodes(is_first)
        train = self.config.train
        if self.step < train.prefill_steps:
            actions = np.stack([self.pool.actions.random(rng) for rng in self.prefill])
            self.carry = None  # filtering begins with the first action after the prefill
        else:
            actions, self.carry = agent.act(
                np.stack(self.observations)[..., :3],  # what the camera shows; a decoder's target may follow
                self.carry,
                is_first=is_first,
                explore=train.exploration_noise,
                generator=self.exploration,
            )
        for i, reply in enumerate(self.pool.step(list(actions))):
            observation, reward, terminated, truncated, _ = reply
            terminal, last = bool(terminated), bool(terminated or truncated)
            turn[i].append(ReplayRow(observation, actions[i], float(reward), False, terminal, last))
            self.observations[i] = None if last else observation
        self.step += self.config.turn_steps
        return turn

    def _begin_episodes(self, is_first: np.ndarray) -> Turn:
        """Reset where `is_first` [B] says so; only the very first is seeded, later ones continue the streams."""
        if not any(is_first):
            return [[] for _ in is_first]
        replies = self.pool.begin(is_first) if self.begun else self.pool.reset(self.seeds)
        self.begun = True
        action = self.pool.actions.none()
        turn: Turn = []
        for i, reply in enumerate(replies):
            turn.append([])
            if reply is not None:
                self.observations[i] = reply[0]
                turn[i].append(ReplayRow(reply[0], action, 0.0, True, False, False))
        return turn

    def state(self) -> dict[str, Any]:
        """All that a later process needs to play on bit for bit."""
        return {
            "step": self.step,
            "observations": list(self.observations),
            "carry": self.carry and self.carry.tensors(),
            "random": [generator_state(rng) for rng in self.prefill],
            "exploration": [rng.get_state() for rng in self.exploration],
            "environments": self.pool.get_states() if self.begun else None,
        }

    def restore(self, state: dict[str, Any], agent: Agent) -> None:
        """The inverse of `state`."""
        self.step, self.observations = state["step"], list(state["observations"])
        self.prefill = [restore_generator(rng) for rng in state["random"]]
        for rng, saved in zip(self.exploration, state["exploration"], strict=True):
            set_generator_state(rng, saved)
        self.carry = state["carry"] and agent.carry(**state["carry"])
        self.begun = state["environments"] is not None
        if self.begun:
            restored = self.pool.set_states(state["environments"])
            if not all(restored):
                warnings.warn(
                    f"{self.config.env.task} cannot be put back into the middle of an episode: the run continues with a"
                    " new one, and is not the same bit for bit as without a stop.",
                    stacklevel=2,
                )
            kept = zip(self.observations, restored, strict=True)
            self.observations = [observation if whole else None for observation, whole in kept]

    def close(self) -> None:
        """Close the environments."""
        self.pool.close()


class Sequential:
    """Collects when it is asked, one turn at a time.

    Args:
        collector: the environments.
        learner: whose policy plays.
        player: what plays: the learner itself, or a copy of it, which gets its weights.
    """

    def __init__(self, collector: Collector, learner: Agent, player: Agent):
        self.collector, self.learner, self.player, self.count = collector, learner, player, collector.count
        self._updates: int | None = None  # those that the weights of a copy have seen

    def collect(self, updates: int) -> list[Turn]:
        """One turn with the learner's weights of now, after so many updates.

        Raises:
            EnvironmentFailure: an environment failed, died or hung.
        """
        return [self.collector.turn(self.acting(updates))]

    def acting(self, updates: int) -> Agent:
        """What plays, with the weights that the learner has after so many updates."""
        if self.player is not self.learner and self._updates != updates:
            self.player.load_state_dict(self.learner.state_dict())
            self._updates = updates
        return self.player

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to play on bit for bit."""
        return {"block": None, "collector": self.collector.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.collector.restore(state["collector"], self.player)

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()


class Overlap(Sequential):
    """Collects one block of turns in a thread, while the learner learns from what was collected before.

    A block ends with the turn after which updates are due, or the run is over. It is played by the copy with the
    weights as they are when it begins, and nobody sees its rows before it has ended: what a run learns does not depend
    on which of the two was faster. The environments must live in processes of their own. During the prefill,
    turns are collected when they are asked for.
    """

    def __init__(self, collector: Collector, learner: Agent, player: Agent):
        super().__init__(collector, learner, player.eval())
        self._thread = ThreadPoolExecutor(1, "collector")
        self._block: Future[list[Turn]] | None = None
        device = player.device
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._abandoned = False

    def collect(self, updates: int) -> list[Turn]:
        """The block that was begun, or a turn where there is none; then begin the next with the weights of now."""
        turns, train = self.take() or super().collect(updates), self.collector.config.train
        if train.prefill_steps <= self.collector.step < train.total_steps:
            self.begin()
        return turns

    def begin(self) -> None:
        """Begin a block with the learner's weights."""
        self.player.load_state_dict(self.learner.state_dict())
        if self._stream is not None:  # else its kernels would queue behind those of the updates
            self._stream.wait_stream(torch.cuda.current_stream(self.player.device))
        self._block = self._thread.submit(self._play)

    def turns(self) -> list[Turn]:
        """The block that was begun, waiting for its end; none if none was.

        Raises:
            EnvironmentFailure: an environment failed, died or hung.
        """
        return self._block.result() if self._block is not None else []

    def take(self) -> list[Turn]:
        """`turns`, which are then the caller's."""
        turns, self._block = self.turns(), None
        return turns

    def state(self) -> dict[str, Any]:
        """With the rows of the block: for each environment its columns, [rows, ...] each."""
        block = [[row for rows in env for row in rows] for env in zip(*self.turns(), strict=True)]  # waits for its end
        columns = [
            {name: np.stack([getattr(row, name) for row in rows]) for name in ReplayRow._fields} for rows in block
        ]
        return super().state() | {"block": columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        super().restore(state)
        if not state["block"]:
            return
        block: list[list[list[ReplayRow]]] = []
        for columns in state["block"]:
            block.append([[]])
            for observation, action, reward, *flags in zip(*(columns[n] for n in ReplayRow._fields), strict=True):
                row = ReplayRow(observation, action, float(reward), *map(bool, flags))
                block[-1][-1].append(row)
                if not row.is_first:
                    block[-1].append([])
            block[-1].pop()
        self._block = Future()
        self._block.set_result([list(turn) for turn in zip(*block, strict=True)])

    def close(self) -> None:
        """Abandon the block, which is lost, after the action that is being taken; then close the environments."""
        self._abandoned = True
        self._thread.shutdown(cancel_futures=True)
        super().close()

    def _play(self) -> list[Turn]:
        collector, config, turns = self.collector, self.collector.config, []
        due = config.updates_due(collector.step)
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            while not self._abandoned and (
                config.updates_due(collector.step) == due and collector.step < config.train.total_steps
            ):
                turns.append(collector.turn(self.player))
        return turns
