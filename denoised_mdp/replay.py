"""Experience on disk: rows of (action, reward, observation, is_first) and segments sampled from them.

A replay is a ring of rows in plain ``.npy`` files, one per column, which any NumPy program can memory-map.
Rows are written with ``pwrite`` and read through a memory map, because a full disk then raises an error
that we can explain; writing through the map would kill the process with SIGBUS.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]  # column -> dtype and shape of one row


def _layout(observation_shape: Sequence[int], action_size: int) -> Layout:
    """Return dtype and shape of one row of every column, in the order in which a row is written.

    `number` comes last: it counts rows from 1 (0 means never written), so that a reopened replay can tell
    which row of the experience a place in the ring holds.
    """
    return {
        "observation": (np.dtype(np.uint8), tuple(map(int, observation_shape))),
        "action": (np.dtype(np.float32), (int(action_size),)),
        "reward": (np.dtype(np.float32), ()),
        "is_first": (np.dtype(np.bool_), ()),
        "number": (np.dtype(np.int64), ()),
    }


class _Column:
    """One ``.npy`` file of rows, open for writing single rows and for reading many."""

    def __init__(self, path: Path):
        mapped = np.load(path, mmap_mode="r")
        self.rows = np.asarray(mapped)  # [rows, ...], read only
        self._mapped = mapped
        self._row_bytes = mapped[:1].nbytes
        self._file = os.open(path, os.O_RDWR)

    def write(self, place: int, row: np.ndarray) -> None:
        data = row.tobytes()
        offset = self._mapped.offset + place * self._row_bytes
        while data:  # a disk that is nearly full accepts a part, then says why it stops
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written

    def forget(self) -> None:
        """Give the pages read so far back; the system's cache keeps them.

        Otherwise the process would seem to grow by the whole replay, and memory limits would kill it.
        """
        self._mapped.base.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class Replay:
    """The latest `capacity` rows of experience in `folder`, sampled in segments of one episode each.

    Row t holds the action that led to the observation, the reward received on arriving, the observation, and
    whether it is the first of its episode (Wang et al. 2022). A new replay is empty: what an earlier one of
    the same shapes left in the folder is overwritten; `Replay.open` continues instead.

    Args:
        folder: where the files lie; made if missing.
        capacity: rows that can be sampled; the oldest are evicted beyond it.
        observation_shape: (H, W, 3) of the uint8 observations.
        action_size: A, the number of float32 actions.
        slack: places beyond the capacity. An evicted row stays on disk while `slack` more rows are added, so
            that a checkpoint finds all its rows if at most `slack` rows were added after it. Not needed when
            the capacity holds all rows that the run will ever add.

    Raises:
        UserError: the disk is too small, or the folder holds a replay of other shapes.
    """

    def __init__(self, folder: Path | str, capacity: int, observation_shape: Sequence[int], action_size: int,
                 slack: int = 0):
        if capacity < 1 or slack < 0:
            raise ValueError(f"capacity must be positive and slack not negative, got {capacity} and {slack}")
        folder = Path(folder)
        layout = _layout(observation_shape, action_size)
        _refuse_other_shapes(folder, layout)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            leftovers = [path for name in layout if (path := folder / f"{name}.npy").exists()]
            needed = self.bytes_needed(capacity, observation_shape, action_size, slack)
            free = shutil.disk_usage(folder).free + sum(path.stat().st_blocks * 512 for path in leftovers)
            if needed > free:
                raise UserError(
                    f"The replay of {capacity:,} rows needs {needed:,} bytes but the disk of {folder} has"
                    f" {free:,} bytes free. Set a smaller replay.capacity, or a run_dir on a larger disk."
                )
            for path in leftovers:
                path.unlink()
            for name, (dtype, shape) in layout.items():  # sparse files, which fill up as rows are written
                places = (capacity + slack, *shape)
                np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=places)
        except OSError as error:
            raise _disk_error(folder, error) from error
        self._attach(folder, capacity, slack, layout, total=0)

    @classmethod
    def open(cls, folder: Path | str, state: Mapping[str, Any]) -> Replay:
        """Continue the replay in `folder` from what `state()` returned, without copying.

        Rows added after that moment are forgotten and will be overwritten. When so many had been added that
        they replaced rows which `state` still counts, those (the oldest) are evicted, with a warning.

        Raises:
            UserError: a file is missing, truncated, of another shape, or lacks rows that `state` counts.
        """
        folder, capacity, slack, total = Path(folder), state["capacity"], state["slack"], state["total"]
        layout = _layout(state["observation_shape"], state["action_size"])
        _refuse_other_shapes(folder, layout)
        self = cls.__new__(cls)
        self._attach(folder, capacity, slack, layout, total)
        expected = np.arange(self._oldest, total, dtype=np.int64) + 1
        found = self._columns["number"].rows[(expected - 1) % self._places]
        missing = np.count_nonzero(found < expected)
        if missing:
            raise UserError(
                f"{folder} lacks {missing:,} of the {len(expected):,} rows that the checkpoint counts: it is"
                " damaged or of another run. Restore it, or start in a new run_dir."
            )
        overwritten = np.count_nonzero(found > expected)  # by newer rows, hence the oldest ones
        if overwritten:
            warnings.warn(
                f"{folder}: the {overwritten:,} oldest of {len(expected):,} rows were overwritten after this"
                " checkpoint; training continues without them.", stacklevel=2,
            )
            self._oldest += overwritten
        live = np.arange(self._oldest, total)
        starts = live[self._columns["is_first"].rows[live % self._places]]
        # The oldest episode may have lost its first rows: what is left of it counts as an episode.
        self._starts = np.union1d(live[:1], starts)
        return self

    def _attach(self, folder: Path, capacity: int, slack: int, layout: Layout, total: int) -> None:
        """Open the files and set the fields of a replay that has seen `total` rows."""
        self.folder, self.capacity, self.slack, self.total = folder, capacity, slack, total
        self.observation_shape = layout["observation"][1]
        self.action_size = layout["action"][1][0]
        self._places = capacity + slack
        self._oldest = max(0, total - capacity)
        self._starts = np.zeros(0, np.int64)  # first row of each episode that still has rows; ascending
        self._layout = layout
        self._columns: dict[str, _Column] = {}
        for name in layout:
            path = folder / f"{name}.npy"
            try:
                self._columns[name] = _Column(path)
                found = len(self._columns[name].rows)
                if found != self._places:
                    raise ValueError(f"{found:,} rows instead of {self._places:,}")
            except (OSError, ValueError, EOFError) as error:
                raise UserError(
                    f"{path} is missing or damaged ({error}). Restore it, or start in a new run_dir."
                ) from error

    @staticmethod
    def bytes_needed(
        capacity: int, observation_shape: Sequence[int], action_size: int, slack: int = 0
    ) -> int:
        """Return the size of a full replay on disk in bytes."""
        columns = _layout(observation_shape, action_size).values()
        row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in columns)
        return (capacity + slack) * row + len(columns) * 128  # 128: the header of each file

    def __len__(self) -> int:
        """Return the number of rows that can be sampled."""
        return self.total - self._oldest

    def add(self, observation: np.ndarray, action: np.ndarray, reward: float, is_first: bool) -> None:
        """Append one row: uint8 [H, W, 3], float32 [A], float, bool.

        Raises:
            ValueError: a wrong shape or dtype, or a first row that does not begin an episode.
            UserError: the disk is full; the row then does not count.
        """
        observation = np.asarray(observation)
        action = np.asarray(action, np.float32)
        if observation.dtype != np.uint8 or observation.shape != self.observation_shape:
            found = f"{observation.dtype} {observation.shape}"
            raise ValueError(f"expected a uint8 observation {self.observation_shape}, got {found}")
        if action.shape != (self.action_size,):
            raise ValueError(f"expected an action of shape {(self.action_size,)}, got {action.shape}")
        if self.total == 0 and not is_first:
            raise ValueError("the first row of a replay must be the first of an episode (is_first=True)")
        row = {"observation": observation, "action": action, "reward": reward, "is_first": is_first,
               "number": self.total + 1}
        place = self.total % self._places
        try:
            for name, (dtype, _) in self._layout.items():
                self._columns[name].write(place, np.asarray(row[name], dtype))
        except OSError as error:
            raise _disk_error(self.folder, error) from error
        if is_first:
            evicted = np.searchsorted(self._starts[1:], self._oldest, side="right")
            self._starts = np.append(self._starts[evicted:], self.total)
        self.total += 1
        self._oldest = max(self._oldest, self.total - self.capacity)

    def count_segments(self, length: int) -> int:
        """Return how many different segments of `length` rows could be sampled now."""
        _, rows = self._episodes()
        return int(np.maximum(rows - length + 1, 0).sum())

    def _episodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of every episode and its number of rows (none or less: evicted)."""
        first = np.maximum(self._starts, self._oldest)
        return first, np.diff(self._starts, append=self.total) - (first - self._starts)

    def sample(self, batch_size: int, length: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample `batch_size` (B) segments of `length` (T) consecutive rows, each of a single episode.

        Every possible start of every episode is equally likely: the last one included, the running episode
        too. The time depends on the batch and slightly on the number of episodes, not on that of rows.

        Returns:
            observation uint8 [T, B, H, W, 3], action float32 [T, B, A], reward float32 [T, B],
            is_first bool [T, B]; contiguous and owned by the caller.

        Raises:
            UserError: no episode is long enough.
        """
        first, rows = self._episodes()
        counts = np.maximum(rows - length + 1, 0)  # segment starts per episode
        ends = np.cumsum(counts)
        if not counts.any():
            raise UserError(
                f"No segment of {length:,} rows can be sampled: the longest episode in the replay has"
                f" {rows.max(initial=0):,} of its {len(self):,} rows. Set a smaller train.segment_length or a"
                " larger train.prefill_steps."
            )
        chosen = rng.integers(ends[-1], size=batch_size)  # [B], numbers among all starts
        episode = np.searchsorted(ends, chosen, side="right")
        starts = first[episode] + chosen - (ends - counts)[episode]
        return self.read(starts + np.arange(length)[:, None])  # [T, B]

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Copy the rows of these numbers (int array of any shape), counted from the replay's very first row.

        Raises:
            IndexError: a row was evicted or not yet added.
        """
        rows = np.asarray(rows)
        if rows.size and (rows.min() < self._oldest or rows.max() >= self.total):
            held = f"rows {self._oldest} to {self.total - 1}"
            raise IndexError(f"the replay holds {held}, got {rows.min()} to {rows.max()}")
        places = rows % self._places
        batch = {name: column.rows[places] for name, column in self._columns.items() if name != "number"}
        self._columns["observation"].forget()
        return batch

    def flush(self) -> None:
        """Return once all rows would survive a power failure. Call it before saving a checkpoint."""
        try:
            for column in self._columns.values():
                column.flush()
        except OSError as error:
            raise _disk_error(self.folder, error) from error

    def state(self) -> dict[str, Any]:
        """Return the small JSON-ready description from which `Replay.open` continues."""
        return {"capacity": self.capacity, "slack": self.slack, "total": self.total,
                "observation_shape": list(self.observation_shape), "action_size": self.action_size}

    def close(self) -> None:
        """Close the files; the replay cannot be used afterwards."""
        for column in self._columns.values():
            column.close()
        self._columns = {}


def _refuse_other_shapes(folder: Path, layout: Layout) -> None:
    """Raise UserError when `folder` holds a replay whose rows have another shape."""
    for name, (dtype, shape) in layout.items():
        path = folder / f"{name}.npy"
        try:
            found = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            continue  # missing or broken files hold nothing to protect here; opening them reports it
        if found.shape[1:] != shape or found.dtype != dtype:
            raise UserError(
                f"{path} holds rows of {found.dtype} {found.shape[1:]}, not {dtype} {shape}: it is of another"
                " environment. Choose another run_dir."
            )


def _disk_error(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"The replay in {folder} cannot be written ({error.strerror}). Make room and run the same command"
        " again: it continues from the last checkpoint."
    )
