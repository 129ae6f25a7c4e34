"""Train a world model alone on what a run has stored: settings compared at a fraction of the cost of runs.

    python scripts/reproduce/stored.py runs/evidence/RUN --updates 1500 --every 300
    python scripts/reproduce/stored.py runs/evidence/RUN --options model.depth=16 model.embed=512

No policy learns and nothing is collected, so all settings see the same rows. The options are those of the run, but for
those that are given. Each line of the output, JSON, has the training's own probe, the nats of the latents, the CPU
seconds of the updates, and what is left of pictures on the body and elsewhere (see `pose_worth`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from pathlib import Path

from evidence_arms import overrides_of
from pose_worth import left

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis.factors import QuickProbe
from denoised_mdp.config import load_config, read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure
from denoised_mdp.errors import UserError
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import load_state
from denoised_mdp.seeding import generator


def learn(run: RunFolder, config: Config, updates: int, every: int) -> None:
    """Train on the stored rows and print a line `every` so many updates."""
    device, dtype = configure(config.train)
    _, state = load_state(run)
    agent = build_agent(config, state["action_size"], device=device, dtype=dtype)
    probe, random = QuickProbe(environment_maker(config)), generator(config.seed, "replay")
    with contextlib.closing(Rings.open(run.replay, state["replay"], read_only=True)) as replay:
        seconds = 0.0
        for update in range(1, updates + 1):
            before = time.process_time()
            batch = replay.sample(config.train.batch_size, config.train.segment_length, random)
            metrics = agent.update(batch, policy=False)
            seconds += time.process_time() - before
            if update % every == 0:
                nats = {name: float(value) for name, value in metrics.items() if name.startswith("model/kl_")}
                body, elsewhere = left(agent)
                line = {"updates": update, "cpu_seconds": seconds, "body": body, "elsewhere": elsewhere}
                print(json.dumps(line | nats | probe(agent)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--every", type=int, default=300, help="updates between two lines")
    parser.add_argument("--options", nargs="*", default=[], help="what to change: options of `denoised-mdp train`")
    given = parser.parse_args()
    try:
        run = RunFolder(given.run)
        usual = read_config(run.path)
        config = load_config([*shlex.split(overrides_of(usual)), f"seed={usual.seed}", *given.options])
        learn(run, config, given.updates, given.every)
    except UserError as error:
        sys.exit(f"stored.py: {error}")
