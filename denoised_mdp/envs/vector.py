"""Several environments that step together, in this process or in workers: other processes, or Ray actors.

An environment depends only on its seed and actions, so the number of workers affects nothing but speed. A worker that
fails, dies or hangs ends the pool with an `EnvironmentFailure` that has the task, the seed and a traceback if any.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.ray_workers import RayWorker
from denoised_mdp.envs.workers import ProcessWorker, Worker, about, call
from denoised_mdp.errors import EnvironmentFailure, UserError, blamed

START_SECONDS = 300.0
"""seconds, on top of the usual timeout, that a worker may take to import and build its environments, to prepare the
clips of the first episode, or to restore states"""
WORKERS: dict[str, type[Worker]] = {"process": ProcessWorker, "ray": RayWorker}


class EnvironmentPool:
    """`count` environments, made by `make_environment`, in `workers` workers of a `kind` (0: in this process).

    make_environment: a picklable function without arguments. timeout: seconds that one reset or step may
    take before a worker counts as hung. kind: a key of `WORKERS`. task: a name for messages.

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
        kind: str = "process",
        timeout: float = 120.0,
        task: str = "environment",
    ):
        self.count, self.timeout, self.task = count, timeout, task
        self._playing = ["while it was made"] * count  # for messages
        self._environments: list[gym.Env] = []
        self._workers: list[Worker] = []
        self._fresh = True  # no episode has begun
        workers = min(workers, count)
        try:
            if workers:
                for w in range(workers):  # one by one, so that `close` knows the running ones if one cannot start
                    self._workers.append(WORKERS[kind](make_environment, len(range(w, count, workers))))
                known = self._replies(timeout + START_SECONDS)[0]
            else:
                for i in range(count):
                    with self._blamed(i):
                        self._environments.append(make_environment())
                        known = about(self._environments[0])
            self.observation_shape, self.actions, self.can_terminate = known
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> list[tuple[np.ndarray, dict]]:
        """Begin one episode per seed in the first environments; returns (observation, info) of each."""
        self._playing[: len(seeds)] = [f"in the episode of seed {seed}" for seed in seeds]
        timeout = self.timeout + START_SECONDS * self._fresh
        self._fresh = False
        return self._all("reset", [*seeds, *[None] * (self.count - len(seeds))], timeout)[: len(seeds)]

    def begin(self, which: Sequence[bool]) -> list[tuple[np.ndarray, dict] | None]:
        """Begin another episode where `which` is true, from the environment's own random stream."""
        for i in np.flatnonzero(which):
            self._playing[i] = self._playing[i].replace("in the episode of", "in an episode after that of")
        return self._all("begin", [one or None for one in which])

    def step(self, actions: Sequence[np.ndarray | None]) -> list[tuple | None]:
        """Step each environment with its action [A], or leave it as it is if that is None; returns the results."""
        return self._all("step", [*actions, *[None] * (self.count - len(actions))])[: len(actions)]

    def get_states(self) -> list[dict[str, Any]]:
        """Return the complete state of each environment, even mid-episode."""
        return self._all("get_state", [True] * self.count)

    def set_states(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Restore what `get_states` returned for equal environments; returns which of them could be restored."""
        self._playing = ["after a state was restored"] * self.count
        return self._all("set_state", list(states), self.timeout + START_SECONDS)  # it may replay the episode

    def close(self) -> None:
        """Close the environments and end the workers in any state."""
        with contextlib.ExitStack() as all_of_them:  # one that fails to close must not keep others open
            for environment in self._environments:
                all_of_them.callback(environment.close)
            all_of_them.callback(self._end_workers)
        self._environments, self._workers = [], []

    def _end_workers(self) -> None:
        for worker in self._workers:  # all at once: each may take a moment
            worker.leave()
        deadline = time.monotonic() + 2.0
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _all(self, command: str, arguments: list, timeout: float | None = None) -> list:
        """Send each environment its argument; gather the replies in the environments' order."""
        if not self._workers:
            return [self._here(i, command, argument) for i, argument in enumerate(arguments)]
        workers = len(self._workers)
        for w, worker in enumerate(self._workers):
            worker.send(command, arguments[w::workers])
        replies: list = [None] * self.count
        for w, reply in enumerate(self._replies(timeout or self.timeout)):
            replies[w::workers] = reply
        return replies

    def _here(self, i: int, command: str, argument: Any) -> Any:
        """Do a worker's job in this process."""
        with self._blamed(i):
            return call(self._environments[i], command, argument)

    def _blamed(self, i: int) -> contextlib.AbstractContextManager[None]:
        """Apply `blamed` to environment `i`."""
        return blamed(f"{self.task} raised an error {self._playing[i]}")

    def _replies(self, timeout: float) -> list:
        """Return one reply from every worker; the first failure raises `UserError` or `EnvironmentFailure`."""
        replies = []
        for w, worker in enumerate(self._workers):
            status, reply = worker.reply(timeout)
            if status == "mistake":
                raise UserError(reply)
            if status != "done":
                when = self._playing[w + worker.index * len(self._workers)]
                what = {
                    "error": "raised an error",
                    "dead": f"died with its worker process ({worker.fate()})",
                    "hung": f"gave no answer within {timeout:.0f} s",
                }[status]
                raise EnvironmentFailure(f"{self.task} {what} {when}", reply or "It left no traceback.")
            replies.append(reply)
        return replies
