"""The training loop (Wang et al. 2022, Algorithm 1): collect, update, evaluate, in one place."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from typing import Any

import imageio.v2 as imageio
import numpy as np
import torch

from . import checkpoint as checkpoints
from .agent import build_agent
from .analysis import render
from .analysis.factors import QuickProbe
from .config import save_config
from .envs.seeding import generator, generator_state, restore_generator, torch_seed
from .errors import EnvironmentFailure, UserError
from .evaluation import EvaluationResult, evaluate, evaluation_seeds
from .finite import FiniteCheck
from .loading import environment_maker, fitting, prepare
from .logging import Logger, Progress, data_size
from .machine import record_start
from .replay import Replay
from .runs import RunFolder
from .runtime import configure
from .runtime import restore_generator as restore_torch_generator
from .schema import Config
from .stopping import Stop, StopRequest


class Trainer:
    """Trains one agent in one environment, and continues exactly where a checkpoint was taken.

    Every unit of work is one action in the environment or one update; how many updates are due follows from the
    number of steps alone. So the loop can stop and continue between any two of them, and in the middle of the work
    that only looks (evaluation, rendering), which then begins anew.

    Args:
        config: what to train, and how.
        run: where to write; what is found there is continued.
        stop: ends the loop when requested.

    Raises:
        UserError: the checkpoint in the folder is damaged, or is one of another configuration.
    """

    def __init__(self, config: Config, run: RunFolder, stop: StopRequest | None = None):
        self.config, self.run, self.stop = config, run, stop or StopRequest()
        device, dtype = configure(config.train)
        self.precision = "bf16" if dtype == torch.bfloat16 else "float32"
        self.make_environment = environment_maker(config)
        self.env = self.make_environment()
        actions = self.env.action_space.shape[0]
        self.agent = build_agent(config, actions, device=device, dtype=dtype)
        self.random = {name: generator(config.seed, name) for name in ("prefill", "replay")}
        self.exploration = torch.Generator(device).manual_seed(torch_seed(config.seed, "exploration"))
        self.step = self.updates = self.episodes = 0
        self.episode_return, self.last_return = 0.0, None
        self.observation, self.carry = None, None
        self.window: dict[str, tuple[torch.Tensor, int]] = {}
        self.last_evaluation: EvaluationResult | None = None
        self.quick_probe: QuickProbe | None = None  # made when the first is due
        self.finite = FiniteCheck(run)
        self.pending: list[str] = []  # housekeeping that is due: names of methods, in order
        self.saved: tuple | None = None

        if checkpoints.list_steps(run.checkpoints):
            _, state = checkpoints.load(run.checkpoints)
            with fitting(run, config, state):
                self.restore(state)
                log = state["log"]
            self.saved = (self.step, self.updates, self.pending)
            self.logger = Logger(run.path, resume_step=self.step, lines=log["lines"], events=log["events"])
        else:
            self.replay = self.open_replay(None)
            self.logger = Logger(run.path)
        self.progress = Progress(config.train.total_steps, step=self.step, updates=self.updates)

    def open_replay(self, state: dict[str, Any] | None) -> Replay:
        """A new replay, or (state) the one in the folder, grown if the run has become longer."""
        capacity, slack = self.config.replay_capacity, self.config.replay_slack
        if state is not None:
            return Replay.open(self.run.replay, state, capacity, slack)
        shape, actions = self.env.observation_space.shape, self.agent.mdp.action_size
        size = data_size(Replay.bytes_needed(capacity, shape, actions, slack))
        print(f"replay: up to {capacity:,} rows, {size} on disk in {self.run.replay}")
        return Replay(self.run.replay, capacity, shape, actions, slack)

    def announce(self) -> None:
        """Say what is about to happen, before it takes hours."""
        config = self.config
        parameters = sum(self.agent.parameter_counts().values())
        begins = f"continuing at step {self.step:,}" if self.step else "starting"
        print(
            f"{self.run.path}: {begins}, to step {config.train.total_steps:,}; {config.env.task} with"
            f" {', '.join(config.distractors) or 'no distractors'}; model {config.model.name}, policy"
            f" {config.policy.name}, {parameters:,} parameters; {self.agent.device}, {self.precision}",
            flush=True,
        )

    def run_to_end(self) -> None:
        """The loop: what has come due, else updates while some are due, else one more action.

        Raises:
            EnvironmentFailure: an environment of an evaluation failed, after a checkpoint; the evaluation stays due.
        """
        with contextlib.suppress(Stop):
            while not self.stop.requested:
                if self.pending:
                    self.housekeeping()
                    continue
                if self.updates < self.updates_due():
                    self.learn()
                elif self.step < self.config.train.total_steps:
                    self.collect()
                else:
                    break
                if self.updates == self.updates_due():
                    self.pending = self.come_due()
        self.save()

    def updates_due(self) -> int:
        """Updates that should have been done by now."""
        return self.config.updates_due(self.step)

    def collect(self) -> None:
        """One action in the environment, into the replay; the first row of an episode has none."""
        if self.observation is None:
            self.begin_episode()
        if self.step < self.config.train.prefill_steps:
            action = self.random["prefill"].uniform(-1.0, 1.0, self.env.action_space.shape).astype(np.float32)
            self.carry = None  # filtering begins with the first action after the prefill
        else:
            action, self.carry = self.agent.act(
                self.observation,
                self.carry,
                explore=self.config.train.exploration_noise,
                generator=self.exploration,
            )
        self.observation, reward, terminated, truncated, _ = self.env.step(action)
        self.finite.check_reward(self.step, reward)
        self.replay.add(self.observation, action, reward, False)
        self.episode_return += float(reward)
        self.step += self.config.env.action_repeat
        if terminated or truncated:
            self.end_episode()

    def begin_episode(self) -> None:
        """Reset; only the very first reset is seeded, later ones continue the environment's streams."""
        self.observation, _ = self.env.reset(seed=self.config.seed if self.episodes == 0 else None)
        self.carry, self.episode_return = None, 0.0
        self.replay.add(self.observation, np.zeros(self.env.action_space.shape, np.float32), 0.0, True)

    def end_episode(self) -> None:
        """Log the return of a training episode (with exploration noise, or random during prefill)."""
        prefill = self.step <= self.config.train.prefill_steps
        self.last_return = self.episode_return
        name = "random" if prefill else "train"
        self.logger.log(self.step, {f"{name}/return": self.episode_return})
        self.episodes += 1
        self.observation = None

    def learn(self) -> None:
        """One batch, one update; metrics stay tensors until they are logged."""
        train = self.config.train
        batch = self.replay.sample(train.batch_size, train.segment_length, self.random["replay"])
        metrics = self.agent.update(batch, policy=self.updates >= train.policy_after)
        self.finite.add(self.step, self.updates, batch, metrics)
        for name, value in metrics.items():
            total, count = self.window.get(name, (0.0, 0))
            self.window[name] = (total + value, count + 1)
        self.updates += 1
        self.finite.check(wait=self.updates == self.updates_due())  # before anybody acts with bad weights
        self.progress.update(self.step, self.updates, self.last_return, self.last_evaluation)

    def come_due(self) -> list[str]:
        """What to do now, after the updates of a round or an action without any."""
        train = self.config.train
        intervals = {
            "log": train.log_every if self.window else 0,
            "evaluate": train.eval_every if self.updates else 0,
            "probe": train.probe_every if self.updates else 0,
            "film": train.render_every if self.updates else 0,
            "save": train.checkpoint_every,
        }
        return [name for name, every in intervals.items() if self.due(every)]

    def housekeeping(self) -> None:
        """Log, evaluate, probe, render or save; what a stop or a failing environment interrupts is saved as due."""
        job, *self.pending = self.pending
        try:
            getattr(self, job)()
        except (Stop, EnvironmentFailure):
            self.pending = [job, *self.pending]
            self.save()
            raise
        self.progress.update(self.step, self.updates, self.last_return, self.last_evaluation)

    def log(self) -> None:
        """Write the mean of the updates' metrics since the last time."""
        metrics = {name: total / count for name, (total, count) in self.window.items()}
        self.logger.log(self.step, metrics | {"train/updates": self.updates})
        self.window = {}

    def due(self, every: int) -> bool:
        """Whether the last action crossed a multiple of `every` steps (0: never), or was the last of all."""
        before = self.step - self.config.env.action_repeat
        return every > 0 and (self.step // every > before // every or self.step >= self.config.train.total_steps)

    def evaluate(self) -> None:
        """Play held-out episodes with the actor's mode, always the same ones."""
        train, began = self.config.train, time.perf_counter()
        seeds = evaluation_seeds(self.config.seed, train.eval_episodes)
        with self.stop.at_once():
            result = evaluate(self.agent, self.make_environment, seeds, workers=train.eval_workers)
        self.last_evaluation = result
        metrics = {"eval/return": result.mean, "eval/standard_error": result.standard_error}
        self.logger.log(self.step, metrics | {"eval/seconds": time.perf_counter() - began})

    def probe(self) -> None:
        """Log how much of signal and noise each latent holds, in held-out episodes that are always the same."""
        began = time.perf_counter()
        try:
            with self.stop.at_once():
                self.quick_probe = self.quick_probe or QuickProbe(self.make_environment)
                scores = self.quick_probe(self.agent)
        except UserError as error:  # nor is a number for a curve
            warnings.warn(f"no probe of step {self.step:,}: {error}", stacklevel=2)
        else:
            self.logger.log(self.step, scores | {"probe/seconds": time.perf_counter() - began})

    def film(self) -> None:
        """Render what x and y, z hold, in two held-out episodes."""
        seeds, stem = evaluation_seeds(self.config.seed, 2), self.run.videos / f"step_{self.step:09d}"
        explore = self.config.train.exploration_noise
        try:
            with self.stop.at_once():
                paths = render.film(self.agent, self.make_environment, seeds, stem, explore=explore)
        except UserError as error:  # a picture is not worth a run
            warnings.warn(f"no video of step {self.step:,}: {error}", stacklevel=2)
        else:
            self.logger.image(self.step, "rows", imageio.imread(paths[0]))

    def save(self) -> None:
        """Write a checkpoint of everything; the rows of the replay are on disk before it counts them."""
        if self.saved == (self.step, self.updates, self.pending):
            return
        state = self.state()
        self.finite.check(wait=True)
        self.finite.check_weights(self.step, {name: state["agent"][name] for name in ("weights", "optimizers")})
        self.logger.flush()
        self.replay.flush()
        state["log"] = {"lines": self.logger.lines, "events": self.logger.events()}
        checkpoints.save(self.run.checkpoints, self.step, state)
        self.saved = (self.step, self.updates, self.pending)

    def state(self) -> dict[str, Any]:
        """All that a later process needs to continue bit for bit, but for the log, which must be flushed first."""
        carry = self.carry and {
            "belief": self.carry.latent.belief,
            "state": self.carry.latent.state,
            "action": self.carry.action,
        }
        return {
            "action_size": self.agent.mdp.action_size,
            "precision": self.precision,
            "counters": {"step": self.step, "updates": self.updates, "episodes": self.episodes},
            "episode_return": self.episode_return,
            "last_return": self.last_return,
            "observation": self.observation,
            "carry": carry,
            "window": self.window,
            "agent": self.agent.state(),
            "config": dataclasses.asdict(self.config),
            "pending": self.pending,
            "replay": self.replay.state(),
            "random": {name: generator_state(rng) for name, rng in self.random.items()},
            "exploration": self.exploration.get_state(),
            "env": self.env.get_state() if self.episodes or self.observation is not None else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        counters = state["counters"]
        self.step, self.updates, self.episodes = counters["step"], counters["updates"], counters["episodes"]
        self.episode_return, self.last_return = state["episode_return"], state["last_return"]
        self.observation = state["observation"]
        self.window, self.pending = state["window"], state["pending"]
        self.agent.restore(state["agent"])
        self.replay = self.open_replay(state["replay"])
        self.random = {name: restore_generator(rng) for name, rng in state["random"].items()}
        if state["precision"] != self.precision:
            warnings.warn(
                f"the run began in {state['precision']} and goes on in {self.precision} on this machine; set"
                " train.precision to keep to one",
                stacklevel=2,
            )
        restore_torch_generator(self.exploration, state["exploration"])
        if state["carry"] is not None:
            self.carry = self.agent.carry(**state["carry"])
        if state["env"] is not None:
            self.env.set_state(state["env"])

    def close(self) -> None:
        """Release the renderer and the files."""
        self.env.close()
        self.replay.close()
        self.logger.close()
        self.progress.close()


def train(config: Config, stop: StopRequest | None = None) -> bool:
    """Train from a configuration, or continue the run in its folder; True when it came to its end.

    stop: tells afterwards which signal ended the run, if one did.
    """
    run, stop = RunFolder.create(config.run_dir), stop or StopRequest()
    with run.lock(), stop:
        try:
            with stop.at_once():  # nothing is lost, because nothing was done
                prepare(config, run)
                trainer = Trainer(config, run, stop)
        except Stop:
            return False
        save_config(config, run.config)  # what may change in a continued run, once its checkpoint has loaded
        trainer.announce()
        record_start(run.machine, trainer.step, trainer.agent.device, trainer.precision)
        with contextlib.closing(trainer):
            trainer.run_to_end()
            return not stop.requested
