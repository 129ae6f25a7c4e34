"""Helpers of the scripts that publish comparisons: rows of CSV files, a command that measures runs, spreads as text."""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch

from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.results import write_csv
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.models.latent import Latent
from denoised_mdp.replay.rings import Rings
from denoised_mdp.rollout import Row, rows
from denoised_mdp.run.find import find_runs
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run


def open_replay(run: RunFolder, state: Mapping[str, Any]) -> Rings:
    """Open a run's replay read-only, with segments as its training draws them. state: of a checkpoint."""
    rings = Rings.open(run.replay, state["replay"], read_only=True)
    if state["can_terminate"]:
        rings.cross()
    return rings


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, names: tuple[str, ...], rows: list[dict]) -> None:
    """Add rows to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def others(path: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a CSV file whose values in the columns `names` match none of `rows`; a missing column counts as blank.

    Columns of `rows` that the file lacks are blank in the result.
    """

    def key(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in names)

    ours, blank = set(map(key, rows)), dict.fromkeys(rows[0] if rows else (), "")
    return [blank | row for row in read(path) if key(row) not in ours]


def tabulate(description: str, measure: Callable[[Path], list[dict[str, Any]]], output: Path) -> None:
    """Run the command line of a script that measures runs: print the rows of each run, and write those of all.

    They replace earlier rows of runs with the same name (and step, where rows have one); rows of other runs stay.
    description: the script's docstring; its first line is shown. output: the CSV file, unless --output names another.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="FOLDER", help="folder of a run or of runs")
    parser.add_argument("-o", "--output", type=Path, default=output)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    try:
        earlier, runs = read(given.output), find_runs(given.runs)
        if len({run.name for run in runs}) < len(runs):
            raise UserError("two of these runs have the same name. Measure them one by one, each into its --output.")
        for run in runs:
            rows += (found := measure(run))
            print(*(", ".join(map(str, row.values())) for row in found), sep="\n", flush=True)
            if earlier and (lost := earlier[0].keys() - found[0].keys()):
                raise UserError(f"{given.output} has other columns ({', '.join(sorted(lost))}). Give another --output.")
            write_csv(given.output, [*others(given.output, rows, ("run", "step")), *rows])
    except UserError as error:
        sys.exit(f"error: {error}")


def whole_episodes(
    agent: WorldModelAgent,
    environment: gymnasium.Env,
    config: Config,
    seeds: Sequence[int],
    explore: float | None = None,
) -> Iterator[tuple[list[Row], list[Latent]]]:
    """Play the episodes of these seeds to their time limit.

    Yields for each its rows [T + 1], the reset's included, and the T latents, batch 1, in which actions were chosen.
    explore: scale of the action noise. Raises UserError if an episode ends early.
    """
    steps = config.env.episode_steps // config.env.action_repeat
    for seed in seeds:
        noise, carry, latents = torch.Generator(agent.device).manual_seed(seed), None, []

        def act(observation, _, noise=noise, latents=latents):
            nonlocal carry
            action, carry = agent.act(observation, carry, explore=explore, generator=noise)
            latents.append(carry.latent)
            return action

        played = list(rows(environment, seed, act, steps + 1))
        if any(row.last for row in played[:-1]):
            raise UserError(f"{config.env.task}: its episodes can end early; this compares whole ones.")
        yield played, latents


def load_model(run: Path, device: str = "auto") -> tuple[Config, WorldModelAgent, int]:
    """Load a run whose policy sees all of the reward: (configuration, agent of the newest checkpoint, step).

    Raises:
        UserError: the agent has no world model, or a latent that the policy does not see has a share of the reward.
    """
    config, agent, step = load_run(run, device=device)
    if not isinstance(agent, WorldModelAgent):
        raise UserError(f"{run}: agent={config.agent.name} has no world model.")
    if hidden := agent.world_model.table.rewarded_noise:
        raise UserError(
            f"{run}: {' and '.join(hidden)}, which the policy does not see, has a share of the reward, so the level of"
            " the share that it sees means nothing. Leave the run out."
        )
    return config, agent, step


def spread(values: list[float]) -> tuple[str, str, str]:
    """Mean, standard deviation and single values of some returns, as text."""
    deviation = f"{statistics.stdev(values):.0f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.0f}", deviation, ", ".join(f"{value:.0f}" for value in values)
