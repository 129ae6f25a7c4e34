"""Actors of Ray that serve environments to a pool, on this machine or on others; one that dies is replaced.

What an environment does follows from its state and the commands since. So the pool's side keeps both in a `Journal`,
and brings a new actor to where the lost one was: the run goes on as if nothing had happened, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.workers import ONE_THREAD, about, call, may_handle_signals
from denoised_mdp.errors import UserError

MOST_ENTRIES = 500
"""of a journal, before the environments' states replace them"""
MOST_DEATHS = 3
"""actors that one command may cost"""
REPLACEMENT_SECONDS = 300.0
"""seconds that a new actor may take to start and to catch up"""


class Journal:
    """The shortest known way to the present state of some environments: commands, as `call` takes them."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, list]] = []
        self.checksums: list[int | None] = []
        """of the reply to each entry; None: it replaces other commands"""

    def note(self, command: str, arguments: list, replies: list) -> None:
        """Add a command that was done. A state of all environments, or a seed for each, makes earlier ones obsolete."""
        if command == "get_state" and None not in replies:
            self.entries, self.checksums = [("set_state", replies)], [None]
            return
        if command in ("set_state", "reset") and None not in arguments:
            self.entries, self.checksums = [], []
        self.entries.append((command, arguments))
        self.checksums.append(checksum(replies))


def checksum(reply: Any, before: int = 0) -> int:
    """Of a reply: arrays, numbers and texts in dicts, lists and tuples; equal replies have equal ones."""
    if isinstance(reply, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(reply).tobytes(), before)
    if isinstance(reply, dict):
        reply = [part for pair in reply.items() for part in pair]
    if not isinstance(reply, list | tuple):
        return zlib.crc32(repr(reply).encode(), before)
    for part in reply:
        before = checksum(part, before)
    return before


class Host:
    """The environments of one actor."""

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        os.environ.update(ONE_THREAD)
        self.make_environment, self.count, self.environments = make_environment, count, []

    def do(self, command: str, arguments: list) -> tuple[str, Any, int]:
        """A reply as of a `Worker`, and the number of the environment that it was last busy with."""
        index = 0
        try:
            if command == "make":
                self.environments += [self.make_environment() for _ in range(self.count)]
                return "done", about(self.environments[0]), index
            replies = []
            for index, argument in enumerate(arguments):
                replies.append(call(self.environments[index], command, argument))
            return "done", replies, index
        except UserError as error:
            return "mistake", str(error), index
        except Exception:
            return "error", traceback.format_exc(), index


class RayWorker:
    """An actor of Ray; see `Worker`. The cluster is the one that ``RAY_ADDRESS`` names, or one of this machine alone.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        self.index, self._made, self._journal = 0, (make_environment, count), Journal()
        self._ray = _connected()
        self._begin()
        self.send("make", [])

    def _begin(self) -> None:
        """Start an actor, if possible on another node than its siblings."""
        actor = self._ray.remote(Host).options(num_cpus=1, scheduling_strategy="SPREAD")
        self._actor = actor.remote(*self._made)

    def send(self, command: str, arguments: list) -> None:
        """See `Worker`."""
        self._sent = command, arguments
        self._answer = self._actor.do.remote(command, arguments)

    def reply(self, timeout: float) -> tuple[str, Any]:
        """See `Worker`; "dead" is one whose replacements died of the same command, or that cannot be replaced."""
        status, value = self._wait(timeout)
        for _ in range(MOST_DEATHS - 1):
            if status != "dead":
                break
            status, value = self._replace()
        if status == "done" and self._sent[0] != "make":
            self._journal.note(*self._sent, value)
            if len(self._journal.entries) > MOST_ENTRIES:
                self._shorten(timeout)
        return status, value

    def _wait(self, timeout: float) -> tuple[str, Any]:
        try:
            status, value, self.index = self._ray.get(self._answer, timeout=timeout)
            return status, value
        except self._ray.exceptions.GetTimeoutError:
            free, cpus = (
                each.get("CPU", 0) for each in (self._ray.available_resources(), self._ray.cluster_resources())
            )
            return "hung", f"Of the cluster's {cpus:g} CPUs {free:g} are free; every worker needs one."
        except self._ray.exceptions.RayError as error:
            return "dead", str(error)

    def _replace(self) -> tuple[str, Any]:
        """Start another actor, bring it to where the lost one was, and ask again what that one did not answer."""
        pending, deadline = self._sent, time.monotonic() + REPLACEMENT_SECONDS
        self._begin()
        known = zip(self._journal.entries, self._journal.checksums, strict=True)
        for (command, arguments), expected in [(("make", []), None), *known]:
            self.send(command, arguments)
            status, value = self._wait(max(0.0, deadline - time.monotonic()))
            if command == "set_state" and status == "done" and not all(value):
                status, value = "dead", "The environment cannot be put back into the middle of an episode."
            if status == "done" and expected not in (None, checksum(value)):
                status, value = "dead", "The environment does not repeat an episode from its seed and actions."
            if status != "done":
                self._sent = pending
                return status, value
        if pending[0] == "make":
            return status, value
        self.send(*pending)
        return self._wait(max(0.0, deadline - time.monotonic()))

    def _shorten(self, timeout: float) -> None:
        """Let the states of the environments replace a long journal."""
        self.send("get_state", [True] * self._made[1])
        status, value = self._wait(timeout)
        if status == "done":  # else the next command finds out
            self._journal.note(*self._sent, value)

    def fate(self) -> str:
        """See `Worker`."""
        return "an actor of Ray"

    def leave(self) -> None:
        """See `Worker`."""

    def end(self, patience: float = 2.0) -> None:
        """See `Worker`."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._actor)


def ray_module() -> Any:
    """The module ``ray``.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UserError("train.workers=ray needs a package: pip install 'denoised-mdp[ray]'.") from error


def _connected() -> Any:
    """The module ``ray``, connected to a cluster. Signals stay ours: Ray would end the process at once."""
    ray = ray_module()
    if not ray.is_initialized():
        changed = (signal.SIGINT, signal.SIGTERM) if may_handle_signals() else ()
        ours = {number: signal.getsignal(number) for number in changed}
        try:
            ray.init(log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"train.workers=ray: no cluster at RAY_ADDRESS={os.environ.get('RAY_ADDRESS')} ({error})."
            ) from error
        finally:
            for number, handler in ours.items():
                signal.signal(number, handler)
    return ray
