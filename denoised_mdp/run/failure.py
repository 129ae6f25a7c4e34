"""The last error of a run, kept in its folder for commands that look at many runs."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from denoised_mdp.errors import MOST, EnvironmentFailure, UserError, one_line
from denoised_mdp.files import read_json, replace_file


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Write an error that leaves the block to `path` and re-raise it; the record of an earlier start is removed.

    The record is ``{"when", "error", "traceback"}``. A `UserError` has no traceback there, and an environment's
    failure has the environment's own. If the record cannot be written, the error is raised all the same.
    """
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        text, trace = str(error), None
        if isinstance(error, EnvironmentFailure):
            text, trace = error.in_a_line(), error.trace
        elif not isinstance(error, UserError):
            text, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        record = {
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "error": one_line(text, MOST),
            "traceback": trace,
        }
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(record, indent=1).encode(errors="backslashreplace"))
        raise


def last_error(path: Path) -> str | None:
    """The error that `recorded` wrote, or None."""
    try:
        return one_line(read_json(path)["error"], MOST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"unknown: {path.name} cannot be read ({one_line(error, 100)})"
