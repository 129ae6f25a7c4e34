"""A few short videos on disk, for tests that need clips but not procedural ones, which take seconds to make."""

from __future__ import annotations

from pathlib import Path

import imageio.v2 as imageio
import numpy as np


def write_clips(folder: Path, clips: int = 4, frames: int = 20) -> str:
    """Write coloured noise as ``folder/train`` and ``folder/test``; returns the folder for the option `clips`."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for index in range(clips):
            coarse = rng.integers(0, 256, (frames, 8, 8, 3), dtype=np.uint8)
            imageio.mimwrite(folder / split / f"{index}.mp4", coarse.repeat(8, 1).repeat(8, 2), fps=25)
    return str(folder)
