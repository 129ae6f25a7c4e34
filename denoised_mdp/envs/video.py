"""Background clips: decoded, cached as memory maps and joined into streams."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from denoised_mdp.envs.cache import cached
from denoised_mdp.envs.decoding import VERSION as DECODING_VERSION
from denoised_mdp.envs.decoding import UnreadableVideo, decode
from denoised_mdp.envs.procedural import CLIPS as PROCEDURAL_CLIPS
from denoised_mdp.envs.procedural import FRAMES as PROCEDURAL_FRAMES
from denoised_mdp.envs.procedural import VERSION as PROCEDURAL_VERSION
from denoised_mdp.envs.procedural import procedural_clip
from denoised_mdp.envs.video_files import ALL, SPLITS, check_split, find_videos
from denoised_mdp.errors import UserError, warn_once
from denoised_mdp.progress import Phase
from denoised_mdp.seeding import generator

CACHE_VERSION = 1
FAMILY = 1_000_000  # procedural clips of one seed are numbered from a multiple of this


@dataclass(frozen=True)
class Clip:
    """One clip.

    It has a name for messages, a short identity that survives moving the file, the cache key of its decoded
    frames, the function that makes them (uint8 [N, H, W, C]), the smallest and largest N, and the shape
    [H, W, C] of a frame.
    """

    name: str
    identity: str
    key: str
    make: Callable[[], np.ndarray]
    lengths: tuple[int, int]
    shape: tuple[int, int, int]

    def frames(self) -> np.ndarray | None:
        """Return the frames as a read-only memory map, made on first use; None for an unreadable file."""
        try:
            return cached(self.key, self.make, self._fits)
        except UnreadableVideo as error:
            warn_once(f"Skipping the unreadable video {self.name} ({error}).")  # every environment opens the same clips
            return None

    def _fits(self, frames: np.ndarray) -> bool:
        least, most = self.lengths
        return frames.dtype == np.uint8 and frames.shape[1:] == self.shape and least <= len(frames) <= most


class Stream:
    """A stream of `frames` frames: whole clips in a given order, repeated as needed, the last one cut.

    It holds only references to the clips' memory maps, so processes share their pages.
    """

    def __init__(self, frames: int):
        self.frames = frames
        self.clips: list[Clip] = []  # in the order in which they are shown
        self._arrays: list[np.ndarray] = []
        self._places = np.zeros((0, 2), np.int64)  # [frames of all clips, 2]: place in `clips`, frame in it

    def fill(self, clips: Sequence[Clip]) -> None:
        """Show `clips` in this order and skip unreadable ones; open no more than the stream needs.

        Raises:
            UserError: none of the clips can be read.
        """
        shown, filled = [], 0
        with Phase("preparing clips", self.frames, "frames", delay=2) as phase:
            for clip in clips:
                if filled < self.frames and (array := clip.frames()) is not None:
                    shown.append((clip, array))
                    filled += len(array)
                    phase.update(min(filled, self.frames))
        if not shown:
            names = ", ".join(clip.name for clip in clips[:3])
            none = f"None of the {len(clips)} videos can be read (such as {names})."
            raise UserError(
                f"{none if len(clips) > 1 else f'The video {names} cannot be read.'} Name readable ones with env.clips,"
                " or use env.clips=procedural."
            )
        self.clips, self._arrays = map(list, zip(*shown, strict=True))
        self._places = np.array([(i, n) for i, array in enumerate(self._arrays) for n in range(len(array))])

    def restore(self, identities: Sequence[str], clips: Sequence[Clip]) -> None:
        """Show the clips with these identities in this order; `clips` are all available ones.

        Files with the same name and size in different folders share an identity. They are told apart by their order,
        which in each stream is that of `clips`, see `shuffled`.

        Raises:
            UserError: one of them is missing or cannot be read.
        """
        if identities == [clip.identity for clip in self.clips]:
            return
        left = list(clips)
        wanted = [_take(left, identity) for identity in identities]
        missing = [identity for identity, clip in zip(identities, wanted, strict=True) if clip is None]
        if not missing:
            self.fill(wanted)
            missing = [clip.identity for clip in wanted if clip not in self.clips]
        if missing:
            raise UserError(
                f"The background shows {missing[0]}, which is no longer among the clips that can be read: put"
                " the file back where env.clips finds it, or start in a new run_dir."
            )

    def frame(self, index: int) -> np.ndarray:
        """Return frame `index` of the stream, uint8 [H, W, C], read-only."""
        clip, frame = self.position(index)
        return self._arrays[clip][frame]

    def position(self, index: int) -> tuple[int, int]:
        """Return which clip in the stream's order is shown at `index`, and which frame of it."""
        clip, frame = self._places[index % len(self._places)]
        return int(clip), int(frame)


def _take(clips: list[Clip], identity: str) -> Clip | None:
    """Remove the first clip with this identity from a list and return it; None if there is none."""
    found = next((clip for clip in clips if clip.identity == identity), None)
    if found is not None:
        clips.remove(found)
    return found


def shuffled(clips: Sequence[Clip], seed: int, name: str = "order") -> list[Clip]:
    """Return the clips in an order that depends on `seed` and `name`; added clips do not reorder the others.

    Clips that share an identity keep their order.
    """
    return sorted(clips, key=lambda clip: generator(seed, f"{name} of {clip.identity}").random())


def open_clips(clips: str, split: str, size: int, color: bool, frames: int, resize: str = "antialiased") -> list[Clip]:
    """Find the clips of one split; clips are decoded on first use.

    Args:
        clips: "procedural" (generated, no download) or "procedural:SEED" (another set), as many clips as
            `frames` needs; "kinetics" (``$KINETICS_DIR/{train,val}/driving_car``) or "kinetics:CLASS"; or a folder, a
            file or a glob pattern of videos. A folder with videos in train/ and test/ has its splits there; other
            files are split by a hash of their names, about a fifth for testing. Adding files leaves the others in
            their split, unless one split would be empty.
        split: "train", "test" or "all" (both).
        size: height and width in pixels.
        color: three channels instead of one.
        frames: largest number of frames that are decoded from a file.
        resize: see `denoised_mdp.envs.decoding.decode`; procedural clips are made at the final size.

    Raises:
        UserError: no such folder, no videos there, or an unknown split.
    """
    check_split(split)
    kind, _, detail = clips.partition(":")
    if kind == "procedural":
        if not re.fullmatch(r"\d{0,9}", detail, re.ASCII):
            raise UserError(f"Clips {clips!r}: the seed after 'procedural:' must be a whole number below 10^9.")
        count = max(PROCEDURAL_CLIPS, -(-frames // PROCEDURAL_FRAMES))
        numbers = range(int(detail or 0) * FAMILY, int(detail or 0) * FAMILY + count)
        parts = SPLITS if split == ALL else (split,)
        return [_procedural(number, part, size, color) for part in parts for number in numbers]
    try:
        return [_file(path, size, color, frames, resize) for path in find_videos(clips, split)]
    except OSError as error:
        raise UserError(f"Cannot look for videos at {clips} ({error}).") from error


def _printable(path: Path | str) -> str:
    """Return a path as text; bytes that are not UTF-8, which Python holds as surrogates, become \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _file(path: Path, size: int, color: bool, frames: int, resize: str) -> Clip:
    name, path = _printable(path.name), path.resolve()
    about = path.stat()
    identity = f"{name} ({about.st_size:,} bytes)"
    key = _hash("file", DECODING_VERSION, str(path), about.st_size, about.st_mtime_ns, size, color, frames, resize)
    shape = _shape(size, color)
    return Clip(_printable(path), identity, key, lambda: decode(path, size, color, frames, resize), (1, frames), shape)


def _procedural(index: int, split: str, size: int, color: bool) -> Clip:
    key = _hash("procedural", PROCEDURAL_VERSION, index, split, size, color)
    name = f"procedural {split} clip {index}"
    identity = f"{name} (version {PROCEDURAL_VERSION})"
    lengths, shape = (PROCEDURAL_FRAMES, PROCEDURAL_FRAMES), _shape(size, color)
    return Clip(name, identity, key, lambda: procedural_clip(index, split, size, color), lengths, shape)


def _shape(size: int, color: bool) -> tuple[int, int, int]:
    return size, size, 3 if color else 1


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr((CACHE_VERSION, *parts)).encode()).hexdigest()[:24]
