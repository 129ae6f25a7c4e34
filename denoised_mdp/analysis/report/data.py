"""The data that a report reads from a run folder, and what is missing there.

Damaged files raise no errors: what cannot be read becomes a sentence in `RunData.problems`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.config import as_tree, read_config
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import as_text
from denoised_mdp.errors import UserError, one_line
from denoised_mdp.files import json_lines, read_json
from denoised_mdp.run.checkpoint import list_steps
from denoised_mdp.run.event_files import event_files, moments
from denoised_mdp.run.folder import RunFolder

BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""errors that reading a damaged file can raise"""
SESSION_GAP = 3600.0
"""seconds without an entry after which training counts as paused"""

Curve = tuple[np.ndarray, np.ndarray]
"""steps, in increasing order, and values: float64 [n] each"""


@dataclass
class Speed:
    """How long training took, from the times in TensorBoard's files."""

    seconds: float
    """from the first to the last entry of each start, summed over starts, without gaps of an hour or more"""
    steps: int
    """environment steps in that time"""

    @property
    def steps_per_second(self) -> float:
        """Overall speed: acting, learning, evaluation and rendering included."""
        return self.steps / self.seconds if self.seconds > 0 else math.nan


@dataclass
class RunData:
    """One run, as read from its folder."""

    path: Path
    config: Config | None = None
    metrics: dict[str, Curve] = field(default_factory=dict)
    probes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """name of a probe -> all its results; "file" is the path of a result, "split" its kind of clips"""
    media: Path | None = None
    """path of the newest video or picture, without suffix"""
    machine: list[dict[str, Any]] = field(default_factory=list)
    speed: Speed | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def step(self) -> int:
        """The last logged step or, without a log, the step of the last checkpoint; 0 without either."""
        if not self.metrics:
            with contextlib.suppress(UserError, OSError):
                return max(list_steps(RunFolder(self.path).checkpoints), default=0)
        return int(max((steps[-1] for steps, _ in self.metrics.values()), default=0))

    @property
    def seed(self) -> int | None:
        """The seed; None if the configuration cannot be read."""
        return None if self.config is None else self.config.seed

    def options(self) -> dict[str, str]:
        """Every option of the configuration as text, by dotted key."""
        tree = {} if self.config is None else as_tree(self.config)
        return {key: as_text(value) for key, value in flatten(tree)}


def read_run(path: Path, extra: Sequence[Path | str] = ()) -> RunData:
    """Read one run folder; `extra` are further folders with probe results (``probe ... --output``).

    Raises:
        UserError: the folder is neither a run nor one that has lost its configuration.
    """
    folder = RunFolder(path)
    if not folder.lost:
        RunFolder.existing(path)
    run = RunData(Path(path))
    try:
        run.config = read_config(folder.config)
    except UserError as error:
        run.problems.append(f"The configuration cannot be read: {error}")
    except OSError as error:
        run.problems.append(f"The configuration cannot be read ({error.strerror}).")
    run.metrics, problems = read_metrics(folder.metrics)
    run.problems += problems
    run.probes, problems = read_probes(folder, extra)
    run.problems += problems
    run.media = newest_media(folder.videos)
    run.machine, problems = read_machine(folder.machine)
    run.problems += problems
    run.speed, problems = read_speed(folder.tensorboard)
    run.problems += problems
    return run


def check_probe_folders(folders: Sequence[Path | str]) -> None:
    """Raise UserError unless all of these folders with probe results exist."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"There is no folder {folder} with results of probes.")


def objects_in(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects in a file of JSON lines, and the number of lines that are neither objects nor blank.

    Raises:
        OSError: the file cannot be read.
    """
    lines = list(json_lines(path))
    return [row for _, row in lines if row is not None], sum(row is None and bool(line.strip()) for line, row in lines)


def read_metrics(path: Path) -> tuple[dict[str, Curve], list[str]]:
    """Every metric of ``metrics.jsonl`` as a curve of finite values (the last of equal steps counts), and problems."""
    try:
        rows, torn = objects_in(path)
    except FileNotFoundError:
        return {}, ["There is no metrics.jsonl: nothing was logged."]
    except OSError as error:
        return {}, [f"metrics.jsonl cannot be read ({error.strerror})."]
    values: dict[str, dict[float, float]] = {}
    lost = 0
    for row in rows:
        step = _number(row.get("step"))
        if not math.isfinite(step):
            torn += 1
            continue
        for name, value in row.items():
            if name != "step" and math.isfinite(_number(value)):
                values.setdefault(name, {})[step] = _number(value)
            elif name != "step":
                lost += 1
    problems = []
    if torn:
        problems.append(f"{_count(torn, 'line')} of metrics.jsonl cannot be read and {_are(torn)} left out.")
    if lost:
        problems.append(f"{_count(lost, 'value')} in metrics.jsonl {_are(lost)} no finite number and left out.")
    if not values:
        problems.append("metrics.jsonl holds no metrics yet.")
    curves = {}
    for name, points in values.items():
        steps = np.array(sorted(points))
        curves[name] = (steps, np.array([points[step] for step in steps]))
    return curves, problems


def read_probes(run: RunFolder, extra: Sequence[Path | str]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """All probe results of a run, by name of the probe, and problems.

    If folders have results of the same probe, options, step, compared runs and checkpoint, the last folder's counts.
    extra: other folders, which may hold results of other runs as well.
    """
    results: dict[tuple[str, str, int, str], dict[str, Any]] = {}
    problems = []
    for place, folder in enumerate((run.probes, *map(Path, extra))):
        try:
            files = sorted(folder.glob("*.json"))
        except OSError as error:
            problems.append(f"{folder} cannot be read ({error.strerror}).")
            continue
        for path in files:
            try:
                tree = read_json(path)
                probe, step = str(tree["probe"]), int(tree.get("step") or 0)
                options = tree.get("options") or {}
                split = str(options.get("split") or "")
                if "run" not in tree or (place and not run.was_at(str(tree["run"]))):
                    continue  # of several runs together, or of another run
            except BROKEN as error:
                if place == 0:
                    problems.append(f"probes/{path.name} cannot be read ({short_text(error)}).")
                continue
            key = probe, split, step, json.dumps([options, tree.get("runs"), tree.get("checkpoint")], sort_keys=True)
            results[key] = {**tree, "step": step, "split": split, "file": path}
    found: dict[str, list[dict[str, Any]]] = {}
    for (probe, *_), tree in sorted(results.items(), key=lambda item: item[0]):
        found.setdefault(probe, []).append(tree)
    return found, problems


def newest_media(folder: Path) -> Path | None:
    """Path without suffix of the newest video or picture; a tie goes to training's own, then to training clips."""
    with contextlib.suppress(OSError):
        stems = {path.with_suffix("") for path in folder.iterdir() if re.search(r"_\d+\.(mp4|png)$", path.name)}
        kinds = ("test_", "train_", "step_")  # the last is best

        def rank(stem: Path) -> tuple:
            return int(stem.name.rpartition("_")[2]), *(stem.name.startswith(kind) for kind in reversed(kinds)), stem

        return max(stems, key=rank, default=None)
    return None


def read_machine(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The machines, one entry per start, and problems."""
    try:
        rows, torn = objects_in(path)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"machine.jsonl cannot be read ({error.strerror})."]
    return rows, [f"{_count(torn, 'line')} of machine.jsonl cannot be read."] if torn else []


def read_speed(folder: Path) -> tuple[Speed | None, list[str]]:
    """Time and steps of all starts, and problems; a truncated file counts as far as it can be read."""
    from google.protobuf.message import DecodeError

    total, problems = Speed(0.0, 0), []
    for path in event_files(folder):
        points = []
        try:
            points.extend(moments(path))  # those before an error are kept
        except (OSError, ValueError, DecodeError) as error:
            problems.append(f"tensorboard/{path.name} cannot be read to its end ({short_text(error)}).")
        part = speed_of(points)
        total = Speed(total.seconds + part.seconds, total.steps + part.steps)
    return (total if total.steps else None), problems


def speed_of(points: Sequence[tuple[float, int]]) -> Speed:
    """Time and steps of one start, without pauses, from (seconds, step) in the order of writing."""
    seconds, steps = 0.0, 0
    for (begin, before), (end, after) in zip(points, points[1:], strict=False):
        if 0 <= end - begin < SESSION_GAP and after >= before:
            seconds, steps = seconds + end - begin, steps + after - before
    return Speed(seconds, steps)


def short_text(error: Exception) -> str:
    """An exception as a short, single line."""
    return one_line(str(error) or type(error).__name__, 160)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
