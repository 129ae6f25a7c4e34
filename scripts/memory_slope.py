"""Measure whether the memory of a training grows: its resident size over 10,000 steps of collection and updates.

    python scripts/memory_slope.py --output results/memory_slope.json

The trainer runs in this process, with tiny nets on the toy task, evaluations and checkpoints included. The size is read
after every round, and a line is fitted to the second half, when caches are full.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from denoised_mdp.config import load_config
from denoised_mdp.runs import RunFolder
from denoised_mdp.trainer import Trainer

RUN = [
    "preset=debug", "env=toy", "env.task=dot", "distractors=video_background,camera_jitter", "env.episode_steps=200",
    "train.prefill_steps=200", "train.train_every=100", "train.updates=4", "train.eval_every=1000",
    "train.checkpoint_every=1000", "train.render_every=0", "train.log_every=100", "policy.hidden=32",
    "model.depth=4",
]  # fmt: skip


def resident() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run() -> None:
    """Train, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config([*RUN, f"train.total_steps={arguments.steps}", f"run_dir={folder}/run"])
        trainer, points, began = Trainer(config, RunFolder.create(config.run_dir)), [], time.monotonic()
        log = trainer.log

        def measured_log() -> None:
            log()
            points.append((trainer.step, resident()))

        trainer.log = measured_log
        trainer.run_to_end()
        updates = trainer.updates
        trainer.close()
    steps, sizes = np.array(points, float).T
    late = steps >= arguments.steps / 2
    slope, _ = np.polyfit(steps[late], sizes[late], 1)
    result = {
        "steps": arguments.steps, "updates": updates, "seconds": round(time.monotonic() - began),
        "resident MiB at the first round, half-way, at the end": [
            round(float(size) / 2**20, 1) for size in (sizes[0], sizes[late][0], sizes[-1])],
        "slope in the second half, bytes per step": round(float(slope), 1),
        "the same, MiB per 1,000,000 steps": round(float(slope) * 1e6 / 2**20, 1),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run()
