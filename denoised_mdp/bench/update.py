"""``denoised-mdp bench``: what an update, the environments, an evaluation and the replay cost on this machine.

Ratios are measured in one run with the programs taking turns, so they hold on a busy machine. Each implementation of
the update runs in its own process, because allocator settings are per process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from denoised_mdp import optim
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.bench.around import acting, environments, evaluations, filled_replay, replays, start_up
from denoised_mdp.bench.estimate import ACTIONS
from denoised_mdp.bench.plain import PlainUpdate, can_be_plain
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure, precision_name
from denoised_mdp.errors import UserError
from denoised_mdp.models import kernels
from denoised_mdp.run.folder import check_output, output_file
from denoised_mdp.run.machine import GIB, cpu_name, peak_memory, random_batch

PARTS = ("update", "acting", "environments", "evaluation", "replay", "start")


def benchmark(
    config: Config,
    parts: tuple[str, ...] = PARTS,
    *,
    repeats: int = 5,
    rows: tuple[int, ...] = (10_000, 100_000),
    output: Path | None = None,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure `parts` with the configuration's sizes and threads; print tables and return all numbers.

    repeats: timed runs of each update. rows: sizes of the replays. output: a JSON file for the numbers. options: those
    of the configuration, recorded with the numbers. Seconds are wall time; "cpu" is CPU time of all threads, which
    other programs disturb less.
    """
    if not config.agent.has_model:
        raise UserError(f"agent={config.agent.name}: bench measures world models alone; try 'denoised-mdp doctor'.")
    if output is not None:
        check_output(output)
    device, dtype = configure(config.train)
    result: dict[str, Any] = {"options": list(options), "machine": machine(device, dtype)}
    result["configuration"] = sizes(config)
    _table("machine", result["machine"])
    functions = {
        "update": functools.partial(updates, config, device, dtype, repeats),
        "acting": functools.partial(acting, config, device),
        "environments": functools.partial(environments, config),
        "evaluation": functools.partial(evaluations, config),
        "replay": functools.partial(replays, config, rows),
        "start": functools.partial(start_up, config),
    }
    for part in parts:
        result[part] = functions[part]()
        for title, table in result[part].items():
            _table(f"{part}: {title}", table)
        if output is not None:  # partial results, in case the rest is interrupted
            with output_file(output) as unfinished:
                unfinished.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _table(title: str, rows: dict[str, Any]) -> None:
    """Print one Markdown table."""
    print(f"\n| {title} | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {f'{value:.3g}' if isinstance(value, float) else value} |", flush=True)


def machine(device: torch.device, dtype: torch.dtype | None) -> dict[str, Any]:
    """Names, versions, settings and the measured peak of matrix products, in `_unit`."""
    out = {
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "precision": precision_name(device, dtype),
        "compiled kernels": "yes" if kernels.library() else "no",
        "torch": torch.__version__,
        "mujoco": version("mujoco"),
        "load when it began": round(os.getloadavg()[0], 1),
    }
    for kind in sorted({torch.float32, dtype or torch.float32}, key=str):
        out[f"peak {str(kind).removeprefix('torch.')}, {_unit(device)}"] = round(peak(device, kind))
    return out


def _unit(device: torch.device) -> str:
    """The unit of speed; on a CPU, per CPU second of a thread, which other programs disturb less."""
    return "GFLOP/s" if device.type == "cuda" else "GFLOP per cpu s"


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Peak speed of square matrix products over at least two seconds, in `_unit`."""
    size = 1536
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    column, began, times = 0 if device.type == "cuda" else 1, time.perf_counter(), []
    while len(times) < 6 or time.perf_counter() - began < 2:  # a processor needs time to reach full speed
        times.append(_seconds(lambda: a @ b, device)[column])
    return 2 * size**3 / min(times) / 1e9


def sizes(config: Config) -> dict[str, Any]:
    """The options that determine the cost."""
    m, t = config.model, config.train
    return {
        "task": config.env.task,
        "distractors": list(config.distractors),
        "action_repeat": config.env.action_repeat,
        "model": m.name,
        "latents": {name: [row.belief, row.state] for name, row in m.latents.items()},
        "depth": m.depth,
        "embed": m.embed,
        "pixels": config.env.size,
        "policy": config.policy.name,
        "hidden": getattr(config.policy, "hidden", None),  # None for a plug-in's policy
        "batch": [t.segment_length, t.batch_size],
    }


def _seconds(function: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall and CPU seconds of one call, the GPU's work included."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    wait()
    return time.perf_counter() - wall, time.process_time() - cpu


def _serve_updates(pipe, config: Config, plain: bool, threads: int) -> None:
    """Body of a process that does one update per request; "peak" returns its memory in GiB, None ends it."""
    torch.set_num_threads(threads)
    if plain:
        agent, batch = build_agent(config, ACTIONS), random_batch(config, ACTIONS)
        update = PlainUpdate(agent).update
        device = agent.device
    else:
        device, dtype = configure(config.train)
        torch.set_num_threads(threads)
        agent = build_agent(config, ACTIONS, device=device, dtype=dtype)
        batch, update = random_batch(config, ACTIONS), agent.update
    for request in iter(pipe.recv, None):
        pipe.send(peak_memory() / GIB if request == "peak" else _seconds(lambda: update(batch), device))


def ask(pipe: Connection, name: str, request: str) -> Any:
    """Send a request to the process of an update and return the answer, see `_serve_updates`."""
    try:
        pipe.send(request)
        return pipe.recv()
    except (EOFError, ConnectionError):
        raise UserError(
            f"The process of the update ({name}) has ended, most likely for lack of memory: set a smaller"
            " train.batch_size or model."
        ) from None


def updates(config: Config, device: torch.device, dtype: torch.dtype | None, repeats: int) -> dict[str, Any]:
    """Time our update and, on a CPU, the plain one in turns; then the parts of ours; then count its work."""
    threads, context = torch.get_num_threads(), multiprocessing.get_context("spawn")
    ours = config.model.kind == "denoised"  # `update_parts` knows its parts
    comparable = can_be_plain(config) and device.type == "cpu"  # the plain update is for the CPU
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (["plain"] if comparable else []) + ["ours"]}
    pipes, processes, peaks = {}, [], {}
    for name in times:
        pipes[name], other = context.Pipe()
        process = context.Process(target=_serve_updates, args=(other, config, name == "plain", threads), daemon=True)
        process.start()
        other.close()  # else the end of the process would go unnoticed
        processes.append(process)
    for repeat in range(repeats + 1):  # the first one allocates
        for name, pipe in pipes.items():
            seconds = ask(pipe, name, "update")
            if repeat:
                times[name].append(seconds)
    for name, pipe in pipes.items():
        peaks[name] = ask(pipe, name, "peak")
    for pipe in pipes.values():
        with contextlib.suppress(ConnectionError):  # it may have ended already
            pipe.send(None)
    for process in processes:
        process.join()
    whole = {}
    for name, values in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        whole |= {f"{name}, s": wall, f"{name}, cpu s": cpu, f"{name}, peak GiB": peaks[name]}
    whole["updates per second"] = 1 / whole["ours, s"]
    if comparable:
        for unit in ("s", "cpu s"):
            whole[f"times faster, {unit}"] = whole[f"plain, {unit}"] / whole[f"ours, {unit}"]
    agent = build_agent(config, ACTIONS, device=device, dtype=dtype)
    parts = update_parts(agent, config, repeats) if ours else {}
    if parts:
        whole["replay sampling, share of an update"] = parts["replay sampling"] / sum(parts.values())
    work = count_work(agent, config)
    seconds = whole["ours, s" if device.type == "cuda" else "ours, cpu s"]
    work[_unit(device)] = work["GFLOP"] / seconds
    work["share of the measured peak"] = work[_unit(device)] / peak(device, dtype or torch.float32)
    return {"whole": whole, "parts, s": parts, "work": work}


def update_parts(agent: WorldModelAgent, config: Config, repeats: int) -> dict[str, float]:
    """Median wall seconds of each part of an update, including replay sampling and transfer.

    The agent's own functions are timed while it updates; "losses" is the remainder of the update.
    """
    model, (length, batch_size) = agent.world_model, (config.train.segment_length, config.train.batch_size)
    names = ("replay sampling", "transfer", "encoder", "RSSM", "decoder", "losses", "backward", "optimizer", "policy")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    inside: list[str] = []

    @contextlib.contextmanager
    def part(name: str):
        if inside:  # the policy's own backward pass counts as policy
            yield
            return
        inside.append(name)
        began = _now(agent.device)
        yield
        seconds[name].append(_now(agent.device) - began)
        inside.pop()

    watched = {
        "encoder": (model.encoder, "forward"),
        "RSSM": (model.rssm, "observe"),
        "decoder": (model, "decode"),
        "backward": (optim, "differentiate"),
        "optimizer": (optim, "clipped_step"),
        "policy": (agent.policy, "update"),
    }
    with filled_replay(config, 2000) as (_, replay), contextlib.ExitStack() as patches:
        for name, (owner, attribute) in watched.items():
            patches.enter_context(mock.patch.object(owner, attribute, part(name)(getattr(owner, attribute))))
        rng = np.random.default_rng(0)
        for _ in range(repeats + 1):
            with part("replay sampling"):
                sample = replay.sample(batch_size, length, rng)
            with part("transfer"):
                batch = agent.to_device(sample)
            began = _now(agent.device)
            agent.update_eagerly(batch)
            whole = _now(agent.device) - began
            seconds["losses"].append(whole - sum(seconds[name][-1] for name in watched))
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def _now(device: torch.device) -> float:
    """Seconds on a clock, once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def count_work(agent: WorldModelAgent, config: Config) -> dict[str, float]:
    """GFLOP of one update (products and convolutions), and on a GPU its kernel launches."""
    batch = random_batch(config, ACTIONS)
    with FlopCounterMode(display=False) as counter:
        agent.update_eagerly(batch)
    work = {"GFLOP": counter.get_total_flops() / 1e9}
    if agent.device.type == "cuda":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            agent.update_eagerly(batch)
            torch.cuda.synchronize()
        work["kernel launches"] = len([event for event in trace.events() if event.device_type.name == "CUDA"])
        work["GPU memory, GiB"] = torch.cuda.max_memory_allocated(agent.device) / GIB
    return work
