"""The latents of rows that were learned from: segments begin from that of the row before instead of from zero.

As DreamerV3's replay context of one row (Hafner et al. 2025). A row's latent is the posterior sample of the last update
that learned from it, under the weights of then. A row that none has learned from yet has none: what follows it begins
from zero, as without this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.replay.rings import Rings


class StoredLatents:
    """One latent [width] for each row of the rings, on `device`; rows that leave a ring give their place to new ones.

    In a checkpoint it takes 4 bytes for each number: it changes with every update, so files beside the replay's would
    not continue exactly.
    """

    def __init__(self, rings: Rings, width: int, device: torch.device):
        self.rings = rings
        self.places = max(ring.places for ring in rings.rings)
        self._rows = np.full(len(rings.rings) * self.places, -1)  # which row each place has a latent of
        self._values = torch.zeros(len(self._rows), width, device=device)

    def before(self, ring: np.ndarray, rows: np.ndarray) -> Tensor:
        """What segments begin from, [1, B, width]: latents of the rows before them, zero where there is none.

        ring int [B], rows int [T, B]: of the segments, see `choose_segments`.
        """
        row = rows[0] - 1  # [B]
        where = self._where(ring, row)
        known = torch.from_numpy((self._rows[where] == row) & self._held(ring, row)).to(self._values.device)  # [B]
        return (self._values[torch.from_numpy(where).to(self._values.device)] * known[:, None])[None]

    def remember(self, ring: np.ndarray, rows: np.ndarray, latents: Tensor) -> None:
        """Store the latents [T, B, width] of segments; of a row in several, the one that more rows came before."""
        where = self._where(ring, rows).ravel()  # [T B], later rows of segments last
        places, last = np.unique(where[::-1], return_index=True)
        last = len(where) - 1 - last
        self._rows[places] = rows.ravel()[last]
        places, last = (torch.from_numpy(index).to(self._values.device) for index in (places, last))
        self._values[places] = latents.flatten(0, 1)[last].to(self._values.dtype)

    def _held(self, ring: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether rows are still in their rings, bool [n].

        One that has left may still have a place here: that depends on the slack, which must change nothing else.
        """
        return rows >= np.array([one.total - len(one) for one in self.rings.rings])[ring]

    def _where(self, ring: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return ring * self.places + rows % self.places

    def state(self) -> dict[str, Any]:
        """All latents of rows that are held, in order, with their rings and rows: [n], [n], [n, width]."""
        where = np.flatnonzero(self._rows >= 0)
        where = where[self._held(where // self.places, self._rows[where])]
        where = where[np.lexsort((self._rows[where], where // self.places))]
        values = self._values[torch.from_numpy(where).to(self._values.device)].cpu()
        ring, row = torch.from_numpy(where // self.places), torch.from_numpy(self._rows[where])
        return {"ring": ring, "row": row, "value": values}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`, for rings of this size or a larger one."""
        ring, rows = state["ring"].numpy(), state["row"].numpy()
        held = self._held(ring, rows)  # else, in a larger ring, a row that has left might share another one's place
        values = state["value"][torch.from_numpy(held)]
        self.remember(ring[held], rows[held][None], values[None].to(self._values.device))
