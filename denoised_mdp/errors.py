"""Errors that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input (a key, a file, a folder, the machine's set-up), never a defect of ours.

    The message is one line that says what is wrong and what to do. The command line prints it without a
    traceback and exits with `exit_code`.
    """

    exit_code = 2


class EnvironmentFailure(RuntimeError):
    """An environment raised an error, or its worker process died or hung; the message has task, seed, traceback."""

    exit_code = 4


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the option nearest to `word`, or all options when none is near.

    The result begins with a space, so that it can follow a sentence.
    """
    options = [str(option) for option in options]
    near = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose one of: {', '.join(options)}." if options else ""
