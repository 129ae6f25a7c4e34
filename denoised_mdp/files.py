"""Files: only regular files of bounded size are read, and a file is written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 50
"""most levels of nested lists and mappings; our files have fewer than 20"""
MOST_DIGITS = 300
"""most digits of a whole number; float64 ends at 309"""
MOST_TEXT = 2**26
"""most bytes of a file that is read at once and parsed"""
MOST_YAML = 2**18
"""most bytes of a YAML file; the parser takes seconds per megabyte"""
MOST_LINE = 2**20
"""most characters of one line of JSON"""


def cache_folder() -> Path:
    """Return the folder of files that can be made again: ``$DENOISED_MDP_CACHE``, else one in the user's cache."""
    if folder := os.environ.get("DENOISED_MDP_CACHE"):
        return Path(os.path.expanduser(folder))
    base = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    return (base if base.is_absolute() else _private_folder()) / "denoised-mdp"


def _private_folder() -> Path:
    """Return a temporary folder that nobody else can write to, one per user, for users without a home."""
    folder = Path(tempfile.gettempdir(), f"cache-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if mine else Path(tempfile.mkdtemp())


def regular(path: Path | str) -> Path:
    """Return `path` if it leads to a regular file: pipes, devices and sockets may block or never end.

    Raises:
        OSError: it does not.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise PermissionError(errno.EPERM, "it is no regular file", str(path))
    return Path(path)


def read_bytes(path: Path | str, most: int = MOST_TEXT) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError, ValueError: it cannot be read, or is larger.
    """
    with open(regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def read_json(path: Path | str) -> Any:
    """Return the values in a JSON file.

    Raises:
        OSError, ValueError: see `read_bytes` and `parse_json`.
    """
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes) -> Any:
    """Return the plain values of a JSON text, nested up to `DEEPEST` levels, its integers up to `MOST_DIGITS` digits.

    Raises:
        ValueError: it is not JSON, or exceeds these limits.
    """
    try:
        return _shallow(json.loads(text, parse_int=_whole))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_lines(path: Path | str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield every line of a regular file with the JSON object that it holds (None if it holds none).

    Raises:
        OSError: the file cannot be read.
    """
    with open(regular(path), encoding="utf-8", errors="replace", newline="\n") as file:
        while line := file.readline(MOST_LINE):
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            yield line, row if isinstance(row, dict) else None


_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""the loader in C, if PyYAML was built with it: several times as fast"""


def read_yaml(path: Path | str) -> Any:
    """Return the plain values of a YAML file, nested up to `DEEPEST` levels.

    Raises:
        OSError, ValueError: it cannot be read, is too large or too deep, or is not valid YAML.
    """
    text = read_bytes(path, MOST_YAML).decode()
    try:
        _check_events(text)
        return _shallow(yaml.load(text, _YAML))  # noqa: S506 (it is a SafeLoader)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)  # None for errors of constructors, such as `int`'s
        last = len(text.splitlines())  # for what is missing at the end, C names the next line
        where = f": look at line {min(mark.line + 1, last)}" if mark else ""
        raise ValueError(f"it is not valid YAML{where}") from error


def _check_events(text: str) -> None:
    """Refuse aliases, which let a few lines expand beyond any memory, and nesting that would crash the C loader.

    The C loader recurses at each level, without a limit of its own.
    """
    depth = 0
    for event in yaml.parse(text, _YAML):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases (*name)")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _shallow(tree: Any) -> Any:
    """Return `tree` if it is no deeper than `DEEPEST`."""
    level = [tree]
    for _ in range(DEEPEST):
        level = [
            value
            for inner in level
            if isinstance(inner, dict | list)
            for value in (inner.values() if isinstance(inner, dict) else inner)
        ]
        if not level:
            return tree
    raise ValueError("it is nested too deeply")


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, completely or not at all; see `replacing`."""
    with replacing(path) as unfinished, open(unfinished, "xb") as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; the file replaces `path` when the block ends without an error.

    The file is synced and renamed, then its folder is synced. If `path` is a symbolic link, its target is replaced and
    the link stays. A kill leaves at most ``<name>.tmp``, which the next call overwrites; an error leaves nothing. Two
    processes must not write the same path at the same time.

    Raises:
        OSError: it cannot be written, or `path` is a device, a pipe or a folder.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target):
        regular(target)
    unfinished = unfinished_name(target)
    unfinished.unlink(missing_ok=True)  # if it were a link, its target would be written
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
    """Return the name that `replacing` gives to an unfinished file."""
    return path.with_name(f"{path.name}.tmp")


def remove(path: Path) -> None:
    """Delete whatever has this name, if anything: a file, a link (not its target), or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` would survive a power failure, if its file system can sync folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # folders of some shared disks cannot be synced
            raise
    finally:
        os.close(descriptor)


def refuse_unwritable(folder: Path) -> None:
    """Raise OSError if `folder` cannot be written to, or is missing and cannot be created."""
    above = next(one for one in (folder, *folder.absolute().parents) if exists_at(one))
    if not above.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(above, os.W_OK | os.X_OK):
        reason = errno.EROFS if os.statvfs(above).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(reason, os.strerror(reason))


def exists_at(path: Path) -> bool:
    """Whether anything has this name; unlike `os.path.lexists`, raises all errors but FileNotFoundError."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def still_at(path: Path, file: int) -> bool:
    """Whether `path` still leads to the open file `file`: it was not deleted, replaced or moved."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def whole_mp4(data: bytes) -> bool:
    """Whether `data` is a complete MP4 file with header, index and pictures (ISO/IEC 14496-12, section 4.2)."""
    kinds, place = set(), 0
    while place + 8 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        kind = data[place + 4 : place + 8]
        if size == 1:
            size = int.from_bytes(data[place + 8 : place + 16], "big")
        size = size or len(data) - place  # 0: to the end of the file
        if size < 8 or place + size > len(data):
            break
        kinds.add(kind)
        place += size
    return {b"ftyp", b"moov", b"mdat"} <= kinds
