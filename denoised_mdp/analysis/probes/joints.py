"""``denoised-mdp probe joints``: how many labels does an encoder need? See `analysis.joints.probe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from denoised_mdp.analysis import probe
from denoised_mdp.errors import UserError
from denoised_mdp.options import option


@dataclass
class Options(probe.Options):
    """Options of ``probe joints``."""

    output: Path | None = option(None, "default: probes, and RUN/probes of each run", metavar="FOLDER")
    data: Path | None = option(None, "data set made by probe joints-data (required)", metavar="FOLDER", required=True)
    sizes: str = option(
        "paper",
        "training pairs: paper (5,000 to 150,000), scaled (all of the data set, and fewer in the paper's ratios), or"
        " numbers such as 500,1000",
    )
    test_pairs: int | None = option(None, "default: 100,000, or all of the data set if it has fewer", low=1)
    stack: str = option("1", "frames whose features are joined", choices=("1", "3", "both"))
    seeds: int = option(1, "repetitions", low=1)
    updates: int = option(10_000, "updates of each finetuning", low=1)
    batch: int = option(256, "pairs per update", low=1)
    evaluations: int = option(20, "points of each curve", low=1)
    scale: str = option(
        "physical",
        "unit of the loss: rad and m (physical), or each position's standard deviation",
        choices=("physical", "standard"),
    )
    references: str = option(
        "both", "encoders without a world model to compare with", choices=("both", "scratch", "contrastive", "none")
    )
    contrastive_updates: int = option(20_000, "updates of the contrastive encoder", low=1)
    contrastive_batch: int = option(256, "pictures per update of the contrastive encoder", low=2)
    flip: bool = option(False, "let the contrastive encoder ignore left and right, where both are alike")


def run(runs: Sequence[Path], options: Options) -> list[str]:
    """Finetune the encoders of all runs, and compare them."""
    sizes = _sizes(options.sizes)
    from denoised_mdp.analysis.joints.probe import probe_joints

    return probe_joints(runs, options, sizes)


def _sizes(text: str) -> str | list[int]:
    if text in ("paper", "scaled"):
        return text
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"argument --sizes: must be paper, scaled or numbers as 500,1000, not '{text}'.")
    return [int(part) for part in parts]


PROBE = probe.Probe(
    "finetune encoders to read joint positions from pictures, and compare them",
    run,
    Options,
    more="Finished finetunings are kept in --output: repeat the command to resume.",
    examples=("denoised-mdp probe joints-data runs/a", "denoised-mdp probe joints runs/a --data data/joints-..."),
    title="Joint positions",
)
