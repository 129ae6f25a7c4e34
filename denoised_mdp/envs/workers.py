"""Processes on this machine that serve environments to a pool, and what workers of all kinds share."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.errors import UserError, warn_once

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
ONE_THREAD["LP_NUM_THREADS"] = "0"  # threads of Mesa's software renderer besides the caller's

UNGUARDED = 78
"""exit code of a process that would have repeated its parent's work, see `refuse_unguarded`"""
GUARD = (
    "Worker processes import the script that starts them, and this one would begin its work there anew. Put the work"
    " under 'if __name__ == \"__main__\":'."
)
STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
"""signals that stop a run: meant for the process that workers serve, but terminals and schedulers signal all"""
ALL_STOPS = STOPS | {signal.SIGUSR1}
"""the same, and the one that asks a worker for its traceback"""


def may_handle_signals() -> bool:
    """Whether this thread may set signal handlers: Python allows only the main thread to."""
    return threading.current_thread() is threading.main_thread()


class Worker(Protocol):
    """Serves some environments, made by a picklable function; its first reply is `about` of the first."""

    index: int
    """index of the environment that it last worked on, among its own"""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int): ...

    def send(self, command: str, arguments: list) -> None:
        """Request one `call` of each environment. If the worker is gone, `reply` says so."""

    def reply(self, timeout: float) -> tuple[str, Any]:
        """Return ("done", value), or a failure ("mistake", "error", "dead" or "hung") and its message or trace."""

    def fate(self) -> str:
        """Say how it died."""

    def leave(self) -> None:
        """Let it end by itself; `end` follows."""

    def end(self, patience: float = 2.0) -> None:
        """End it in any state, by force after `patience` seconds."""


def refuse_unguarded() -> None:
    """End a spawned process that is still importing its parent's script: it would repeat the parent's work.

    It prints what to do. So does a parent that finds `UNGUARDED`, but a pool of another library would say nothing.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # the check of multiprocessing itself
        print(GUARD, file=sys.stderr, flush=True)
        os._exit(UNGUARDED)  # a script may catch any exception


def call(environment: gym.Env, command: str, argument: Any) -> Any:
    """Run one command of the pool on one environment; an argument of None skips it."""
    if argument is None:
        return None
    match command:
        case "reset":
            return environment.reset(seed=argument)
        case "begin":
            return environment.reset()
        case "step":
            return environment.step(argument)
        case "get_state":
            return environment.get_state()
        case "set_state":
            with contextlib.suppress(CannotRestore):
                environment.set_state(argument)
                return True
            return False
    raise ValueError(command)


def about(environment: gym.Env) -> tuple[tuple[int, ...], Actions, bool]:
    """Return observation shape, actions, and whether episodes can terminate: yes, unless the environment says no."""
    can_terminate = getattr(environment.unwrapped, "can_terminate", True)
    return environment.observation_space.shape, Actions.of(environment.action_space), can_terminate


class ProcessWorker:
    """A process that serves some environments, as seen from the pool; see `Worker`."""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        refuse_unguarded()
        context = multiprocessing.get_context("spawn")  # a fork would break the renderer and PyTorch's threads
        self.pipe, other = context.Pipe()
        descriptor, trace = tempfile.mkstemp(prefix="denoised_mdp_worker_", suffix=".txt")
        os.close(descriptor)
        self.trace = Path(trace)
        self._current = context.Value("i", 0, lock=False)
        arguments = (other, make_environment, count, trace, self._current)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        try:
            with _environment_variables(ONE_THREAD), without_stops():
                self.process.start()
            other.close()
            _started.add(self)
        except BaseException:
            self.end()
            raise

    @property
    def index(self) -> int:
        """See `Worker`."""
        return self._current.value

    def send(self, command: str, arguments: list) -> None:
        """See `Worker`."""
        with contextlib.suppress(OSError):
            self.pipe.send((command, arguments))

    def fate(self) -> str:
        """See `Worker`."""
        return f"exit code {self.process.exitcode}"

    def leave(self) -> None:
        """See `Worker`."""
        self.pipe.close()

    def reply(self, timeout: float) -> tuple[str, Any]:
        """See `Worker`."""
        slices = max(1, math.ceil(timeout))  # if this process is stopped and continued, the pause costs one slice
        while any(wait([self.pipe, self.process.sentinel], timeout / slices) for _ in range(slices)):
            if self.pipe.poll():
                with contextlib.suppress(EOFError, OSError):
                    kind, value = self.pipe.recv()
                    if kind != "warning":
                        return kind, value
                    warn_once(value)
                    continue
            self.process.join(5.0)
            if self.process.exitcode == UNGUARDED:
                return "mistake", GUARD
            return "dead", self._traceback()
        if self.process.pid:  # let it write its traceback
            before = len(self._traceback())  # perhaps of an earlier request: only what follows is current
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGUSR1)
            patience = time.monotonic() + 5.0
            while "in <module>\n" not in self._traceback()[before:] and time.monotonic() < patience:  # its last line
                time.sleep(0.05)
            return "hung", self._traceback()[before:]
        return "hung", self._traceback()

    def _traceback(self) -> str:
        """Return what the process wrote when it died or was asked."""
        try:
            return self.trace.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def end(self, patience: float = 2.0) -> None:
        """See `Worker`."""
        self.pipe.close()
        if self.process.pid is not None:  # it was started
            self.process.join(patience)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.process.close()
        self.trace.unlink(missing_ok=True)


@contextlib.contextmanager
def _environment_variables(values: dict[str, str]):
    """Set environment variables for processes started in the block, then restore them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_started: weakref.WeakSet[ProcessWorker] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Let workers end that nobody has closed: multiprocessing would send SIGTERM, which they block, and wait."""
    for worker in _started:
        worker.leave()


@contextlib.contextmanager
def without_stops():
    """Block `STOPS` permanently in processes started in the block; this process gets them afterwards.

    Ignoring them once the processes run would be too late: their imports take seconds.
    """
    resource_tracker.ensure_running()  # else the first process starts it, and its start unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tell(pipe: Connection, message: Warning | str, *_) -> None:
    """Send a warning for the other side to issue, unless that is gone."""
    with contextlib.suppress(OSError):
        pipe.send(("warning", str(message)))


class _Gone(Exception):
    """The other end of the pipe is closed. A connection that an environment itself loses is another error."""


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """Raise `_Gone` if the other end of the pipe is closed."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise _Gone from error


def _serve(pipe: Connection, make_environment: Callable, count: int, trace: str, current: Any) -> None:
    """Run the worker: answer commands until the other side closes the pipe."""
    with open(trace, "w") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file=file)
        warnings.showwarning = functools.partial(_tell, pipe)
        environments: list[gym.Env] = []
        try:
            kind, told = _work(pipe, make_environment, count, current, environments)
            with _speaking():
                pipe.send((kind, told))
        except _Gone:  # nobody is left to read or remove the trace
            Path(trace).unlink(missing_ok=True)
        for environment in environments:
            environment.close()


def _work(
    pipe: Connection, make_environment: Callable, count: int, current: Any, environments: list[gym.Env]
) -> tuple[str, str]:
    """Make the environments and answer commands; returns kind and message of the failure that ends it."""
    try:
        for current.value in range(count):
            environments.append(make_environment())
        reply: Any = about(environments[0])
        while True:
            with _speaking():
                pipe.send(("done", reply))
                command, arguments = pipe.recv()
            reply = []
            for current.value, argument in enumerate(arguments):
                reply.append(call(environments[current.value], command, argument))
    except _Gone:
        raise
    except UserError as error:
        return "mistake", str(error)
    except Exception:
        return "error", traceback.format_exc()
