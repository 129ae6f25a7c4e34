"""``denoised-mdp probe joints-data``: the labelled pictures for ``probe joints``, see `analysis.joints.record`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from denoised_mdp.analysis.probe import Probe
from denoised_mdp.options import option


@dataclass
class Options:
    """Options of ``probe joints-data``."""

    output: Path | None = option(None, "default: data/joints-TASK-DISTRACTORS", metavar="FOLDER")
    episodes: int = option(100, "episodes of each of the five policies", low=1)
    frames: int = option(1001, "frames of each episode", low=2)
    test_share: float = option(0.4, "share of the episodes for testing", above=0, below=1, metavar="SHARE")
    sac_steps: int = option(200_000, "actions that the state-space policy learns from, in four stages", low=100)
    seed: int = option(0, "seed of the policies and episodes", low=0)


def run(source: Sequence[str], options: Options) -> list[str]:
    """Make the data set of a run's environment, or of one described by ``key=value``."""
    from denoised_mdp.analysis.joints.record import make_data

    return make_data(source, options)


PROBE = Probe(
    "make the labelled pictures for probe joints",
    run,
    Options,
    more="Five policies of different quality play. Repeat the command to resume.",
    examples=("denoised-mdp probe joints-data runs/a", "denoised-mdp probe joints-data env.task=walker_walk"),
    keyed=True,
)
