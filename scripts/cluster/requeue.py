"""A sweep on an engine, with one run killed or requeued in the middle: do all runs end as without an engine?

    python scripts/cluster/requeue.py ray               # kill -9 of a worker; Ray starts the task again
    python scripts/cluster/requeue.py submitit_local    # SIGUSR2 to a job, which is saved and requeued
    python scripts/cluster/requeue.py submitit_slurm    # scancel --signal=USR1 of a job, which is saved and requeued

Trains four debug runs with Hydra's own launcher first, then the same four on the engine, and compares them bit by bit.
Needs the extra ``ray`` or ``slurm``; SLURM itself must run (`slurm_on_one_machine.sh`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

from denoised_mdp.analysis.results import make_folder, write_json
from denoised_mdp.analysis.status import status_of, statuses
from denoised_mdp.run.diff import compare

SWEEP = "preset=debug seed=1,2,3,4 train.total_steps=960 train.eval_every=480 train.checkpoint_every=120"
SWEEP += " train.render_every=0 train.deterministic=true train.precision=float32"
ENGINES = {
    "ray": "hydra/launcher=ray +hydra.launcher.ray.init.num_cpus=2 +hydra.launcher.ray.remote.max_retries=-1",
    "submitit_local": "hydra/launcher=submitit_local hydra.launcher.timeout_min=60",
    "submitit_slurm": "hydra/launcher=submitit_slurm hydra.launcher.timeout_min=60 hydra.launcher.cpus_per_task=1"
    " hydra.launcher.max_num_timeout=10",
}
PACKAGES = ("hydra-core", "ray", "hydra-ray-launcher", "submitit", "hydra-submitit-launcher", "torch")
VICTIM = "seed=2"


def sweep(folder: Path, engine: str = "") -> list[str]:
    """Return the command of the sweep into `folder`; without an engine, runs train one after another."""
    words = [*SWEEP.split(), *ENGINES.get(engine, "").split(), f"run_dir={folder}"]
    return [sys.executable, "-m", "denoised_mdp", "train", "--multirun", *words]


def interrupt(run: Path, engine: str) -> str:
    """Kill or requeue the job that trains in `run`; return how."""
    pid = int((run / ".lock").read_text())
    if engine == "ray":
        os.kill(pid, signal.SIGKILL)
        return "kill -9 of the worker"
    if engine == "submitit_local":
        os.kill(pid, signal.SIGUSR2)
        return "kill -USR2 of the job"
    of_process = dict(re.findall(r"(SLURM_ARRAY\w+_ID)=(\d+)", Path(f"/proc/{pid}/environ").read_text()))
    job = f"{of_process['SLURM_ARRAY_JOB_ID']}_{of_process['SLURM_ARRAY_TASK_ID']}"
    subprocess.run(["scancel", "--signal=USR1", job])  # not checked: it may fail if the job is requeued at once
    return "scancel --signal=USR1 of the job"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--folder", type=Path, help="keep the runs there, and reuse its runs without an engine")
    parser.add_argument("--output", type=Path, help="default: results/cluster/ENGINE.json")
    arguments = parser.parse_args()
    engine, folder = arguments.engine, arguments.folder or Path(tempfile.mkdtemp())
    subprocess.run(sweep(folder / "alone"), check=True)  # does nothing for finished runs
    environment = os.environ | {"SUBMITIT_PREEMPT_SIGNAL": "USR1"} if engine == "submitit_slurm" else os.environ
    process = subprocess.Popen(sweep(folder / engine, engine), env=environment)
    victim, how, at = folder / engine / VICTIM, None, None
    while process.poll() is None:
        time.sleep(0.2)
        if how is None and len(list((victim / "checkpoints").glob("step_*"))) and status_of(victim).step >= 400:
            at = status_of(victim).step
            how = interrupt(victim, engine)
            print(f"step {at}: {how}", flush=True)
    runs = {}
    for run in statuses([folder / engine]):
        starts = [json.loads(line)["step"] for line in (run.path / "machine.jsonl").read_text().splitlines()]
        different = [part for part in compare(folder / "alone" / run.path.name, run.path) if part.difference]
        runs[run.path.name] = {"state": run.state, "step": run.step, "starts at steps": starts}
        runs[run.path.name]["bit-identical"] = not different
    record = {
        "sweep": SWEEP,
        "engine": ENGINES[engine],
        "versions": {one.name: one.version for one in distributions() if one.name in PACKAGES},
        "interrupted": {"run": VICTIM, "how": how, "logged until step": at},
        "exit code of the sweep": process.returncode,
        "runs": runs,
    }
    if engine == "submitit_slurm":
        record["versions"]["slurm"] = subprocess.run(
            ["sinfo", "--version"], capture_output=True, text=True
        ).stdout.strip()
    output = arguments.output or make_folder(Path("results/cluster")) / f"{engine}.json"
    print(write_json(output, record))


if __name__ == "__main__":
    main()
