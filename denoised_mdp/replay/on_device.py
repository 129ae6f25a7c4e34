"""A copy of the replay in the learner's device memory: batches do not cross the bus."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import choose_segments

CHUNK = 4096
"""rows copied at a time when a run resumes"""


class OnDeviceReplay:
    """Samples what `Rings.sample` would, bit for bit, from tensors on `device`.

    The files remain authoritative: rows added since the last batch are copied before the next one is drawn, and all
    rows when a run resumes.
    """

    def __init__(self, rings: Rings, device: torch.device):
        self.rings, self.device = rings, device
        self.places = max(ring.places for ring in rings.rings)
        self._copied = [0] * len(rings.rings)  # rows of each ring that were copied or evicted
        self._columns: dict[str, Tensor] = {}  # [rings * places, ...]

    @staticmethod
    def fits(needed: int, device: torch.device) -> bool:
        """Whether `needed` bytes are at most half of a GPU's free memory; the other half is for learning."""
        return device.type == "cuda" and 2 * needed <= torch.cuda.mem_get_info(device)[0]

    def sample(self, batch_size: int, length: int, rng: np.random.Generator, lead: int = 0) -> dict[str, Tensor]:
        """As `Rings.sample`, with tensors on the device."""
        source, rows = choose_segments(self.rings.rings, batch_size, length, rng, lead)  # [B], [T, B]
        self.chosen = source, rows
        for ring in range(len(self._copied)):
            self._copy(ring)
        where = torch.from_numpy(source * self.places + rows % self.places).to(self.device)
        return {name: column[where] for name, column in self._columns.items()}

    def close(self) -> None:
        """Close the replay."""
        self.rings.close()

    def _copy(self, number: int) -> None:
        """Bring one ring up to date."""
        ring = self.rings.rings[number]
        begin = max(self._copied[number], ring.total - len(ring))
        for first in range(begin, ring.total, CHUNK):
            rows = np.arange(first, min(first + CHUNK, ring.total))
            where = torch.from_numpy(number * self.places + rows % self.places).to(self.device)
            for name, values in ring.read(rows).items():
                values = torch.from_numpy(values)
                if name not in self._columns:
                    shape = (self.places * len(self._copied), *values.shape[1:])
                    self._columns[name] = torch.zeros(shape, dtype=values.dtype, device=self.device)
                self._columns[name][where] = values.to(self.device)
        self._copied[number] = ring.total
