"""One run trained by several processes: the first leads, with environments, replay and folder; the others follow.

A follower has a copy of the agent and nothing else. For every update it receives its columns of the batch. All
processes take the same step (`parallel`), so the copies stay bit-identical and the leader's checkpoint serves all.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.launch import check_gpus, launched, own_gpu
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure
from denoised_mdp.envs.workers import ALL_STOPS, GUARD, UNGUARDED, may_handle_signals, without_stops
from denoised_mdp.errors import EnvironmentFailure, UserError, one_line
from denoised_mdp.optim import parallel

PATIENCE = timedelta(days=30)
"""how long a follower waits for work: the leader may evaluate, render or wait for environments meanwhile"""
MEETING = timedelta(minutes=10)
"""how long externally launched processes wait for one another"""
BACKEND = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def join(**group: Any) -> None:
    """Call `dist.init_process_group` so that `leave` ends the group's threads.

    PyTorch's autograd functions keep the group that exists at their first import (the first optimizer imports them) as
    a default argument forever. Its threads would then abort the interpreter at exit.
    """
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group(BACKEND, timeout=PATIENCE, **group)


def leave() -> None:
    """Call `dist.destroy_process_group`, and let it wait for gloo's thread without the GIL.

    The thread needs the GIL to free the tensors of its last exchange. Up to PyTorch 2.6, a freed group holds the GIL
    while it waits for the thread: a deadlock. A backend that outlives its group releases the GIL first.
    """
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    del backend


def _meet() -> None:
    """`join` the processes `launched` with this one. Meanwhile Ctrl-C kills: Python's own handler would wait for them.

    Raises:
        UserError: they do not meet.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if may_handle_signals() else None
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=MEETING))
        join(store=store, rank=rank, world_size=size)
        store.set_timeout(PATIENCE)  # for later exchanges through it, such as GPU addresses
    except (RuntimeError, ValueError, OSError) as error:  # from the store, a bad MASTER_PORT, or gloo
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"The run's processes do not meet at MASTER_ADDR:MASTER_PORT, {address} ({one_line(error, 200)}). Give all"
            " of them the address of the first one's machine and a port that is free there, and start all;"
            " GLOO_SOCKET_IFNAME, if set, names a network interface of each machine."
        ) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def joined(processes: int) -> Iterator[None]:
    """Join the first process with those `launched` with it; if no `Leader` ends them, they end with this context."""
    if processes == 1 or launched(processes) is None:
        yield
        return
    _meet()
    try:
        yield
    finally:
        if dist.is_initialized():  # else a leader has ended them
            _dismiss(processes)
            leave()


def _dismiss(processes: int) -> None:
    """Tell all processes that wait for work that there is none."""
    with contextlib.suppress(RuntimeError):
        _hand_out([None] * processes)
        # Else a follower that still reads would lose its connection. The timeout is for one that is stuck.
        dist.barrier(async_op=True).wait(timedelta(seconds=10))


def _hand_out(work: list[Any] | None = None) -> Any:
    """Scatter the leader's `work`, one part per process, and return this process's part."""
    own = [None]
    dist.scatter_object_list(own, work, src=0)
    return own[0]


class Leader:
    """Learns together with `processes` - 1 followers, which it starts unless they have `joined`.

    Args:
        agent: the agent to train; followers receive a copy of its current state.
        config, how: the arguments of `build_agent`: the configuration, and keyword arguments.

    Raises:
        UserError: this machine has fewer GPUs than processes, or the script lacks its ``__main__`` guard.
        EnvironmentFailure: a process died while it started or built its copy.
    """

    def __init__(self, agent: Agent, config: Config, **how: Any):
        self.agent, self.processes, self._update = agent, config.train.processes, agent.update
        self._started: list[multiprocessing.Process] = []
        self._in_step = True  # all wait for the next work, none for an exchange within an update
        try:
            if launched(self.processes) is None:
                if agent.device.type == "cuda":
                    check_gpus(self.processes, self.processes)
                self._start_followers()
            # Every follower would unpickle GPU tensors on the leader's GPU.
            state = tree_map_only(Tensor, lambda tensor: tensor.cpu(), agent.state())
            with _all_there("could not build the agent. What it has printed says why."):
                _hand_out([(config, how, state)] * self.processes)
                dist.barrier()
        except BaseException:  # else they would wait for us, and the exit of this process for them
            for process in self._started:
                if process.pid is not None:  # it was started
                    process.kill()
            if self._started and dist.is_initialized():
                leave()
            raise

    def _start_followers(self) -> None:
        """Start the followers on this machine and join them."""
        store = dist.TCPStore("127.0.0.1", 0, self.processes, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        spawn = multiprocessing.get_context("spawn")
        for number in range(1, self.processes):
            how = {"target": run_follower, "args": (number, self.processes, store.port), "daemon": True}
            self._started.append(spawn.Process(**how))  # before the start, during which another thread may take a stop
            with without_stops():  # stops are the leader's, even while followers import
                self._started[-1].start()
        self._wait_for_followers(store)
        join(store=store, rank=0, world_size=self.processes)

    def _wait_for_followers(self, store: dist.Store) -> None:
        """Return once all have connected; raise if one died while it started."""
        for number, process in enumerate(self._started, 1):
            while not store.check([str(number)]):
                process.join(0.05)
                if process.exitcode == UNGUARDED:
                    raise UserError(GUARD)
                if process.exitcode is not None:
                    raise EnvironmentFailure(
                        f"One of the run's train.processes could not start (exit code {process.exitcode})."
                    )

    def update(self, batch: dict[str, np.ndarray | Tensor], *, policy: bool = True) -> dict[str, Tensor]:
        """See `Agent.update`; every process receives its columns of the batch [T, B, ...]; metrics cover all of it.

        Raises:
            EnvironmentFailure: a process has died.
        """
        parts = [{} for _ in range(self.processes)]
        for name, value in batch.items():
            columns = torch.as_tensor(value).cpu().chunk(self.processes, 1)  # [T, B / processes, ...] each
            for part, own in zip(parts, columns, strict=True):
                part[name] = own.clone()  # a view would send the whole batch
        self._in_step = False
        with _all_there("has died. The same command continues from the last checkpoint."):
            part, policy = _hand_out([(part, policy) for part in parts])
            metrics = _update(self._update, self.agent.device, part, policy)
        self._in_step = True
        return metrics

    def close(self) -> None:
        """End the followers in any state; those that wait within a broken update find the leader gone."""
        if self._in_step:
            _dismiss(self.processes)
        for process in self._started:
            process.join(10 if self._in_step else 0)
            process.kill()
            process.join()
        leave()


def run_follower(number: int, processes: int, port: int | None = None) -> None:
    """Learn from what the leader hands out, until it ends the run or is gone.

    port: of the leader's store on this machine; None if this process was `launched`.
    """
    if port is None:
        _meet()
        _leave_signals_to_the_leader()
    else:
        _leave_signals_to_the_leader()
        store = dist.TCPStore("127.0.0.1", port, processes, is_master=False, timeout=PATIENCE)
        store.set(str(number), "")
        join(store=store, rank=number, world_size=processes)
    try:
        if (first := _hand_out()) is None:  # the leader ended before the run began
            dist.barrier()
            return
        config, how, state = first
        device, dtype = configure(config.train)
        if device.type == "cuda":
            gpu = f"cuda:{number}" if port is not None else own_gpu(number, processes)
            device, dtype = configure(replace(config.train, device=gpu))
        agent = build_agent(config, **how, device=device, dtype=dtype)
        agent.restore(state)
        del first, state  # they hold a copy of the agent
        dist.barrier()  # the leader waits until all are built
        while (work := _hand_out()) is not None:
            _update(agent.update, agent.device, *work)
        dist.barrier()
    except RuntimeError as error:
        if not _gone(error):  # else the leader was killed
            raise
    finally:
        leave()


def _leave_signals_to_the_leader() -> None:
    """Ignore stops: the leader stops the run, then us. Outside the main thread, the program's handlers stay."""
    if not may_handle_signals():
        return
    for number in ALL_STOPS:
        signal.signal(number, signal.SIG_IGN)


def _update(update: Any, device: torch.device, batch: dict[str, Tensor], policy: bool) -> dict[str, Tensor]:
    """Update on this process's part of the batch; return the metrics (tensors or numbers) averaged over processes."""
    with parallel.sharing():
        metrics = {
            name: torch.as_tensor(value, dtype=torch.float32, device=device).detach().clone()
            for name, value in update(batch, policy=policy).items()
        }
        parallel.average(metrics.values())
    return metrics


@contextlib.contextmanager
def _all_there(otherwise: str) -> Iterator[None]:
    """Turn the error of an exchange with a dead process into an EnvironmentFailure. otherwise: what happened to it."""
    try:
        yield
    except RuntimeError as error:
        if not _gone(error):
            raise
        raise EnvironmentFailure(f"One of the run's train.processes {otherwise}") from error


def _gone(error: RuntimeError) -> bool:
    """Whether an exchange failed because another process is gone; gloo raises plain RuntimeErrors."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
