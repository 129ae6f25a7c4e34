"""Stored latents of rows: segments begin from the latent of the row before them instead of from zero.

This is DreamerV3's replay context, of one row (Hafner et al. 2025). A row's latent is the posterior sample of the last
update that learned from it, under the weights of that time. A row that no update has learned from has no latent: a
segment after it begins from zero, as without this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.replay.rings import Rings


class StoredLatents:
    """A table of one latent [width] for each row of the rings, on `device`; new rows take the places of evicted ones.

    A checkpoint holds the table, 4 bytes per number. It changes with every update, so files beside the replay's would
    not resume exactly.
    """

    def __init__(self, rings: Rings, width: int, device: torch.device):
        self.rings = rings
        self.places = max(ring.places for ring in rings.rings)
        self._rows = np.full(len(rings.rings) * self.places, -1)  # the row whose latent each place holds; -1: none
        self._values = torch.zeros(len(self._rows), width, device=device)

    def before(self, ring: np.ndarray, rows: np.ndarray) -> Tensor:
        """Return what segments begin from, [1, B, width]: the latents of the rows before them, zero if there is none.

        ring int [B] and rows int [T, B] are the segments', see `choose_segments`.
        """
        row = rows[0] - 1  # [B]
        where = self._where(ring, row)
        known = torch.from_numpy((self._rows[where] == row) & self._held(ring, row)).to(self._values.device)  # [B]
        return (self._values[torch.from_numpy(where).to(self._values.device)] * known[:, None])[None]

    def remember(self, ring: np.ndarray, rows: np.ndarray, latents: Tensor) -> None:
        """Store the latents [T, B, width] of segments; of a row in several, keep the one with most rows before it."""
        where = self._where(ring, rows).ravel()  # [T B], later rows of segments last
        places, last = np.unique(where[::-1], return_index=True)
        last = len(where) - 1 - last
        self._rows[places] = rows.ravel()[last]
        places, last = (torch.from_numpy(index).to(self._values.device) for index in (places, last))
        self._values[places] = latents.flatten(0, 1)[last].to(self._values.dtype)

    def _held(self, ring: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return whether rows are still in their rings, bool [n].

        An evicted row may still have a place here. That depends on the slack, which must not affect results.
        """
        return rows >= np.array([one.total - len(one) for one in self.rings.rings])[ring]

    def _where(self, ring: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return ring * self.places + rows % self.places

    def state(self) -> dict[str, Any]:
        """Return rings [n], rows [n] and latents [n, width] of all rows that are held, in order."""
        where = np.flatnonzero(self._rows >= 0)
        where = where[self._held(where // self.places, self._rows[where])]
        where = where[np.lexsort((self._rows[where], where // self.places))]
        values = self._values[torch.from_numpy(where).to(self._values.device)].cpu()
        ring, row = torch.from_numpy(where // self.places), torch.from_numpy(self._rows[where])
        return {"ring": ring, "row": row, "value": values}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, in rings of the same size or larger ones."""
        ring, rows = state["ring"].numpy(), state["row"].numpy()
        held = self._held(ring, rows)  # in a larger ring, an evicted row might share another one's place
        values = state["value"][torch.from_numpy(held)]
        self.remember(ring[held], rows[held][None], values[None].to(self._values.device))
