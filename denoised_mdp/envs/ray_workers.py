"""Ray actors that serve environments to a pool, on this machine or on others; one that dies is replaced.

What an environment does follows from its state and the commands since. The pool's side keeps both in a `Journal` and
brings a new actor to where the lost one was, so the run continues as if nothing had happened, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

from denoised_mdp.envs.workers import ONE_THREAD, about, call, may_handle_signals
from denoised_mdp.errors import UserError, warn_once

MOST_ENTRIES = 500
"""commands that a journal holds before the environments' states replace them"""
MOST_DEATHS = 3
"""actors that may die of one command"""
REPLACEMENT_SECONDS = 300.0
"""seconds that a new actor may take to start and to catch up"""
SLICE_SECONDS = 1.0
"""seconds that a signal may be delayed while the pool waits for an actor's answer"""
PATIENCE_SECONDS = 15.0
"""seconds after which a worker that waits for a free CPU says so"""
REACH_SECONDS = 10.0
"""seconds within which a cluster's address must accept a connection"""


class Journal:
    """The shortest known list of commands, as `call` takes them, that leads to the state of some environments."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, list]] = []
        self.checksums: list[int | None] = []
        """of the reply to each entry; None for an entry that replaces other commands"""

    def note(self, command: str, arguments: list, replies: list) -> None:
        """Add a completed command. States or seeds for all environments make earlier commands obsolete."""
        if command == "get_state" and None not in replies:
            self.entries, self.checksums = [("set_state", replies)], [None]
            return
        if command in ("set_state", "reset") and None not in arguments:
            self.entries, self.checksums = [], []
        self.entries.append((command, arguments))
        self.checksums.append(checksum(replies))


def checksum(reply: Any, before: int = 0) -> int:
    """Return the CRC-32 of a reply (arrays, numbers and texts in dicts, lists and tuples), equal for equal replies."""
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

    def do(self, command: str, arguments: list) -> tuple[str, Any, int, list[str]]:
        """Return a reply like a `Worker`'s, the index of the environment that it last worked on, and the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            reply = self._do(command, arguments)
        return *reply, [str(one.message) for one in caught]

    def _do(self, command: str, arguments: list) -> tuple[str, Any, int]:
        """Do the same without the warnings."""
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
    """A Ray actor; see `Worker`. The cluster is the one that ``RAY_ADDRESS`` names, or one on this machine alone.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, make_environment: Callable[[], gym.Env], count: int):
        self.index, self._made, self._journal = 0, (make_environment, count), Journal()
        self._ray = _connected()
        self._begin()
        self.send("make", [])

    def _begin(self) -> None:
        """Start an actor, if possible on a different node from its siblings."""
        actor = self._ray.remote(Host).options(num_cpus=1, scheduling_strategy="SPREAD")
        self._actor = actor.remote(*self._made)

    def send(self, command: str, arguments: list) -> None:
        """See `Worker`."""
        self._sent = command, arguments
        self._answer = self._actor.do.remote(command, arguments)

    def reply(self, timeout: float) -> tuple[str, Any]:
        """See `Worker`; "dead" means that replacements died of the same command, or that none is possible."""
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
            status, value, self.index, warned = self._get(time.monotonic() + timeout)
        except self._ray.exceptions.GetTimeoutError:
            return "hung", self._cpus()[1]
        except self._ray.exceptions.RayError as error:
            return "dead", str(error)
        for text in warned:
            warn_once(text)
        return status, value

    def _get(self, deadline: float) -> tuple[str, Any, int, list[str]]:
        """Return the answer. Wait for it in slices, because Python handles no signal until Ray returns."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while (left := deadline - time.monotonic()) > SLICE_SECONDS:
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                return self._ray.get(self._answer, timeout=SLICE_SECONDS)
            if self._sent[0] == "make" and time.monotonic() > patience:
                free, text = self._cpus()
                if free < 1:
                    warn_once(f"A worker waits for a place on Ray. {text}")
        return self._ray.get(self._answer, timeout=max(0.0, left))

    def _cpus(self) -> tuple[float, str]:
        """Return how many of the cluster's CPUs are free, and a sentence about it."""
        free, cpus = (each.get("CPU", 0) for each in (self._ray.available_resources(), self._ray.cluster_resources()))
        return free, (
            f"Of the cluster's {cpus:g} CPUs {free:g} are free; every worker of collecting and evaluating needs one."
        )

    def _replace(self) -> tuple[str, Any]:
        """Start another actor, bring it to where the lost one was, and repeat the command that got no answer."""
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
        """Replace a long journal with the states of the environments."""
        self.send("get_state", [True] * self._made[1])
        status, value = self._wait(timeout)
        if status == "done":  # else the next command reports the failure
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
    """Return the module ``ray``.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UserError("train.workers=ray needs a package: pip install 'denoised-mdp[ray]'.") from error


def check_reachable(address: str) -> None:
    """Raise UserError if ``host:port`` accepts no connection: Ray would try for a quarter of an hour.

    For other addresses, such as ``auto`` and ``ray://``, Ray itself fails at once.
    """
    host, _, port = address.rpartition(":")
    if not host or "//" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"train.workers=ray: no cluster at RAY_ADDRESS={address} ({error}).") from error


def _connected() -> Any:
    """Return the module ``ray``, connected to a cluster. Keep our signal handlers: Ray's end the process at once."""
    ray, address = ray_module(), os.environ.get("RAY_ADDRESS", "")
    if not ray.is_initialized():
        check_reachable(address)
        changed = (signal.SIGINT, signal.SIGTERM) if may_handle_signals() else ()
        ours = {number: signal.getsignal(number) for number in changed}
        try:
            ray.init(log_to_driver=False, include_dashboard=False)
        except Exception as error:  # a plain Exception if Ray's own processes do not start
            cluster = f"no cluster at RAY_ADDRESS={address}" if address else "Ray does not start on this machine"
            raise UserError(f"train.workers=ray: {cluster} ({error}).") from error
        finally:
            for number, handler in ours.items():
                signal.signal(number, handler)
    return ray
