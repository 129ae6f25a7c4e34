"""The replay of several environments that collect side by side: one ring each, sampled as one.

The rows of an environment are consecutive in its ring, so a segment never mixes environments. One ring lies in
the folder itself, several in ``ring_0``, ``ring_1``, ...
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.errors import UserError
from denoised_mdp.replay.ring import Replay
from denoised_mdp.replay.segments import choose_segments, read_segments


class Rings:
    """`count` replays (see `Replay`) in `folder`, which share `capacity` and `slack` evenly.

    Raises:
        UserError: see `Replay`.
    """

    def __init__(
        self,
        folder: Path | str,
        count: int,
        capacity: int,
        observation_shape: Sequence[int],
        action_size: int,
        slack: int = 0,
    ):
        capacity, slack = _share(capacity, count), _share(slack, count)
        folders = _folders(folder, count)
        self._take(Replay(path, capacity, observation_shape, action_size, slack) for path in folders)
        needed = self.bytes_needed(count, capacity * count, observation_shape, action_size, slack * count)
        there = sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*.npy"))
        free = shutil.disk_usage(folder).free + there
        if needed > free:  # each fits on its own, together they may not
            self.close()
            raise UserError(
                f"The replay of {count} environments needs {needed:,} bytes but the disk of {folder} has {free:,} bytes"
                " free. Set a smaller replay.capacity or train.checkpoint_every, or use a larger disk for run_dir."
            )

    @classmethod
    def open(
        cls,
        folder: Path | str,
        state: Mapping[str, Any],
        capacity: int | None = None,
        slack: int | None = None,
        read_only: bool = False,
    ) -> Rings:
        """Resume from what `state` returned; see `Replay.open`."""
        states = state.get("rings", [state])
        capacity, slack = (None if n is None else _share(n, len(states)) for n in (capacity, slack))
        self = cls.__new__(cls)
        folders = _folders(folder, len(states))
        self._take(
            Replay.open(path, one, capacity, slack, read_only) for path, one in zip(folders, states, strict=True)
        )
        return self

    def _take(self, opening: Iterable[Replay]) -> None:
        """Keep the rings as they open, one by one; if one is refused, close those before it."""
        self.rings: list[Replay] = []
        try:
            for ring in opening:
                self.rings.append(ring)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def bytes_needed(
        count: int, capacity: int, observation_shape: Sequence[int], action_size: int, slack: int = 0
    ) -> int:
        """Return the size of full rings on disk in bytes."""
        capacity, slack = _share(capacity, count), _share(slack, count)
        return count * Replay.bytes_needed(capacity, observation_shape, action_size, slack)

    @property
    def bytes(self) -> int:
        """Size in bytes once all places are written."""
        ring = self.rings[0]
        return len(self.rings) * Replay.bytes_needed(ring.places, ring.observation_shape, ring.action_size)

    def __len__(self) -> int:
        """Return the number of rows that can be sampled."""
        return sum(map(len, self.rings))

    def add(
        self,
        ring: int,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        is_first: bool,
        is_terminal: bool = False,
    ) -> None:
        """Append one row to the ring of an environment; see `Replay.add`."""
        self.rings[ring].add(observation, action, reward, is_first, is_terminal)

    def count_segments(self, length: int) -> int:
        """Return the number of different segments of `length` rows that can be sampled."""
        return sum(ring.count_segments(length) for ring in self.rings)

    def cross(self) -> None:
        """Let segments cross the ends of episodes from now on, so that short episodes are learned from as well."""
        for ring in self.rings:
            ring.crosses = True

    def sample(self, batch_size: int, length: int, rng: np.random.Generator, lead: int = 0) -> dict[str, np.ndarray]:
        """Sample `batch_size` (B) segments of `length` (T) consecutive rows, each in one episode unless they `cross`.

        All possible starts in all rings are equally likely, including the last ones and those in running episodes. The
        time depends on the batch and slightly on the number of episodes, not on the number of rows. lead: number of
        rows before each segment, see `choose_segments`; T then includes them.

        Returns:
            observation uint8 [T, B, H, W, C], action float32 [T, B, A], reward float32 [T, B],
            is_first and is_terminal bool [T, B]; contiguous and owned by the caller.

        Raises:
            UserError: no episode is long enough.
        """
        self.chosen = choose_segments(self.rings, batch_size, length, rng, lead)
        return read_segments(self.rings, *self.chosen)

    def flush(self) -> None:
        """Sync all rows to disk. Call it before saving a checkpoint."""
        for ring in self.rings:
            ring.flush()

    def state(self) -> dict[str, Any]:
        """Return the small JSON-ready description from which `Rings.open` resumes; for one ring, that of `Replay`."""
        states = [ring.state() for ring in self.rings]
        return states[0] if len(states) == 1 else {"rings": states}

    def close(self) -> None:
        """Close the files."""
        for ring in self.rings:
            ring.close()


def _share(number: int, count: int) -> int:
    return math.ceil(number / count)


def _folders(folder: Path | str, count: int) -> list[Path]:
    """Return the folder of each ring.

    Raises:
        UserError: the folder holds a replay with another number of rings.
    """
    folder = Path(folder)
    one, several = folder.exists() and any(folder.glob("*.npy")), folder.exists() and any(folder.glob("ring_*"))
    if (one and count > 1) or (several and count == 1) or len(list(folder.glob("ring_*"))) > count:
        raise UserError(f"{folder} holds the replay of another number of environments. Choose another run_dir.")
    return [folder] if count == 1 else [folder / f"ring_{ring}" for ring in range(count)]
