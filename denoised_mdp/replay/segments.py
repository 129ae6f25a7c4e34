"""Segments within episodes, or across their ends: choosing them from one or several rings, and copying them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from denoised_mdp.errors import UserError
from denoised_mdp.replay.storage import Layout

if TYPE_CHECKING:
    from denoised_mdp.replay.ring import Replay

COLUMNS = ("observation", "action", "reward", "is_first", "is_terminal")
"""columns of a row, and of a batch"""


def row_layout(observation_shape: Sequence[int], action_size: int) -> Layout:
    """Return dtype and shape of one row of every column.

    `number` counts rows from 1 (0: never written), so a reopened replay knows which row a place in the files holds.
    It is written first: if a kill tears a row, its number shows that the previous content is gone.
    """
    return {
        "number": (np.dtype(np.int64), ()),
        "observation": (np.dtype(np.uint8), tuple(map(int, observation_shape))),
        "action": (np.dtype(np.float32), (int(action_size),)),
        "reward": (np.dtype(np.float32), ()),
        "is_first": (np.dtype(np.bool_), ()),
        "is_terminal": (np.dtype(np.bool_), ()),
    }


def choose_segments(
    replays: Sequence[Replay], batch_size: int, length: int, rng: np.random.Generator, lead: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Choose segments from several replays, all starts in their `stretches` equally likely.

    lead: number of earlier rows of the same stretch before each segment; the stretch's first row is repeated if needed.

    Returns:
        int [B], the replay of each segment, and int [lead + T, B], its rows.

    Raises:
        UserError: no episode is long enough.
    """
    tables = [replay.stretches() for replay in replays]
    first, rows = (np.concatenate(column) for column in zip(*tables, strict=True))
    counts = np.maximum(rows - length + 1, 0)  # segment starts per stretch
    ends = np.cumsum(counts)
    if not counts.any():
        larger = "train.prefill_steps"
        if max(replay.capacity for replay in replays) < length:
            larger = f"replay.capacity (it is {sum(replay.capacity for replay in replays):,})"
        raise UserError(
            f"No segment of {length:,} rows can be sampled: the longest episode in the replay has"
            f" {rows.max(initial=0):,} of its {sum(map(len, replays)):,} rows. Set a smaller train.segment_length or a"
            f" larger {larger}."
        )
    chosen = rng.integers(ends[-1], size=batch_size)  # [B], numbers among all starts
    stretch = np.searchsorted(ends, chosen, side="right")
    source = np.repeat(np.arange(len(replays)), [len(table[0]) for table in tables])[stretch]
    start = chosen - (ends - counts)[stretch]  # [B], within the stretch
    return source, first[stretch] + np.maximum(start + np.arange(-lead, length)[:, None], 0)


def read_segments(replays: Sequence[Replay], source: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Copy the segments that `choose_segments` returned: see `Rings.sample`."""
    if len(replays) == 1:
        return replays[0].read(rows)
    parts = [(source == index, replay.read(rows[:, source == index])) for index, replay in enumerate(replays)]
    batch = {}
    for name, column in parts[0][1].items():
        batch[name] = np.empty((*rows.shape, *column.shape[2:]), column.dtype)
        for mine, part in parts:
            batch[name][:, mine] = part[name]
    return batch
