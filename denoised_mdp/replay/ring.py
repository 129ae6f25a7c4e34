"""Experience on disk: rows of (action, reward, observation, is_first, is_terminal) and segments sampled from them.

A replay is a ring of rows in plain ``.npy`` files, one per column, which any NumPy program can memory-map.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.errors import UserError
from denoised_mdp.replay.segments import COLUMNS, row_layout
from denoised_mdp.replay.storage import Columns, bytes_needed

_SAMPLED = 64  # number of rows whose checksums a checkpoint keeps


def _ring(numbers: np.ndarray) -> np.ndarray:
    """Return the place of every row, int [P] for P places: row n lies at ``ring[n % P]``.

    In files that never grew, this is n % P. Growing moves no rows; it appends places, which follow the newest row in
    the ring, wherever that lies. `numbers` int [P] is the column ``number``.
    """
    places = len(numbers)
    ring = np.full(places, -1)
    written = np.flatnonzero(numbers)
    ring[(numbers[written] - 1) % places] = written
    after_newest = (numbers.max() + np.arange(places)) % places
    ring[after_newest[ring[after_newest] < 0]] = np.setdiff1d(np.arange(places), ring)
    return ring


class Replay:
    """The latest `capacity` rows of experience in `folder`, sampled in segments of one episode each.

    Row t holds the action that led to the observation, the reward received on arriving, the observation, whether it
    is the first of its episode (Wang et al. 2022), and whether the task ended there. A time limit does not end a task:
    the last row of a truncated episode is not terminal. A new replay is empty and overwrites an earlier one of the
    same shapes in the folder; `Replay.open` resumes one instead.

    Args:
        folder: where the files are; created if missing.
        capacity: rows that can be sampled; beyond it the oldest are evicted.
        observation_shape: (H, W, 3) of the uint8 observations.
        action_size: A, the number of float32 actions.
        slack: places beyond the capacity. An evicted row stays on disk while `slack` more rows are added, so
            that a checkpoint finds all its rows if at most `slack` rows were added after it. Not needed when
            the capacity holds all rows that the run will ever add.

    Raises:
        UserError: the disk is too small, or the folder holds a replay of other shapes.
    """

    def __init__(
        self, folder: Path | str, capacity: int, observation_shape: Sequence[int], action_size: int, slack: int = 0
    ):
        if capacity < 1 or slack < 0:
            raise ValueError(f"capacity must be positive and slack not negative, got {capacity} and {slack}")
        layout = row_layout(observation_shape, action_size)
        self._attach(Columns.create(Path(folder), layout, capacity + slack), capacity, slack, total=0)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        state: Mapping[str, Any],
        capacity: int | None = None,
        slack: int | None = None,
        read_only: bool = False,
    ) -> Replay:
        """Resume the replay in `folder` from what `state()` returned, without copying.

        Later rows are forgotten and will be overwritten. Rows of `state` that later ones have already overwritten (the
        oldest) are evicted, with a warning.

        Args:
            folder: where the files are.
            state: what `state()` returned.
            capacity, slack: by default those of `state`. The files grow in place if needed and never shrink:
                with a smaller capacity the oldest rows are evicted and their places become slack.
            read_only: only read rows; works without write permission.

        Raises:
            UserError: a file is missing, truncated, of another shape, or lacks rows that `state` counts; or
                the disk is too small for the files to grow.
        """
        layout = row_layout(state["observation_shape"], state["action_size"])
        columns = Columns(Path(folder), layout, state["places"], writable=not read_only)
        try:
            return cls._of(columns, Path(folder), state, capacity, slack)
        except BaseException:
            columns.close()
            raise

    @classmethod
    def _of(
        cls, columns: Columns, folder: Path, state: Mapping[str, Any], capacity: int | None, slack: int | None
    ) -> Replay:
        """Return the replay that `state` describes, on open files; see `open`."""
        total = state["total"]
        capacity = state["capacity"] if capacity is None else capacity
        slack = state["slack"] if slack is None else slack
        self = cls.__new__(cls)
        self._attach(columns, capacity, slack, total)
        self._oldest = state["oldest"]
        counted = np.arange(self._oldest, total)
        expected, found = counted + 1, columns["number"][self._places(counted)]
        missing = np.count_nonzero(found < expected)
        overwritten = np.count_nonzero(found > expected)  # by newer rows, so these are the oldest
        if columns.places > state["places"] and missing + overwritten <= columns["number"].max() - total:
            # The files have grown since, so the places of these rows now hold other rows.
            missing, overwritten = 0, missing + overwritten
        if missing or (found[:overwritten] == expected[:overwritten]).any():
            raise UserError(
                f"{folder} lacks {max(missing, 1):,} of the {len(counted):,} rows that the checkpoint counts: it is"
                " damaged or of another run. Restore it, or start in a new run_dir."
            )
        if overwritten:
            warnings.warn(
                f"{folder}: the {overwritten:,} oldest of {len(counted):,} rows were overwritten after this"
                " checkpoint; training continues without them.",
                stacklevel=2,
            )
        if capacity + slack > columns.places:
            written = columns["number"][columns["number"] > 0]
            if len(written) and np.ptp(written) >= columns.places:  # not one stretch of the run, as `_ring` needs
                raise UserError(
                    f"The replay in {folder} cannot grow yet: it still holds rows of a later part of the run, before"
                    " which this checkpoint was. Go on with the earlier replay.capacity and train.checkpoint_every"
                    f" until it has {columns.places:,} newer rows."
                )
            columns.grow(capacity + slack)
            self._ring = _ring(columns["number"][: columns.places])
        self._oldest = max(self._oldest + overwritten, total - capacity)
        live = np.arange(self._oldest, total)
        starts = live[columns["is_first"][self._places(live)]]
        # The oldest episode may have lost its first rows, and with them its start; the rest counts as an episode.
        self._starts = np.union1d(self._oldest, starts)
        for row, digest in state.get("sample", []):
            if row >= self._oldest and self._digest(row) != digest:
                raise UserError(
                    f"{folder} holds other rows than the checkpoint counts: it is damaged or another run's."
                    " Restore it, or start in a new run_dir."
                )
        return self

    def _attach(self, columns: Columns, capacity: int, slack: int, total: int) -> None:
        """Set the fields of a replay that has seen `total` rows."""
        self.capacity, self.slack, self.total = capacity, slack, total
        self.crosses = False  # segments cross the ends of episodes
        self.observation_shape = columns.layout["observation"][1]
        self.action_size = columns.layout["action"][1][0]
        self._columns = columns
        self._ring = _ring(columns["number"][: columns.places])
        self._oldest = 0
        self._starts = np.zeros(0, np.int64)  # first row of each episode that still has rows; ascending

    def _places(self, rows: np.ndarray | int) -> np.ndarray | int:
        """Return the places of the rows with these numbers."""
        return self._ring[rows % len(self._ring)]

    @staticmethod
    def bytes_needed(capacity: int, observation_shape: Sequence[int], action_size: int, slack: int = 0) -> int:
        """Return the size of a full replay on disk in bytes."""
        return bytes_needed(row_layout(observation_shape, action_size), capacity + slack)

    @property
    def places(self) -> int:
        """Rows that fit in the files; at least the capacity."""
        return len(self._ring)

    def __len__(self) -> int:
        """Return the number of rows that can be sampled."""
        return self.total - self._oldest

    def add(
        self, observation: np.ndarray, action: np.ndarray, reward: float, is_first: bool, is_terminal: bool = False
    ) -> None:
        """Append one row: uint8 [H, W, C], float32 [A], float, bool, bool.

        Raises:
            ValueError: a wrong shape or dtype, or a first row that does not begin an episode.
            UserError: the disk is full; the row does not count.
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
        row = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "is_first": is_first,
            "is_terminal": is_terminal,
            "number": self.total + 1,
        }
        self._columns.write(self._places(self.total), row)
        if is_first and self.total not in self._starts[-1:]:
            evicted = np.searchsorted(self._starts[1:], self._oldest, side="right")
            self._starts = np.append(self._starts[evicted:], self.total)
        self.total += 1
        self._oldest = max(self._oldest, self.total - self.capacity)

    def count_segments(self, length: int) -> int:
        """Return the number of different segments of `length` rows that can be sampled."""
        _, rows = self.stretches()
        return int(np.maximum(rows - length + 1, 0).sum())

    def episodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row of every episode and its number of rows (0 or less: evicted), int [E] each."""
        first = np.maximum(self._starts, self._oldest)
        return first, np.diff(self._starts, append=self.total) - (first - self._starts)

    def stretches(self) -> tuple[np.ndarray, np.ndarray]:
        """Return first row and length of the stretches that segments lie in: episodes, or all rows with `crosses`."""
        return (np.array([self._oldest]), np.array([len(self)])) if self.crosses else self.episodes()

    def read(self, rows: np.ndarray, names: Sequence[str] = COLUMNS) -> dict[str, np.ndarray]:
        """Copy columns of rows by number (an int or an array of any shape), counted from the first row ever added.

        Raises:
            IndexError: a row was evicted or not yet added.
        """
        rows = np.asarray(rows)
        if rows.ndim == 0:  # the columns would return views of their files
            return {name: column[0] for name, column in self.read(rows[None], names).items()}
        if rows.size and (rows.min() < self._oldest or rows.max() >= self.total):
            held = f"rows {self._oldest} to {self.total - 1}"
            raise IndexError(f"the replay holds {held}, got {rows.min()} to {rows.max()}")
        places = self._places(rows)
        return {name: self._columns.read(name, places) for name in names}

    def _digest(self, row: int) -> int:
        """Return a checksum of the content of one row."""
        place, digest = self._places(row), 0
        for name in COLUMNS:
            digest = zlib.crc32(self._columns[name][place].tobytes(), digest)
        return digest

    def flush(self) -> None:
        """Sync all rows to disk. Call it before saving a checkpoint."""
        self._columns.flush()

    def state(self) -> dict[str, Any]:
        """Return the small JSON-ready description from which `Replay.open` resumes.

        Its checksums, of a few rows spread over the replay, reveal the files of another run.
        """
        rows = sorted({int(row) for row in np.linspace(self._oldest, self.total - 1, _SAMPLED)} if len(self) else ())
        sample = [[row, self._digest(row)] for row in rows]
        self._columns.forget("observation")
        return {
            "capacity": self.capacity,
            "slack": self.slack,
            "places": self._columns.places,
            "total": self.total,
            "oldest": self._oldest,
            "sample": sample,
            "observation_shape": list(self.observation_shape),
            "action_size": self.action_size,
        }

    def close(self) -> None:
        """Close the files; the replay cannot be used afterwards."""
        self._columns.close()
