"""``denoised-mdp probe equivalence``: are situations with the same meaning also the same to the model?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from denoised_mdp.analysis.probe import EpisodeOptions, Probe, Section
from denoised_mdp.analysis.results import Subject, as_json, show, subjects, write_csv, write_json
from denoised_mdp.analysis.roles import REST, in_words, sees
from denoised_mdp.errors import UserError
from denoised_mdp.options import option
from denoised_mdp.run.environments import environment_maker

if TYPE_CHECKING:
    from denoised_mdp.rollout import Episode

CANNOT_IMAGINE = "this model cannot imagine rewards: it has no signatures of its own"


@dataclass
class Options(EpisodeOptions):
    """Options of ``probe equivalence``."""

    episodes: int = option(12, "held-out episodes", low=3)
    worlds: int = option(3, "seeds of the distractors", low=2)
    sequences: int = option(64, "random action sequences from each state, 0: no signatures", low=0)


@dataclass
class Ground:
    """The episodes and true signatures that all runs of one environment share."""

    grid: list[list[Episode]]
    actions: np.ndarray | None = None
    """random sequences [sequences, horizon, A]"""
    rows: np.ndarray | None = None
    """the first rows [T'] that count: those whose sequences end before the time limit"""
    signatures: np.ndarray | None = None
    """true signatures of these rows, [P T', R]"""


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Measure twins and signatures of each run; runs of one environment share the same episodes.

    Raises:
        UserError: fewer than three episodes.
    """
    from denoised_mdp.analysis.equivalence import equivalence, grid_features
    from denoised_mdp.analysis.equivalence_plot import equivalence_figure
    from denoised_mdp.analysis.plots import save_figure
    from denoised_mdp.run.machine import peak_memory

    if options.episodes < 3:
        raise UserError("Twins need at least 3 episodes to be told from (--episodes).")
    lines, grounds = [], {}
    for subject in subjects(runs, options):
        began = time.perf_counter()
        stem = subject.stem("equivalence", options.output, options.variant())
        key = str((vars(subject.config.env), subject.config.distractors, subject.config.seed))
        ground = grounds.get(key) or _ground(subject, options)
        grounds = {key: ground}  # keeps the last only: runs of one environment usually follow each other
        roles, episode, step = grid_features(subject.agent, ground.grid)
        found = {role: equivalence(values, step) for role, values in roles.items()}
        if REST in roles:  # here, twins are situations with the same distractors
            turned = np.broadcast_to(step[0], (options.worlds, step.shape[1]))
            found[f"{REST}, same distractors"] = equivalence(roles[REST].transpose(1, 0, 2, 3), turned)
        tree = {
            "seen": subject.agent.seen,
            "roles": found,
            "signatures": None if ground.signatures is None else _signatures(subject, ground, roles, episode),
            "seconds": time.perf_counter() - began,
            "peak_memory": peak_memory(),
        }
        tree = as_json(tree)
        about = subject.about("equivalence", options.measured())
        lines += [subject.label, *lines_of(tree)]
        lines.append(f"  {write_json(f'{stem}.json', about | tree)}")
        write_csv(f"{stem}.csv", _rows(tree))
        lines.append(f"  {save_figure(equivalence_figure(tree), f'{stem}.png')}")
    return lines


def _ground(subject: Subject, options: Options) -> Ground:
    """Record the grid with random actions, the same for every model, and compute true signatures of its rows."""
    from denoised_mdp.analysis.data import probe_seeds
    from denoised_mdp.analysis.invariance import record_grid
    from denoised_mdp.analysis.signatures import random_actions, rows_with_future, true_signatures
    from denoised_mdp.analysis.situations import check_lengths, rows_of

    make = environment_maker(subject.config, options.split)
    ground = Ground(record_grid(make, None, options.episodes, options.worlds, options.steps))
    column = [row[0] for row in ground.grid]
    check_lengths(column, options.steps)
    if options.sequences:
        ground.rows = rows_with_future(subject.config, rows_of(column[0]))
        ground.actions = random_actions(column[0].action.shape[1], options.sequences)
        seeds = probe_seeds(0, options.episodes)
        ground.signatures = true_signatures(subject.config, column, seeds, ground.rows, ground.actions)
    return ground


def _signatures(
    subject: Subject, ground: Ground, roles: Mapping[str, np.ndarray], episode: np.ndarray
) -> dict[str, Any]:
    """How well distances and the model's own signatures agree with the true ones, in the grid's first world."""
    from denoised_mdp.analysis.signatures import compare, model_signatures, pooled_r2, r2_ahead, seen_latents

    column, true, rows = [row[0] for row in ground.grid], ground.signatures, ground.rows
    first = {role: values[:, 0, : len(rows)].reshape(len(true), -1) for role, values in roles.items()}
    pixels = np.concatenate([cell.observation[rows].reshape(len(rows), -1) for cell in column])
    own, note, accuracy = None, CANNOT_IMAGINE, {"R2": float("nan"), "R2_ahead": []}
    latents = seen_latents(subject.agent, column, rows)
    if latents is not None:
        own, note = model_signatures(subject.agent, latents, ground.actions), ""
        level = not subject.agent.world_model.table.rewarded_noise
        accuracy = {"R2": pooled_r2(true, own, level), "R2_ahead": r2_ahead(true, own, level)}
    ranks = compare(true, first | {"pixels": pixels}, episode[:, : len(rows)].ravel(), own)
    return {"states": len(true), "spearman": ranks, "note": note} | accuracy


def _accuracy(found: Mapping[str, Any]) -> str:
    """How well the model imagines signatures, or why it does not."""
    if found["note"]:
        return found["note"]
    text = f"R^2 of the reward signatures that the model imagines: {show(found['R2'])}"
    ahead = found.get("R2_ahead")  # not in results of earlier versions
    return text + (f" ({show(ahead[0])} one decision ahead, {show(ahead[-1])} after {len(ahead)})" if ahead else "")


def lines_of(tree: Mapping[str, Any]) -> list[str]:
    """The numbers of one result, in the form of its JSON file, as lines to print."""
    columns = ("ratio", "auroc", "hard_auroc", "retrieval")
    heads = ("ratio", "AUROC", "AUROC, hard", "retrieval@1")
    lines = [f"  {sees(tree['seen'])}", f"  {'twins in':28s}" + "".join(f"{head:>24s}" for head in heads)]
    for role, one in tree["roles"].items():
        lines.append(f"  {in_words(role):28s}" + "".join(f"{_text(one[column]):>24s}" for column in columns))
    chances: dict[str, list[str]] = {}
    for role, one in tree["roles"].items():
        chances.setdefault(show(one["chance"]), []).append(in_words(role))
    texts = [value if len(chances) == 1 else f"{value} ({'; '.join(roles)})" for value, roles in chances.items()]
    lines.append(f"  chance of retrieval@1: {', '.join(texts)}; of AUROC: 0.5")
    found = tree["signatures"]
    if found:
        ranks = "   ".join(f"{in_words(role)} {show(value)}" for role, value in found["spearman"].items())
        lines.append(f"  rank correlation with distances of reward signatures ({found['states']} states): {ranks}")
        lines.append(f"  {_accuracy(found)}")
    return lines


def _text(estimate: Mapping[str, Any]) -> str:
    from denoised_mdp.analysis.crossfit import Estimate

    return Estimate.from_tree(estimate).text()


def _rows(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row of the CSV file per role and number."""
    rows = []
    for role, one in tree["roles"].items():
        for name in ("ratio", "auroc", "hard_auroc", "retrieval"):
            rows.append({"role": role, "number": name, **{key: one[name][key] for key in ("value", "low", "high")}})
        rows.append({"role": role, "number": "chance_of_retrieval", "value": one["chance"], "low": None, "high": None})
    for role, value in (tree["signatures"] or {"spearman": {}})["spearman"].items():
        rows.append({"role": role, "number": "spearman_of_signatures", "value": value, "low": None, "high": None})
    return rows


def report(tree: Mapping[str, Any]) -> Section:
    """The figure, and the numbers as a table."""
    from denoised_mdp.analysis.equivalence_plot import equivalence_figure
    from denoised_mdp.analysis.report.plots import svg_uri

    names = ("ratio", "auroc", "hard_auroc", "retrieval")
    rows = [
        [in_words(role), *(_text(one[name]) for name in names), show(one["chance"])]
        for role, one in tree["roles"].items()
    ]
    heads = ["representation", "distance of twins / random", "AUROC", "AUROC, hard", "retrieval@1", "its chance"]
    found = tree["signatures"]
    words = [
        f"Twins are the same physics under other distractors. Here {sees(tree['seen'])}: there, a ratio of 0"
        " and AUROC and retrieval of 1 are wanted; in the rest, the same of twins that share their distractors.",
        *([_accuracy(found).replace("R^2", "R²")] if found else []),
    ]
    return Section(text=words, pictures=[svg_uri(equivalence_figure(tree))], tables=[(heads, rows)])


PROBE = Probe(
    "tell whether situations with the same physics, or the same rewards to come, are alike in each latent",
    run,
    Options,
    more="Twins have the same physics and other distractors; signatures are rewards of random action sequences.",
    report=report,
)
