"""Several environments that step together, in this process or in worker processes.

An environment depends only on its seed and actions, so the number of workers changes nothing but the time. A worker
that fails, dies or hangs ends the pool with an `EnvironmentFailure` that names the task, the seed and the place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.world import CannotRestore
from denoised_mdp.errors import EnvironmentFailure, UserError

START_SECONDS = 300.0
"""seconds that a worker may take to import and build its environments, on top of its first reply's time"""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
ONE_THREAD["LP_NUM_THREADS"] = "0"  # threads of Mesa's software renderer besides the caller's


class EnvironmentPool:
    """`count` environments, made by `make_environment`, in `workers` processes (0: in this one).

    make_environment: a picklable function without arguments. timeout: seconds that one reset or step of the
    pool may take before its slowest worker counts as hung. task: a name for messages.

    Raises:
        UserError: from `make_environment`.
        EnvironmentFailure: see there; also from `reset` and `step`, after which only `close` is useful.
    """

    def __init__(
        self,
        make_environment: Callable[[], gym.Env],
        count: int,
        *,
        workers: int = 0,
        timeout: float = 120.0,
        task: str = "environment",
    ):
        self.count, self.timeout, self.task = count, timeout, task
        self._playing = ["while it was made"] * count  # for messages
        self._environments: list[gym.Env] = []
        self._workers: list[_Worker] = []
        workers = min(workers, count)
        try:
            if workers:
                for w in range(workers):  # one by one, so that `close` knows the running ones if another cannot start
                    self._workers.append(_Worker(make_environment, len(range(w, count, workers))))
                about = self._replies(timeout + START_SECONDS)[0]
            else:
                for _ in range(count):
                    self._environments.append(make_environment())
                about = _about(self._environments[0])
            self.observation_shape, self.actions, self.can_terminate = about
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> list[tuple[np.ndarray, dict]]:
        """Begin one episode per seed in the first environments; returns (observation, info) of each."""
        self._playing[: len(seeds)] = [f"in the episode of seed {seed}" for seed in seeds]
        return self._all("reset", [*seeds, *[None] * (self.count - len(seeds))])[: len(seeds)]

    def begin(self, which: Sequence[bool]) -> list[tuple[np.ndarray, dict] | None]:
        """Begin another episode where `which` is true, from the environment's own random stream."""
        for i in np.flatnonzero(which):
            self._playing[i] = self._playing[i].replace("in the episode of", "in an episode after that of")
        return self._all("begin", [one or None for one in which])

    def step(self, actions: Sequence[np.ndarray | None]) -> list[tuple | None]:
        """One action [A] for each environment, or None to leave it as it is; returns what `step` of each returned."""
        return self._all("step", [*actions, *[None] * (self.count - len(actions))])[: len(actions)]

    def get_states(self) -> list[dict[str, Any]]:
        """The complete state of each environment, even mid-episode."""
        return self._all("get_state", [True] * self.count)

    def set_states(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Restore what `get_states` returned for equal environments; returns where that is possible."""
        self._playing = ["after a state was restored"] * self.count
        return self._all("set_state", list(states))

    def close(self) -> None:
        """Close the environments and end the workers in any state."""
        for environment in self._environments:
            environment.close()
        for worker in self._workers:  # all at once: each may take a moment
            worker.pipe.close()
        deadline = time.monotonic() + 2.0
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._environments, self._workers = [], []

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _all(self, command: str, arguments: list) -> list:
        """Send each environment its argument; gather the replies in the environments' order."""
        if not self._workers:
            return [self._here(i, command, argument) for i, argument in enumerate(arguments)]
        workers = len(self._workers)
        for w, worker in enumerate(self._workers):
            with contextlib.suppress(OSError):  # it died: its reply says so
                worker.pipe.send((command, arguments[w::workers]))
        replies: list = [None] * self.count
        for w, reply in enumerate(self._replies(self.timeout)):
            replies[w::workers] = reply
        return replies

    def _here(self, i: int, command: str, argument: Any) -> Any:
        """Do a worker's job in this process; system errors are the caller's."""
        try:
            return _call(self._environments[i], command, argument)
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:
            what = f"{self.task} raised an error {self._playing[i]}"
            raise EnvironmentFailure(f"{what}.\n{traceback.format_exc()}") from error

    def _replies(self, timeout: float) -> list:
        """One reply from every worker, or an `EnvironmentFailure` about the first that has none."""
        deadline, replies = time.monotonic() + timeout, []
        for w, worker in enumerate(self._workers):
            status, reply = worker.reply(max(0.0, deadline - time.monotonic()))
            if status == "mistake":
                raise UserError(reply)
            if status != "done":
                when = self._playing[w + worker.index * len(self._workers)]
                what = {
                    "error": "raised an error",
                    "dead": f"died with its worker process (exit code {worker.process.exitcode})",
                    "hung": f"gave no answer within {timeout:.0f} s",
                }[status]
                raise EnvironmentFailure(f"{self.task} {what} {when}.\n{reply or 'It left no traceback.'}")
            replies.append(reply)
        return replies


def _call(environment: gym.Env, command: str, argument: Any) -> Any:
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


def _about(environment: gym.Env) -> tuple[tuple[int, ...], Actions, bool]:
    """Shape of an observation, the actions, and whether episodes can terminate: yes, unless the environment says no."""
    can_terminate = getattr(environment.unwrapped, "can_terminate", True)
    return environment.observation_space.shape, Actions.of(environment.action_space), can_terminate


class _Worker:
    """A process that serves some environments, as seen from this side."""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        context = multiprocessing.get_context("spawn")  # a fork would share the renderer and PyTorch's threads
        self.pipe, other = context.Pipe()
        descriptor, trace = tempfile.mkstemp(prefix="denoised_mdp_worker_", suffix=".txt")
        os.close(descriptor)
        self.trace = Path(trace)
        self._current = context.Value("i", 0, lock=False)
        arguments = (other, make_environment, count, trace, self._current)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        try:
            with _environment_variables(ONE_THREAD), _without_interrupts():
                self.process.start()
            other.close()
        except BaseException:
            self.end()
            raise

    @property
    def index(self) -> int:
        """Which of its environments it was last busy with."""
        return self._current.value

    def reply(self, timeout: float) -> tuple[str, Any]:
        """("done", value), or what went wrong ("mistake", "error", "dead" or "hung") and where."""
        if wait([self.pipe, self.process.sentinel], timeout):
            if self.pipe.poll():
                with contextlib.suppress(EOFError, OSError):
                    return self.pipe.recv()
            self.process.join(5.0)
            return "dead", self.trace.read_text(errors="replace")
        if self.process.pid and hasattr(signal, "SIGUSR1"):  # let it write its traceback
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGUSR1)
            patience = time.monotonic() + 5.0
            while not self.trace.stat().st_size and time.monotonic() < patience:
                time.sleep(0.05)
        return "hung", self.trace.read_text(errors="replace")

    def end(self, patience: float = 2.0) -> None:
        """Ask the process to end; kill it after `patience` seconds."""
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


@contextlib.contextmanager
def _without_interrupts():
    """Block Ctrl-C for good in processes started in the block: it is meant for the process that they serve.

    Here it is delivered afterwards. Ignoring it once they run would be too late: their imports take seconds.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, make_environment: Callable, count: int, trace: str, current: Any) -> None:
    """The worker: answer commands until the other side closes the pipe."""
    with open(trace, "w") as file:
        faulthandler.enable(file)
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, file=file)
        environments: list[gym.Env] = []
        try:
            for current.value in range(count):
                environments.append(make_environment())
            pipe.send(("done", _about(environments[0])))
            while True:
                command, arguments = pipe.recv()
                replies = []
                for current.value, argument in enumerate(arguments):
                    replies.append(_call(environments[current.value], command, argument))
                pipe.send(("done", replies))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass
        except UserError as error:
            pipe.send(("mistake", str(error)))
        except Exception:
            pipe.send(("error", traceback.format_exc()))
        for environment in environments:
            environment.close()
