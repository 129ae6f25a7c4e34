"""Errors that a user can act on."""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator

MACHINE_ERRORS = {
    getattr(errno, name)
    for name in "ENOSPC EDQUOT EFBIG EACCES EPERM EROFS ENAMETOOLONG ENOTDIR EISDIR EIO ESTALE EMFILE ENFILE".split()
    if hasattr(errno, name)
}
"""error numbers of OSErrors caused by the machine, not by a bug of ours or of an environment"""
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
"""error numbers: this process, or the machine, has too many open files"""
OUT_OF_MEMORY = "MemoryError|OutOfMemoryError|out of memory|can't allocate memory|ALLOC_FAILED"
"""found in the name or message of errors of Python, NumPy, PyTorch and CUDA, which share nothing else"""
MOST = 2000
"""most characters of a message"""
MOST_WORD = 100
"""most characters of a word that `nearest` compares"""


class UserError(Exception):
    """A mistake in the input (a key, a file, a folder, the machine's set-up), never a bug of ours.

    The message is one line that says what is wrong and what to do. The command line prints it without a
    traceback and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: object):
        super().__init__(one_line(message, MOST))


class EnvironmentFailure(RuntimeError):
    """An environment raised an error, or its worker process died or hung; the message has task, seed, traceback.

    Also raised when another process that trains the same run has died.

    Args:
        what: what has failed, in one line.
        trace: the traceback, from the environment's process; it follows `what` on lines of its own.
    """

    exit_code = 4

    def __init__(self, what: str, trace: str | None = None):
        super().__init__(what, trace)
        self.what, self.trace = what, trace and trace.strip()

    def __str__(self) -> str:
        return f"{self.what}.\n{self.trace}" if self.trace else self.what

    def in_a_line(self) -> str:
        """Return what has failed and, if there is a traceback, its last line: the environment's own error."""
        return f"{self.what}: {self.trace.splitlines()[-1]}" if self.trace else self.what


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn an environment's error into an `EnvironmentFailure`; user mistakes and errors of the machine pass through.

    what: which environment failed and when, in one line.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            raise
        raise EnvironmentFailure(what, traceback.format_exc()) from error


def remedy(error: OSError, otherwise: str = "Mend that") -> str:
    """Return what to do about a file that cannot be written, as the beginning of a sentence.

    otherwise: the advice if neither disk space nor open files have run out.
    """
    if error.errno == errno.ENOSPC:
        return "Make room (for bytes, or, where df -i shows a full table, for files)"
    if error.errno in TOO_MANY_FILES:
        return "Allow more open files (ulimit -n)"
    return "Make room" if error.errno in (errno.EDQUOT, errno.EFBIG) else otherwise


@contextlib.contextmanager
def refusing(problem: str, option: str = "--output") -> Iterator[None]:
    """Turn an OSError into a UserError. problem: what cannot be done. option: the option that sets the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error, 200)
        what_to_do = remedy(error, otherwise=f"Choose another {option}")
        raise UserError(f"{problem} ({reason}). {what_to_do}.") from error


def out_of_memory(error: Exception) -> bool:
    """Whether the machine or a GPU ran out of memory; PyTorch raises RuntimeErrors of many kinds for that."""
    return re.search(OUT_OF_MEMORY, f"{type(error).__name__} {error}") is not None


def one_line(text: object, most: int) -> str:
    """Return a text as one line of at most about `most` characters that every terminal and file accepts.

    File names and other libraries' messages may contain line ends, control characters and bytes that are not UTF-8.
    """
    line = re.sub(r"[\t-\r]+", " ", str(text))
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda match: ascii(match[0])[1:-1], line)
    return line if len(line) <= most else f"{line[: most * 2 // 3]} ... {line[-most // 3 :]}"


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Warn once per process and text: every environment and worker of a run finds the same faults."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=2)


def nearest(word: str, options: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the option most like `word`, or None if none is as similar as `cutoff` (0 to 1)."""
    return next(iter(difflib.get_close_matches(word[:MOST_WORD], list(options), n=1, cutoff=cutoff)), None)


def did_you_mean(word: object, options: Iterable[str], *, listed: bool = True) -> str:
    """Return `` Did you mean 'x'?`` for the option nearest to `word`, or all options when none is near.

    The result begins with a space, so that it can follow a sentence. listed: False returns "" instead of all options.
    """
    word, options = str(word), [str(option) for option in options]
    begun_well = (option for option in options if len(word) > 2 and option.startswith(word))
    near = nearest(word, options) or next(begun_well, None)
    if near:
        return f" Did you mean '{near}'?"
    return f" Choose one of: {', '.join(options)}." if listed and options else ""
