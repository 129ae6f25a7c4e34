"""What a run tells: metrics.jsonl and TensorBoard for later, a progress line for now."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from .disk import remedy, replace_file, sync_folder
from .errors import UserError


def as_floats(metrics: Mapping[str, float | np.ndarray | torch.Tensor]) -> dict[str, float | int]:
    """Return the scalars as Python numbers, in the same order.

    Tensors are stacked before they are read, so that a GPU is waited for once and not per metric.

    Raises:
        ValueError: a value is no scalar.
    """
    for name, value in metrics.items():
        if np.ndim(value) and math.prod(np.shape(value)) != 1:
            raise ValueError(f"metric {name} is no scalar: it has shape {tuple(np.shape(value))}")
    groups: dict[Any, list[str]] = {}
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor):
            groups.setdefault((value.device, value.dtype), []).append(name)
    numbers = {}
    for names in groups.values():
        stacked = torch.stack([metrics[name].detach().reshape(()) for name in names])
        numbers.update(zip(names, stacked.tolist(), strict=True))
    return {name: numbers[name] if name in numbers else np.asarray(value).item()
            for name, value in metrics.items()}


class Logger:
    """Writes metrics to ``metrics.jsonl`` and TensorBoard in a run folder.

    Each call of `log` is one line of ``metrics.jsonl``: ``{"step": 1000, "train/return": 12.5}``. JSON has no
    nan and no infinity: they are written as null (TensorBoard gets them as they are).

    Args:
        run_dir: the run folder.
        resume_step: step of the checkpoint that the run continues from; what was logged for later steps is
            removed. None begins anew.
        lines: `Logger.lines` as it was when that checkpoint was saved; lines beyond are removed as well, even
            of the same step.
        events: `Logger.events()` as it was then; TensorBoard's files are cut back to these sizes. None (old
            checkpoints): TensorBoard is told to forget what came after `resume_step`.

    Raises:
        UserError: the files cannot be written.
    """

    def __init__(
        self,
        run_dir: Path | str,
        resume_step: int | None = None,
        lines: int | None = None,
        events: Mapping[str, int] | None = None,
    ):
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        run_dir = Path(run_dir)
        self.path = run_dir / "metrics.jsonl"
        with self._disk_errors():
            kept = [] if resume_step is None else _lines_until(self.path, resume_step, lines)
            replace_file(self.path, "".join(kept).encode())
            self._file = open(self.path, "a", encoding="utf-8", buffering=1)
            self._tensorboard = run_dir / "tensorboard"
            purge = None
            if resume_step is None or events is not None:
                _cut_back(self._tensorboard, events or {})
            else:
                purge = resume_step + 1
            self._earlier = set(self._event_files())
            self._writer = SummaryWriter(str(self._tensorboard), purge_step=purge)
        self._hook_before, threading.excepthook = threading.excepthook, self._thread_failed
        self.lines = len(kept)
        """lines in metrics.jsonl, to be saved in checkpoints"""
        if lines is not None and len(kept) < lines:
            text = f"{self.path} lacks {lines - len(kept):,} of the {lines:,} lines that the checkpoint counts"
            warnings.warn(f"{text}: they are missing or damaged, and the run goes on without them", stacklevel=2)

    def log(self, step: int, metrics: Mapping[str, float | np.ndarray | torch.Tensor]) -> None:
        """Write scalar metrics of one environment step: numbers, arrays or tensors of one element."""
        numbers = as_floats(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        with self._disk_errors():
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
        self.lines += 1

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        """Show a uint8 image [H, W, 3] in TensorBoard."""
        with self._disk_errors():
            self._writer.add_image(name, array, step, dataformats="HWC")

    def flush(self) -> None:
        """Return once all is on the disk. Call it before saving a checkpoint."""
        with self._disk_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._writer.flush()
            for path in set(self._event_files()) - self._earlier:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):  # who deletes the curves loses no more than them
                sync_folder(self._tensorboard)

    def events(self) -> dict[str, int]:
        """Return the size in bytes of every file of TensorBoard, to be saved in checkpoints; call `flush` before."""
        return {path.name: path.stat().st_size for path in self._event_files()}

    def _event_files(self) -> list[Path]:
        return _event_files(self._tensorboard)

    def close(self) -> None:
        """Close the files. Never an error: what counts was flushed, and an error in flight tells more."""
        with contextlib.suppress(OSError), contextlib.closing(self._writer):
            self._file.close()
        if threading.excepthook == self._thread_failed:
            threading.excepthook = self._hook_before

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Show no traceback of the thread that writes for TensorBoard: `log` and `flush` raise its error, explained."""
        ours = type(failure.thread).__module__.startswith("tensorboard.")
        if not (ours and isinstance(failure.exc_value, OSError)):
            self._hook_before(failure)

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"Metrics cannot be written to {self.path.parent} ({error.strerror}). {remedy(error)} and run the"
                " same command again: it continues from the last checkpoint."
            ) from error


def _event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))


def _cut_back(folder: Path, sizes: Mapping[str, int]) -> None:
    """Cut TensorBoard's files back to `sizes`, at which whole records end, and delete those that have none.

    Its own way, a record that makes readers forget later steps, knows no part of a step: what was logged for the
    checkpoint's step but after it would appear twice.
    """
    found = {path.name: path for path in _event_files(folder)}
    for name, path in found.items():
        if name not in sizes:
            path.unlink()
        elif path.stat().st_size > sizes[name]:
            os.truncate(path, sizes[name])
    lacking = [name for name, size in sizes.items() if name not in found or found[name].stat().st_size < size]
    if lacking:
        text = f"{folder / lacking[0]} is missing or shorter than the checkpoint counts"
        warnings.warn(f"{text}: TensorBoard will show a gap", stacklevel=3)


def is_wall_clock(name: str) -> bool:
    """Whether a metric measures time, and so differs between equal runs: its last part tells (eval/seconds)."""
    return "second" in name.rpartition("/")[2]


def _lines_until(path: Path, step: int, count: int | None = None) -> list[str]:
    """Return those of the first `count` lines of a metrics file that are whole and not after `step`."""
    if not path.exists():
        return []
    lines = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in itertools.islice(file, count):
            try:
                keep = line.endswith("\n") and json.loads(line)["step"] <= step
            except (ValueError, TypeError, LookupError, RecursionError):
                keep = False
            if keep:
                lines.append(line)
    return lines


class Progress:
    """A line about a running training: rewritten in place on a terminal, else printed at an interval.

    Speeds and the time left are of the latest rounds that took at least `window` seconds together, a round
    being all steps and updates from one beginning of learning to the next; a part of one would mislead.

    Args:
        total: environment steps of the whole run.
        step, updates: where the run stands now.
        interval: seconds between lines when `stream` is no terminal.
        window: seconds.
        stream: where to write; standard error if None.
    """

    def __init__(
        self,
        total: int,
        step: int = 0,
        updates: int = 0,
        interval: float = 30.0,
        window: float = 120.0,
        stream: TextIO | None = None,
    ):
        self.total, self.window = total, window
        self.stream = sys.stderr if stream is None else stream  # None in a process that was started without one
        self._terminal = self.stream is not None and self.stream.isatty()
        self._interval = 0.2 if self._terminal else interval
        self._began = (time.monotonic(), step, updates)
        self._updates = updates
        self._rounds: deque[tuple[float, int, int]] = deque()  # (time, step, updates) where learning began
        self._written = self._began[0]
        self._line = ""

    def update(
        self, step: int, updates: int, train_return: float | None = None, evaluation: Any = None
    ) -> None:
        """Tell where the run stands; cheap enough for every step and every update.

        Args:
            step, updates: environment steps and updates so far.
            train_return: of the latest training episode.
            evaluation: the latest `EvaluationResult`; its mean and standard error are shown.
        """
        now = time.monotonic()
        begins = updates > self._updates and (not self._rounds or step > self._rounds[-1][1])
        self._updates = updates
        if begins:
            self._rounds.append((now, step, updates))
            while len(self._rounds) > 2 and self._rounds[-1][0] - self._rounds[1][0] >= self.window:
                self._rounds.popleft()
        self._line = self._describe(step, self.speeds(now, step, updates), train_return, evaluation)
        if now - self._written >= self._interval:
            self._write(now)

    def speeds(self, now: float, step: int, updates: int) -> tuple[float, float]:
        """Return recent steps and updates per second."""
        first, last = self._began, (now, step, updates)
        if len(self._rounds) > 1:
            first, last = self._rounds[0], self._rounds[-1]
        seconds = max(last[0] - first[0], 1e-9)
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds

    def _describe(
        self, step: int, speeds: tuple[float, float], train_return: float | None, evaluation: Any
    ) -> str:
        steps_speed, updates_speed = speeds
        parts = [f"step {step:,}/{self.total:,} ({step / max(self.total, 1):.1%})"]
        if evaluation is not None:
            error = evaluation.standard_error
            parts.append(f"eval {evaluation.mean:.1f}" + (f" ± {error:.1f}" if math.isfinite(error) else ""))
        if train_return is not None:
            parts.append(f"train {train_return:.1f}")
        parts.append(f"{steps_speed:.3g} steps/s, {updates_speed:.3g} updates/s")
        if len(self._rounds) > 1 and steps_speed > 0:  # before, nobody knows what a round costs
            parts.append(f"{duration((self.total - step) / steps_speed)} left")
        return " | ".join(parts)

    def _write(self, now: float) -> None:
        """Show the line. That nobody can read it any more (a closed pipe, a full disk) is no reason to end a run."""
        room = shutil.get_terminal_size().columns - 1
        self._tell(f"\r\x1b[K{self._line[:room]}" if self._terminal else f"{self._line}\n")
        self._written = now

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            if self.stream is not None:
                self.stream.write(text)
                self.stream.flush()

    def close(self) -> None:
        """Leave the last state on a line of its own."""
        if self._line:
            self._write(time.monotonic())
            if self._terminal:
                self._tell("\n")
            self._line = ""


def data_size(count: int) -> str:
    """Return a number of bytes in decimal units and exactly, e.g. ``6.19 GB (6,193,152,000 bytes)``."""
    exponent = min((len(str(count)) - 1) // 3, 6)
    if exponent == 0:
        return f"{count} bytes"
    return f"{count / 1000**exponent:.2f} {' kMGTPE'[exponent]}B ({count:,} bytes)"


def duration(seconds: float) -> str:
    """Return a readable duration in its two largest units, e.g. ``3 h 12 min``."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 1:
        return f"{int(days)} d {int(hours % 24)} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes % 60)} min"
    if minutes >= 1:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{max(int(seconds), 0)} s"
