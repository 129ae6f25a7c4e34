"""The replay as the training loop sees it: rows go in, batches come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.starts import StoredLatents

Source = Rings | Prefetch | OnDeviceReplay


class Batches:
    """Batches of one size from a replay.

    source: samples them: the replay itself, or a reader of it. random: chooses the rows. lead: rows before each
    segment, see `choose_segments`. starts: batches then hold in "start" [1, B, width] what segments begin from.
    """

    def __init__(
        self,
        replay: Rings,
        source: Source,
        batch_size: int,
        segment_length: int,
        random: np.random.Generator,
        lead: int = 0,
        starts: StoredLatents | None = None,
    ):
        self.replay, self.source, self.random = replay, source, random
        self.sizes, self.lead, self.starts = (batch_size, segment_length), lead, starts

    def add(self, number: int, row: Any) -> None:
        """Append a row of environment `number`; see `Replay.add`."""
        self.replay.add(number, row.observation, row.action, row.reward, row.is_first, row.is_terminal)

    def sample(self, *, more: bool = False) -> dict[str, np.ndarray | torch.Tensor]:
        """Draw a batch; see `Rings.sample`. more: the next batch is drawn before a row is added."""
        batch = self.source.sample(*self.sizes, self.random, self.lead)
        if more and isinstance(self.source, Prefetch):
            self.source.begin(*self.sizes, self.random, self.lead)
        if self.starts is not None:
            batch["start"] = self.starts.before(*self.source.chosen)
        return batch

    def learned(self, agent: Any) -> None:
        """Store the agent's latents of the last batch, `learned` [T, B, width], if segments begin from stored ones."""
        if self.starts is not None:
            self.starts.remember(*self.source.chosen, agent.learned)


def choose_source(replay: Rings, memory: str, device: torch.device, processes: int = 1) -> Source:
    """Return where batches come from: the replay on disk, read directly or prefetched, or a copy on the device.

    memory: as the option ``replay.memory``. processes: number that learn from each batch. Several receive it through
    the host's memory, so that a copy on the device gains nothing.
    """
    if memory == "auto" and device.type == "cuda":
        memory = "device" if processes == 1 and OnDeviceReplay.fits(replay.bytes, device) else "prefetch"
    if memory == "device":
        return OnDeviceReplay(replay, device)
    return Prefetch(replay, pin=device.type == "cuda") if memory == "prefetch" else replay
