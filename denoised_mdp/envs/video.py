"""Background clips: found in folders, decoded once into a memory-mapped cache, joined into streams."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from denoised_mdp.envs.procedural import CLIPS as PROCEDURAL_CLIPS
from denoised_mdp.envs.procedural import VERSION as PROCEDURAL_VERSION
from denoised_mdp.envs.procedural import procedural_clip
from denoised_mdp.errors import UserError, did_you_mean

SPLITS = ("train", "test")
SUFFIXES = {".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
TEST_SHARE = 0.2  # of the files, where a folder has no train/ and test/ of its own
CACHE_VERSION = 1


@dataclass(frozen=True)
class Clip:
    """One clip: its name for messages, the key of its content, how to make its frames uint8 [N, H, W, C]."""

    name: str
    key: str
    make: Callable[[], np.ndarray]

    def frames(self) -> np.ndarray | None:
        """Return the frames as a read-only memory map, made on first use; None for an unreadable file."""
        try:
            return _cached(self.key, self.make)
        except UnreadableVideo as error:
            warnings.warn(f"Skipping the unreadable video {self.name} ({error}).", stacklevel=2)
            return None


class UnreadableVideo(Exception):
    """A file that PyAV cannot decode."""


class Stream:
    """`frames` frames filled with whole clips in a given order, over and over; the last clip is cut.

    Only references to the clips' memory maps are held, so that processes share their pages.

    Raises:
        UserError: (in `fill`) none of the clips can be read.
    """

    def __init__(self, clips: Sequence[Clip], frames: int):
        self.clips, self.frames = clips, frames
        self.order: list[int] = []
        self._arrays: dict[int, np.ndarray | None] = {}
        self._place: np.ndarray = np.zeros((0, 2), np.int64)  # [frames, 2]: clip, frame in it

    def fill(self, order: Sequence[int]) -> None:
        """Put the clips into `order` (numbers of clips); opens no more of them than the stream needs."""
        order = [int(number) for number in order]
        if order == self.order:
            return
        place, filled = [], 0
        with _progress(self.frames) as progress:
            while filled < self.frames:
                before = filled
                for number in order:
                    if filled == self.frames:
                        break
                    frames = self._frames(number)
                    if frames is not None:
                        count = min(len(frames), self.frames - filled)
                        place.append(np.stack([np.full(count, number), np.arange(count)], 1))
                        filled += count
                        progress.update(count)
                if filled == before:
                    names = ", ".join(self.clips[number].name for number in order[:3])
                    raise UserError(f"None of the {len(order)} videos can be read (such as {names}).")
        self.order, self._place = order, np.concatenate(place)

    def frame(self, index: int) -> np.ndarray:
        """Return frame `index` of the stream, uint8 [H, W, C], read-only."""
        clip, frame = self._place[index]
        return self._arrays[clip][frame]

    def position(self, index: int) -> tuple[int, int]:
        """Return the number of the clip shown at `index` and the frame in it."""
        clip, frame = self._place[index]
        return int(clip), int(frame)

    def _frames(self, number: int) -> np.ndarray | None:
        if number not in self._arrays:
            self._arrays[number] = self.clips[number].frames()
        return self._arrays[number]


def open_clips(clips: str, split: str, size: int, color: bool, frames: int) -> list[Clip]:
    """Find the clips of one split; none is decoded before it is used.

    Args:
        clips: "procedural" (made up, nothing to download), "kinetics"
            (``$KINETICS_DIR/{train,val}/driving_car``), or a folder, a file or a glob pattern of videos. A
            folder with videos in train/ and test/ has its splits there; other files are divided by a hash of
            their names, a fifth for testing.
        split: "train" or "test".
        size: height and width in pixels.
        color: three channels instead of one.
        frames: no more than these many frames of a file are ever decoded.

    Raises:
        UserError: no such folder, no videos there, or an unknown split.
    """
    if split not in SPLITS:
        raise UserError(f"Unknown split {split!r} of the clips.{did_you_mean(split, SPLITS)}")
    if clips == "procedural":
        return [_procedural(index, split, size, color) for index in range(PROCEDURAL_CLIPS)]
    return [_file(path, size, color, frames) for path in find_videos(clips, split)]


def find_videos(clips: str, split: str) -> list[Path]:
    """Return the sorted video files of a split, see `open_clips`."""
    if clips == "kinetics":
        return _find_kinetics(split)
    if glob.has_magic(clips):
        files = [Path(name) for name in glob.glob(os.path.expanduser(clips), recursive=True)]
        files = [path for path in files if path.suffix.lower() in SUFFIXES]
    else:
        root = Path(clips).expanduser()
        if not root.exists():
            raise UserError(f"There are no clips at {root}: no such file or folder.")
        if all(_videos_under(root / name) for name in SPLITS):
            return _videos_under(root / split)
        files = [root] if root.is_file() else _videos_under(root)
    if not files:
        raise UserError(f"There are no videos at {clips} (looked for {', '.join(sorted(SUFFIXES))}).")
    if len(files) == 1:
        warnings.warn(f"{files[0]} is the only clip: training and test share it.", stacklevel=2)
        return files
    files.sort(key=lambda path: hashlib.sha256(path.name.encode()).hexdigest())
    testing = max(1, round(TEST_SHARE * len(files)))
    return sorted(files[:testing] if split == "test" else files[testing:])


def _videos_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _find_kinetics(split: str) -> list[Path]:
    """Return the clips of Kinetics-400's class driving_car, as in Wang et al. 2022."""
    root = os.environ.get("KINETICS_DIR")
    if not root:
        raise UserError("Clips 'kinetics' need KINETICS_DIR: the folder with train/driving_car/*.mp4.")
    names = ("train",) if split == "train" else ("val", "test")
    folders = [Path(root) / name / "driving_car" for name in names]
    for folder in folders:
        if files := _videos_under(folder):
            return files
    raise UserError(f"There are no videos in {' or '.join(map(str, folders))}: check KINETICS_DIR.")


def _file(path: Path, size: int, color: bool, frames: int) -> Clip:
    path = path.resolve()
    about = path.stat()
    key = _hash("file", str(path), about.st_size, about.st_mtime_ns, size, color, frames)
    return Clip(str(path), key, lambda: decode(path, size, color, frames))


def _procedural(index: int, split: str, size: int, color: bool) -> Clip:
    key = _hash("procedural", PROCEDURAL_VERSION, index, split, size, color)
    return Clip(f"procedural {split} {index}", key, lambda: procedural_clip(index, split, size, color))


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr((CACHE_VERSION, *parts)).encode()).hexdigest()[:24]


def decode(path: Path, size: int, color: bool, frames: int) -> np.ndarray:
    """Decode at most `frames` frames of a video, resized bilinearly: uint8 [N, size, size, 3 or 1].

    Raises:
        UnreadableVideo: the file is no video, or is damaged.
    """
    import av  # heavy, and needless for procedural clips

    decoded = []
    pixels = "rgb24" if color else "gray"
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                small = frame.reformat(size, size, pixels, interpolation="BILINEAR")
                decoded.append(small.to_ndarray().reshape(size, size, -1))
                if len(decoded) == frames:
                    break
    except (av.error.FFmpegError, OSError, IndexError, ValueError) as error:
        raise UnreadableVideo(str(error) or type(error).__name__) from error
    if not decoded:
        raise UnreadableVideo("it has no frames")
    return np.stack(decoded)


def cache_folder() -> Path:
    """Return the folder of decoded clips: ``$DENOISED_MDP_CACHE``, else one in the user's cache."""
    if folder := os.environ.get("DENOISED_MDP_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "denoised-mdp"


def _cached(key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array stored under `key` as a read-only memory map; make and store it first if need be."""
    path = cache_folder() / f"{key}.npy"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                array = make()
                handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
                try:
                    with os.fdopen(handle, "wb") as file:
                        np.save(file, array)
                    os.replace(temporary, path)
                finally:
                    Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        reason = f"Cannot write the clip cache {path.parent} ({error})"
        raise UserError(f"{reason}: set DENOISED_MDP_CACHE to another folder.") from error
    return np.load(path, mmap_mode="r")


@contextlib.contextmanager
def _locked(path: Path):
    """Hold a lock between processes, so that only one of them decodes a clip."""
    try:
        import fcntl
    except ImportError:  # not POSIX: the atomic rename keeps the cache right, at the cost of double work
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _progress(total: int):
    """A progress bar that appears when decoding takes more than two seconds."""
    from tqdm import tqdm

    return tqdm(total=total, desc="preparing clips", unit="frame", delay=2, leave=False)
