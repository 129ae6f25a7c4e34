"""The lock of a run folder: only one process at a time trains in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from denoised_mdp.errors import UserError, refusing
from denoised_mdp.files import regular

LOCK = ".lock"
"""name of the lock file in the run folder"""
_LOCKED: set[str] = set()  # the lock files that this process holds
_GUARD = threading.Lock()


@contextlib.contextmanager
def locked(folder: Path, option: str = "run_dir") -> Iterator[None]:
    """Keep other processes from training in a run folder within the context.

    option: the option that sets the folder, for messages.

    The system releases the lock when the process ends, so a crash leaves none behind. (Not flock: worker
    processes would inherit it and could outlive a killed trainer.)

    Raises:
        UserError: this or another process holds the lock, or the folder cannot be written.
    """
    own = os.path.realpath(folder / LOCK)
    with _GUARD:
        if own in _LOCKED:  # the system would grant it twice and release both when the first ends
            raise UserError(f"{folder} is in use by this process. Wait until it is done, or choose another {option}.")
        _LOCKED.add(own)
    try:
        yield from _lock_of_the_system(folder, option)
    finally:
        _LOCKED.discard(own)


def _lock_of_the_system(folder: Path, option: str) -> Iterator[None]:
    """Hold the lock that other processes see, while the generator is suspended."""

    def without_links(name: str, flags: int) -> int:  # the target of a link would be emptied; a pipe would block
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    with refusing(f"{folder} cannot be written", option):
        file = open(folder / LOCK, "a+", errors="replace", opener=without_links)
        regular(folder / LOCK)
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise UserError(
                f"{folder} is in use by another process (id {holder}). Wait for it, stop it, or choose"
                f" another {option}."
            ) from error
        except OSError as error:  # some network file systems have no locks
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}): no other process may write in it.", stacklevel=4
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def locked_by_another(folder: Path) -> bool:
    """Whether another process holds the lock, on any machine whose locks this file system shows. Takes no lock itself.

    A lock that the calling process holds does not count.
    """
    place = 3 if sys.platform == "darwin" else 0  # index of the lock type in the system's struct flock
    flock = ("qqihh" if place else "hhqqi4x"), [0] * 5
    flock[1][place] = fcntl.F_WRLCK
    with _GUARD:  # no thread takes the lock meanwhile
        if os.path.realpath(folder / LOCK) in _LOCKED:  # closing any handle of the file would release the lock
            return False
        try:
            with open(regular(folder / LOCK), "rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(flock[0], *flock[1]))
        except OSError:
            return False
    return struct.unpack(flock[0], answer)[place] != fcntl.F_UNLCK
