"""Train a world model or a policy alone on a run's stored rows: compare settings at a fraction of the cost of runs.

    python scripts/reproduce/stored.py runs/evidence/RUN --updates 1500 --every 300
    python scripts/reproduce/stored.py runs/evidence/RUN --options model.depth=16 model.embed=512
    python scripts/reproduce/stored.py runs/evidence/RUN --learn policy --updates 600 --every 100 --seed 1

Nothing is collected, so all settings see the same rows. The options are those of the run, except for those given.
Each line of the output is JSON. For a new world model, without a policy: training's own probe, the nats of the latents,
the CPU seconds of the updates, and the errors left in pictures, on the body and elsewhere (see `pose_worth`). For a new
policy, in the run's fixed world model: its return in ten held-out episodes, and what it imagines.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import open_replay
from evidence_arms import overrides_of
from pose_worth import left, refuse_unlike
from torch import Tensor

import denoised_mdp
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.quick_probe import QuickProbe
from denoised_mdp.config import load_config, read_config
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, evaluation_seeds
from denoised_mdp.optim import without_gradients
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import agent_for
from denoised_mdp.run.state import load_state
from denoised_mdp.seeding import generator

EPISODES = 10
Rows = dict[str, np.ndarray]
Learn = Callable[[Rows], dict[str, Tensor]]
Show = Callable[[dict[str, Tensor]], dict[str, Any]]


def model_alone(agent: WorldModelAgent, config: Config) -> tuple[Learn, Show]:
    """Return an update of the world model, and a function from its metrics to an output line."""
    refuse_unlike("The agent", agent)
    probe = QuickProbe(environment_maker(config))

    def show(metrics: dict[str, Tensor]) -> dict[str, Any]:
        body, elsewhere = left(agent)
        nats = {name: float(value) for name, value in metrics.items() if name.startswith("model/kl_")}
        return {"body": body, "elsewhere": elsewhere} | nats | probe(agent)

    return functools.partial(agent.update, policy=False), show


def policy_alone(agent: WorldModelAgent, config: Config) -> tuple[Learn, Show]:
    """Return an update of the policy from posterior latents, and a function from its metrics to an output line."""
    model, make, seeds = agent.world_model, environment_maker(config), evaluation_seeds(config.seed, EPISODES)

    def learn(rows: Rows) -> dict[str, Tensor]:
        batch = agent.to_device(rows)
        with without_gradients(model):
            noise = model.draw_noise(*batch["reward"].shape, generator=agent.random)  # [T, B, S]
            latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
            reward = model.seen_reward(latent.select(model.table.seen))  # [T, B]
            starts = agent.policy_batch(batch, latent.map(torch.detach), reward.detach())
            return agent.policy.update(starts, agent.mdp, agent.random)

    def show(metrics: dict[str, Tensor]) -> dict[str, Any]:
        imagined = {name: float(value) for name, value in metrics.items() if name.startswith("policy/imagined")}
        return {"return": float(np.mean(evaluate(agent, make, seeds).returns))} | imagined

    return learn, show


def learn(run: RunFolder, config: Config, part: str, seed: int | None, updates: int, every: int) -> None:
    """Train a part from initial weights on the stored rows; print a line after every `every` updates."""
    device, dtype = configure(config.train)
    _, state = load_state(run)
    agent = agent_for(config, state, device=device, dtype=dtype)
    if part == "policy":
        agent.world_model.load_state_dict(denoised_mdp.load(run.path).world_model.state_dict())
    if seed is not None:
        agent.random.manual_seed(seed)
    update, show = PARTS[part](agent, config)
    random = generator(config.seed if seed is None else seed, "replay")
    with contextlib.closing(open_replay(run, state)) as replay:
        seconds = 0.0
        for number in range(1, updates + 1):
            before = time.process_time()
            metrics = update(replay.sample(config.train.batch_size, config.train.segment_length, random))
            seconds += time.process_time() - before
            if number % every == 0:
                print(json.dumps({"updates": number, "cpu_seconds": seconds} | show(metrics)), flush=True)


PARTS = {"model": model_alone, "policy": policy_alone}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--learn", choices=PARTS, default="model", help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of noise and rows; default: the run's")
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--every", type=int, default=300, help="updates between two lines")
    parser.add_argument("--options", nargs="*", default=[], help="what to change: options of `denoised-mdp train`")
    given = parser.parse_args()
    try:
        run = RunFolder(given.run)
        usual = read_config(run.path)
        config = load_config([*shlex.split(overrides_of(usual)), f"seed={usual.seed}", *given.options])
        learn(run, config, given.learn, given.seed, given.updates, given.every)
    except UserError as error:
        sys.exit(f"stored.py: {error}")
