"""Files that are whole whenever somebody finds them, after a power failure too."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .reading import regular


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all; see `replacing`."""
    with replacing(path) as unfinished, open(unfinished, "xb") as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name of a file to be written, which takes the place of `path` when the block ends without an error.

    Temporary name, fsync, rename, fsync of the folder. Where `path` is a symbolic link, the file that it leads to is
    replaced and the link stays. A kill leaves at most ``<name>.tmp``, which the next call overwrites; an error leaves
    nothing. No two processes may write the same path at a time.

    Raises:
        OSError: it cannot be written; a device, a pipe or a folder is not replaced.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        regular(target)
    unfinished = unfinished_name(target)
    unfinished.unlink(missing_ok=True)  # were it a link, what it leads to would be written
    try:
        yield unfinished
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def unfinished_name(path: Path) -> Path:
    """The name that `replacing` gives to a file that is not yet whole."""
    return path.with_name(f"{path.name}.tmp")


def remove(path: Path) -> None:
    """Delete whatever has this name, if anything: a file, a link (not what it leads to), a folder and all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` would survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remedy(error: OSError) -> str:
    """What to do about a file that cannot be written, as the beginning of a sentence."""
    if error.errno == errno.ENOSPC:
        return "Make room (for bytes, or, where df -i shows a full table, for files)"
    return "Make room" if error.errno in (errno.EDQUOT, errno.EFBIG) else "Mend that"
