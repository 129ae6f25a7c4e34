"""Kill a training run again and again, continue it each time, and compare it with an undisturbed run.

    python scripts/fault_injection.py --kills 100 --seed 0 --output results/fault_injection.json
    python scripts/fault_injection.py --kills 20 train.overlap=true train.collect_workers=1 train.train_every=40

Each start is the command `denoised-mdp train ...` in its own process, forked from one that has already imported the
package, which saves the import time. Half of the kills are SIGKILL after a random time, which often hits the startup.
The other half come from a kernel alarm that is set while a checkpoint is being written, just before one of its files is
synced to disk. It ends the process in the middle of whatever it is doing, without running any Python code. After a kill
the newest checkpoint must be whole and no older than one interval, and the same command must continue the run. Runs
that reach their end must be bit-identical to undisturbed ones in everything that `denoised-mdp compare` checks. The
exit code is 0 if all of this holds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch.utils import tensorboard

from denoised_mdp import session
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report

INTERVAL = 40  # steps between checkpoints
RUN = [
    "preset=debug",
    "env=toy",
    "env.task=dot",
    "distractors=video_background,camera_jitter",
    "env.episode_steps=70",
    "train.prefill_steps=80",
    "train.train_every=60",
    "train.updates=2",
    f"train.checkpoint_every={INTERVAL}",
    "train.eval_every=240",
    "train.eval_episodes=1",
    "train.render_every=0",
    "train.log_every=60",
    "train.deterministic=true",
    "replay.capacity=150",
    "policy.hidden=16",
    "model.depth=4",
]


def command(folder: Path, seed: int, steps: int, overrides: list[str]) -> list[str]:
    """Return the command that starts or continues run number `seed`; even runs use backprop, odd ones SAC."""
    policy = ("backprop", "sac")[seed % 2]
    own = [f"train.total_steps={steps}", f"policy={policy}", f"seed={seed}", f"run_dir={folder}"]
    return ["train", *RUN, *own, *overrides]


def start(arguments: list[str], log: Path, alarm: tuple[int, int, float] | None = None) -> int:
    """Run a command in a new process; return its id. alarm: see `set_alarm`."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with open(log, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if alarm:
            set_alarm(*alarm)
        code = main(arguments)
    finally:
        os._exit(code)


def set_alarm(number: int, call: int, seconds: float) -> None:
    """End this process `seconds` after it starts to sync the `call`-th file of its checkpoint `number` to disk.

    A checkpoint makes six such calls, those for folders included.
    """
    save, fsync, count = checkpoint.save, os.fsync, Counter()

    def counted_save(*args, **options):
        count["saves"] += 1
        return save(*args, **options)

    def counted_fsync(file):
        count["calls"] += count["saves"] == number
        if count["calls"] == call:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        return fsync(file)

    checkpoint.save, os.fsync = counted_save, counted_fsync


def wait(child: int, limit: float | None = None) -> int | None:
    """Wait for a process; return its exit code, minus a signal's number if one ended it, or None at the limit."""
    began = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if limit is not None and time.monotonic() - began >= limit:
            return None
        time.sleep(0.001)


def rows_written(folder: Path) -> int:
    """Number of rows ever added to the replay of a run, those after the newest checkpoint included."""
    return sum(int(np.load(path).max()) for path in (folder / "replay").rglob("number.npy"))


def inspect(folder: Path, before: int, found: Counter) -> int:
    """Check what a kill left behind; return the step of the newest whole checkpoint (0: none yet)."""
    checkpoints = folder / "checkpoints"
    if any(checkpoints.glob(".tmp-*")):
        found["kills that left an unfinished checkpoint"] += 1
    if not checkpoint.list_steps(checkpoints):
        found["kills before the first checkpoint"] += 1
        assert not before, "the checkpoint is gone"
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # `load` warns of a torn checkpoint under a final name
        step, tree = checkpoint.load(checkpoints)
    assert step >= before, f"went back from step {before} to {step}"
    rings = tree["replay"].get("rings", [tree["replay"]])
    lost = rows_written(folder) - sum(ring["total"] for ring in rings)
    most = INTERVAL // 2 + len(rings)  # two steps per row, plus the first row of an episode in each ring
    assert lost <= most, f"{lost} rows were lost"
    found["most rows lost"] = max(found["most rows lost"], lost)
    return step


def disturb(arguments: list[str], folder: Path, kills: int, rng: random.Random, pace: float, found: Counter) -> int:
    """Run a command until training ends, with up to `kills` kills on the way; return their number.

    pace: mean seconds from one checkpoint to the next, start and end of the process included.
    """
    made, step, log = 0, 0, folder.with_suffix(".log")
    while made < kills:
        if rng.random() < 0.5:
            child = start(arguments, log, (rng.randint(1, 3), rng.randint(1, 6), rng.uniform(1e-6, 2e-3)))
            code = wait(child)
            kind = "kills by an alarm in a checkpoint"
        else:
            child = start(arguments, log)
            code = wait(child, limit=rng.uniform(0.0, 5 * pace))
            if code is None:
                os.kill(child, signal.SIGKILL)
                code = wait(child)
            kind = "kills at a random time"
        if code == 0:
            return made
        if code not in (-signal.SIGKILL, -signal.SIGALRM):
            sys.exit(f"the command ended with {code}: see {log}")
        made, found[kind] = made + 1, found[kind] + 1
        step = inspect(folder, step, found)
    code = wait(start(arguments, log))
    if code:
        sys.exit(f"the command ended with {code}: see {log}")
    return made


def run() -> int:
    """Parse the arguments, make the kills, report; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-run", type=int, default=25, help="kills before a run is left in peace")
    parser.add_argument("--steps", type=int, default=800, help="length of a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for every run")
    arguments = parser.parse_args()
    rng, found, runs, began = random.Random(arguments.seed), Counter(), 0, time.monotonic()
    work, kills = Path(tempfile.mkdtemp(prefix="fault-injection-")), 0
    load_config(command(work, 0, arguments.steps, arguments.overrides)[1:])  # imports modules for the forked processes
    while kills < arguments.kills:
        whole, disturbed = work / f"{runs}-whole", work / f"{runs}-disturbed"
        start_time = time.monotonic()
        if wait(start(command(whole, runs, arguments.steps, arguments.overrides), whole.with_suffix(".log"))):
            sys.exit(f"the undisturbed run failed: see {whole}.log")
        pace = (time.monotonic() - start_time) / (arguments.steps / INTERVAL)
        limit = min(arguments.per_run, arguments.kills - kills)
        again = command(disturbed, runs, arguments.steps, arguments.overrides)
        kills += disturb(again, disturbed, limit, rng, pace, found)
        print(f"run {runs}: {kills} kills so far, {dict(found)}", flush=True)
        if not report(compare(whole, disturbed)):
            sys.exit(f"{whole} and {disturbed} differ")
        runs += 1
    result = {
        "kills": kills,
        "runs": runs,
        "identical": runs,
        **found,
        "seconds": round(time.monotonic() - began),
        "overrides": arguments.overrides,
        "seed": arguments.seed,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    assert session and tensorboard  # imported here, so that the forked processes need not
    sys.exit(run())
