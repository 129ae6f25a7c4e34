"""Reads the next batch while the device works on this one, for a replay that does not fit in GPU memory."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import choose_segments, read_segments
from denoised_mdp.seeding import generator_state, restore_generator


class Prefetch:
    """Samples what `Rings.sample` would, bit for bit, from rows that a thread has read in advance.

    `begin` chooses a batch with a copy of the generator and starts to read its rows. They are used only if that batch
    is requested with the same generator and no row was added in between. Neither learning nor a checkpoint's generator
    is affected.

    pin: return tensors in pinned memory, for asynchronous transfer to a GPU.
    """

    def __init__(self, rings: Rings, *, pin: bool):
        self.rings, self.pin, self.hits = rings, pin, 0
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._next: tuple[Any, tuple, Future, dict] | None = None  # question, rows, answer, generator state after it

    def begin(self, batch_size: int, length: int, rng: np.random.Generator, lead: int = 0) -> None:
        """Start to read what `sample` would return now; `rng` is not advanced.

        Raises:
            UserError: no episode is long enough.
        """
        twin = restore_generator(generator_state(rng))
        question = self._question(batch_size, length, rng, lead)
        source, rows = choose_segments(self.rings.rings, batch_size, length, twin, lead)
        self._next = question, (source, rows), self._thread.submit(self._read, source, rows), generator_state(twin)

    def sample(
        self, batch_size: int, length: int, rng: np.random.Generator, lead: int = 0
    ) -> dict[str, np.ndarray | torch.Tensor]:
        """See `Rings.sample`."""
        begun, self._next = self._next, None
        if begun is not None and begun[0] == self._question(batch_size, length, rng, lead):
            _, self.chosen, future, rng.bit_generator.state = begun
            self.hits += 1
            return future.result()
        self.chosen = choose_segments(self.rings.rings, batch_size, length, rng, lead)
        return self._read(*self.chosen)

    def close(self) -> None:
        """Wait for the read in progress, then close the replay."""
        self._thread.shutdown()
        self.rings.close()

    def _question(self, batch_size: int, length: int, rng: np.random.Generator, lead: int) -> tuple:
        """Everything that determines a batch."""
        return batch_size, length, lead, generator_state(rng), [ring.total for ring in self.rings.rings]

    def _read(self, source: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray | torch.Tensor]:
        batch = read_segments(self.rings.rings, source, rows)
        if not self.pin:
            return batch
        return {name: torch.from_numpy(column).pin_memory() for name, column in batch.items()}
