"""Probes of whole runs: ``denoised-mdp probe factors | invariance | health``.

Each writes ``RUN/probes/<probe>_<split>_<step>.json`` (all numbers), a CSV and pictures, and returns lines to print.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from denoised_mdp.analysis.crossfit import Split, random_divisions
from denoised_mdp.analysis.data import freeze, probe_seeds, record
from denoised_mdp.analysis.factor_tables import (
    as_tree,
    factor_lines,
    factor_rows,
    groups_of_seeds,
    headline_text,
    pooled,
)
from denoised_mdp.analysis.factors import EPISODES, PROBES, STEPS, FactorMatrix, factor_matrix, stack, targets_of
from denoised_mdp.analysis.health import measure_health
from denoised_mdp.analysis.invariance import measure_invariance, paired_change, record_grid, returns_under
from denoised_mdp.analysis.results import Subject, make_folder, number, subjects, variant_of, write_csv, write_json
from denoised_mdp.envs.factors import factors
from denoised_mdp.errors import UserError
from denoised_mdp.run.environments import environment_maker

FACTORS = {"episodes": EPISODES, "steps": STEPS, "seeds": 1, "behaviour": "mixed"}
INVARIANCE = {"episodes": 6, "steps": 150, "worlds": 4, "returns": 5}
HEALTH = {"episodes": 12, "steps": 150, "behaviour": "mixed"}
"""default options of each probe; other values appear in the names of results"""


def probe_factors(
    runs: Sequence[Path],
    output: Path | None = None,
    *,
    episodes: int = FACTORS["episodes"],
    steps: int = FACTORS["steps"],
    seeds: int = FACTORS["seeds"],
    split: str = "train",
    behaviour: str = FACTORS["behaviour"],
    checkpoint: int | None = None,
    device: str = "auto",
) -> list[str]:
    """The factor matrix of each run, and the mean over runs that differ only in the seed."""
    lines, results = [], []
    options = {"episodes": episodes, "steps": steps, "seeds": seeds, "split": split, "behaviour": behaviour}
    variant = variant_of(options, FACTORS)
    for subject in subjects(runs, checkpoint, device, output):
        stem = subject.stem("factors", split, output, variant)
        matrix = _matrix(subject, episodes, steps, seeds, split, behaviour)
        write_json(stem.with_suffix(".json"), {"probe": "factors", **subject.about(**options), **as_tree(matrix)})
        write_csv(stem.with_suffix(".csv"), factor_rows(subject, matrix))
        lines += [subject.label, *factor_lines(matrix)]
        if episodes * steps < EPISODES * STEPS:
            lines.append(
                f"  smaller than the default ({EPISODES} episodes of {STEPS} actions): it reads less;"
                " compare only results of one size"
            )
        lines += _draw(matrix, subject.label, split, stem)
        results.append((subject, matrix))
    for members in groups_of_seeds(results):
        mean = pooled([matrix for _, matrix in members])
        config, folder = members[0][0].config, make_folder(output or Path("probes"))
        what = " + ".join([config.env.task, *config.distractors])
        title = f"{what} · {config.model.name} · mean of {len(members)} runs"
        stem = folder / f"factors_{members[0][0].path.resolve().name}_and_{len(members) - 1}_more_{split}{variant}"
        write_json(
            stem.with_suffix(".json"),
            {"probe": "factors", "runs": [str(s.path) for s, _ in members], "options": options, **as_tree(mean)},
        )
        lines += [title, *factor_lines(mean), *_draw(mean, title, split, stem)]
    return lines


def _draw(matrix: FactorMatrix, title: str, split: str, stem: Path) -> list[str]:
    """Write one heat map per probe; the lines name them."""
    from denoised_mdp.analysis import plots

    lines = []
    for probe in PROBES:
        figure = plots.factor_heat_map(matrix, probe, title, headline_text(matrix, probe, split))
        lines.append(f"  {plots.save_figure(figure, stem.with_name(f'{stem.name}_{probe}.png'))}")
    return lines


def _matrix(
    subject: Subject, episodes: int, steps: int, seeds: int, split: str, behaviour: str, probes: Sequence[str] = PROBES
) -> FactorMatrix:
    """Record, filter and probe; "across" fits on the clips of training and tests on held-out ones."""
    config, agent = subject.config, subject.agent
    divisions = random_divisions(episodes, seeds)
    explore = config.train.exploration_noise
    recordings = []
    for place, clips in enumerate(("train", "test") if split == "across" else (split,)):
        make = environment_maker(config, clips)
        played = record(make, probe_seeds(place, episodes), steps, agent=agent, explore=explore, behaviour=behaviour)
        recordings += played
    if split == "across":
        divisions = [[_across(pair, episodes) for pair in division] for division in divisions]
    environment = environment_maker(config)()
    found = factors(environment)
    environment.close()
    frozen = freeze(agent, recordings)
    parts, episode = stack(frozen)
    return factor_matrix(parts, targets_of(found, recordings), episode, divisions, probes, seen=frozen[0].seen)


def _across(pair: Split, episodes: int) -> Split:
    """Fit on the first half of the recordings (clips of training), test on the second."""
    return pair[0], pair[1] + episodes


def probe_invariance(
    runs: Sequence[Path],
    output: Path | None = None,
    *,
    episodes: int = INVARIANCE["episodes"],
    steps: int = INVARIANCE["steps"],
    worlds: int = INVARIANCE["worlds"],
    returns: int = INVARIANCE["returns"],
    split: str = "train",
    checkpoint: int | None = None,
    device: str = "auto",
) -> list[str]:
    """Distances and returns under other distractors, see `analysis.invariance`; `returns` episodes each, 0: none."""
    if min(episodes, worlds) < 2:
        raise UserError("Distances need at least 2 episodes and 2 worlds (--episodes, --worlds).")
    options = {"episodes": episodes, "steps": steps, "worlds": worlds, "returns": returns, "split": split}
    lines = []
    for subject in subjects(runs, checkpoint, device, output):
        stem = subject.stem("invariance", split, output, variant_of(options, INVARIANCE))
        config, agent = subject.config, subject.agent
        explore = config.train.exploration_noise
        grid = record_grid(environment_maker(config, split), agent, episodes, worlds, steps, explore)
        found = measure_invariance(agent, grid)
        del grid
        lines += [
            subject.label,
            f"  {'distance under':14s}{'other distractors':>19s}{'other states':>14s}{'ratio':>8s}{'resampling':>12s}",
        ]
        for name, d in found.parts.items():
            lines.append(f"  {name:14s}{d.other_noise:19.3f}{d.other_state:14.3f}{d.ratio:8.3f}{d.resampled:12.3f}")
        lines.append(f"  the policy's action changes by {found.action_change:.3f} on average (of a range of 2)")
        tree = {name: dataclasses.asdict(d) | {"ratio": d.ratio} for name, d in found.parts.items()}
        results = returns_under(agent, config, returns) if returns else {}
        trained = results.get("as trained")
        earned = {}
        for name, result in results.items():
            change, error = paired_change(result, trained)
            earned[name] = {
                "mean": result.mean,
                "standard_error": result.standard_error,
                "change": change,
                "change_error": error,
                "returns": result.returns,
            }
            versus = "" if result is trained else f"   change {number(change, error)}"
            lines.append(f"  return, {name:34s}{number(result.mean, result.standard_error):>20s}{versus}")
        tree = {"distances": tree, "seen": found.seen, "action_change": found.action_change, "returns": earned}
        path = write_json(stem.with_suffix(".json"), {"probe": "invariance", **subject.about(**options), **tree})
        lines.append(f"  {path}")
    return lines


def probe_health(
    runs: Sequence[Path],
    output: Path | None = None,
    *,
    episodes: int = HEALTH["episodes"],
    steps: int = HEALTH["steps"],
    split: str = "train",
    behaviour: str = HEALTH["behaviour"],
    checkpoint: int | None = None,
    device: str = "auto",
) -> list[str]:
    """Nats, active dimensions and shares of each latent, and warnings, see `analysis.health`."""
    options = {"episodes": episodes, "steps": steps, "split": split, "behaviour": behaviour}
    lines = []
    for subject in subjects(runs, checkpoint, device, output):
        stem = subject.stem("health", split, output, variant_of(options, HEALTH))
        config, agent, divisions = subject.config, subject.agent, random_divisions(episodes)
        make = environment_maker(config, split)
        environment = make()
        found = factors(environment)
        environment.close()
        seeds, explore = probe_seeds(0, episodes), config.train.exploration_noise
        recordings = record(make, seeds, steps, agent=agent, explore=explore, behaviour=behaviour)
        frozen = freeze(agent, recordings)
        parts, episode = stack(frozen)
        targets = targets_of(found, recordings)
        matrix = factor_matrix(parts, targets, episode, divisions, ["ridge"], seen=frozen[0].seen)
        health = measure_health(agent, recordings, frozen, matrix)
        lines += [
            subject.label,
            f"  {'latent':8s}{'nats per step':>14s}{'active':>10s}{'reconstruction':>16s}"
            f"{'quick R^2 of signal':>21s}{'of noise':>10s}",
        ]
        for name, nats in health.nats.items():
            active = "{} of {}".format(*health.active[name])
            lines.append(
                f"  {name:8s}{nats:14.2f}{active:>10s}{health.share[name]:16.0%}"
                f"{number(health.signal[name], math.nan)[:4]:>21s}{number(health.noise[name], math.nan)[:4]:>10s}"
            )
        if agent.decodes:
            lines.append(f"  R^2 of the reconstructed pixels about each pixel's mean: {health.image_r2:.2f}")
        lines += [f"  warning: {warning}" for warning in health.warnings] or ["  no warnings"]
        tree = {"probe": "health", **subject.about(**options), **dataclasses.asdict(health)}
        lines.append(f"  {write_json(stem.with_suffix('.json'), tree)}")
    return lines
