"""The training loop (Wang et al. 2022, Algorithm 1): collect, update, evaluate, in one place."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import imageio.v2 as imageio
import torch

from denoised_mdp.agents.world_model_agent import Agent, build_agent
from denoised_mdp.analysis import render
from denoised_mdp.analysis.factors import QuickProbe
from denoised_mdp.collector import Ahead, Collector, Turn
from denoised_mdp.config import as_tree, save_config
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure, configure_acting, precision_name
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.evaluation import EvaluationResult, evaluate, evaluation_seeds
from denoised_mdp.progress import Phase, Training, shown
from denoised_mdp.replay.on_device import ResidentReplay
from denoised_mdp.replay.prefetch import ReadAhead
from denoised_mdp.replay.rings import Lanes
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import fitting, lost_rows, prepare
from denoised_mdp.run.logger import Logger, data_size
from denoised_mdp.run.machine import record_start
from denoised_mdp.run.nan_check import FiniteCheck
from denoised_mdp.run.signals import Stop, StopRequest
from denoised_mdp.run.state import load_state, refuse_nonfinite
from denoised_mdp.seeding import generator, generator_state, restore_generator


class Trainer:
    """Trains one agent in one environment, and continues exactly where a checkpoint was taken.

    Every unit of work is one action in every environment (or the block of them that was collected ahead), or one
    update; how many updates are due follows from the number of steps alone. So the loop can stop and continue between
    any two of them, and in the middle of the work that only looks (evaluation, rendering), which then begins anew.

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
        self.precision = precision_name(device, dtype)
        self.make_environment = environment_maker(config)
        act_device, act_dtype = configure_acting(config.train, device)
        self.collector = Collector(config, self.make_environment, act_device)
        actions = self.collector.pool.action_shape[0]
        self.agent = self.player = build_agent(config, actions, device=device, dtype=dtype)
        if config.train.overlap or config.train.act_device != "learner":  # played by a copy of the agent
            self.player = build_agent(config, actions, device=act_device, dtype=act_dtype).eval()
        self.ahead = Ahead(self.collector, self.player) if config.train.overlap else None
        self.random = generator(config.seed, "replay")
        self.step = self.step_before = self.updates = 0  # step_before: where the last of the steps began
        self.player_updates: int | None = None  # those that the weights of a copy have seen
        self.episode_return, self.last_return = [0.0] * self.collector.count, None
        self.window: dict[str, tuple[torch.Tensor, int]] = {}
        self.last_evaluation: EvaluationResult | None = None
        self.quick_probe: QuickProbe | None = None  # made when the first is due
        self.finite = FiniteCheck(run)
        self.pending: list[str] = []  # housekeeping that is due: names of `jobs`, in order
        self.saved: tuple | None = None

        if checkpoints.list_steps(run.checkpoints):
            step, state = load_state(run, accept=self.why_not)
            refuse_nonfinite(run, step, {name: state[name] for name in ("agent", "window", "episode_return")})
            with fitting(run, config, state):
                if step != state["counters"]["step"]:
                    raise ValueError(f"step {step:,} counts {state['counters']['step']:,}")
                self.restore(state)
                log = state["log"]
            self.saved = (self.step, self.updates, self.pending)
            self.logger = Logger(run.path, resume_step=self.step, lines=log["lines"], events=log["events"])
        else:
            self.replay = self.open_replay(None)
            self.logger = Logger(run.path)
        self.batches = self.batch_source()
        self.progress = Training(config.train.total_steps, self.step, self.updates, config.train.prefill_steps)

    def why_not(self, state: dict[str, Any]) -> str | None:
        """Why the run cannot continue from a checkpoint, though it could from one before."""
        with fitting(self.run, self.config, state):
            return lost_rows(self.run, state)

    def open_replay(self, state: dict[str, Any] | None) -> Lanes:
        """A new replay, or (state) the one in the folder, grown if the run has become longer."""
        capacity, slack = self.config.replay_capacity, self.config.replay_slack
        if state is not None:
            return Lanes.open(self.run.replay, state, capacity, slack)
        count, shape = self.collector.count, self.collector.pool.observation_shape
        sizes = count, capacity, shape, self.agent.mdp.action_size, slack
        print(f"replay: up to {capacity:,} rows, {data_size(Lanes.bytes_needed(*sizes))} on disk in {self.run.replay}")
        return Lanes(self.run.replay, *sizes)

    def batch_source(self) -> Lanes | ReadAhead | ResidentReplay:
        """Where batches come from: the replay on disk, at once or ahead, or a copy of it in the device's memory."""
        memory, device = self.config.replay.memory, self.agent.device
        if memory == "auto" and device.type == "cuda":
            memory = "device" if ResidentReplay.fits(self.replay.bytes, device) else "ahead"
        if memory == "device":
            return ResidentReplay(self.replay, device)
        return ReadAhead(self.replay, pin=device.type == "cuda") if memory == "ahead" else self.replay

    def announce(self) -> None:
        """Say what is about to happen, before it takes hours."""
        config = self.config
        parameters = sum(self.agent.parameter_counts().values())
        acts = f", acts on {self.player.device}" if self.player.device != self.agent.device else ""
        begins = f"continuing at step {self.step:,}" if self.step else "starting"
        print(
            f"{self.run.path}: {begins}, to step {config.train.total_steps:,}; {config.env.task} with"
            f" {', '.join(config.distractors) or 'no distractors'}; model {config.model.name}, policy"
            f" {config.policy.name}, {parameters:,} parameters; {self.agent.device}, {self.precision}{acts}",
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
        """One action in every environment, or the block that was collected ahead, into the replay."""
        self.step_before = self.step
        for turn in self.ahead and self.ahead.take() or [self.collector.turn(self.acting())]:
            self.accept(turn)
        if self.ahead and self.config.train.prefill_steps <= self.step < self.config.train.total_steps:
            self.ahead.begin(self.agent)
        self.tell()

    def tell(self) -> None:
        """Show how far the run is."""
        self.progress.update(self.step, self.updates, self.last_return, self.last_evaluation)

    def acting(self) -> Agent:
        """The agent that plays, with the weights of now."""
        if self.player is not self.agent and self.player_updates != self.updates:
            self.player.load_state_dict(self.agent.state_dict())
            self.player_updates = self.updates
        return self.player

    def accept(self, turn: Turn) -> None:
        """Add the rows of one action in every environment; log the returns of episodes that end with it."""
        ended = []
        for lane, rows in enumerate(turn):
            for row in rows:
                self.finite.check_reward(self.step, row.reward)
                self.replay.add(lane, row.observation, row.action, row.reward, row.is_first)
                self.episode_return[lane] = row.reward + (0.0 if row.is_first else self.episode_return[lane])
                ended += [self.episode_return[lane]] if row.is_last else []
        self.step += self.config.turn_steps
        if ended:  # with exploration noise, or random during prefill
            self.last_return = sum(ended) / len(ended)
            name = "random" if self.step <= self.config.train.prefill_steps else "train"
            self.logger.log(self.step, {f"{name}/return": self.last_return})

    def learn(self) -> None:
        """One batch, one update; metrics stay tensors until they are logged."""
        train = self.config.train
        wanted = train.batch_size, train.segment_length, self.random
        batch = self.batches.sample(*wanted)
        if isinstance(self.batches, ReadAhead) and self.updates + 1 < self.updates_due():
            self.batches.begin(*wanted)
        metrics = self.agent.update(batch, policy=self.updates >= train.policy_after)
        self.finite.add(self.step, self.updates, batch, metrics)
        for name, value in metrics.items():
            total, count = self.window.get(name, (0.0, 0))
            self.window[name] = (total + value, count + 1)
        self.updates += 1
        self.finite.check(wait=self.updates == self.updates_due())  # before anybody acts with bad weights
        self.tell()

    def come_due(self) -> list[str]:
        """What to do now, after the updates of a round or an action without any."""
        return [name for name, (_, every) in self.jobs().items() if self.due(every)]

    def jobs(self) -> dict[str, tuple[Callable[[], None], int]]:
        """All housekeeping in its order: its name in checkpoints, what it does, and its interval (0: never)."""
        train = self.config.train
        return {
            "log": (self.log, train.log_every if self.window else 0),
            "evaluate": (self.evaluate, train.eval_every if self.updates else 0),
            "probe": (self.probe, train.probe_every if self.updates else 0),
            "film": (self.film, train.render_every if self.updates else 0),
            "save": (self.save, train.checkpoint_every),
        }

    def housekeeping(self) -> None:
        """Log, evaluate, probe, render or save; what a stop or a failing environment interrupts is saved as due."""
        job, *self.pending = self.pending
        try:
            self.jobs()[job][0]()
        except (Stop, EnvironmentFailure):
            self.pending = [job, *self.pending]
            self.save()
            raise
        self.tell()

    def log(self) -> None:
        """Write the mean of the updates' metrics since the last time."""
        metrics = {name: total / count for name, (total, count) in self.window.items()}
        self.logger.log(self.step, metrics | {"train/updates": self.updates})
        self.window = {}

    def due(self, every: int) -> bool:
        """Whether `every` steps (0: never) have passed since the last time, or the run is at its end."""
        if every == 0:
            return False
        times = self.config.times_due
        return times(self.step, every) > times(self.step_before, every) or self.step >= self.config.train.total_steps

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
            with self.stop.at_once(), Phase("probing", 1, "agent"):
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
        return {
            "action_size": self.agent.mdp.action_size,
            "precision": self.precision,
            "counters": {"step": self.step, "step_before": self.step_before, "updates": self.updates},
            "episode_return": list(self.episode_return),
            "last_return": self.last_return,
            "ahead": self.ahead and self.ahead.state(),  # before the collector's, which it waits for
            "collector": self.collector.state(),
            "window": dict(self.window),
            "agent": self.agent.state(),
            "config": as_tree(self.config),
            "pending": self.pending,
            "replay": self.replay.state(),
            "random": generator_state(self.random),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        counters = state["counters"]
        self.step, self.step_before, self.updates = (counters[name] for name in ("step", "step_before", "updates"))
        if state["config"] and state["config"]["train"]["total_steps"] <= self.step < self.config.train.total_steps:
            self.step_before = self.step  # the run is made longer: what was due at its end is done
        self.episode_return, self.last_return = list(state["episode_return"]), state["last_return"]
        self.window, self.pending = dict(state["window"]), state["pending"]
        if unknown := set(self.pending) - set(self.jobs()):
            raise ValueError(f"pending: {', '.join(sorted(unknown))}")
        self.agent.restore(state["agent"])
        self.random = restore_generator(state["random"])
        lanes = len(state["replay"].get("lanes", [0]))
        if not len(self.episode_return) == lanes == self.collector.count:
            raise ValueError("it is of another number of environments")
        self.replay = self.open_replay(state["replay"])
        if state["precision"] != self.precision:
            warnings.warn(
                f"the run began in {state['precision']} and goes on in {self.precision} on this machine; set"
                " train.precision to keep to one",
                stacklevel=2,
            )
        self.collector.restore(state["collector"], self.player)
        if self.ahead:
            self.ahead.restore(state["ahead"])

    def close(self) -> None:
        """Release the environments and the files."""
        if self.ahead:
            self.ahead.close()
        self.collector.close()
        self.batches.close()
        self.logger.close()


def train(config: Config, stop: StopRequest | None = None) -> bool:
    """Train from a configuration, or continue the run in its folder; True when it came to its end.

    stop: tells afterwards which signal ended the run, if one did.
    """
    run, stop = RunFolder.create(config.run_dir), stop or StopRequest()
    with run.lock(), stop, shown():
        try:
            with stop.at_once():  # nothing is lost, because nothing was done
                prepare(config, run)
                trainer = Trainer(config, run, stop)
        except Stop:
            return False
        save_config(config, run.config)  # what may change in a continued run, once its checkpoint has loaded
        trainer.announce()
        record_start(run.machine, trainer.step, trainer.agent.device, trainer.precision, trainer.player.device)
        with contextlib.closing(trainer), trainer.progress:
            trainer.run_to_end()
            return not stop.requested
