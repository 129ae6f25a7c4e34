"""``denoised-mdp probe similarity``: which runs learn the same, in which world, and does it match the truth?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoised_mdp.analysis.probe import Options as ProbeOptions
from denoised_mdp.analysis.probe import Probe, Section
from denoised_mdp.analysis.results import Subject, as_json, mark_of, show, write_csv, write_json
from denoised_mdp.analysis.roles import in_words
from denoised_mdp.errors import UserError
from denoised_mdp.options import option


@dataclass
class Options(ProbeOptions):
    """Options of ``probe similarity``."""

    output: Path | None = option(None, "default: RUN/probes of the first run", metavar="FOLDER")
    episodes: int = option(40, "held-out episodes, the same for all runs", low=3)
    steps: int = option(250, "actions per episode", low=11)
    k: int = option(10, "neighbours", low=2)
    snapshots: bool = option(False, "look at every snapshot of each run, not only at its end")


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Measure the roster; by default, the results go to the folder of the first run."""
    from denoised_mdp.analysis.plots import save_figure
    from denoised_mdp.analysis.similarity.plots import figures
    from denoised_mdp.analysis.similarity.points import Roster
    from denoised_mdp.analysis.similarity.roster import lines_of, measure, pair_rows, summarize
    from denoised_mdp.analysis.similarity.tables import Alignments
    from denoised_mdp.run.machine import peak_memory

    if options.snapshots and options.checkpoint is not None:
        raise UserError("--snapshots compares all stages of each run: leave out --checkpoint.")
    began, roster = time.perf_counter(), Roster.of(runs)
    points, situations = measure(roster, options)
    recorded = time.perf_counter()
    known = Alignments(points, situations, options.k)
    tree, pairs = as_json(summarize(known)), pair_rows(known)
    ended = time.perf_counter()
    first = next(point for point in points if point.newest)
    subject = Subject(roster.paths[0], roster.configs[0], None, first.step)
    stem = subject.stem("similarity", options.output, options.variant())
    at = "" if options.checkpoint is None else f"_checkpoint-{options.checkpoint}"  # other runs may be at other steps
    stem = stem.with_name(f"{stem.name}{at}_{len(roster.paths)}runs_{mark_of(roster.paths)}")
    tree |= {
        "runs": [str(path) for path in roster.paths],
        "checkpoint": options.checkpoint,
        "pairs": pairs,
        "seconds": {"recording and filtering": recorded - began, "comparing": ended - recorded},
        "peak_memory": peak_memory(),
    }
    lines = lines_of(tree)
    lines.append(f"  {write_json(f'{stem}.json', subject.about('similarity', options.measured()) | tree)}")
    write_csv(f"{stem}.csv", pairs)
    for name, figure in figures(tree).items():
        lines.append(f"  {save_figure(figure, f'{stem}_{name}.png')}")
    return lines


def report(tree: Mapping[str, Any]) -> Section:
    """The figures, whose titles say how to read them, and the table of alignment across worlds."""
    from denoised_mdp.analysis.report.plots import svg_uri
    from denoised_mdp.analysis.similarity.plots import figures
    from denoised_mdp.analysis.similarity.roster import notes_of, text

    worlds = [
        [
            row["group"],
            in_words(row["role"]),
            row["world"],
            *(text(row[column], 2) for column in ("same run", "other seed")),
        ]
        for row in tree["worlds"]
    ]
    words = (
        f"Alignment is the share of common {tree['k']} nearest neighbours"
        f" ({tree.get('neighbours', 'of the same episode too, by an earlier version')}) among {tree['rows']} situations"
        f" of {tree['options']['episodes']} held-out episodes, the same for all runs:"
        f" {', '.join(Path(path).name for path in tree['runs'])}. Chance is {show(tree['chance'])};"
        f" with whole episodes shuffled, {text(tree['null'], 2)}.",
        *(f"Alignment across worlds: {note}." for note in notes_of(tree)),
        str(tree["competence"].get("note", "")),
    )
    return Section(
        text=list(filter(None, words)),
        pictures=[svg_uri(figure) for figure in figures(tree).values()],
        folded={"Alignment across worlds": (["runs", "representation", "world", "same run", "other seed"], worlds)},
    )


PROBE = Probe(
    "compare what several runs have learned, across distractors, with the truth and over training",
    run,
    Options,
    more="Alignment is the share of common nearest neighbours; see docs/similarity.md.",
    examples=(
        "denoised-mdp probe similarity runs/a runs/b runs/c",
        "denoised-mdp probe similarity runs/* --snapshots --episodes 84",
    ),
    report=report,
)
