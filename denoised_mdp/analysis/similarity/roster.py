"""Everything that `probe similarity` measures on a roster of runs, as one tree of numbers."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from denoised_mdp.analysis import similarity
from denoised_mdp.analysis.crossfit import Estimate
from denoised_mdp.analysis.results import number_of
from denoised_mdp.analysis.roles import REST, SEEN, in_words
from denoised_mdp.analysis.similarity import tables
from denoised_mdp.analysis.similarity.arrays import check_neighbours
from denoised_mdp.analysis.similarity.competence import classical_map, competence
from denoised_mdp.analysis.similarity.identifiability import identifiability
from denoised_mdp.analysis.similarity.points import Point, Roster
from denoised_mdp.analysis.situations import APART, FIRST, HOME, Situations, features, make_situations
from denoised_mdp.errors import UserError
from denoised_mdp.progress import Phase, track
from denoised_mdp.run.load import load_run

FEWEST = 4
"""fewest situations that can be compared, see `similarity.arrays.pair`"""
METRICS = {
    "mutual_knn": similarity.mutual_knn,
    "cknna": similarity.cknna,
    "cka_unbiased": lambda a, b, k, episodes: similarity.cka(a, b, unbiased=True),
    "cka": lambda a, b, k, episodes: similarity.cka(a, b),
    "cka_rbf": lambda a, b, k, episodes: similarity.cka(a, b, kernel="rbf", bandwidth=None),
    "cycle_knn": similarity.cycle_knn,
    "cycle_knn_back": lambda a, b, k, episodes: similarity.cycle_knn(b, a, k, episodes),
    "lcs_knn": similarity.lcs_knn,
    "edit_knn": similarity.edit_knn,
    "svcca": lambda a, b, k, episodes: similarity.svcca(a, b),
}
"""name -> metric of every pair of trained runs: (a, b, neighbours, episode of each row) -> number"""


def measure(roster: Roster, options: Any) -> tuple[list[Point], Situations]:
    """Record the situations with each run's last stage as a player, then filter them with every agent of the roster.

    Raises:
        UserError: there are too few situations for `options.k` neighbours.
    """
    check_size(options.k, options.episodes, options.steps)
    players = [load_run(path, checkpoint=options.checkpoint, device=options.device)[1] for path in roster.paths]
    situations = make_situations(roster.configs[0], players, options.episodes, options.steps, equal=True)
    check_neighbours(options.k, situations.episode, least=2)  # episodes may have ended early
    stages = [roster.stages(number, options.snapshots, options.checkpoint) for number in range(len(roster.paths))]
    points = []
    with Phase("filtering", sum(map(len, stages)) + len(stages), "agents") as phase:
        for point, agent in roster.agents(options.snapshots, options.checkpoint, options.device):
            for world in situations.worlds if point.newest else [HOME]:  # only last stages are compared across worlds
                point.features[world] = features(agent, situations.worlds[world], situations.rows)
            points.append(point)
            phase.update(len(points))
    return points, situations


def check_size(k: int, episodes: int, steps: int) -> None:
    """Raise UserError, before anything is played, if even full-length episodes have fewer than k neighbours."""
    own = len(range(FIRST, steps + 1, APART))
    rows = episodes * own
    if rows < FEWEST or k > rows - own:
        fewer = f", or --k from 2 to {rows - own}" if rows >= FEWEST and rows - own >= 2 else ""
        raise UserError(
            f"{episodes} episodes of {steps} actions give {rows} situations, too few for {k} neighbours: give more"
            f" --episodes or --steps{fewer}."
        )


def summarize(known: tables.Alignments) -> dict[str, Any]:
    """All tables of the roster, see `tables`; rows and columns of `matrix` are in the order of `agents`."""
    points, found = known.points, tables.matrices(known)
    truth = tables.to_truth(known)
    to_state = [row["mutual_knn"].value for row in truth if (row["role"], row["truth"]) == (SEEN, "state")]
    return {
        "rows": len(known.episode),
        "k": known.k,
        "neighbours": "rows of other episodes",
        "chance": known.chance,
        "null": tables.null(known),
        "agents": [point.about() for point in points],
        "matrix": {name: values.tolist() for name, values in found.items()},
        "map": classical_map(found["mutual_knn"], known.chance).tolist(),
        "worlds": tables.across_worlds(known),
        "truth": truth,
        "between seen and rest": tables.between_roles(known),
        "by k": tables.by_neighbours(known),
        "over training": tables.over_training(known, found["mutual_knn"]),
        "competence": competence(points, found["mutual_knn"], np.array(to_state)),
        "identifiability": identifiability(known),
    }


def pair_rows(known: tables.Alignments) -> list[dict[str, Any]]:
    """Every metric of every pair of trained runs as table rows, for what the policy sees and for the rest."""
    newest, rows = [point for point in known.points if point.newest], []
    pairs = list(itertools.combinations(newest, 2)) or [(newest[0], newest[0])]
    for first, second in track(pairs, "all metrics", "pairs", delay=1):
        for role in [role for role in (SEEN, REST) if all(role in point.features[HOME] for point in (first, second))]:
            prepared = [known.prepared(point.features[HOME][role]) for point in (first, second)]
            about = {"first": first.name, "second": second.name, "role": role, "rows": len(prepared[0]), "k": known.k}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a dead latent is nan in the table
                rows.append(
                    about | {name: metric(*prepared, known.k, known.episode) for name, metric in METRICS.items()}
                )
    return rows


def lines_of(tree: Mapping[str, Any]) -> list[str]:
    """The headline numbers of a tree, in the form of its JSON file, as lines to print."""
    columns = ("same world, other seed", "other world, same run", "other world, other seed")
    home = {(row["group"], row["role"]): row for row in tree["worlds"] if row["world"] == HOME}
    across = {
        f"{row['group']}, {in_words(row['role'])}: {row['world']}": (home[row["group"], row["role"]], row)
        for row in tree["worlds"]
        if row["world"] != HOME
    }
    truth = {
        f"{row['name']}, {in_words(row['role'])}: the true {row['truth']}": row
        for row in tree["truth"]
        if row["newest"] and row["role"] in (SEEN, REST)
    }
    pairs = {f"{row['group']}, {row['pairs']} pairs of seeds": row for row in tree["identifiability"]}
    runs, wide = len(tree["runs"]), max(48, *map(len, [*across, *truth, *pairs]))
    lines = [
        f"{runs} run{'s' * (runs > 1)}, {tree['rows']} situations, {tree['k']} neighbours; chance {tree['chance']:.3f},"
        f" with whole episodes shuffled {text(tree['null'])}",
        f"  {'alignment':{wide}s}" + "".join(f"{column:>25s}" for column in columns),
    ]
    for name, (trained, row) in across.items():
        cells = (trained["other seed"], row["same run"], row["other seed"])
        lines.append(f"  {name:{wide}s}" + "".join(f"{text(cell):>25s}" for cell in cells))
    lines += [f"  {note}" for note in notes_of(tree)]
    for name, row in truth.items():
        lines.append(f"  {name:{wide}s}{text(row['mutual_knn']):>25s}   R^2 {number_of(row['R2']):.3f}")
    for name, row in pairs.items():
        lines.append(f"  {name:{wide}s}   linear R^2 {text(row['linear R2'])}   mean CCA {text(row['mean CCA'])}")
    for name, found in tree["competence"].items():
        if name != "bins":
            lines.append(f"  {found if name == 'note' else f'rank correlation of {name}: {text(found)}'}")
    return lines


def text(estimate: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Format an estimate of a tree for a table, without its note; see `notes_of`."""
    return dataclasses.replace(Estimate.from_tree(estimate), note="").text(digits) if estimate else "-"


def notes_of(tree: Mapping[str, Any]) -> list[str]:
    """The notes that a reader needs on the intervals of alignment across worlds, each with its group."""
    cells = [(row["group"], row[column]) for row in tree["worlds"] for column in ("same run", "other seed")]
    return list(dict.fromkeys(f"{group}: {cell['note']}" for group, cell in cells if cell and cell.get("note")))
