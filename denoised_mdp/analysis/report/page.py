"""``denoised-mdp report``: one self-contained HTML page about one run, or a comparison of many.

The page loads nothing: pictures and videos are data URIs, and there are no scripts. The template engine escapes all
text from runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from denoised_mdp import __version__
from denoised_mdp.analysis.factor_tables import from_tree, pooled
from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.report.choice import common_options, options_of, options_text, results_at_common_step, shown
from denoised_mdp.analysis.report.data import RunData, check_probe_folders, read_run
from denoised_mdp.analysis.report.groups import Group, differing_options, group_runs, shared_words
from denoised_mdp.analysis.report.parts import (
    MODEL,
    RETURNS,
    compared_options,
    factor_dict,
    factor_part,
    machine_row,
    media_part,
    other_metrics,
    overview,
    plots,
    probe_part,
    safely,
)
from denoised_mdp.analysis.report.plots import BAND_FROM
from denoised_mdp.analysis.results import write_whole
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.progress import track
from denoised_mdp.run.find import find_runs
from denoised_mdp.run.folder import check_output

VIDEOS = ("one", "all", "none")
"""one video per group of seeds, one of every run, or none"""


def write_report(
    runs: Sequence[Path | str] | Path | str,
    output: Path | str,
    *,
    probes: Sequence[Path | str] = (),
    videos: str = "one",
    title: str | None = None,
) -> Path:
    """Write the page, which also lists what is missing or broken in the runs.

    runs: run folders, or folders that hold runs at any depth; duplicates count once. A single one may be a path.
    probes: further folders with results from ``probe ... --output``. videos: see `VIDEOS`.

    Raises:
        UserError: no folder is given, or one is not a run and holds none; or the page cannot be written.
    """
    runs, probes = ([one] if isinstance(one, str | os.PathLike) else list(one) for one in (runs, probes))
    if not runs:
        raise UserError("There is nothing to report: name at least one run, or a folder of runs.")
    if videos not in VIDEOS:
        raise UserError(f"Unknown choice of videos {videos!r}.{did_you_mean(videos, VIDEOS)}")
    output = Path(output)
    if output.is_dir():
        raise UserError(f"{output} is a folder. Name a file, e.g. -o {output / 'report.html'}.")
    check_output(output, "-o")  # before anything is drawn
    check_probe_folders(probes)
    found = [read_run(run, probes) for run in track(find_runs(runs), "reading", "runs", delay=1)]
    page = render(found, videos=videos, title=title)
    return write_whole(output, page)


def render(runs: Sequence[RunData], *, videos: str = "one", title: str | None = None) -> str:
    """The page about the given runs, as HTML."""
    groups, compared = group_runs(runs), compared_options(runs)
    common: list[str] = []
    shared = shared_words(groups)
    found = {
        "title": title or (groups[0].name if len(groups) == 1 else shared or f"{len(groups)} configurations compared"),
        "compared": len(groups) if len(groups) > 1 and (title or shared) else 0,
        "groups": [
            {"name": group.name, "color": group.color, "count": len(group.runs), "overview": overview(group, compared)}
            for group in groups
        ],
        "compared_by": {probe: _options_text(runs, probe, options) for probe, options in compared.items()},
        "returns": plots(groups, RETURNS, common),
        "model": plots(groups, MODEL, common),
        "more": plots(groups, other_metrics(groups), common),
        "sections": [_section(group, videos, runs) for group in track(groups, "drawing probes", "groups of runs")],
        "differences": differing_options(groups),
        "configurations": [(group.name, sorted(group.first.options().items())) for group in groups],
        "machines": [machine_row(run) for run in runs],
        "problems": [(str(run.path), run.problems) for run in runs if run.problems],  # last: the parts above add some
        "common_problems": common,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "runs": [str(run.path) for run in runs],
    }
    most = max(len(group.runs) for group in groups)
    found |= {"several": most > 1, "bands": most >= BAND_FROM}
    return _template().render(found)


def _options_text(runs: Sequence[RunData], probe: str, options: str | None) -> str:
    """The options whose results the overview compares, in words; empty without any result."""
    trees = [tree for run in runs for tree in run.probes.get(probe, []) if options_of(tree) == options]
    return options_text(trees[0]) if trees else ""


def _section(group: Group, videos: str, everyone: Sequence[RunData]) -> dict[str, Any]:
    """One group's part of the page: videos and probe results."""
    section: dict[str, Any] = {"name": group.name, "color": group.color, "media": []}
    chosen = {"all": group.runs, "none": []}.get(videos, [])
    if videos == "one":
        chosen = [next((run for run in group.runs if run.media is not None), group.first)]
    section["media"] = list(filter(None, (media_part(run, run.problems) for run in chosen)))
    found = {probe for run in group.runs for probe in run.probes}
    known = [probe for probe in PROBES if probe in found]
    parts = {name: [] for name in dict.fromkeys(["factors", *known, *sorted(found)])}
    for name, own in parts.items():
        make = factor_part if name == "factors" else partial(probe_part, PROBES.get(name))
        for run, tree in shown(group.runs, everyone, name):
            part = safely(run.problems, tree["file"].name, partial(make, run, tree))
            own += [part] if part else []
    section |= {"factors": parts.pop("factors"), "mean": _means(group, everyone)}
    section["probes"] = [(title_of_probe(name), own) for name, own in parts.items() if own]
    return section


def title_of_probe(name: str) -> str:
    """The heading of a probe's results."""
    probe = PROBES.get(name)
    return (probe and probe.title) or name.replace("_", " ").capitalize()


def _means(group: Group, everyone: Sequence[RunData]) -> list[dict[str, str]]:
    """The mean factor matrix over the seeds of a group, per split: of results with equal options at the same step."""
    means = []
    for split in sorted({tree["split"] for run in group.runs for tree in run.probes.get("factors", [])}):
        found = results_at_common_step(group.runs, "factors", common_options(everyone, "factors", split))
        matrices = [safely([], "", lambda tree=tree: from_tree(tree)) for _, tree in found]  # its own section says why
        kinds = [(m.factors, m.parts, list(m.scores)) for m in matrices if m is not None]
        same = [m for m in matrices if m is not None and (m.factors, m.parts, list(m.scores)) == kinds[0]]
        if len(same) < 2:
            continue
        count = f"{len(same)} seeds" if len(same) == len(group.runs) else f"{len(same)} of {len(group.runs)} seeds"
        tree = found[0][1]
        title = f"mean of {count} · step {tree['step']:,} · {options_text(tree)}"

        def make(same=same, split=split, title=title) -> dict[str, str]:
            return factor_dict(title, pooled(same), split)

        means.append(safely(group.first.problems, "The mean factor matrix", make))
    return list(filter(None, means))


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denoised_mdp.analysis.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
