"""Measure the seconds to save and to resume a run of the paper's size: 10^6 steps and their replay.

    python scripts/checkpoint_time.py --folder /a/disk/to/measure --output results/checkpoint_time.json

The replay's files have their full size. The rows since the last checkpoint (10,000 steps) are really written. Of the
other rows, only their numbers and the episode starts are; their pictures are holes in sparse files, which use no disk
space. Saving and resuming do not read them, except for 64 rows whose checksums are compared: on a real disk these are
64 more reads. Before each resume the system is asked to drop its cache of the run's files. The optimizers get states
of full size from a step with zero gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from denoised_mdp.config import load_config
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.run.machine import cpu_name
from denoised_mdp.session import Session

RUN = ["preset=paper/cheetah_run_video_background", "env=toy", "env.task=dot", "distractors=none"]


def forget(folder: Path) -> None:
    """Ask the system to drop its cache of the files below a folder, as after a reboot."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run() -> None:
    """Measure and report medians of four saves and three resumes. On a busy machine, CPU time is the better measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to measure (default: the system's temporary folder)")
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        config = load_config([*RUN, f"run_dir={folder}/run"])
        run = RunFolder.create(config.run_dir)
        prepare(config, run)
        session = Session(config, run)
        trainer = session.trainer
        for optimizer in session.agent.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        (replay,) = session.replay.rings
        rows, recent = config.replay_capacity, config.train.checkpoint_every // config.env.action_repeat
        numbers = np.load(run.replay / "number.npy", mmap_mode="r+")
        starts = np.load(run.replay / "is_first.npy", mmap_mode="r+")
        numbers[: rows - 4 * recent] = np.arange(1, rows - 4 * recent + 1)
        starts[: rows - 4 * recent : config.episode_rows] = True
        numbers.flush(), starts.flush()
        replay._starts = np.arange(0, rows - 4 * recent, config.episode_rows)
        replay.total = rows - 4 * recent
        rng, saves, resumes = np.random.default_rng(0), [], []
        session.collector.turn(session.agent)
        for _ in range(4):
            for _ in range(recent):  # as many as between two checkpoints
                picture = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                replay.add(picture, np.zeros(2, np.float32), 0.0, False)
            trainer.step += config.train.checkpoint_every
            began = time.perf_counter(), time.process_time()
            session.save(trainer)
            saves.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        session.close()
        for _ in range(3):
            forget(run.path)
            began = time.perf_counter(), time.process_time()
            session = Session(config, run)
            resumes.append((time.perf_counter() - began[0], time.process_time() - began[1]))
            assert len(session.replay) == rows
            session.close()
        size = sum(path.stat().st_size for path in run.replay.iterdir())
        checkpoint = max(path.stat().st_size for path in run.checkpoints.glob("*/tensors.safetensors"))
    result = {
        "replay": f"{rows:,} rows, {size / 1e9:.2f} GB",
        "checkpoint": f"{checkpoint / 1e6:.0f} MB",
        "seconds to save: wall, CPU": np.median(saves, 0).round(2).tolist(),
        "seconds to resume, imports not counted: wall, CPU": np.median(resumes, 0).round(2).tolist(),
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, 1-minute load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run()
