"""The training loop (Wang et al. 2022, Algorithm 1): collect, update, and run the hooks that are due."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.collector import Sequential, Turn
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import EvaluationResult
from denoised_mdp.progress import Training
from denoised_mdp.replay.batches import Batches
from denoised_mdp.run.logger import Logger
from denoised_mdp.run.nan_check import NanCheck, NonFiniteError, scalars
from denoised_mdp.run.signals import Stop, StopRequest

Hook = Callable[["Trainer"], None]


class Trainer:
    """The training loop.

    A unit of work is one turn, an action in every environment (or the block of turns collected meanwhile), or one
    update. The number of steps alone decides how many updates are due. So the loop can stop and resume between any two
    units, and inside hooks that only observe (evaluate, probe, render), which then start over.

    Args:
        agent: the agent that learns.
        collector: `collect(updates)` plays the environments and returns turns.
        batches: stores rows and samples batches.
        logger: receives metrics.
        hooks: called when they come due, by the names of `schedule.every`. ``save`` is also called when the loop ends,
            or a hook is interrupted or fails.
        stop: ends the loop when requested.
        schedule: decides when updates and hooks are due.
        nan_check: checks rewards and metrics.
        progress: shows how far the run is.
    """

    def __init__(
        self,
        agent: Agent,
        collector: Sequential,
        batches: Batches,
        logger: Logger,
        hooks: Mapping[str, Hook],
        stop: StopRequest,
        schedule: Schedule,
        nan_check: NanCheck,
        progress: Training,
    ):
        self.agent, self.collector, self.batches, self.logger = agent, collector, batches, logger
        self.hooks, self.stop, self.schedule, self.nan_check, self.progress = hooks, stop, schedule, nan_check, progress
        self.step = self.step_before = self.updates = 0  # step_before: where the last unit of collecting began
        self.episode_return = [0.0] * collector.count  # of each environment's running episode
        self.last_return: float | None = None
        self.last_evaluation: EvaluationResult | None = None
        self.window: dict[str, tuple[torch.Tensor, int]] = {}  # sums and counts of the metrics that are not logged yet
        self.pending: list[str] = []  # hooks that are due, in order

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.schedule.complete(self.step, self.updates, self.pending)

    def run_to_end(self) -> None:
        """Run pending hooks, else an update if one is due, else collect; save at the end.

        Raises:
            EnvironmentFailure: an environment failed. If in a hook, a checkpoint has been saved and the hook stays due.
        """
        with contextlib.suppress(Stop):
            while not (self.stop.requested or self.done):
                if self.pending:
                    self.run_hook()
                    continue
                if self.updates < self.schedule.updates_due(self.step):
                    self.learn()
                else:
                    self.collect()
                if self.updates == self.schedule.updates_due(self.step):
                    self.pending = self.schedule.hooks_due(self.step_before, self.step, self.updates)
        self.hooks["save"](self)

    def collect(self) -> None:
        """Store one turn, or the block of turns that was collected meanwhile."""
        self.step_before = self.step
        self.set_training(False)
        for turn in self.collector.collect(self.updates):
            self.accept(turn)
        self.tell()

    def accept(self, turn: Turn) -> None:
        """Store the rows of one turn; log the mean return of the episodes that end in it."""
        ended = []
        for number, rows in enumerate(turn):
            for row in rows:
                self.nan_check.check_reward(self.step, row.reward)
                self.batches.add(number, row)
                self.episode_return[number] = row.reward + (0.0 if row.is_first else self.episode_return[number])
                ended += [self.episode_return[number]] if row.is_last else []
        random = self.step < self.schedule.train.prefill_steps  # else with exploration noise
        self.step += self.schedule.turn_steps
        if ended:
            self.last_return = sum(ended) / len(ended)
            name = "random" if random else "train"
            self.logger.log(self.step, {f"{name}/return": self.last_return})

    def learn(self) -> None:
        """Take one update on one batch; metrics stay tensors until they are logged."""
        self.set_training(True)
        due = self.schedule.updates_due(self.step)
        batch = self.batches.sample(more=self.updates + 1 < due)
        metrics = scalars(self.agent.update(batch, policy=self.updates >= self.schedule.train.policy_after))
        self.batches.learned(self.agent)
        self.nan_check.add(self.step, self.updates, batch, metrics)
        for name, value in metrics.items():
            total, count = self.window.get(name, (0.0, 0))
            self.window[name] = (total + value, count + 1)
        self.updates += 1
        self.nan_check.check(wait=self.updates == due)  # before the agent acts with bad weights
        self.tell()

    def run_hook(self) -> None:
        """Run the first pending hook; if a stop or an error ends it, keep it due and save."""
        name, *self.pending = self.pending
        self.set_training(False)
        try:
            self.hooks[name](self)
        except NonFiniteError:  # the last checkpoint is the last good one
            raise
        except (Stop, Exception) as error:
            self.pending = [name, *self.pending]
            try:
                if name != "save":
                    self.hooks["save"](self)
            except UserError as refused:  # perhaps of the same full disk as the first error
                if isinstance(refused, NonFiniteError) or not isinstance(error, UserError):
                    raise
            raise
        self.tell()

    def set_training(self, learning: bool) -> None:
        """Set the agent's mode: training only for updates, so that acting and evaluating change nothing."""
        if self.agent.training != learning:
            self.agent.train(learning)

    def tell(self) -> None:
        """Show how far the run is."""
        self.progress.update(self.step, self.updates, self.last_return, self.last_evaluation)

    def state(self) -> dict[str, Any]:
        """Return the loop's own part of a checkpoint."""
        return {
            "counters": {"step": self.step, "step_before": self.step_before, "updates": self.updates},
            "episode_return": list(self.episode_return),
            "last_return": self.last_return,
            "window": dict(self.window),
            "pending": list(self.pending),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Hooks that have been switched off since are no longer due."""
        self.step, self.step_before, self.updates = (state["counters"][n] for n in ("step", "step_before", "updates"))
        self.episode_return, self.last_return = list(state["episode_return"]), state["last_return"]
        self.window = dict(state["window"])
        self.pending = self.schedule.still_due(state["pending"])
