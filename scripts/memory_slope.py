"""Measure whether the memory of a training run grows over 10,000 steps of collection and updates.

    python scripts/memory_slope.py --output results/memory_slope.json

The run trains in this process, with tiny nets on the toy task, evaluations and checkpoints included. After every round
and a garbage collection, the script counts

- live bytes: what the C allocator has handed out and not got back (tensors, arrays, large Python objects),
- Python blocks and objects: what the interpreter's own allocator and its garbage collector hold,
- resident bytes: physical memory of the process, separately for its own memory and for mapped files.

A leak is live memory that grows. Resident memory also moves in steps of megabytes with the allocator's free lists.
Episodes are short because NumPy caches some freed arrays of every size below 1 kB: sampling makes arrays with a number
per episode, and so adds sizes to that cache (0.5 MB in all) until there are 128 episodes, which is before half-way.
A line is fitted to the second half, when caches are full. It is fitted to the means of ten blocks of rounds, which are
less correlated than single rounds, and has the 95 % confidence interval that they give. Growth is told from noise if
its interval excludes zero. Needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from denoised_mdp.config import load_config
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.session import Session
from denoised_mdp.trainer import Trainer

RUN = [
    "preset=debug",
    "env=toy",
    "env.task=dot",
    "distractors=camera_jitter",
    "env.episode_steps=30",
    "train.prefill_steps=200",
    "train.train_every=100",
    "train.updates=2",
    "train.eval_every=500",
    "train.eval_episodes=1",
    "train.checkpoint_every=500",
    "train.render_every=0",
    "train.probe_every=0",
    "train.log_every=100",
    "train.batch_size=4",
    "train.segment_length=8",
    "policy.hidden=16",
    "model.depth=2",
]
BLOCKS = 10
T_95 = 2.306  # two-sided 95 % quantile of Student's t with BLOCKS - 2 degrees of freedom


class _MallocInfo(ctypes.Structure):
    """Result of glibc's mallinfo2. `uordblks`: bytes in use; `hblkhd`: bytes of blocks that have their own mapping."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def measure() -> dict[str, int]:
    """Return the current counts, by name."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _MallocInfo
    info = mallinfo()
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    status = {words[0]: int(words[1]) * 1024 for words in lines if words[0].startswith("Rss")}
    return {
        "live bytes": info.uordblks + info.hblkhd,
        "Python blocks": sys.getallocatedblocks(),
        "Python objects": len(gc.get_objects()),
        "resident bytes, own memory": status["RssAnon:"],
        "resident bytes, mapped files": status["RssFile:"],
    }


def slope(steps: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Slope of `values` [N] over `steps` [N] per step, and half the width of its 95 % confidence interval."""
    x, y = (np.array([part.mean() for part in np.array_split(array, BLOCKS)]) for array in (steps, values))
    centered = x - x.mean()
    estimate = centered @ y / (centered @ centered)
    residuals = y - y.mean() - estimate * centered
    return float(estimate), float(T_95 * np.sqrt(residuals @ residuals / (BLOCKS - 2) / (centered @ centered)))


def run() -> None:
    """Train, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="other options of the training")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = [*RUN, *arguments.overrides, f"train.total_steps={arguments.steps}", f"run_dir={folder}/run"]
        config = load_config(options)
        session, rounds, names = Session(config, RunFolder.create(config.run_dir)), 0, list(measure())
        table = np.zeros((arguments.steps // config.train.log_every, 1 + len(names)))  # preallocated: cannot grow
        trainer = session.trainer
        log = trainer.hooks["log"]

        def measured_log(trainer: Trainer) -> None:
            nonlocal rounds
            log(trainer)
            table[rounds] = trainer.step, *measure().values()
            rounds += 1

        trainer.hooks["log"] = measured_log
        trainer.run_to_end()
        updates = trainer.updates
        session.close()
    table = table[:rounds]
    late, result = table[table[:, 0] > arguments.steps / 2], {}
    for column, name in enumerate(names, 1):
        estimate, error = slope(late[:, 0], late[:, column])
        result[name] = {
            "first round": int(table[0, column]),
            "half-way": int(late[0, column]),
            "end": int(late[-1, column]),
            "per step in the second half": round(estimate, 3),
            "95 % interval": [round(estimate - error, 3), round(estimate + error, 3)],
            "told from noise": abs(estimate) > error,
        }
        if "bytes" in name:
            result[name]["MiB in 1,000,000 steps"] = [
                round((estimate + sign * error) * 1e6 / 2**20, 1) for sign in (-1, 0, 1)
            ]
    times, every = config.times_due, config.train.checkpoint_every
    result = {
        "steps": arguments.steps,
        "updates": updates,
        "evaluations": config.evaluations,
        "checkpoints": times(arguments.steps - 1, every) - times(0, every) + 1,
        "rounds measured": rounds,
        "seconds": round(time.monotonic() - began),
        "CPU seconds": round(time.process_time()),
        "cores": os.cpu_count(),
        **result,
    }
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run()
