"""Environments on two Ray nodes, where one actor and then a whole node are lost: is it still the same run?

    python scripts/cluster/environments_on_ray.py          # writes results/cluster/environments_on_ray.json

Trains a debug run whose environments are processes of this machine, then the same run on a Ray cluster of two nodes
(both on this machine, each with its own raylet). Needs the extra ``ray``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from ray.cluster_utils import Cluster

from denoised_mdp.analysis.results import make_folder, write_json
from denoised_mdp.analysis.status import status_of
from denoised_mdp.run.diff import compare

RUN = "preset=debug train.total_steps=960 train.eval_every=480 train.checkpoint_every=480 train.render_every=0"
RUN += " train.deterministic=true train.precision=float32 train.collect_envs=2 train.collect_workers=2"
RUN += " train.eval_workers=2"


def command(folder: Path, *options: str) -> list[str]:
    """Return the command that trains in `folder`."""
    return [sys.executable, "-m", "denoised_mdp", "train", *RUN.split(), *options, f"run_dir={folder}"]


def actors() -> list[int]:
    """Return the ids of the processes that are now actors with environments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Host"):
                found.append(int(path.parent.name))
        except OSError:  # the process has ended meanwhile
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="default: results/cluster/environments_on_ray.json")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    subprocess.run(command(folder / "processes"), check=True)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    second = cluster.add_node(num_cpus=4)
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    process = subprocess.Popen(command(folder / "ray", "train.workers=ray"), env=environment)
    losses: list[dict] = []
    while process.poll() is None:
        time.sleep(0.1)
        step = status_of(folder / "ray").step if (folder / "ray" / "config.yaml").is_file() else 0
        if not losses and step >= 300 and actors():
            os.kill(actors()[0], signal.SIGKILL)
            losses.append({"what": "kill -9 of an actor", "logged until step": step})
        elif len(losses) == 1 and step >= 600:
            cluster.remove_node(second, allow_graceful=False)
            losses.append({"what": "loss of the second node", "logged until step": step})
    cluster.shutdown()
    different = [part.part for part in compare(folder / "processes", folder / "ray") if part.difference]
    record = {
        "run": RUN,
        "versions": {name: version(name) for name in ("ray", "torch")},
        "nodes": 2,
        "lost": losses,
        "exit code": process.returncode,
        "different parts": different,
    }
    print(record)
    print(write_json(arguments.output or make_folder(Path("results/cluster")) / "environments_on_ray.json", record))


if __name__ == "__main__":
    main()
