"""Arrays that are computed once, stored atomically, and memory-mapped by all processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from denoised_mdp.errors import TOO_MANY_FILES, UserError, remedy
from denoised_mdp.files import cache_folder, replacing

_OPEN: weakref.WeakValueDictionary[tuple, np.ndarray] = weakref.WeakValueDictionary()
"""memory maps in use by this process, by path, inode, mtime and size; shared, because each keeps its file open"""


def cached(key: str, make: Callable[[], np.ndarray], fits: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Return the array stored under `key` as a read-only memory map; compute and store it if it is missing.

    A file that is damaged, or whose array `fits` rejects (by shape and type), is rebuilt with a warning.

    Raises:
        UserError: the file or its folder cannot be used.
    """
    path = cache_folder() / f"{key}.npy"
    try:
        if (array := _stored(path, fits)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock")):
                if (array := _stored(path, fits)) is None:  # else another process was faster
                    if path.exists():
                        warnings.warn(f"{path} of the clip cache is damaged: making it again.", stacklevel=2)
                    _store(path, make())
                    if (array := _stored(path, lambda _: True)) is None:
                        raise OSError("it is not what was written")
    except OSError as error:
        mend = remedy(error) if error.errno else "Delete it if it is there, else make room"  # numpy's have no errno
        reason = f"Cannot use {path} of the clip cache ({error})"
        other = "" if error.errno in TOO_MANY_FILES else ", or set DENOISED_MDP_CACHE to another folder"
        raise UserError(f"{reason}. {mend}{other}.") from error
    return array


def _stored(path: Path, fits: Callable[[np.ndarray], bool]) -> np.ndarray | None:
    """Return the array of a file as a memory map; None if the file is missing or holds something else."""
    if (about := _about(path)) is None:
        return None
    name = (str(path), about.st_ino, about.st_mtime_ns, about.st_size)
    try:
        if (array := _OPEN.get(name)) is None:
            array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception:  # numpy's reader raises all kinds of errors on damaged headers
        return None
    if array.offset + array.nbytes != about.st_size or not fits(array):
        return None
    _OPEN[name] = array
    return array


def _about(path: Path) -> os.stat_result | None:
    """Return the file's status, None if it is missing. OSError if it is not regular: opening a pipe may block."""
    with contextlib.suppress(FileNotFoundError):
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise OSError("not a regular file")
        return about
    return None


def _store(path: Path, array: np.ndarray) -> None:
    """Write an array atomically, readable by others as the umask allows."""
    with replacing(path) as unfinished, open(unfinished, "xb") as file:
        np.save(file, array)


@contextlib.contextmanager
def _locked(path: Path):
    """Hold a lock across processes, so that only one of them decodes a clip."""
    _about(path)
    try:
        file = open(path, "a")
    except PermissionError:  # another user's file: read access is enough to lock it
        file = open(path)
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
