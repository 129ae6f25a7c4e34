"""How well a world model predicts the rewards of what its policy does now, and of the rows it has learned from.

    python scripts/reproduce/optimism.py runs/quickstart runs/evidence/*    # writes results/tuning/optimism.csv

There are two kinds of rows. *Fresh*: held-out episodes of the policy, those of `denoised-mdp evaluate`, and as many
with the exploration of training. *Stored*: segments of the replay, all starts equally likely. The model filters both
with its posterior, so it sees each picture. Its mean reward, from what the policy sees, is compared with the true one.
Bias: predicted minus true, per decision. A policy seeks what its model overestimates, so fresh rows are harder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from common import load_model, open_replay, tabulate, whole_episodes

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config.schema import Config
from denoised_mdp.evaluation import held_out_seeds
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import load_state

EPISODES = 6
SEGMENTS = 400
WARM = 8
"""first rows of an episode or a segment, which do not count: the latent starts from zero"""
Batch = dict[str, np.ndarray]


def fresh(agent: WorldModelAgent, config: Config, seeds: Sequence[int], explore: float | None) -> Batch:
    """Play one episode per seed; return them side by side, [T, E, ...]."""
    with contextlib.closing(environment_maker(config)()) as environment:
        columns = [played for played, _ in whole_episodes(agent, environment, config, seeds, explore)]
    is_first = np.zeros((len(columns[0]), len(seeds)), bool)
    is_first[0] = True
    return {
        name: np.stack([np.stack([getattr(row, name) for row in column]) for column in columns], 1)
        for name in ("observation", "action", "reward")
    } | {"is_first": is_first}


def stored(run: Path, config: Config) -> Batch:
    """Segments of the replay, [T, SEGMENTS, ...]."""
    folder = RunFolder(run)
    _, state = load_state(folder)
    with contextlib.closing(open_replay(folder, state)) as rings:
        return rings.sample(SEGMENTS, config.train.segment_length, np.random.default_rng(0))


@torch.no_grad()
def compared(agent: WorldModelAgent, batch: Batch) -> dict[str, str]:
    """Columns of a row that compare predicted and true rewards of a batch."""
    tensors = agent.to_device(batch)
    model, shape = agent.world_model, tensors["reward"].shape
    noise = model.draw_noise(*shape, generator=torch.Generator(agent.device).manual_seed(0))
    latent = model.filter(tensors["observation"], tensors["action"], tensors["is_first"], noise).latent
    found = agent.mdp.reward(latent.select(model.table.seen).features())[WARM:].cpu().numpy()  # [T, B]
    true = tensors["reward"][WARM:].cpu().numpy()  # [T, B]
    return {
        "reward": f"{true.mean():.3f}",
        "bias": f"{(found - true).mean():.3f}",
        "r_squared": f"{1 - np.square(found - true).mean() / true.var():.2f}",
        "correlation": f"{np.corrcoef(found.ravel(), true.ravel())[0, 1]:.2f}",
    }


def measure(run: Path) -> list[dict[str, object]]:
    """Rows of a run's newest checkpoint."""
    config, agent, step = load_model(run)
    seeds = held_out_seeds(RunFolder(run), config, EPISODES)
    kinds = {
        "fresh": lambda: fresh(agent, config, seeds, None),
        "fresh, exploring": lambda: fresh(agent, config, seeds, config.train.exploration_noise),
        "stored": lambda: stored(run, config),
    }
    if not RunFolder(run).replay.exists():  # an exported agent
        del kinds["stored"]
    return [{"run": run.name, "step": step, "rows": kind, **compared(agent, batch())} for kind, batch in kinds.items()]


if __name__ == "__main__":
    tabulate(__doc__, measure, Path("results/tuning/optimism.csv"))
