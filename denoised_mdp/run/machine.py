"""The machine of a run, recorded at every start so that the run's speed can be interpreted; and measurements of it."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import sys
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denoised_mdp import __version__
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.files import regular

GIB = 2**30


def cpu_name() -> str:
    """The processor's name, or at least its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or platform.machine()


def crowded() -> str | None:
    """Describe the load in words if more threads want to run than the machine has cores; else None."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return f"load {load:.1f} on {cores} cores" if load > cores else None


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def total_memory() -> int:
    """Memory of this machine in bytes; a container may allow less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_large_batches(config: Config) -> None:
    """Refuse batches whose pictures alone, as bytes and as single-precision numbers, do not fit into memory.

    A system that overcommits memory would kill the process in its first update, without a message.

    Raises:
        UserError: the pictures do not fit.
    """
    spec, total = config.batch_spec, total_memory()
    needed = (spec.lead + spec.segment_length) * spec.batch_size * math.prod(config.picture_shape) * (1 + 4)
    if needed > total:
        raise UserError(
            f"train.batch_size={spec.batch_size}: the pictures of one batch need {needed / GIB:,.1f} GiB of memory, and"
            f" this machine has {total / GIB:,.1f} GiB. Set a smaller train.batch_size or train.segment_length;"
            " 'denoised-mdp doctor' measures what a configuration needs."
        )


def resident_memory() -> float:
    """Resident memory of this process in bytes, mapped files included; nan where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return math.nan


def random_batch(config: Config, actions: int) -> dict[str, np.ndarray]:
    """A random batch with the shapes of a run's batches, [T, B, ...], and no episode starts, for timing updates."""
    rng, spec = np.random.default_rng(0), config.batch_spec
    shape = spec.lead + spec.segment_length, spec.batch_size
    return {
        "observation": rng.integers(0, 256, (*shape, *config.picture_shape), dtype=np.uint8),
        "action": rng.uniform(-1, 1, (*shape, actions)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "is_first": np.zeros(shape, bool),
        "is_terminal": np.zeros(shape, bool),
    }


def describe(device: torch.device, precision: str) -> dict[str, Any]:
    """The properties of the machine that determine training speed."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "precision": precision,
        "python": platform.python_version(),
        "pytorch": torch.__version__,
        "version": __version__,
    }


def record_start(
    path: Path, step: int, parameters: int, device: torch.device, precision: str, acts_on: torch.device
) -> None:
    """Append one line to `path`: time, step, parameters and machine of a start. A full disk only causes a warning."""
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        before = regular(path).read_bytes() if os.path.lexists(path) else b""  # a pipe would wait for a reader
        gap = "" if before[-1:] in (b"", b"\n") else "\n"  # after a line torn by a full disk
        with open(path, "a", encoding="utf-8") as file:
            about = describe(device, precision) | {"acts_on": str(acts_on)}
            file.write(gap + json.dumps({"started": when, "step": step, "parameters": parameters, **about}) + "\n")
    except OSError as error:
        warnings.warn(f"{path} cannot be written ({error.strerror}): reports will not know the machine.", stacklevel=2)
