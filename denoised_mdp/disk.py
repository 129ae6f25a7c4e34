"""Files that are whole whenever somebody finds them, after a power failure too."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all: temporary name, fsync, rename, fsync of the folder.

    A kill leaves at most ``<name>.tmp``, which the next call overwrites; an error leaves nothing. No two processes may
    write the same path at a time.
    """
    unfinished = unfinished_name(path)
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def unfinished_name(path: Path) -> Path:
    """The name that `replace_file` gives to a file that is not yet whole."""
    return path.with_name(f"{path.name}.tmp")


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` would survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be written, as the beginning of a sentence."""
    return "Make room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "Mend that"
