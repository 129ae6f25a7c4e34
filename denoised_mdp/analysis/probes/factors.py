"""``denoised-mdp probe factors``: predict every true factor from each latent, see `analysis.factors`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from denoised_mdp.analysis.crossfit import Split, random_divisions
from denoised_mdp.analysis.probe import TRAIN_OR_TEST, EpisodeOptions, Probe, behaviour
from denoised_mdp.analysis.results import Subject, make_folder, mark_of, subjects, write_csv, write_json
from denoised_mdp.envs.factors import factors
from denoised_mdp.options import option
from denoised_mdp.run.environments import environment_maker

if TYPE_CHECKING:
    from denoised_mdp.analysis.factors import FactorMatrix


@dataclass
class Options(EpisodeOptions):
    """Options of ``probe factors``."""

    episodes: int = option(36, "held-out episodes", low=3)
    steps: int = option(200, "actions per episode", low=1)
    split: str = option(
        "train",
        f"{TRAIN_OR_TEST}, or across: fit on the first and test on the second",
        choices=("train", "test", "across"),
    )
    seeds: int = option(1, "random divisions of the episodes into folds", low=1)
    behaviour: str = behaviour()


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Write the factor matrix of each run, and the mean over runs that differ only in the seed."""
    from denoised_mdp.analysis.factor_tables import as_tree, factor_lines, factor_rows, pooled, several_seeds

    lines, results = [], []
    usual, split, variant = Options(), options.split, options.variant()
    for subject in subjects(runs, options, ground_truth=True):
        stem = subject.stem("factors", options.output, variant)
        matrix = _matrix(subject, options)
        write_json(f"{stem}.json", subject.about("factors", options.measured()) | as_tree(matrix))
        write_csv(f"{stem}.csv", factor_rows(subject, matrix))
        lines += [subject.label, *factor_lines(matrix)]
        if options.episodes * options.steps < usual.episodes * usual.steps:
            lines.append(
                f"  smaller than the default ({usual.episodes} episodes of {usual.steps} actions): it reads less;"
                " compare only results of one size"
            )
        lines += _draw(matrix, subject.label, split, stem)
        results.append((subject, matrix))
    for members in several_seeds(results):
        mean = pooled([matrix for _, matrix in members])
        first, paths = members[0][0], [subject.path for subject, _ in members]
        config, folder = first.config, make_folder(options.output or Path("probes"))
        what = " + ".join([config.env.task, *config.distractors])
        title = f"{what} · {config.method[0]} · mean of {len(members)} runs"
        name = f"{first.path.resolve().name}_and_{len(members) - 1}_more_{mark_of(paths)}"
        stem = folder / "_".join(filter(None, ["factors", name, variant, f"{first.step:09d}"]))
        about = {"probe": "factors", "runs": list(map(str, paths)), "step": first.step, "options": options.measured()}
        write_json(f"{stem}.json", about | as_tree(mean))
        lines += [title, *factor_lines(mean), *_draw(mean, title, split, stem)]
    return lines


def _draw(matrix: FactorMatrix, title: str, split: str, stem: Path) -> list[str]:
    """Write one heat map per probe; return lines that name the files."""
    from denoised_mdp.analysis import plots
    from denoised_mdp.analysis.factor_tables import headline_text

    lines = []
    for probe in matrix.scores:
        figure = plots.factor_heat_map(matrix, probe, title, headline_text(matrix, probe, split))
        lines.append(f"  {plots.save_figure(figure, f'{stem}_{probe}.png')}")
    return lines


def _matrix(subject: Subject, options: Options) -> FactorMatrix:
    """Record, filter and probe; "across" fits on training clips and tests on held-out ones.

    The agent with its initial weights reads the same episodes, as the part `UNTRAINED`.
    """
    from denoised_mdp.analysis.data import freeze, probe_seeds, record
    from denoised_mdp.analysis.factors import UNTRAINED, factor_matrix, homes_of, stack, targets_of
    from denoised_mdp.run.load import untrained

    config, agent, episodes = subject.config, subject.agent, options.episodes
    with contextlib.closing(environment_maker(config)()) as environment:
        found = factors(environment)
    divisions = random_divisions(episodes, options.seeds)
    acting = {"agent": agent, "explore": config.train.exploration_noise, "behaviour": options.behaviour}
    recordings = []
    for place, clips in enumerate(("train", "test") if options.split == "across" else (options.split,)):
        make = environment_maker(config, clips)
        recordings += record(make, probe_seeds(place, episodes), options.steps, **acting)
    if options.split == "across":
        divisions = [[_across(pair, episodes) for pair in division] for division in divisions]
    parts, episode = stack(freeze(agent, recordings))
    parts[UNTRAINED] = stack(freeze(untrained(agent), recordings), [agent.seen])[0][agent.seen]
    matrix = factor_matrix(parts, targets_of(found, recordings), episode, divisions, seen=agent.seen)
    return dataclasses.replace(matrix, homes=homes_of(agent))


def _across(pair: Split, episodes: int) -> Split:
    """Fit on the first half of the recordings (training clips) and test on the second."""
    return pair[0], pair[1] + episodes


PROBE = Probe(
    "predict every true factor from each latent",
    run,
    Options,
    more="Signal recall is R^2 of the signal from what the policy sees (x), leakage that of the noise."
    " Means over the seeds of several runs go to the folder probes.",
)
