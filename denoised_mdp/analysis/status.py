"""Progress of the runs of a sweep, read from their folders alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from denoised_mdp.analysis.report.data import read_metrics, read_speed
from denoised_mdp.config import read_config
from denoised_mdp.errors import UserError
from denoised_mdp.progress import duration
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.failure import last_error
from denoised_mdp.run.find import find_runs
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import complete


@dataclass
class Status:
    """Status of one run. `total` is None if the configuration cannot be read."""

    path: Path
    state: str
    """finished, running, failed, stopped (by a signal, a kill or a power failure, or not yet begun), damaged (it cannot
    continue as it is), or exported (weights only)"""
    step: int
    """the last one logged or saved"""
    total: int | None
    value: float
    """the last ``eval/return``, or the last ``train/return`` if there is none yet; nan without either"""
    speed: float
    """environment steps per second, everything included; nan where unknown"""
    error: str | None
    """the last error of a failed run, or the damage of a damaged one"""

    @property
    def line(self) -> str:
        """Columns: state, step, share, return, speed, path, and the remaining time of a running run."""
        share = f"{self.step / self.total:4.0%}" if self.total else "   -"
        value, speed = (f"{x:8.1f}" if math.isfinite(x) else "       -" for x in (self.value, self.speed))
        left = (self.total - self.step) / self.speed if self.state == "running" and self.total and self.speed else 0.0
        rest = f"  {duration(left)} left" if left > 0 and math.isfinite(left) else ""
        return f"{self.state:8}  {self.step:>11,}  {share}  {value}  {speed}  {self.path}{rest}"


HEADER = f"{'state':8}  {'step':>11}  done  {'return':>8}  {'steps/s':>8}  run"


def status_of(path: Path) -> Status:
    """Read one run's folder; what cannot be read becomes nan or damage, never an error."""
    run, config, damage = RunFolder(path), None, None
    try:
        config = read_config(run.config)
    except (UserError, OSError) as problem:
        damage = str(problem)
    metrics, _ = read_metrics(run.metrics)
    speed, _ = read_speed(run.tensorboard)
    steps, whole, begun = [], None, True
    try:
        steps = checkpoints.list_steps(run.checkpoints)
        whole = checkpoints.newest_seen_whole(run.checkpoints)
        begun = whole is not None or not run.held or checkpoints.expects_first(run.checkpoints)
    except UserError as problem:
        damage = damage or str(problem)
    except OSError as problem:
        damage = damage or f"{run.checkpoints} cannot be read ({problem.strerror})."
    if steps and whole is None:
        damage = damage or f"All its checkpoints are damaged: restore a copy of {run.checkpoints}."
    elif not begun:
        damage = damage or f"It has lost its checkpoints: put {run.checkpoints} back."
    saved, total = whole or 0, config.train.total_steps if config else None
    done = config is not None and complete(config, run, whole)
    if whole is not None and not done and not run.exported and not run.replay.is_dir():
        damage = damage or f"It has lost its replay: put {run.replay} back."
    error = last_error(run.error)
    if run.in_use():
        state, error = "running", None
    elif damage:
        state, error = "damaged", damage
    elif done:
        state, error = "finished", None
    elif error:
        state = "failed"
    elif run.exported:
        state = "exported"
    else:  # before its last step, or at it with something still due, such as the last evaluation
        state = "stopped"
    step = int(max((steps[-1] for steps, _ in metrics.values()), default=0))
    values = next((metrics[name][1] for name in ("eval/return", "train/return") if name in metrics), [math.nan])
    return Status(
        path, state, max(step, saved), total, values[-1], speed.steps_per_second if speed else math.nan, error
    )


def statuses(folders: Sequence[Path]) -> list[Status]:
    """Status of the runs among these folders and, at any depth, inside the others.

    Raises:
        UserError: a folder is not a run and holds none.
    """
    return [status_of(path) for path in find_runs(folders)]
