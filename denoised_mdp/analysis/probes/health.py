"""``denoised-mdp probe health``: nats, active dimensions and shares of each latent, and warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from denoised_mdp.analysis.crossfit import random_divisions
from denoised_mdp.analysis.probe import EpisodeOptions, Probe, Section, behaviour
from denoised_mdp.analysis.results import show, subjects, write_json
from denoised_mdp.envs.factors import Factor, NoGroundTruth, factors
from denoised_mdp.run.environments import environment_maker


@dataclass
class Options(EpisodeOptions):
    """Options of ``probe health``."""

    behaviour: str = behaviour()


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Measure and judge each latent of each run, see `analysis.health`."""
    from denoised_mdp.analysis.data import freeze, probe_seeds, record
    from denoised_mdp.analysis.factors import factor_matrix, stack, targets_of
    from denoised_mdp.analysis.health import measure_health

    lines = []
    for subject in subjects(runs, options):
        stem = subject.stem("health", options.output, options.variant())
        config, agent = subject.config, subject.agent
        make = environment_maker(config, options.split)
        found = _factors_of(make)
        divisions = [] if found is None else random_divisions(options.episodes)
        seeds, explore = probe_seeds(0, options.episodes), config.train.exploration_noise
        recordings = record(make, seeds, options.steps, agent=agent, explore=explore, behaviour=options.behaviour)
        frozen, matrix = freeze(agent, recordings), None
        if found is not None:
            (parts, episode), targets = stack(frozen), targets_of(found, recordings)
            matrix = factor_matrix(parts, targets, episode, divisions, ["ridge"], seen=agent.seen)
        health = measure_health(agent, recordings, frozen, matrix)
        lines += [
            subject.label,
            f"  {'latent':8s}{'nats per step':>14s}{'active':>10s}{'reconstruction':>16s}"
            f"{'quick R^2 of signal':>21s}{'of noise':>10s}",
        ]
        for name, nats in health.nats.items():
            active = "{} of {}".format(*health.active[name])
            lines.append(
                f"  {name:8s}{_cell(nats, '.2f'):>14s}{active:>10s}{_cell(health.share[name], '.0%'):>16s}"
                f"{_cell(health.signal[name], '.2f'):>21s}{_cell(health.noise[name], '.2f'):>10s}"
            )
        if not math.isnan(health.image_r2):
            lines.append(f"  R^2 of the reconstructed pixels about each pixel's mean: {health.image_r2:.2f}")
        if found is None:
            lines.append("  the environment has no ground truth: what the latents hold of signal and noise is unknown")
        lines += [f"  warning: {warning}" for warning in health.warnings] or ["  no warnings"]
        tree = subject.about("health", options.measured()) | dataclasses.asdict(health)
        lines.append(f"  {write_json(f'{stem}.json', tree)}")
    return lines


def _cell(value: float, form: str) -> str:
    """Format a number as `form` says; a dash for nan."""
    return "-" if math.isnan(value) else format(value, form)


def _factors_of(make: Callable[[], gym.Env]) -> list[Factor] | None:
    """The environment's factors; None without ground truth."""
    with contextlib.closing(make()) as environment, contextlib.suppress(NoGroundTruth):
        return factors(environment)
    return None


def report(tree: Mapping[str, Any]) -> Section:
    """The table of latents, and the warnings."""
    rows = []
    for name, nats in tree["nats"].items():
        active, size = tree["active"][name]
        columns = (tree[key].get(name) for key in ("share", "signal", "noise"))
        rows.append([name, show(nats, 2), f"{active} of {size}", *(show(value, 2) for value in columns)])
    heads = ["latent", "nats per step", "active", "reconstruction", "quick R² of signal", "of noise"]
    warnings = [str(warning) for warning in tree["warnings"]]
    text = [f"R² of the reconstructed pixels: {show(tree.get('image_r2'), 2)}", *["No warnings."] * (not warnings)]
    return Section(text, tables=[(heads, rows)], warnings=warnings)


PROBE = Probe("count nats and active dimensions, and warn of latents that do nothing", run, Options, report=report)
