"""On what a run is computed: written down at every start, so that its speed means something later."""

from __future__ import annotations

import json
import os
import platform
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from . import __version__


def cpu_name() -> str:
    """The processor's name as its maker writes it, or at least its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or platform.machine()


def describe(device: torch.device, precision: str) -> dict[str, Any]:
    """The machine as far as it decides the speed of a training."""
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


def record_start(path: Path, step: int, device: torch.device, precision: str) -> None:
    """Append one line to `path`: when, at which step and on what a training starts; a full disk is a warning."""
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"started": when, "step": step, **describe(device, precision)}) + "\n")
    except OSError as error:
        warnings.warn(f"{path} cannot be written ({error.strerror}): reports will not know the machine.", stacklevel=2)
