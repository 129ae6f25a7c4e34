"""``denoised-mdp probe invariance``: distances and returns under other distractors, see `analysis.invariance`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoised_mdp.analysis.probe import EpisodeOptions, Probe, Section
from denoised_mdp.analysis.results import number, number_of, show, subjects, write_json
from denoised_mdp.options import option
from denoised_mdp.run.environments import environment_maker


@dataclass
class Options(EpisodeOptions):
    """Options of ``probe invariance``."""

    episodes: int = option(6, "held-out episodes", low=2)
    worlds: int = option(4, "seeds of the distractors", low=2)
    returns: int = option(5, "whole episodes for each return, 0: none", low=0)


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Measure what changes with the distractors alone: latents, actions, returns."""
    from denoised_mdp.analysis import invariance
    from denoised_mdp.run.load import untrained

    lines = []
    for subject in subjects(runs, options):
        stem = subject.stem("invariance", options.output, options.variant())
        config, agent = subject.config, subject.agent
        explore = config.train.exploration_noise
        make = environment_maker(config, options.split)
        grid = invariance.record_grid(make, agent, options.episodes, options.worlds, options.steps, explore)
        found = invariance.measure_invariance(agent, grid)
        before, ratio_before = invariance.action_change(untrained(agent), grid)
        del grid
        lines += [
            subject.label,
            f"  {'distance under':14s}{'other distractors':>19s}{'other states':>14s}{'ratio':>8s}{'resampling':>12s}",
        ]
        for name, d in found.parts.items():
            lines.append(f"  {name:14s}{d.other_noise:19.3f}{d.other_state:14.3f}{d.ratio:8.3f}{d.resampled:12.3f}")
        lines.append(
            f"  the policy's action changes by {found.action_change:.3f} on average (of a range of 2);"
            f" before training by {before:.3f}, ratio {ratio_before:.3f}"
        )
        tree = {name: dataclasses.asdict(d) | {"ratio": d.ratio} for name, d in found.parts.items()}
        results = invariance.returns_under(agent, config, options.returns) if options.returns else {}
        with contextlib.closing(make()) as environment:
            touching = invariance.reward_noise(environment)
        trained = results.get("as trained")
        earned = {}
        for name, result in results.items():
            change, error = invariance.paired_change(result, trained)
            earned[name] = {
                "mean": result.mean,
                "standard_error": result.standard_error,
                "change": change,
                "change_error": error,
                "returns": result.returns,
            }
            versus = "" if result is trained else f"   change {number(change, error)}"
            lines.append(f"  return, {name:34s}{number(result.mean, result.standard_error):>20s}{versus}")
        if results and touching:
            lines.append(f"  {_other_rewards(touching)}")
        measured = {
            "distances": tree,
            "seen": agent.seen,
            "action_change": found.action_change,
            "untrained": {"action_change": before, "action_ratio": ratio_before},
            "returns": earned,
            "reward_noise": touching,
        }
        about = subject.about("invariance", options.measured())
        lines.append(f"  {write_json(f'{stem}.json', about | measured)}")
    return lines


def _other_rewards(touching: Sequence[str]) -> str:
    return (
        f"The reward itself depends on {', '.join(touching)}: a return under other distractors may change although the"
        " behaviour does not."
    )


def report(tree: Mapping[str, Any]) -> Section:
    """Distances as bars and as a table, and a table of returns."""
    from denoised_mdp.analysis.report.plots import bars_plot

    columns = ("other_noise", "other_state", "ratio", "resampled")
    rows = [[name, *(show(row.get(key)) for key in columns)] for name, row in tree["distances"].items()]
    ratios = {name: number_of(row.get("ratio")) for name, row in tree["distances"].items()}
    columns = ("mean", "standard_error", "change", "change_error")
    earned = (tree.get("returns") or {}).items()
    returns = [[name, *(show(row.get(key), 1) for key in columns)] for name, row in earned]
    tables = [(["distance under", "other distractors", "other states", "ratio", "resampling"], rows)]
    if returns:
        tables.append((["return under", "mean", "standard error", "change", "its standard error"], returns))
    picture = bars_plot(ratios, "other distractors / other states")
    touching = [str(name) for name in tree.get("reward_noise") or []]
    return Section(
        text=(
            "Distance between latents when only the distractors change, relative to that between different states."
            f" For what the policy sees ({tree.get('seen', 'x')}), small is good; for the others, large is good.",
            f"The policy's action changes by {show(tree.get('action_change'))} on average (its range is 2); with"
            f" initial weights by {show(tree.get('untrained', {}).get('action_change'))}.",
            *([_other_rewards(touching)] if returns and touching else []),
        ),
        pictures=[picture] if picture else [],
        tables=tables,
    )


PROBE = Probe(
    "change the distractors and nothing else",
    run,
    Options,
    more="Shown is by how much the latents, the actions and the return change.",
    report=report,
)
