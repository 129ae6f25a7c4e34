"""Reading files that anybody may have written: nothing that blocks or never ends, and two kinds of errors.

`OSError`: there is no such file, or it cannot be read. `ValueError`: what it holds is not what it should be.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEEPEST = 50
"""levels of nested lists and mappings; ours have fewer than 20"""
MOST_DIGITS = 300
"""of a whole number; one with more is no float64 either"""
MOST_TEXT = 2**26
"""bytes of a file that is read at once and parsed"""
MOST_YAML = 2**18
"""bytes of a YAML file; its parser needs seconds per megabyte"""
MOST_LINE = 2**20
"""characters of one line of JSON"""


def regular(path: Path | str) -> Path:
    """Return `path`, which leads to a regular file: pipes, devices and sockets may block or never end.

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
        OSError, ValueError: see the module.
    """
    with open(regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def read_json(path: Path | str) -> Any:
    """Return what a JSON file holds; see `parse_json`.

    Raises:
        OSError, ValueError: see the module.
    """
    return parse_json(read_bytes(path))


def parse_json(text: str | bytes) -> Any:
    """Return plain values, no deeper than `DEEPEST` and with no whole number of more than `MOST_DIGITS` digits.

    Raises:
        ValueError: it is no JSON, or beyond these limits.
    """
    try:
        return _shallow(json.loads(text, parse_int=_whole))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_lines(path: Path | str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield every line of a regular file with the JSON object that it holds (None: it holds none).

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


class _PlainLoader(yaml.SafeLoader):
    """Without aliases, by which a few lines can stand for more values than fit into any memory."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has aliases (*name)")
        return super().compose_node(parent, index)


def read_yaml(path: Path | str) -> Any:
    """Return the plain values of a YAML file, no deeper than `DEEPEST`.

    Raises:
        OSError, ValueError: see the module.
    """
    data = read_bytes(path, MOST_YAML)
    try:
        return _shallow(yaml.load(data.decode(), _PlainLoader))  # noqa: S506 (it is a SafeLoader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError("it is not valid YAML") from error  # its constructors raise whatever `int` and others do


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
