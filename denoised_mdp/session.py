"""A training run from its configuration: building its parts, restoring them from a checkpoint, and saving them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from numpy.random import Generator

from denoised_mdp.agents.followers import Leader, joined, run_follower
from denoised_mdp.agents.launch import launched
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.collector import Collector, Overlap, Sequential
from denoised_mdp.config import as_tree, save_config
from denoised_mdp.config.compare import with_absolute_clips
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import build
from denoised_mdp.device import configure, configure_acting, precision_name, warn_of_another_precision
from denoised_mdp.envs.workers import refuse_unguarded
from denoised_mdp.errors import UserError
from denoised_mdp.hooks import looking_hooks
from denoised_mdp.models import kernels
from denoised_mdp.progress import Training, data_size, say
from denoised_mdp.replay.batches import Batches, choose_source
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.starts import StoredLatents
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.environments import environment_maker, refuse_no_clips
from denoised_mdp.run.failure import recorded
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import fitting, newest_state, prepare, refuse_too_few_rows
from denoised_mdp.run.logger import Logger
from denoised_mdp.run.machine import record_start, refuse_large_batches
from denoised_mdp.run.mirrors import mirror_of
from denoised_mdp.run.nan_check import NanCheck
from denoised_mdp.run.packages import refuse_missing
from denoised_mdp.run.signals import Stop, StopRequest
from denoised_mdp.seeding import generator, generator_state, restore_generator
from denoised_mdp.trainer import Trainer


class Session:
    """A run within one process: a trainer with its parts, new or exactly as a checkpoint left them.

    Args:
        config: what to train, and how.
        run: the folder to write to; a run in it is continued.
        stop: ends the training when requested.

    Raises:
        UserError: the checkpoint in the folder is damaged, or has another configuration.
    """

    def __init__(self, config: Config, run: RunFolder, stop: StopRequest | None = None):
        self.config, self.run = config, run
        with contextlib.ExitStack() as parts:  # closes the open parts if a later one fails
            self._build(parts, stop or StopRequest())
            self._open = parts.pop_all()

    def _build(self, parts: contextlib.ExitStack, stop: StopRequest) -> None:
        """Build all parts. parts: receives the callbacks that close them."""
        config, run = self.config, self.run
        self._build_players(parts)
        self.nan_check = NanCheck(run)
        looking = looking_hooks(config, environment_maker(config), run.videos)
        hooks = {**looking, "snapshot": self.snapshot, "save": self.save}
        state, random = newest_state(run, config), generator(config.seed, "replay")
        step, updates = (state["counters"][name] if state else 0 for name in ("step", "updates"))
        if state is None:
            self.replay = self.new_replay()
            parts.callback(self.replay.close)
            logger = Logger(run.path)
        else:
            with fitting(run, config, state):
                if unknown := set(state["pending"]) - set(hooks):
                    raise ValueError(f"pending: {', '.join(sorted(unknown))}")
                self.agent.restore(state["agent"])
                random = restore_generator(state["random"])
                self.replay = self.continued_replay(state)
                parts.callback(self.replay.close)
                self.collecting.restore(state)
                log = state["log"]
                hooks["log"].spent -= log.get("cpu_seconds", 0.0)  # spent by earlier processes, not yet logged
            warn_of_another_precision(state["precision"], self.precision)
            logger = Logger(run.path, step, log["lines"], log["events"])
        parts.enter_context(logger)
        checkpoints.delete_after(run.snapshots, step)  # the log was cut there too: what follows may differ
        batches = self._build_batches(parts, state, random)
        if config.train.processes > 1:  # only now: followers start with the restored weights
            pool = self.collector.pool
            leader = Leader(self.agent, config, actions=pool.actions, can_terminate=pool.can_terminate)
            parts.callback(leader.close)
            self.agent.update = leader.update
        training = Training(config.train.total_steps, step, updates, config.train.prefill_steps)
        self.trainer = Trainer(
            self.agent, self.collecting, batches, logger, hooks, stop, Schedule(config), self.nan_check, training
        )
        self.saved: tuple | None = None
        if state is not None:
            self.trainer.restore(state)
            self.saved = self.moment()
            before = build(Config, state["config"]).train.total_steps
            if before <= step < config.train.total_steps:
                self.trainer.step_before = step  # the run was extended: hooks due at its old end have run
        logger.mirror = mirror_of(config)

    def _build_players(self, parts: contextlib.ExitStack) -> None:
        """Build the agent that learns, the one that acts, and the environments it acts in."""
        config = self.config
        device, dtype = configure(config.train)
        act_device, act_dtype = configure_acting(config.train, device)
        self.collector = Collector(config, environment_maker(config, foreground=config.foreground), act_device)
        parts.callback(self.collector.close)
        actions, ends = self.collector.pool.actions, self.collector.pool.can_terminate
        self.agent = self.player = build_agent(config, actions, can_terminate=ends, device=device, dtype=dtype)
        if config.train.overlap or config.train.act_device != "learner":  # a copy of the agent acts
            self.player = build_agent(config, actions, can_terminate=ends, device=act_device, dtype=act_dtype).eval()
        self.precision = precision_name(device, dtype) + " with compiled norms" * kernels.used_by(self.agent)
        how = Overlap if config.train.overlap else Sequential
        self.collecting = how(self.collector, self.agent, self.player)
        parts.callback(self.collecting.close)

    def _build_batches(self, parts: contextlib.ExitStack, state: dict[str, Any] | None, random: Generator) -> Batches:
        """Build the source of the learner's batches."""
        config = self.config
        if self.collector.pool.can_terminate:  # else all episodes are as long as the configuration says
            self.replay.cross()
        if state is not None and state["counters"]["updates"]:
            refuse_too_few_rows(self.run, self.replay, self.agent.batch_spec.segment_length)
        source = choose_source(self.replay, config.replay.memory, self.agent.device, config.train.processes)
        parts.callback(source.close)
        stored = config.replay.latents
        self.starts = StoredLatents(self.replay, self.agent.latent_size, self.agent.device) if stored else None
        if self.starts is not None and state is not None:
            with fitting(self.run, config, state):
                self.starts.restore(state["latents"])
        wanted = self.agent.batch_spec
        return Batches(self.replay, source, wanted.batch_size, wanted.segment_length, random, wanted.lead, self.starts)

    def new_replay(self) -> Rings:
        """Create the files of an empty replay."""
        capacity, slack = self.config.replay_capacity, self.replay_slack
        count, shape = self.collector.count, self.collector.pool.observation_shape
        sizes = count, capacity, shape, self.collector.pool.actions.size, slack
        say(f"replay: up to {capacity:,} rows, {data_size(Rings.bytes_needed(*sizes))} on disk in {self.run.replay}")
        return Rings(self.run.replay, *sizes)

    def continued_replay(self, state: Mapping[str, Any]) -> Rings:
        """Open the replay in the folder, grown if the run was extended."""
        rings = len(state["replay"].get("rings", [0]))
        if not len(state["episode_return"]) == rings == self.collector.count:
            raise ValueError("it is of another number of environments")
        return Rings.open(self.run.replay, state["replay"], self.config.replay_capacity, self.replay_slack)

    @property
    def replay_slack(self) -> int:
        """See `Config.replay_slack`."""
        return self.config.replay_slack(self.collector.pool.can_terminate)

    @property
    def parameters(self) -> int:
        """Number of all learned parameters, see `Agent.parameter_counts`."""
        return sum(self.agent.parameter_counts().values())

    def announce(self) -> None:
        """Announce the run before it starts: it may take hours."""
        config, step = self.config, self.trainer.step
        acts = f", acts on {self.player.device}" if self.player.device != self.agent.device else ""
        begins = f"continuing at step {step:,}" if step else "starting"
        model, policy = config.method
        learner = f"model {model}, policy {policy}" if policy else f"agent {model}"
        say(
            f"{self.run.path}: {begins}, to step {config.train.total_steps:,}; {config.env.task} with"
            f" {', '.join(config.distractors) or 'no distractors'}; {learner},"
            f" {self.parameters:,} parameters; {self.agent.device}, {self.precision}{acts}"
        )

    def save(self, trainer: Trainer) -> None:
        """Write a complete checkpoint; the replay's rows are synced to disk before it counts them.

        A hook of the trainer. It writes nothing if the last checkpoint is up to date.
        """
        if self.saved == self.moment():
            return
        state = self.state()
        self.nan_check.check(wait=True)
        self.nan_check.check_weights(trainer.step, {name: state["agent"][name] for name in ("weights", "optimizers")})
        trainer.logger.flush()
        self.replay.flush()
        spent = trainer.hooks["log"].unlogged
        state["log"] = {"lines": trainer.logger.lines, "events": trainer.logger.events(), "cpu_seconds": spent}
        try:
            checkpoints.save(self.run.checkpoints, trainer.step, state)
        except TypeError as error:  # a plug-in's: our own parts hold nothing else
            what = "let the state of this part be dicts and lists of arrays, numbers and texts"
            raise UserError(f"No checkpoint can be written: {error}; {what}.") from error
        self.saved = self.moment()

    def snapshot(self, trainer: Trainer) -> None:
        """Write the agent's weights and how to build it. A hook of the trainer."""
        self.nan_check.check(wait=True)
        agent = {"weights": dict(self.agent.state_dict()), "optimizers": {}, "random": None}
        self.nan_check.check_weights(trainer.step, agent)
        checkpoints.save(self.run.snapshots, trainer.step, {**self.how_built(), "agent": agent}, keep=None)

    def moment(self) -> tuple:
        """Return what differs if anything was done since the last checkpoint."""
        return self.trainer.step, self.trainer.updates, tuple(self.trainer.pending)

    def state(self) -> dict[str, Any]:
        """Return all that a later process needs to continue bit for bit, except the log: flush that first."""
        return {
            **self.collecting.state(),  # waits for a block that is being played
            **self.trainer.state(),
            **self.how_built(),
            "precision": self.precision,
            "agent": self.agent.state(),
            "replay": self.replay.state(),
            "latents": None if self.starts is None else self.starts.state(),
            "random": generator_state(self.trainer.batches.random),
        }

    def how_built(self) -> dict[str, Any]:
        """Return what `build_agent` was called with."""
        return {
            "action_size": self.collector.pool.actions.size,
            "discrete": self.collector.pool.actions.discrete,
            "can_terminate": self.collector.pool.can_terminate,
            "config": as_tree(self.config),
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        """Release the environments and the files."""
        self._open.__exit__(*error)

    def close(self) -> None:
        """Release the environments and the files of a session that has not failed."""
        self._open.close()


def train(config: Config, stop: StopRequest | None = None) -> bool:
    """Train from a configuration, or continue the run in its folder; True if it came to its end.

    Silent outside `denoised_mdp.progress.shown`.

    stop: afterwards tells which signal ended the run, if any.
    """
    refuse_unguarded()
    if number := launched(config.train.processes):
        run_follower(number, config.train.processes)
        raise SystemExit(0)  # the leader says how the run ended
    with joined(config.train.processes):
        return _lead(config, stop or StopRequest())


def _lead(config: Config, stop: StopRequest) -> bool:
    config = with_absolute_clips(config)
    refuse_large_batches(config)
    if not checkpoints.list_steps(RunFolder(config.run_dir).checkpoints):  # else it may be complete and need nothing
        refuse_missing(config)
        refuse_no_clips(config)
    run = RunFolder.create(config.run_dir)
    if run.exported:
        raise UserError(f"{run.path} is an exported agent, which has weights alone. Choose another run_dir.")
    with run.lock(), stop, contextlib.suppress(Stop):
        with stop.at_once():  # nothing has been done that could be lost
            if not prepare(config, run):  # a refusal here is not a failure of the run in this folder
                return True
        with recorded(run.error):
            return _train(config, run, stop)
    return False


def _train(config: Config, run: RunFolder, stop: StopRequest) -> bool:
    with stop.at_once():
        session = Session(config, run, stop)
    trainer = session.trainer
    with session:
        save_config(config, run.config)  # a continued run may have changed options: only once its checkpoint has loaded
        session.announce()
        where = session.agent.device, session.precision, session.player.device
        record_start(run.machine, trainer.step, session.parameters, *where)
        with trainer.progress:
            trainer.run_to_end()
        return not stop.requested
