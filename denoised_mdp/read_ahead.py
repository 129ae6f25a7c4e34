"""Reading the next batch while the device works on this one, for a GPU whose memory the replay does not fit."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from .envs.seeding import generator_state, restore_generator
from .errors import UserError
from .lanes import Lanes
from .replay import choose_segments, read_segments


class ReadAhead:
    """Samples what `Lanes.sample` would, bit for bit, of which a thread has read most before it is asked for.

    Behind every batch the next one is chosen with a copy of the generator and its rows are read. It counts only if
    it is then asked for with that very generator and no row was added in between: so nothing about it shows, neither
    in what is learned nor in a checkpoint's generator. At most one batch of a round is read in vain.

    pin: hand over tensors in pinned memory, which a GPU fetches by itself.
    """

    def __init__(self, lanes: Lanes, *, pin: bool):
        self.lanes, self.pin, self.hits = lanes, pin, 0
        self._thread = ThreadPoolExecutor(1, "read-ahead")
        self._next: tuple[Any, Future, dict] | None = None  # its question, its answer, the generator's state then

    def sample(self, batch_size: int, length: int, rng: np.random.Generator) -> dict[str, np.ndarray | torch.Tensor]:
        """As `Lanes.sample`."""
        asked = self._question(batch_size, length, rng)
        if self._next is not None and self._next[0] == asked:
            _, future, state = self._next
            rng.bit_generator.state = state
            self.hits += 1
        else:
            future = self._begin(batch_size, length, rng)
        self._next = None
        batch = future.result()
        twin = restore_generator(generator_state(rng))
        asked = self._question(batch_size, length, twin)
        with contextlib.suppress(UserError):  # to be raised when somebody asks
            self._next = asked, self._begin(batch_size, length, twin), generator_state(twin)
        return batch

    def close(self) -> None:
        """Wait for what is being read, then close the replay."""
        self._thread.shutdown()
        self.lanes.close()

    def _question(self, batch_size: int, length: int, rng: np.random.Generator) -> tuple:
        """All that decides what a batch holds."""
        return batch_size, length, generator_state(rng), [lane.total for lane in self.lanes.lanes]

    def _begin(self, batch_size: int, length: int, rng: np.random.Generator) -> Future:
        source, rows = choose_segments(self.lanes.lanes, batch_size, length, rng)
        return self._thread.submit(self._read, source, rows)

    def _read(self, source: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray | torch.Tensor]:
        batch = read_segments(self.lanes.lanes, source, rows)
        if not self.pin:
            return batch
        return {name: torch.from_numpy(column).pin_memory() for name, column in batch.items()}
