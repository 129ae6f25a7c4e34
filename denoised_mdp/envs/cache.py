"""Arrays made once, stored whole, and memory-mapped by all processes that need them."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np

from denoised_mdp.errors import UserError


def cache_folder() -> Path:
    """Return the folder of decoded clips: ``$DENOISED_MDP_CACHE``, else one in the user's cache."""
    if folder := os.environ.get("DENOISED_MDP_CACHE"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "denoised-mdp"


def cached(key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array stored under `key` as a read-only memory map; make and store it first if need be."""
    path = cache_folder() / f"{key}.npy"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock")):
                if not path.exists():  # another process was faster
                    _store(path, make())
    except OSError as error:
        reason = f"Cannot write the clip cache {path.parent} ({error})"
        raise UserError(f"{reason}: set DENOISED_MDP_CACHE to another folder.") from error
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        reason = f"Cannot read {path} of the clip cache ({error})"
        raise UserError(f"{reason}: delete it, or set DENOISED_MDP_CACHE to another folder.") from error


def _store(path: Path, array: np.ndarray) -> None:
    """Write an array that is whole whenever somebody finds it, and that others may read as the umask says."""
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())  # else a power failure could leave an empty file under the final name
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path):
    """Hold a lock between processes, so that only one of them decodes a clip."""
    try:
        import fcntl
    except ImportError:  # not POSIX: the atomic rename keeps the cache right, at the cost of double work
        yield
        return
    try:
        file = open(path, "a")
    except PermissionError:  # another user's: to lock it, reading is enough
        file = open(path)
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
