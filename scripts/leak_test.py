"""Make and close environments over and over and watch memory, open files and threads of the process.

    python scripts/leak_test.py --cycles 1000 --output results/leak_test.csv --figure docs/images/leak_test.png

Needs Linux. Each cycle makes an environment with every distractor that fits, resets it, steps, and closes it.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

from denoised_mdp.envs import make_env
from denoised_mdp.envs.options import fitting_distractors
from denoised_mdp.run.machine import resident_memory


def cycle(task: str, quality: str) -> None:
    """Make one environment, use it, and close it."""
    env = make_env(task, distractors={name: {} for name in fitting_distractors("dmc", task)}, quality=quality)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


def resources() -> tuple[float, int, int]:
    """Resident memory in MiB, open files, threads (those of GL included)."""
    gc.collect()
    return resident_memory() / 2**20, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def run(
    cycles: int, task: str = "cheetah_run", quality: str = "fast", every: int = 10, show: Callable = lambda row: None
) -> list[tuple]:
    """Return (cycle, MiB, files, threads) before the first and after every `every` cycles; Ctrl-C ends it early."""
    rows = [(0, *resources())]
    try:
        for count in range(1, cycles + 1):
            cycle(task, quality)
            if count % every == 0:
                rows.append((count, *resources()))
                show(rows[-1])
    except KeyboardInterrupt:
        print("interrupted: what follows is of the cycles so far")
    return rows


def figure(rows: list[tuple], path: Path) -> None:
    """Draw memory over cycles as PNG."""
    from denoised_mdp.analysis.plots import INK, new_figure, plain_axes, save_figure  # imports PyTorch, not measured

    picture = new_figure(7.0, 2.6)
    picture.set_layout_engine("constrained")
    axes = picture.add_subplot()
    plain_axes(axes, 9)
    axes.plot([row[0] for row in rows], [row[1] for row in rows], color=INK, linewidth=1.2)
    axes.set(
        xlabel="environments made and closed", ylabel="resident memory, MiB", ylim=(0, None), xlim=(0, rows[-1][0])
    )
    save_figure(picture, path)


def main() -> None:
    """Run, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--task", default="cheetah_run")
    parser.add_argument("--quality", default="fast", choices=("fast", "faithful"))
    parser.add_argument("--output", type=Path, help="a CSV file of the measurements")
    parser.add_argument("--figure", type=Path, help="a PNG of the memory")
    options = parser.parse_args()
    began = time.perf_counter()

    def show(row: tuple) -> None:
        print("cycle {:5d}  {:7.1f} MiB  {:3d} files  {:3d} threads".format(*row), flush=True)

    rows = run(options.cycles, options.task, options.quality, every=max(1, options.cycles // 50), show=show)
    half = rows[len(rows) // 2]
    growth = (rows[-1][1] - half[1]) / max(1, rows[-1][0] - half[0]) * 1024
    print(f"second half: {growth:+.2f} KiB per cycle; {time.perf_counter() - began:.0f} s")
    if options.output:
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("cycle", "resident_mib", "files", "threads"), *rows])
    if options.figure:
        figure(rows, options.figure)


if __name__ == "__main__":
    main()
