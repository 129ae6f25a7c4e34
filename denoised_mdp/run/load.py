"""From a run folder to an agent."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import read_config, save_config
from denoised_mdp.config.compare import MAY_MOVE, differences, obstacles
from denoised_mdp.config.schedule import Schedule
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import build
from denoised_mdp.device import resolve_device, resolve_precision
from denoised_mdp.envs.actions import Actions
from denoised_mdp.errors import EnvironmentFailure, UserError, out_of_memory
from denoised_mdp.progress import say
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import AGENT_PARTS, load_state, refuse_nonfinite


def prepare(config: Config, run: RunFolder) -> bool:
    """Write the configuration into a new run folder, or check that it matches an existing run.

    Returns whether anything is left to do: not if the run is complete or already beyond `train.total_steps`.

    Raises:
        UserError: the folder holds a run of another configuration or one that has lost its checkpoints; or it holds
            snapshots but no checkpoint, and `train.checkpoint_every` is 0.
    """
    before = read_config(run.config) if run.config.exists() else None
    changed = obstacles(before, config) if before else []
    steps = checkpoints.list_steps(run.checkpoints)
    if not steps:
        held = run.held
        if held and not checkpoints.expects_first(run.checkpoints):
            raise UserError(
                f"{run.path} holds a run that has lost its checkpoints. Put {run.checkpoints} back, or choose another"
                f" run_dir; to start over, move {' and '.join(map(str, held))} away."
            )
        if run.metrics in held and changed:
            raise UserError(
                f"{run.path} holds the log of a run of another configuration ({'; '.join(changed)}), which has no"
                f" checkpoint yet. Choose another run_dir, or move {run.metrics} away to start over."
            )
        if snapshots := checkpoints.list_steps(run.snapshots):
            found = f"{run.path} has no checkpoint to go on from, but snapshots up to step {snapshots[-1]:,}, which"
            if not config.train.checkpoint_every:
                raise UserError(
                    f"{found} a new start would delete. Choose another run_dir, or move {run.snapshots} away."
                )
            warnings.warn(f"{found} this new start deletes", stacklevel=2)
        save_config(config, run.config)  # if an earlier start failed here, nothing else is lost
        checkpoints.expect_first(run.checkpoints)
        return True
    run.refuse_changes(changed)
    step, end = steps[-1], config.train.total_steps
    longer = before.train.total_steps if before else end
    if end + config.turn_steps <= step < longer + config.turn_steps:  # in the last turn something may still be due
        goes_on = f"; train.total_steps={longer} goes on" if step < longer else ""
        say(f"{run.path} is at step {step:,} already, beyond train.total_steps={end}: nothing to do{goes_on}.")
        return False
    whole = checkpoints.newest_seen_whole(run.checkpoints)
    if complete(config, run, whole):  # even without its replay, which may be deleted once a run is over
        if end < longer:  # the run now ends here, for other commands and for the next start too
            save_config(config, run.config)
        say(f"{run.path}: complete at step {step:,}. To extend it, set a larger train.total_steps.")
        return False
    return True


def complete(config: Config, run: RunFolder, step: int | None) -> bool:
    """Whether a run has nothing left to do after the checkpoint of a step; its tensors are not read."""
    state = {} if step is None else checkpoints.plain_values(run.checkpoints, step)
    counters, pending = state.get("counters"), state.get("pending")
    updates = counters.get("updates") if isinstance(counters, dict) else None
    if type(updates) is not int or not isinstance(pending, list) or not all(isinstance(name, str) for name in pending):
        return False
    return Schedule(config).complete(step, updates, pending)


def lost_rows(run: RunFolder, state: dict[str, Any]) -> str | None:
    """Describe the checkpoint's rows that the replay lacks, as in a copy of a run in progress; None if it has all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # repeated when the rows are used
            Rings.open(run.replay, state["replay"], read_only=True).close()
    except UserError as error:
        return str(error).partition(". ")[0]
    return None


def newest_state(run: RunFolder, config: Config) -> dict[str, Any] | None:
    """The newest checkpoint from which a run can continue; None before the first.

    Raises:
        UserError: no checkpoint is whole and fits the configuration.
    """

    def why_not(state: dict[str, Any]) -> str | None:
        with fitting(run, config, state):
            return lost_rows(run, state)

    if not checkpoints.list_steps(run.checkpoints):
        return None
    step, state = load_state(run, accept=why_not)
    refuse_nonfinite(run, step, {name: state[name] for name in ("agent", "window", "episode_return")})
    with fitting(run, config, state):
        if step != state["counters"]["step"]:
            raise ValueError(f"step {step:,} counts {state['counters']['step']:,}")
    return state


def refuse_too_few_rows(run: RunFolder, replay: Rings, length: int) -> None:
    """Raise UserError if so many rows have been overwritten that no segment of `length` rows is left to learn from."""
    if not replay.count_segments(length):
        raise UserError(
            f"{run.replay}: {len(replay):,} rows of the newest checkpoint are left, and an update needs {length:,} of"
            " one episode; the others were overwritten after it. This run cannot continue. Start in a new run_dir, with"
            " train.checkpoint_every or a larger replay.capacity."
        )


@contextlib.contextmanager
def fitting(run: RunFolder, config: Config, state: dict[str, Any]) -> Iterator[None]:
    """Turn errors of a checkpoint `state` that does not fit `config` into one line, here and in the block."""
    try:
        changed = differences(build(Config, state["config"]), config, MAY_MOVE)
        if changed:
            raise ValueError("; ".join(changed))
        yield
    except EnvironmentFailure:  # a RuntimeError, but not about the checkpoint
        raise
    except checkpoints.MALFORMED as error:
        if out_of_memory(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) < 300 else f"{reason[:300]} ..."
        raise UserError(
            f"The checkpoint in {run.checkpoints} does not fit {run.config}: one of them was replaced ({reason})."
            " Restore the run folder from a copy, or start in a new run_dir."
        ) from error


def agent_for(config: Config, state: Mapping[str, Any], **where: Any) -> Agent:
    """Build an agent with initial weights for the actions and `can_terminate` of a checkpoint; where: device, dtype."""
    actions = Actions(state["action_size"], state["discrete"])
    return build_agent(config, actions, can_terminate=state["can_terminate"], **where)


def load_run(
    run: Path | str, *, checkpoint: int | str | None = None, device: str = "auto"
) -> tuple[Config, Agent, int]:
    """Return a run's configuration, its agent with a checkpoint's weights (default: the newest), and the step."""
    folder = RunFolder.existing(run)
    config = read_config(folder.config)
    where = resolve_device(device)
    step, state = load_state(folder, checkpoint, parts=AGENT_PARTS)
    refuse_nonfinite(folder, step, state["agent"]["weights"])
    dtype = resolve_precision(config.train.precision, where, deterministic=config.train.deterministic)
    with fitting(folder, config, state):
        agent = agent_for(config, state, device=where, dtype=dtype)
        agent.restore(state["agent"], weights_only=True)
    return config, agent.eval(), step


def untrained(agent: Agent) -> Agent:
    """The agent with the weights that its training began with, ready to act."""
    train = agent.config.train
    dtype = resolve_precision(train.precision, agent.device, deterministic=train.deterministic)
    about = {"can_terminate": agent.can_terminate, "device": agent.device, "dtype": dtype}
    return build_agent(agent.config, agent.actions, **about).eval()


def load(run: Path | str, *, checkpoint: int | str | None = None, device: str = "auto") -> Agent:
    """Load the agent of a run folder, ready to act.

    >>> agent = denoised_mdp.load("runs/quickstart")
    >>> action, carry = agent.act(observation, carry)   # carry=None begins an episode

    observation: uint8 [H, W, 3] or [B, H, W, 3]; action: float32 [A] or [B, A], see `Agent.act`. `agent.config` is the
    run's configuration. `denoised_mdp.make_env("runs/quickstart")` makes its environment.

    Args:
        run: the run folder, or ``pretrained:NAME`` for an agent that comes with the package. checkpoint: a step, or
            "best" (highest evaluation return in training; default: the newest). device: auto, cpu, cuda or cuda:N.

    Raises:
        UserError: there is no such run, or no whole checkpoint in it.
    """
    return load_run(run, checkpoint=checkpoint, device=device)[1]
