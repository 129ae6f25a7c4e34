"""What a cheetah's policy expects and imagines, compared with what comes: upright, just before a fall, and on its back.

    python scripts/reproduce/imagined.py runs/quickstart runs/others    # writes results/tuning/imagined.csv

Ten held-out episodes of each run, those of `denoised-mdp evaluate`, without exploration. All numbers are rewards per
decision. *Expected*: the value net's prediction times 1 - gamma. *Came*: the mean of the rewards that followed in the
episode, with the same discount. *Imagined after n*: mean reward of the x prior n decisions after posterior latents,
with the actor's actions or with those that were taken; beside it the reward that came.
Before a fall: the last `SOON` decisions before it. On its back: see `falls.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import load_model, tabulate, whole_episodes
from torch import Tensor

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import held_out_seeds
from denoised_mdp.policies.imagination import ImaginingPolicy
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder

EPISODES = 10
SOON = 10
AFTER = (1, 10, 25)
EVERY = 3
"""decisions between starts of imagination"""
COMPARED = ("imagined", "with_actions_taken", "came")
COLUMNS = ["run", "step", "gamma", "where", "decisions", "expected", "came"]
COLUMNS += [f"{kind}_{after}" for after in AFTER for kind in COMPARED]
WARM = 8
"""first rows of an episode, which do not count: the latent starts from zero"""


@dataclass
class Played:
    """Rows of some episodes: latents [E, T, ...] as the policy sees them, and what really happened."""

    belief: Tensor
    state: Tensor
    action: Tensor
    """[E, T, A], the action that led to the row"""
    reward: np.ndarray
    """[E, T]"""
    upright: np.ndarray
    """bool [E, T]"""

    def where(self) -> dict[str, np.ndarray]:
        """Kind of row -> which rows are of it, bool [E, T]."""
        soon = np.zeros_like(self.upright)
        for episode, row in np.argwhere(self.upright[:, :-1] & ~self.upright[:, 1:]):
            soon[episode, max(0, row + 1 - SOON) : row + 1] = True
        return {"upright": self.upright & ~soon, "before a fall": self.upright & soon, "on its back": ~self.upright}


def play(agent: WorldModelAgent, config: Config, seeds: Sequence[int]) -> Played:
    """Play one episode per seed; return them side by side."""
    episodes = []
    with contextlib.closing(environment_maker(config)()) as environment:
        pitch = list(environment.unwrapped.signal_names).index("qpos/rooty")
        for (*played, _), latents in whole_episodes(agent, environment, config, seeds):  # no decision in the last row
            seen = [latent.select(agent.world_model.table.seen) for latent in latents]
            belief, state = (torch.cat([getattr(one, part) for one in seen]) for part in ("belief", "state"))
            action = torch.as_tensor(np.stack([row.action for row in played]), device=agent.device)
            upright = [np.cos(row.info["signal"][pitch]) > 0 for row in played]
            episodes.append((belief, state, action, np.array([row.reward for row in played]), np.array(upright)))
    columns = zip(*episodes, strict=True)
    return Played(*(torch.stack(part) if isinstance(part[0], Tensor) else np.stack(part) for part in columns))


def came(reward: np.ndarray, gamma: float, own: bool) -> np.ndarray:
    """Discounted mean of the rewards [E, T] from each row on, with its `own` or without, [E, T]; nan without any."""
    total, weight, found = np.zeros(len(reward)), 0.0, np.full(reward.shape, np.nan)
    for t in range(reward.shape[1] - 1, -1, -1):
        if not own and weight:
            found[:, t] = total / weight
        total, weight = reward[:, t] + gamma * total, 1.0 + gamma * weight
        if own:
            found[:, t] = total / weight
    return found


@torch.no_grad()
def imagine(agent: WorldModelAgent, played: Played, starts: np.ndarray, actor: bool) -> list[float]:
    """Mean reward of the x prior each of `AFTER` decisions after `starts` [N, 2], (episode, row) each."""
    noise = torch.Generator(agent.device).manual_seed(0)
    episode, row = torch.as_tensor(starts).unbind(1)
    belief, state = played.belief[episode, row], played.state[episode, row]  # [N, D], [N, S]
    found = []
    for step in range(1, max(AFTER) + 1):
        features = torch.cat((belief, state), -1)  # [N, F]
        action = agent.policy.act(features, None) if actor else played.action[episode, row + step]  # [N, A]
        drawn = agent.mdp.draw_noise(len(state), like=state, generator=noise)  # [N, S]
        belief, state = agent.mdp.step(belief, state, action, drawn)
        if step in AFTER:
            found.append(agent.mdp.reward(torch.cat((belief, state), -1)).mean().item())
    return found


def measure(run: Path) -> list[dict[str, object]]:
    """A row for each kind of state, at a run's newest checkpoint."""
    config, agent, step = load_model(run)
    if config.env.task != "cheetah_run":
        raise UserError(f"{run}: its task is {config.env.task}; only cheetah_run falls on its back.")
    policy = agent.policy
    if not isinstance(policy, ImaginingPolicy):
        raise UserError(f"{run}: its policy does not imagine.")
    played = play(agent, config, held_out_seeds(RunFolder(run), config, EPISODES))
    with torch.no_grad():
        features = torch.cat((played.belief, played.state), -1)  # [E, T, F]
        value = policy.scalar.mean(policy.value(features)).cpu().numpy()  # [E, T]
    followed = came(played.reward, policy.gamma, policy.value_has_own_reward)  # [E, T]
    table = []
    for where, chosen in played.where().items():
        chosen = chosen.copy()
        chosen[:, :WARM] = chosen[:, -1:] = False
        starts = np.argwhere(chosen[:, : -max(AFTER)])
        starts = starts[starts[:, 1] % EVERY == 0]
        row = dict.fromkeys(COLUMNS, "") | {"run": run.name, "step": step, "gamma": policy.gamma, "where": where}
        row["decisions"] = int(chosen.sum())
        if len(starts):
            row["expected"] = f"{(1 - policy.gamma) * value[chosen].mean():.2f}"
            row["came"] = f"{followed[chosen].mean():.2f}"
            by_actor, by_taken = (imagine(agent, played, starts, actor) for actor in (True, False))
            for after, own, taken in zip(AFTER, by_actor, by_taken, strict=True):
                true = played.reward[starts[:, 0], starts[:, 1] + after].mean()
                names = (f"{kind}_{after}" for kind in COMPARED)
                row |= zip(names, map("{:.2f}".format, (own, taken, true)), strict=True)
        table.append(row)
    return table


if __name__ == "__main__":
    tabulate(__doc__, measure, Path("results/tuning/imagined.csv"))
