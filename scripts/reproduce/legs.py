"""What x knows of the walker's two legs: of each, and of both together, whichever is which.

    python scripts/reproduce/legs.py runs/evidence/walker_walk-*    # writes results/tuning/legs.csv

The legs look alike. For each joint, ridge regression predicts the right and the left value, their sum, which does not
change when the legs are swapped, and their difference.
Episodes and folds are those of `denoised-mdp probe factors`; the input is what the policy sees.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import tabulate

from denoised_mdp.analysis.crossfit import random_divisions
from denoised_mdp.analysis.data import freeze, probe_seeds, record
from denoised_mdp.analysis.factors import factor_matrix, stack, targets_of
from denoised_mdp.analysis.probes.factors import Options
from denoised_mdp.envs.factors import Factor, factors
from denoised_mdp.errors import UserError
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.load import load_run

RIGHT, LEFT = "right", "left"
WHAT = (RIGHT, LEFT, "sum", "difference")


def pairs(found: list[Factor]) -> list[tuple[str, Factor, Factor]]:
    """Factors whose names differ only in the side: (name with a star for the side, right factor, left factor)."""
    named = {factor.name: factor for factor in found}
    both = [(name.replace(RIGHT, "*"), name, name.replace(RIGHT, LEFT)) for name in named if RIGHT in name]
    return [(star, named[right], named[left]) for star, right, left in both if left in named]


def legs(run: Path) -> list[dict[str, object]]:
    """R^2 from what the policy sees at a run's newest checkpoint: a row for each joint, and their mean."""
    config, agent, step = load_run(run)
    options, make = Options(), environment_maker(config)
    with contextlib.closing(make()) as environment:
        joints = pairs(factors(environment))
    if not joints:
        raise UserError(f"{run}: {config.env.task} has no right and left joints.")
    acting = {"agent": agent, "explore": config.train.exploration_noise, "behaviour": options.behaviour}
    recordings = record(make, probe_seeds(0, options.episodes), options.steps, **acting)
    values = targets_of([factor for _, *both in joints for factor in both], recordings)  # [n, 1] each
    targets = {}
    for star, right, left in joints:
        one, other = values[right], values[left]
        for what, target in zip(WHAT, (one, other, one + other, one - other), strict=True):
            targets[replace(right, name=f"{star} {what}")] = target
    parts, episode = stack(freeze(agent, recordings), [agent.seen])
    matrix = factor_matrix(parts, targets, episode, random_divisions(options.episodes), ["ridge"], seen=agent.seen)
    score = dict(zip([factor.name for factor in matrix.factors], matrix.mean("ridge")[0], strict=True))
    rows = {star: [score[f"{star} {what}"] for what in WHAT] for star, *_ in joints}
    rows["mean"] = np.mean(list(rows.values()), 0)
    about = {"run": run.name, "step": step}
    return [
        about | {"joint": star} | {what: f"{r2:.2f}" for what, r2 in zip(WHAT, row, strict=True)}
        for star, row in rows.items()
    ]


if __name__ == "__main__":
    tabulate(__doc__, legs, Path("results/tuning/legs.csv"))
