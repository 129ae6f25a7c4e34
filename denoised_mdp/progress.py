"""Progress of long work on standard error: one line rewritten in place on a terminal, plain lines elsewhere.

Long work is a `Phase`. Phases are silent unless the caller shows them with `shown`, as the command line does.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

INTERVAL = 30.0
"""seconds between lines if standard error is not a terminal"""
WINDOW = 120.0
"""least seconds over which speeds are averaged"""


def say(text: str) -> None:
    """Print an informative line if phases are `shown`.

    A failure to write it (a closed pipe, a full disk) does not end the work.
    """
    if _display is None:
        return
    try:
        print(text, flush=True)
    except OSError:
        silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Redirect a stream that cannot be written, and the text in its buffer, to the null device."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class Phase:
    """A part of the work, shown while its context lasts.

    Args:
        what: a few words, e.g. "recording".
        total: amount of work, in `unit`.
        unit: what is counted, in the plural; a total of 1 drops the first s that ends a word.
        done: amount that was done before.
        delay: seconds; a phase that ends sooner is not shown.
    """

    def __init__(self, what: str, total: int, unit: str, *, done: int = 0, delay: float = 0.0):
        self.what, self.total, self.unit, self.delay = what, total, unit, delay
        self.began, self.first, self.done, self.more = time.monotonic(), done, done, ""

    def update(self, done: int, more: str = "") -> None:
        """Set how much is done and what else to show in a few words; cheap enough for every step."""
        self.done, self.more = done, more
        refresh()

    def text(self, now: float) -> str:
        """Return what the line says at time `now`."""
        seconds, count = now - self.began, self.done - self.first
        unit = re.sub(r"s\b", "", self.unit, count=1) if self.total == 1 else self.unit
        text = f"{self.what}: " + (f"{self.done:,}/" if self.done else "") + f"{self.total:,} {unit}"
        if self.more:
            text += f", {self.more}"
        if seconds >= 2 and count:
            text += f", {duration(seconds / count * (self.total - self.done))} left"
        return text

    def __enter__(self) -> Phase:
        self.began = time.monotonic()
        if _display:
            _display.begin(self)
        return self

    def __exit__(self, *_) -> None:
        if _display:
            _display.end(self)


class Training(Phase):
    """A running training: steps, returns, speeds and the time left.

    Speeds and the time left come from the latest rounds that took at least `WINDOW` seconds together. A round is all
    steps and updates from one start of learning to the next. Partial rounds would mislead, such as the rest of the
    round in which a continued run was stopped.

    Args:
        total: environment steps of the whole run.
        step, updates: where the run stands now.
        prefill: number of random steps at the start.
    """

    def __init__(self, total: int, step: int = 0, updates: int = 0, prefill: int = 0):
        super().__init__("training", total, "steps", done=step)
        self.prefill, self.updates = prefill, updates
        self._first = (self.began, step, updates)
        self._rounds: deque[tuple[float, int, int]] = deque()  # (time, step, updates) where learning began
        self.train_return, self.evaluation = None, None

    def update(self, step: int, updates: int, train_return: float | None = None, evaluation: Any = None) -> None:
        """Set where the run stands.

        Args:
            step, updates: environment steps and updates so far.
            train_return: of the latest training episode.
            evaluation: the latest `EvaluationResult`; its mean and standard error are shown.
        """
        if updates > self.updates and step > (self._rounds[-1] if self._rounds else self._first)[1]:
            now = time.monotonic()
            self._rounds.append((now, step, updates))
            while len(self._rounds) > 2 and self._rounds[-1][0] - self._rounds[1][0] >= WINDOW:
                self._rounds.popleft()
        self.done, self.updates, self.train_return, self.evaluation = step, updates, train_return, evaluation
        refresh()

    def speeds(self, now: float) -> tuple[float, float]:
        """Return recent steps and updates per second."""
        first, last = self._first, (now, self.done, self.updates)
        if len(self._rounds) > 1:
            first, last = self._rounds[0], self._rounds[-1]
        seconds = max(last[0] - first[0], 1e-9)
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds

    def text(self, now: float) -> str:
        """Return what the line says at time `now`."""
        steps_speed, updates_speed = self.speeds(now)
        parts = [f"step {self.done:,}/{self.total:,} ({self.done / max(self.total, 1):.1%})"]
        if self.evaluation is not None:
            error = self.evaluation.standard_error
            parts.append(f"eval {self.evaluation.mean:.1f}" + (f" ± {error:.1f}" if math.isfinite(error) else ""))
        if self.train_return is not None:
            parts.append(f"train {self.train_return:.1f}")
        if self.done < self.prefill:
            left = f", {duration((self.prefill - self.done) / steps_speed)} left" if steps_speed > 0 else ""
            return " | ".join([*parts, f"random actions until step {self.prefill:,}{left}"])
        parts.append(f"{steps_speed:.3g} steps/s, {updates_speed:.3g} updates/s")
        if len(self._rounds) > 1 and steps_speed > 0:  # before that, the time of a round is unknown
            parts.append(f"{duration((self.total - self.done) / steps_speed)} left")
        return " | ".join(parts)

    def __exit__(self, *_) -> None:
        if _display:
            _display.end(self, keep=True)


def track(items: Sequence[Any], what: str, unit: str, *, delay: float = 0.0) -> Iterator[Any]:
    """Yield the items of a loop and show it as a `Phase`."""
    with Phase(what, len(items), unit, delay=delay) as phase:
        for done, item in enumerate(items, 1):
            yield item
            phase.update(done)


class _Display:
    """The line and the phases on it, the innermost first, since a narrow terminal cuts off the end."""

    def __init__(self, stream: TextIO | None, interval: float):
        self.stream = sys.stderr if stream is None else stream  # sys.stderr may be None
        self.terminal = self.stream is not None and self.stream.isatty()
        self.interval = 0.2 if self.terminal else interval
        self.phases: list[Phase] = []
        self.written = -math.inf
        self.lit = False  # whether the terminal's last line is ours

    def begin(self, phase: Phase) -> None:
        self.phases.append(phase)
        if not self.terminal and not phase.delay and len(self.phases) <= 2:  # deeper ones would fill a log
            self.write(time.monotonic())

    def end(self, phase: Phase, keep: bool = False) -> None:
        """End a phase. keep: leave its last state on a line of its own."""
        if phase not in self.phases:
            return
        if keep:
            self.phases = [phase]
            self.write(time.monotonic(), end="\n")
        self.phases = self.phases[: self.phases.index(phase)]
        if not self.phases and not keep:
            self.clear()

    def refresh(self) -> None:
        now = time.monotonic()
        if now - self.written >= self.interval:
            self.write(now)

    def write(self, now: float, end: str = "") -> None:
        texts = [phase.text(now) for phase in reversed(self.phases) if now - phase.began >= phase.delay]
        if not texts:
            return
        line, self.written, self.lit = " | ".join(texts), now, not end
        self.tell(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}{end}" if self.terminal else f"{line}\n")

    def clear(self) -> None:
        """Remove the line from the terminal; the next update brings it back."""
        if self.terminal and self.lit:
            self.tell("\r\x1b[K")
            self.written, self.lit = -math.inf, False

    def tell(self, text: str) -> None:
        """Write a text. A failure (a closed pipe, a full disk) does not end the work."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed, or a character not in its encoding
            if self.stream is not None:
                self.stream.write(text)
                self.stream.flush()


_display: _Display | None = None


@contextlib.contextmanager
def shown(stream: TextIO | None = None, interval: float = INTERVAL) -> Iterator[None]:
    """Show the phases that begin in this context; within another `shown`, the outer one shows them.

    Args:
        stream: where to write; standard error if None.
        interval: seconds between lines when `stream` is not a terminal.
    """
    global _display
    if _display is not None:
        yield
        return
    _display = _Display(stream, interval)
    try:
        yield
    finally:
        _display.clear()
        _display = None


def refresh() -> None:
    """Update the line if its interval has passed."""
    if _display:
        _display.refresh()


def clear() -> None:
    """Remove the line from the terminal before other output; the next update brings it back."""
    if _display:
        _display.clear()


def data_size(count: int) -> str:
    """Format a number of bytes, e.g. ``6.19 GB (6,193,152,000 bytes)``."""
    exponent = min((len(str(count)) - 1) // 3, 6)
    if exponent == 0:
        return f"{count} bytes"
    return f"{count / 1000**exponent:.2f} {' kMGTPE'[exponent]}B ({count:,} bytes)"


def duration(seconds: float) -> str:
    """Return a readable duration in its two largest units, e.g. ``3 h 12 min``."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 1:
        return f"{int(days)} d {int(hours % 24)} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes % 60)} min"
    if minutes >= 1:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{max(int(seconds), 0)} s"
