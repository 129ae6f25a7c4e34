"""Background clips: found in folders, cached decoded in memory maps, joined into streams."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
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
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.progress import Phase
from denoised_mdp.seeding import generator

SPLITS = ("train", "test")
ALL = "all"  # both splits
SUFFIXES = {".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
TEST_SHARE = 0.2  # approximate share of the files, where a folder has no train/ and test/
CACHE_VERSION = 1
FAMILY = 1_000_000  # procedural clips of one seed are numbered from a multiple of this
KINETICS_CLASS = "driving_car"
UNREADABLE: set[str] = set()
"""keys of the clips of which this process has warned"""


@dataclass(frozen=True)
class Clip:
    """One clip.

    Its name for messages, a short identity that survives moving the files, the cache key of its decoded
    frames, the function that makes them (uint8 [N, H, W, C]), the least and the largest N, and the shape
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
            if self.key not in UNREADABLE:  # every environment of a run opens the same clips
                UNREADABLE.add(self.key)
                warnings.warn(f"Skipping the unreadable video {self.name} ({error}).", stacklevel=2)
            return None

    def _fits(self, frames: np.ndarray) -> bool:
        least, most = self.lengths
        return frames.dtype == np.uint8 and frames.shape[1:] == self.shape and least <= len(frames) <= most


class Stream:
    """`frames` frames filled with whole clips in a given order, repeated as needed; the last clip is cut.

    It holds only references to the clips' memory maps, so processes share their pages.
    """

    def __init__(self, frames: int):
        self.frames = frames
        self.clips: list[Clip] = []  # in the order in which they are shown
        self._arrays: list[np.ndarray] = []
        self._places = np.zeros((0, 2), np.int64)  # [frames of all clips, 2]: place in `clips`, frame in it

    def fill(self, clips: Sequence[Clip]) -> None:
        """Show `clips` in this order, without unreadable ones; open no more than the stream needs.

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

        Files of one name and size in different folders have one identity. They are told apart by their order, which is
        that of `clips` in each stream, see `shuffled`.

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
    """Return the clips in an order that depends on `seed` and `name`, and does not change when clips are added.

    Those of one identity keep their order.
    """
    return sorted(clips, key=lambda clip: generator(seed, f"{name} of {clip.identity}").random())


def open_clips(clips: str, split: str, size: int, color: bool, frames: int, resize: str = "antialiased") -> list[Clip]:
    """Find the clips of one split; clips are decoded on first use.

    Args:
        clips: "procedural" (generated, no download) or "procedural:SEED" (others), as many clips as `frames`
            needs; "kinetics" (``$KINETICS_DIR/{train,val}/driving_car``) or "kinetics:CLASS"; or a folder, a
            file or a glob pattern of videos. A folder with videos in train/ and test/ has its splits there; other
            files are divided by a hash of their names, about a fifth for testing. Adding files leaves the others
            where they are, unless one split would be empty.
        split: "train", "test" or "all" (both).
        size: height and width in pixels.
        color: three channels instead of one.
        frames: largest number of frames that are decoded of a file.
        resize: see `denoised_mdp.envs.decoding.decode`; procedural clips are made in the final size.

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


def check_split(split: str) -> None:
    """Raise UserError when there is no such split."""
    if split not in (*SPLITS, ALL):
        raise UserError(f"Unknown split {split!r} of the clips.{did_you_mean(split, (*SPLITS, ALL))}")


def find_videos(clips: str, split: str) -> list[Path]:
    """Return the sorted video files of a split, see `open_clips`."""
    if split == ALL:
        return sorted({path for part in SPLITS for path in find_videos(clips, part)})
    if clips == "kinetics" or clips.startswith("kinetics:"):
        return _find_kinetics(split, clips.partition(":")[2] or KINETICS_CLASS)
    if glob.has_magic(clips) and not os.path.exists(os.path.expanduser(clips)):  # a folder may be called [a]
        files = _once(map(Path, glob.glob(os.path.expanduser(clips), recursive=True)))
    else:
        root = Path(os.path.expanduser(clips))
        if not (root.is_file() or root.is_dir()):  # neither is a pipe or a device, from which a read may never return
            what = "neither a file nor a folder" if root.exists() else "no such file or folder"
            raise UserError(
                f"There are no clips at {root}: {what}. env.clips takes a folder, a file, a pattern,"
                " procedural or kinetics."
            )
        parts = {name: _videos_under(root / name) for name in SPLITS}
        if all(parts.values()):
            if shared := set.intersection(*({path.resolve() for path in part} for part in parts.values())):
                warnings.warn(
                    f"training and test share {len(shared)} clips of {root}, such as {min(shared)}.", stacklevel=2
                )
            return parts[split]
        files = [root] if root.is_file() else _videos_under(root)
    if not files:
        raise UserError(f"There are no videos at {clips} (looked for {', '.join(sorted(SUFFIXES))}).")
    if len(files) == 1:
        warnings.warn(f"{files[0]} is the only clip: training and test share it.", stacklevel=2)
        return files
    files.sort(key=_rank)
    testing = sum(_rank(path) < TEST_SHARE for path in files)
    testing = min(max(testing, 1), len(files) - 1)
    return sorted(files[:testing] if split == "test" else files[testing:])


def _rank(path: Path) -> float:
    """Return a number in [0, 1) that depends on the file's name alone."""
    return int(hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12], 16) / 16**12


def _videos_under(folder: Path) -> list[Path]:
    """The videos in a folder and its subfolders, links to others included; each folder and file once."""
    found, seen = [], set()
    for place, inner, files in os.walk(folder, followlinks=True):
        about = os.stat(place)
        if (about.st_dev, about.st_ino) in seen:
            inner.clear()  # a link to where this walk has been
            continue
        seen.add((about.st_dev, about.st_ino))
        inner.sort()  # so that it does not depend on the disk which of two links counts
        found += map(Path(place).joinpath, files)
    return _once(found)


def _once(paths: Iterable[Path]) -> list[Path]:
    """The videos among these paths, sorted. Of links to one file one counts, else it may be in both splits."""
    found: dict[Path, Path] = {}
    for path in sorted(filter(_is_video, paths), key=lambda path: (path.is_symlink(), path)):
        found.setdefault(path.resolve(), path)
    return sorted(found.values())


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _printable(path: Path | str) -> str:
    """Return a path with bytes that are not UTF-8, which Python holds in halves of characters, as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _find_kinetics(split: str, name: str) -> list[Path]:
    """Return the clips of one class of Kinetics-400; Wang et al. 2022 use driving_car."""
    root = os.environ.get("KINETICS_DIR")
    if not root:
        raise UserError(f"Clips 'kinetics' need KINETICS_DIR: the folder with train/{name}/*.mp4.")
    parts = ("train",) if split == "train" else ("val", "test")
    folders = [Path(root) / part / name for part in parts]
    for folder in folders:
        if files := _videos_under(folder):
            return files
    present = sorted(path.name for part in parts for path in (Path(root) / part).glob("*") if path.is_dir())
    hint = did_you_mean(name, present) if present else " Check KINETICS_DIR."
    raise UserError(f"There are no videos in {' or '.join(map(str, folders))}.{hint}")


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
