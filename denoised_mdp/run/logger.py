"""The metrics of a run: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from denoised_mdp.errors import UserError, remedy
from denoised_mdp.files import json_lines, replace_file, still_at, sync_folder
from denoised_mdp.run.event_files import event_files
from denoised_mdp.run.mirrors import Mirror


def as_floats(metrics: Mapping[str, float | np.ndarray | torch.Tensor]) -> dict[str, float | int]:
    """Return the scalars as Python numbers, in the same order.

    Tensors are stacked before they are read: one wait for a GPU instead of one per metric.

    Raises:
        ValueError: a value is not a scalar.
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
    return {name: numbers[name] if name in numbers else np.asarray(value).item() for name, value in metrics.items()}


class Logger:
    """Writes metrics to ``metrics.jsonl`` and TensorBoard in a run folder.

    Each call of `log` is one line of ``metrics.jsonl``: ``{"step": 1000, "train/return": 12.5}``. JSON has no
    nan and no infinity: they are written as null (TensorBoard gets them as they are).

    Args:
        run_dir: the run folder.
        resume_step: step of the checkpoint from which the run resumes, 0 for a new run; later entries are removed.
        lines: `Logger.lines` when that checkpoint was saved; further lines are removed, even of the same
            step.
        events: `Logger.events()` at that time; TensorBoard's files are truncated to these sizes.

    Raises:
        UserError: the files cannot be written.
    """

    def __init__(
        self, run_dir: Path | str, resume_step: int = 0, lines: int = 0, events: Mapping[str, int] | None = None
    ):
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and needed only for training

        run_dir = Path(run_dir)
        self.mirror: Mirror | None = None
        """also gets the metrics, and whether the run failed; the logger closes it"""
        self.path = run_dir / "metrics.jsonl"
        with self._disk_errors():
            kept = _lines_until(self.path, resume_step, lines)
            replace_file(self.path, "".join(kept).encode())
            self._file = open(self.path, "a", encoding="utf-8", buffering=1)
            self._tensorboard = run_dir / "tensorboard"
            _cut_back(self._tensorboard, events or {})
            self._earlier = set(self._event_files())
            self._writer = SummaryWriter(str(self._tensorboard))
        self._hook_before, threading.excepthook = threading.excepthook, self._thread_failed
        self.lines = len(kept)
        """number of lines in metrics.jsonl, for checkpoints"""
        if len(kept) < lines:
            text = f"{self.path} lacks {lines - len(kept):,} of the {lines:,} lines that the checkpoint counts"
            warnings.warn(f"{text}: they are missing or damaged; the run continues without them", stacklevel=2)

    def log(self, step: int, metrics: Mapping[str, float | np.ndarray | torch.Tensor]) -> None:
        """Write scalar metrics of one environment step: numbers, arrays or tensors of one element."""
        numbers = as_floats(metrics)
        if "step" in numbers:
            raise UserError("No metric can be called 'step': it is the number of environment steps. Rename it.")
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        with self._disk_errors():
            self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
        if self.mirror is not None:
            self.mirror.log(step, numbers)
        self.lines += 1

    def image(self, step: int, name: str, path: Path) -> None:
        """Show a PNG file in TensorBoard without recompressing it, which takes long for a large image."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # slow to import, as above

        with self._disk_errors():
            with Image.open(path) as image:
                about = {"width": image.width, "height": image.height, "colorspace": len(image.getbands())}
            shown = Summary.Value(tag=name, image=Summary.Image(encoded_image_string=path.read_bytes(), **about))
            self._writer.file_writer.add_summary(Summary(value=[shown]), step)

    def flush(self) -> None:
        """Sync everything to disk. Call it before saving a checkpoint.

        Raises:
            UserError: the disk is full, or metrics.jsonl is not the file that was written.
        """
        with self._disk_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            if not still_at(self.path, self._file.fileno()):  # its lines go to a file that nobody can find
                raise UserError(
                    f"{self.path} was deleted, replaced or moved while it was written, as editors do. Put back what"
                    " was moved and run the same command again: it continues from the last checkpoint."
                )
            self._writer.flush()
            for path in set(self._event_files()) - self._earlier:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):  # a user who deletes the curves loses nothing else
                sync_folder(self._tensorboard)

    def events(self) -> dict[str, int]:
        """Return the size in bytes of each TensorBoard file, for checkpoints; call `flush` first."""
        return {path.name: path.stat().st_size for path in self._event_files()}

    def _event_files(self) -> list[Path]:
        return event_files(self._tensorboard)

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        """Close the files and tell the mirror whether the run failed. A stop or Ctrl-C is not a failure."""
        self.close(failed=kind is not None and issubclass(kind, Exception))

    def close(self, failed: bool = False) -> None:
        """Close the files and suppress errors: what counts has been flushed, and an error in flight says more."""
        with contextlib.suppress(OSError), contextlib.closing(self._writer):
            self._file.close()
        if self.mirror is not None:
            self.mirror.close(failed)
        if threading.excepthook == self._thread_failed:
            threading.excepthook = self._hook_before

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Suppress tracebacks of TensorBoard's writer thread: `log` and `flush` raise its error with an explanation."""
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


def _cut_back(folder: Path, sizes: Mapping[str, int]) -> None:
    """Truncate TensorBoard's files to `sizes`, where whole records end, and delete those without a size.

    TensorBoard's own way, a record that makes readers forget later steps, cannot cut within a step: entries of the
    checkpoint's step that were logged after it would appear twice.
    """
    found = {path.name: path for path in event_files(folder)}
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
    """Whether a metric, by the last part of its name (eval/seconds), measures time: it may differ in equal runs."""
    return "second" in name.rpartition("/")[2]


def _lines_until(path: Path, step: int, count: int) -> list[str]:
    """Return those of the first `count` lines of a metrics file that are whole and not after `step`."""
    if not path.exists():
        return []
    return [
        line
        for line, row in itertools.islice(json_lines(path), count)
        if line.endswith("\n") and row is not None and isinstance(row.get("step"), int) and row["step"] <= step
    ]
