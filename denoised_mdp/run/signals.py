"""Stopping on request: which signals stop a run, and which work they may interrupt."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from denoised_mdp.envs.workers import ALL_STOPS, may_handle_signals


class Stop(BaseException):
    """Raised inside work that can be abandoned, when the run is asked to stop."""


class StopRequest:
    """Whether, and by which signal, the run was asked to stop.

    As a context, it handles SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP (a closed terminal; still ignored under
    `nohup`). Normally they only set `requested`, and the current work is completed; within `at_once` they abandon it.
    The first signal sets the exit code, as a cluster may send others during the save. A second SIGINT raises
    KeyboardInterrupt anywhere.

    Args:
        last: the process ends after this context. After a requested stop, further signals are then ignored, so they do
            not change the exit code.
    """

    def __init__(self, last: bool = False):
        self.requested = False
        self.signal: int | None = None
        self._last = last
        self._interrupted = False
        self._at_once = False
        self._previous: dict = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells report a process ended by a signal."""
        return 128 + (self.signal or signal.SIGINT)

    def __enter__(self) -> StopRequest:
        if may_handle_signals():
            self._previous = {
                number: signal.signal(number, self._receive)
                for number in ALL_STOPS
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            }
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self._last and self.requested else handler)

    def _receive(self, number: int, _) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.requested, self.signal = True, self.signal or number
        if self._at_once:
            self._at_once = False  # whatever follows, such as a checkpoint, is completed
            raise Stop

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a request raise `Stop` in this block, whose work must be restartable."""
        try:
            self._at_once = True
            if self.requested:  # checked once armed, so that no signal slips through
                raise Stop
            yield
        except Exception as error:
            if self.requested:  # child processes got the signal too, and their end looks like a failure
                raise Stop from error
            raise
        finally:
            self._at_once = False
