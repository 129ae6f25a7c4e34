"""Find the video files of a split."""

from __future__ import annotations

import glob
import hashlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from denoised_mdp.errors import UserError, did_you_mean

SPLITS = ("train", "test")
ALL = "all"  # both splits
SUFFIXES = {".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
TEST_SHARE = 0.2  # approximate share of the files if a folder has no train/ and test/
KINETICS_CLASS = "driving_car"


def check_split(split: str) -> None:
    """Raise UserError if there is no such split."""
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
                f"There are no clips at {root}: {what}. Put or link them there, or set env.clips to a folder, a file, a"
                " pattern, procedural or kinetics."
            )
        parts = {name: _videos_under(root / name) for name in SPLITS}
        if all(parts.values()):
            training = {_identity(path) for path in parts["train"]}
            if shared := [path for path in parts["test"] if _identity(path) in training]:
                what = f"training and test share {len(shared)} clips of {root}, such as {shared[0]}."
                warnings.warn(what, stacklevel=2)
            return parts[split]
        if any(parts.values()):
            lacks = root / next(name for name, files in parts.items() if not files)
            told = f"There are no videos in {lacks}: all under {root} are shared out between training and test."
            warnings.warn(told, stacklevel=2)
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
    """Return the videos in a folder and its subfolders, following links; each folder and file counts once."""
    found, seen = [], set()
    for place, inner, files in os.walk(folder, followlinks=True):
        if _identity(place) in seen:
            inner.clear()  # a link to a folder that was already visited
            continue
        seen.add(_identity(place))
        inner.sort()  # so that the choice between two links does not depend on the disk
        found += map(Path(place).joinpath, files)
    return _once(found)


def _once(paths: Iterable[Path]) -> list[Path]:
    """Return the videos among the paths, sorted. Links to one file count once: it must not be in both splits."""
    found: dict[tuple[int, int], Path] = {}
    for path in sorted(filter(_is_video, paths), key=lambda path: (path.is_symlink(), path)):
        found.setdefault(_identity(path), path)
    return sorted(found.values())


def _identity(path: Path | str) -> tuple[int, int]:
    """Return device and inode, which all links to a file or a folder share."""
    about = os.stat(path)
    return about.st_dev, about.st_ino


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _find_kinetics(split: str, name: str) -> list[Path]:
    """Return the clips of one class of Kinetics-400; Wang et al. 2022 use driving_car."""
    root = os.environ.get("KINETICS_DIR")
    if not root:
        raise UserError(f"Clips 'kinetics' need KINETICS_DIR: the folder with train/{name}/*.mp4.")
    root = os.path.expanduser(root)
    parts = ("train",) if split == "train" else ("val", "test")
    folders = [Path(root) / part / name for part in parts]
    for folder in folders:
        if files := _videos_under(folder):
            return files
    present = sorted(path.name for part in parts for path in (Path(root) / part).glob("*") if path.is_dir())
    hint = did_you_mean(name, present) if present else " Check KINETICS_DIR."
    raise UserError(f"There are no videos in {' or '.join(map(str, folders))}.{hint}")
