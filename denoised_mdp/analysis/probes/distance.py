"""``denoised-mdp probe distance``: how many decisions apart are two situations, judged by what the policy sees?"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from denoised_mdp.analysis.probe import Options as ProbeOptions
from denoised_mdp.analysis.probe import Probe, Section
from denoised_mdp.analysis.results import Subject, show, subjects, write_csv, write_json
from denoised_mdp.analysis.roles import SEEN, in_words, sees
from denoised_mdp.options import option

if TYPE_CHECKING:
    from denoised_mdp.analysis.distance import Geometry

HELD_OUT = 3
"""every third episode is held out to evaluate the distances"""
COLUMNS = {
    "one_step": "one step",
    "violations": "too far",
    "rank_correlation": "rank corr.",
    "asymmetry": "asymmetry",
    "at_limit": "at limit",
    "random": "random pair",
}
"""field of `Geometry` -> column header in tables"""
READING = (
    "Left: close to the dashed line and not above it, a representation knows the time between situations; its rank"
    " correlation tells whether that is the body's time or the background's. Right: in what the policy sees, bars far"
    " below the black line are good; 0 means that the distractors do not count."
)
CAUTION = (
    "Distances are bounded by what the recorded episodes show: where nobody went, two situations count as far apart."
)


@dataclass
class Options(ProbeOptions):
    """Options of ``probe distance``."""

    episodes: int = option(36, "recorded episodes; every third is held out", low=6)
    steps: int = option(200, "actions per episode", low=20)
    updates: int = option(1000, "updates of each distance", low=1)


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Learn and evaluate temporal distances of each run's representations; write JSON, CSV and a figure."""
    from denoised_mdp.analysis.distance_plot import distance_figure
    from denoised_mdp.analysis.plots import save_figure
    from denoised_mdp.run.machine import peak_memory

    lines = []
    for subject in subjects(runs, options, ground_truth=True):
        began = time.perf_counter()
        stem = subject.stem("distance", options.output, options.variant())
        found = _measure(subject, options)
        tree = {
            "seen": subject.agent.seen,
            "parts": {name: dataclasses.asdict(one) for name, one in found.items()},
            "seconds": time.perf_counter() - began,
            "peak_memory": peak_memory(),
        }
        write_json(f"{stem}.json", subject.about("distance", options.measured()) | tree)
        write_csv(f"{stem}.csv", [_row(subject, name, one) for name, one in found.items()])
        worlds = found[SEEN].paired
        lines += [subject.label, f"  {sees(subject.agent.seen)}"]
        lines.append(f"  {'steps by':20s}" + "".join(f"{head:>12s}" for head in COLUMNS.values()))
        for name, one in found.items():
            lines.append(f"  {in_words(name):20s}" + "".join(f"{getattr(one, field):12.3f}" for field in COLUMNS))
        for world in worlds:
            known = {in_words(name): one.paired[world] for name, one in found.items() if world in one.paired}
            steps = ", ".join(f"{name} {value:.2f}" for name, value in known.items())
            lines.append(f"  steps to the same situation in the world with {world}: {steps}")
        figure = distance_figure(tree["parts"], subject.label)
        lines.append(f"  {save_figure(figure, f'{stem}.png')}")
    return lines


def _measure(subject: Subject, options: Options) -> dict[str, Geometry]:
    """Record and replay episodes, then learn and evaluate a distance for each representation."""
    from denoised_mdp.analysis.distance import STATE, measure_distances, projected
    from denoised_mdp.analysis.situations import HOME, features, make_situations

    data = make_situations(subject.config, [subject.agent], options.episodes, options.steps, apart=1)
    held = [number % HELD_OUT == 0 for number in range(options.episodes)]

    def read(world: str, chosen: Sequence[int]) -> dict[str, np.ndarray]:
        episodes, rows = ([of[i] for i in chosen] for of in (data.worlds[world], data.rows))
        parts = features(subject.agent, episodes, rows)
        parts.pop("encoder", None)
        return parts | {"pixels": projected(episodes, rows)}

    parts = read(HOME, range(options.episodes)) | {STATE: data.state}
    tested = [number for number, out in enumerate(held) if out]
    worlds = {world: read(world, tested) for world in data.worlds if world != HOME}
    return measure_distances(parts, data.episode, worlds, np.array(held)[data.episode], updates=options.updates)


def _row(subject: Subject, name: str, one: Geometry) -> dict[str, Any]:
    """One row of the CSV file."""
    paired = {f"paired, {world}": steps for world, steps in one.paired.items()}
    numbers = {field: getattr(one, field) for field in COLUMNS}
    return {"run": str(subject.path), "step": subject.step, "part": name, **numbers, **paired}


def report(tree: Mapping[str, Any]) -> Section:
    """The figure, and all numbers as a folded table."""
    from denoised_mdp.analysis.distance_plot import distance_figure
    from denoised_mdp.analysis.report.plots import svg_uri

    parts = tree["parts"]
    worlds = list(dict.fromkeys(world for one in parts.values() for world in one["paired"]))
    heads = ["steps by", *COLUMNS.values(), *(f"same situation, {world}" for world in worlds)]
    rows = [
        [
            in_words(name),
            *(show(one.get(field)) for field in COLUMNS),
            *(show(one["paired"].get(world)) for world in worlds),
        ]
        for name, one in parts.items()
    ]
    return Section(
        text=[f"Here {sees(tree['seen'])}. {READING}", CAUTION],
        pictures=[svg_uri(distance_figure(parts))],
        folded={"All numbers": (heads, rows)},
    )


PROBE = Probe(
    "learn how many decisions apart situations are by what the policy sees",
    run,
    Options,
    more="A quasimetric is learned from each representation and from the simulator's state; other episodes judge it.",
    report=report,
)
