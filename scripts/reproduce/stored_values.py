"""Whether a value net that also learns stored returns can tell whose actions it sees: stored or its own policy's.

    python scripts/reproduce/stored_values.py runs/evidence/*    # writes results/tuning/stored_values.csv

A latent's value does not depend on the action that led there. But a belief remembers that action, and stored returns
are lower than imagined ones. Stored rows are grouped by what they earned per decision in the rest of their episode
(discounted). For each group: the value of the row, and value and reward of the x prior `AFTER` decisions later, with
stored actions, the actor's and random ones. All numbers are rewards per decision: values are multiplied by 1 - gamma.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import torch
from common import load_model, open_replay, tabulate
from torch import Tensor

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.errors import UserError
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.policies.imagination import ImaginingPolicy
from denoised_mdp.replay.ring import Replay
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import load_state

SEGMENTS = 512
AFTER = (1, 7)
ENOUGH = 40
"""rows that must follow a segment, so that what was earned means something"""
EDGES = (0.1, 0.3, 0.6, 0.9)
ACTIONS = ("stored", "actor", "random")


def earned(replay: Replay, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean reward per decision from each row to the end of its episode, and how many decisions follow the row.

    Both for all rows ever added, [n]; nan and 0 for evicted ones. The mean is discounted by gamma per decision.
    """
    mean, following = np.full(replay.total, np.nan), np.zeros(replay.total, int)
    for first, length in zip(*replay.episodes(), strict=True):
        rows = np.arange(first, first + length)
        rewards, total, weight = replay.read(rows, ("reward",))["reward"], 0.0, 0.0
        for row, reward in zip(rows[::-1], rewards[::-1], strict=True):
            total, weight = reward + gamma * total, 1.0 + gamma * weight
            mean[row], following[row] = total / weight, first + length - 1 - row
    return mean, following


def values_after(
    policy: ImaginingPolicy, mdp: LatentMDP, batch: PolicyBatch, row: int, kind: str, random: torch.Generator
) -> dict[str, Tensor]:
    """Values and rewards [B] of the x prior `AFTER` decisions after a row, with one kind of `ACTIONS`."""
    belief, state, found = batch.belief[row], batch.state[row], {}
    for step in range(1, max(AFTER) + 1):
        noise = torch.randn(len(belief), mdp.action_size, generator=random)  # [B, A]
        features = torch.cat((belief, state), -1)  # [B, F]
        if kind == "stored":
            action = batch.action[row + step]
        elif kind == "actor":
            action = policy.actor.sample(features, noise)
        else:
            action = 2 * torch.rand(noise.shape, generator=random) - 1
        belief, state = mdp.step(belief, state, action, mdp.draw_noise(len(belief), like=belief, generator=random))
        if step in AFTER:
            features = torch.cat((belief, state), -1)  # [B, F]
            found[f"{kind}_{step}"] = (1 - policy.gamma) * policy.scalar.mean(policy.value(features))  # [B]
            found[f"{kind}_{step}_reward"] = mdp.reward(features)  # [B]
    return found


@torch.no_grad()
def compared(agent: WorldModelAgent, rings: Rings, length: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """What stored rows earned per decision, [n], and the other columns of the table about them, [n] each."""
    model, policy, mdp = agent.world_model, agent.policy, agent.mdp
    batch = agent.to_device(rings.sample(SEGMENTS, length, np.random.default_rng(0)))
    random, row = torch.Generator().manual_seed(0), length - 1 - max(AFTER)
    noise = model.draw_noise(*batch["reward"].shape, generator=random)  # [T, B, S]
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    starts = agent.policy_batch(batch, latent, model.seen_reward(latent.select(model.table.seen)))
    tables = [earned(ring, policy.gamma) for ring in rings.rings]
    source, rows = rings.chosen  # [B], [T, B]
    places = list(zip(source, rows[row], strict=True))
    came = np.array([tables[ring][0][place] for ring, place in places])  # [B]
    enough = np.array([tables[ring][1][place] for ring, place in places]) >= max(AFTER) + ENOUGH  # [B]
    columns = {"value": (1 - policy.gamma) * policy.scalar.mean(policy.value(starts.features[row]))}  # [B]
    for kind in ACTIONS:
        columns |= values_after(policy, mdp, starts, row, kind, random)
    return came[enough], {name: column.numpy()[enough] for name, column in columns.items()}


def measure(run: Path) -> list[dict[str, object]]:
    """Rows of a run's newest checkpoint, one for each range of what was earned."""
    config, agent, step = load_model(run, device="cpu")
    if not isinstance(agent.policy, ImaginingPolicy):
        raise UserError(f"{run}: agent={config.agent.name} has no policy with a value net that imagines.")
    if not agent.policy.value_has_own_reward:
        raise UserError(f"{run}: policy={config.policy.name} has values of what follows, which this does not compare.")
    folder, length = RunFolder(run), config.train.segment_length
    _, state = load_state(folder)
    with contextlib.closing(open_replay(folder, state)) as rings:
        came, columns = compared(agent, rings, length)
    bins, rows = np.digitize(came, EDGES), []
    for number, low in enumerate((-np.inf, *EDGES)):
        chosen = bins == number
        means = {name: f"{value[chosen].mean():.2f}" if chosen.any() else "" for name, value in columns.items()}
        mean = f"{came[chosen].mean():.2f}" if chosen.any() else ""
        rows.append(
            {"run": run.name, "step": step, "earned_above": low, "rows": int(chosen.sum()), "earned": mean} | means
        )
    return rows


if __name__ == "__main__":
    tabulate(__doc__, measure, Path("results/tuning/stored_values.csv"))
