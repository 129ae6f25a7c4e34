"""Processes of this machine that serve environments to a pool, and what any kind of worker does with them."""

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
"""exit code of a process that would have begun its parent's work again, see `refuse_unguarded`"""
GUARD = (
    "Worker processes import the script that starts them, and this one would begin its work there anew. Put the work"
    " under 'if __name__ == \"__main__\":'."
)
STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
"""signals that stop a run: meant for the process that workers serve, though terminals and schedulers tell all"""
ALL_STOPS = STOPS | {signal.SIGUSR1}
"""the same, and one that in a worker asks for a trace"""


def may_handle_signals() -> bool:
    """Whether this thread may say what signals do: Python lets the main thread alone."""
    return threading.current_thread() is threading.main_thread()


class Worker(Protocol):
    """Serves some environments, made by a picklable function; its first reply is `about` the first of them."""

    index: int
    """which of its environments it was last busy with"""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int): ...

    def send(self, command: str, arguments: list) -> None:
        """Ask for one `call` of each environment. That the worker is gone is said by `reply`."""

    def reply(self, timeout: float) -> tuple[str, Any]:
        """("done", value), or what went wrong ("mistake", "error", "dead" or "hung") and where."""

    def fate(self) -> str:
        """How it died."""

    def leave(self) -> None:
        """Let it end by itself; `end` follows."""

    def end(self, patience: float = 2.0) -> None:
        """End it in any state, after `patience` seconds by force."""


def refuse_unguarded() -> None:
    """End a spawned process that is still importing its parent's script: it would do the parent's work once more.

    The parent, which finds `UNGUARDED`, says what to do as well; a pool of somebody else's would say nothing.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself looks for it
        print(GUARD, file=sys.stderr, flush=True)
        os._exit(UNGUARDED)  # a script may catch whatever could be raised


def call(environment: gym.Env, command: str, argument: Any) -> Any:
    """One command of the pool to one environment; None is not for this one."""
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
    """Shape of an observation, the actions, and whether episodes can terminate: yes, unless the environment says no."""
    can_terminate = getattr(environment.unwrapped, "can_terminate", True)
    return environment.observation_space.shape, Actions.of(environment.action_space), can_terminate


class ProcessWorker:
    """A process that serves some environments, as seen from this side; see `Worker`."""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        refuse_unguarded()
        context = multiprocessing.get_context("spawn")  # a fork would share the renderer and PyTorch's threads
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
        slices = max(1, math.ceil(timeout))  # of a process that was stopped and continued, the pause counts as one
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
            before = len(self._traceback())  # somebody else may have asked: where it is now is what follows
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGUSR1)
            patience = time.monotonic() + 5.0
            while "in <module>\n" not in self._traceback()[before:] and time.monotonic() < patience:  # its last line
                time.sleep(0.05)
            return "hung", self._traceback()[before:]
        return "hung", self._traceback()

    def _traceback(self) -> str:
        """What the process wrote when it died or was asked."""
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
    """Let workers end that nobody has closed: multiprocessing would wait for its SIGTERM, which they block."""
    for worker in _started:
        worker.leave()


@contextlib.contextmanager
def without_stops():
    """Block `STOPS` for good in processes started in the block; here they are delivered afterwards.

    Ignoring them once the processes run would be too late: their imports take seconds.
    """
    resource_tracker.ensure_running()  # the first start of a process would start it, and its start unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tell(pipe: Connection, message: Warning | str, *_) -> None:
    """Let the other side warn, unless it has gone."""
    with contextlib.suppress(OSError):
        pipe.send(("warning", str(message)))


class _Gone(Exception):
    """The other side of the pipe has ended. An environment's own lost connections are other errors."""


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """Raise `_Gone` where the pipe has no other end any more."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise _Gone from error


def _serve(pipe: Connection, make_environment: Callable, count: int, trace: str, current: Any) -> None:
    """The worker: answer commands until the other side closes the pipe."""
    with open(trace, "w") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file=file)
        warnings.showwarning = functools.partial(_tell, pipe)
        environments: list[gym.Env] = []
        try:
            kind, told = _work(pipe, make_environment, count, current, environments)
            with _speaking():
                pipe.send((kind, told))
        except _Gone:  # nobody is left to read or remove it
            Path(trace).unlink(missing_ok=True)
        for environment in environments:
            environment.close()


def _work(
    pipe: Connection, make_environment: Callable, count: int, current: Any, environments: list[gym.Env]
) -> tuple[str, str]:
    """Make the environments and answer commands; returns the message of the failure that ends it."""
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
