"""Where cheetah_run loses its return: how often the body lies on its back, and its speed there and upright.

    python scripts/reproduce/falls.py runs/quickstart runs/evidence/cheetah_run-*    # writes results/tuning/falls.csv

Ten held-out episodes of each run, those of `denoised-mdp evaluate`, with the clips of training. On its back: the
torso's pitch is more than a quarter turn from upright. Stuck: not on its back, but slower than `SLOW` for at least
`STILL` decisions in a row, like a body that stands on its nose. A policy that has not learned to run is stuck as well.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from common import tabulate
from scipy.ndimage import binary_opening

from denoised_mdp.errors import UserError
from denoised_mdp.evaluation import evaluate, held_out_seeds
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run

EPISODES = 10
STILL, SLOW = 25, 0.3
"""decisions (1 s); m/s"""


def falls(run: Path) -> dict[str, object]:
    """A row about the newest checkpoint of a run in `EPISODES` episodes."""
    config, agent, _ = load_run(run)
    if config.env.task != "cheetah_run":
        raise UserError(f"{run}: its task is {config.env.task}; only cheetah_run falls on its back.")
    make = environment_maker(config)
    with contextlib.closing(make()) as environment:
        names = list(environment.unwrapped.signal_names)
    result = evaluate(agent, make, held_out_seeds(RunFolder(run), config, EPISODES), record=EPISODES)
    signal = np.stack([episode.signal for episode in result.episodes])  # [E, T + 1, factors]
    over = np.cos(signal[..., names.index("qpos/rooty")]) < 0  # [E, T + 1]
    speed = signal[..., names.index("qvel/rootx")]  # [E, T + 1], m/s
    fell = over.any(1)  # [E]
    stuck = lasting(~over & (np.abs(speed) < SLOW), STILL)  # [E, T + 1]
    return {
        "run": run.name,
        "return": f"{result.mean:.0f}",
        "standard_error": f"{result.standard_error:.0f}",
        "on_its_back": f"{over.mean():.2f}",
        "episodes_with_a_fall": int(fell.sum()),
        "stuck": f"{stuck.mean():.2f}",
        "episodes_stuck": int(stuck.any(1).sum()),
        "speed_upright": mean_of(speed[~over], 2),
        "speed_on_its_back": mean_of(speed[over], 2),
        "return_without_a_fall": mean_of(np.array(result.returns)[~fell], 0),
    }


def lasting(true: np.ndarray, least: int) -> np.ndarray:
    """Mask [E, T] of the rows in a stretch of at least `least` true rows of their episode."""
    return binary_opening(true, np.ones((1, least)))


def mean_of(values: np.ndarray, digits: int) -> str:
    """The mean as text; empty if there are no values."""
    return f"{values.mean():.{digits}f}" if len(values) else ""


if __name__ == "__main__":
    tabulate(__doc__, lambda run: [falls(run)], Path("results/tuning/falls.csv"))
