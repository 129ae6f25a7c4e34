"""Collecting experience: one action in every environment at a time, or a block of them while the learner learns."""

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
    """A row of the replay (see `Replay`); `is_last`: its episode ends with it, whether terminated or truncated."""

    observation: np.ndarray
    action: np.ndarray
    reward: float
    is_first: bool
    is_terminal: bool
    is_last: bool


Turn = list[list[ReplayRow]]
"""The rows of one action in every environment: one for each, after a first row if an episode began there."""


class Collector:
    """Plays `train.collect_envs` environments side by side, in `train.collect_workers` processes.

    Each environment and its actions have random streams of their own, so neither the number of processes nor the other
    environments affect them. The first environment has the same streams as a run with a single environment.

    Raises:
        UserError: `make_environment` refuses its options.
        EnvironmentFailure: an environment failed, died or hung; `turn` raises it as well.
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
        """Take one action in every environment: random until `train.prefill_steps`, then the agent's."""
        is_first = np.array([observation is None for observation in self.observations])
        turn = self._begin_episodes(is_first)
        train = self.config.train
        if self.step < train.prefill_steps:
            actions = np.stack([self.pool.actions.random(rng) for rng in self.prefill])
            self.carry = None  # filtering begins with the first action after the prefill
        else:
            actions, self.carry = agent.act(
                np.stack(self.observations)[..., :3],  # the camera image; a decoder's target may follow
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
        """Begin episodes where `is_first` [B]; only the very first reset is seeded, later ones continue the streams."""
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
        """Return everything that a later process needs to continue bit for bit."""
        return {
            "step": self.step,
            "observations": list(self.observations),
            "carry": self.carry and self.carry.tensors(),
            "random": [generator_state(rng) for rng in self.prefill],
            "exploration": [rng.get_state() for rng in self.exploration],
            "environments": self.pool.get_states() if self.begun else None,
        }

    def restore(self, state: dict[str, Any], agent: Agent) -> None:
        """Restore what `state` returned; warn if an environment cannot resume its episode."""
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
    """Collects on request, one turn at a time.

    Args:
        collector: the environments.
        learner: the agent that learns.
        player: the agent that acts: the learner itself, or a copy that receives its weights.
    """

    def __init__(self, collector: Collector, learner: Agent, player: Agent):
        self.collector, self.learner, self.player, self.count = collector, learner, player, collector.count
        self._updates: int | None = None  # the learner's count when its weights were last copied

    def collect(self, updates: int) -> list[Turn]:
        """Collect one turn with the learner's weights after its `updates` updates so far.

        Raises:
            EnvironmentFailure: an environment failed, died or hung.
        """
        return [self.collector.turn(self.acting(updates))]

    def acting(self, updates: int) -> Agent:
        """Return the acting agent with the learner's weights after its `updates` updates so far."""
        if self.player is not self.learner and self._updates != updates:
            self.player.load_state_dict(self.learner.state_dict())
            self._updates = updates
        return self.player

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue collecting bit for bit."""
        return {"block": None, "collector": self.collector.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.collector.restore(state["collector"], self.player)

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()


class Overlap(Sequential):
    """Collects one block of turns in a thread, while the learner learns from earlier rows.

    A block ends with the turn after which updates are due or the run is over. When it begins, the copy that plays it
    takes the learner's weights. Its rows become visible only when it has ended, so what a run learns does not depend on
    which thread was faster. The environments must live in processes of their own. During the prefill, turns are
    collected on request.
    """

    def __init__(self, collector: Collector, learner: Agent, player: Agent):
        super().__init__(collector, learner, player.eval())
        self._thread = ThreadPoolExecutor(1, "collector")
        self._block: Future[list[Turn]] | None = None
        device = player.device
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._abandoned = False

    def collect(self, updates: int) -> list[Turn]:
        """Return the block that was begun, else collect one turn; then begin the next with the current weights."""
        turns, train = self.take() or super().collect(updates), self.collector.config.train
        if train.prefill_steps <= self.collector.step < train.total_steps:
            self.begin()
        return turns

    def begin(self) -> None:
        """Begin a block with the learner's current weights."""
        self.player.load_state_dict(self.learner.state_dict())
        if self._stream is not None:  # else its kernels would queue behind those of the updates
            self._stream.wait_stream(torch.cuda.current_stream(self.player.device))
        self._block = self._thread.submit(self._play)

    def turns(self) -> list[Turn]:
        """Wait for the block that was begun and return its turns; an empty list if there is none.

        Raises:
            EnvironmentFailure: an environment failed, died or hung.
        """
        return self._block.result() if self._block is not None else []

    def take(self) -> list[Turn]:
        """Return `turns` and forget the block."""
        turns, self._block = self.turns(), None
        return turns

    def state(self) -> dict[str, Any]:
        """Add the rows of the block: for each environment its columns, [rows, ...] each."""
        block = [[row for rows in env for row in rows] for env in zip(*self.turns(), strict=True)]  # waits for its end
        columns = [
            {name: np.stack([getattr(row, name) for row in rows]) for name in ReplayRow._fields} for rows in block
        ]
        return super().state() | {"block": columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
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
        """Abandon the block after the action in progress (its rows are lost), then close the environments."""
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
