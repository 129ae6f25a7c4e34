"""The probe contract: what one file declares to become ``denoised-mdp probe NAME`` and a section of the report.

Nothing here needs PyTorch. A probe imports what it needs inside `run` and `report`, so that ``--help`` is instant.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denoised_mdp.options import CHECKPOINT, DEVICE, option

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""column headings, and rows"""
TRAIN_OR_TEST = "background clips: those of training, or held-out ones"
CLIPS = {
    "train": "clips of training",
    "test": "unseen clips",
    "across": "fitted on clips of training, tested on unseen ones",
}
"""split of the clips -> its name in titles"""


@dataclass
class Options:
    """Options that all probes of runs share. A probe adds its own as fields, and each field defines its flag."""

    output: Path | None = option(None, "default: RUN/probes, and ./probes for means over runs", metavar="FOLDER")
    checkpoint: str | None = option(None, "a step, or best", unset="the newest", pattern=CHECKPOINT, metavar="STEP")
    device: str = option("auto", "auto, cpu, cuda or cuda:N", pattern=DEVICE)

    def measured(self) -> dict[str, Any]:
        """The options that determine a result's numbers, as its file stores them."""
        return {name: value for name, value in vars(self).items() if name not in vars(Options())}

    def variant(self) -> str:
        """The part of a result's name for its clip split and non-default options: ``train_episodes4_steps40``."""
        usual, own = vars(type(self)()), self.measured()
        words = [own.pop("split")] if "split" in own else []
        words += [f"{name}{value}" for name, value in own.items() if value != usual[name]]
        text = "_".join(words)
        name = re.sub(r"[^\w.+-]", "-", text)  # it becomes part of a file name
        return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"  # keeps altered names distinct


@dataclass
class EpisodeOptions(Options):
    """Options of a probe that plays its own episodes."""

    episodes: int = option(12, "held-out episodes", low=1)
    steps: int = option(150, "actions per episode", low=1)
    split: str = option("train", TRAIN_OR_TEST, choices=("train", "test"))


def behaviour() -> Any:
    """Declare the option that says who acts."""
    help = "who acts: the agent with its exploration noise, random actions (the same for all runs), or each in turn"
    return option("mixed", help, choices=("mixed", "random", "agent"))


@dataclass(frozen=True)
class Section:
    """What the report shows of one result. Text is plain; the report escapes it."""

    text: Sequence[str] = ()
    pictures: Sequence[str] = ()
    """data URIs, from `report.plots.svg_uri` or `report.parts.picture_uri`"""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()
    folded: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    """title -> a table that opens on a click"""


@dataclass(frozen=True)
class Probe:
    """A sub-command of ``denoised-mdp probe``."""

    help: str
    """one line without a full stop"""
    run: Callable[[Sequence[Any], Any], list[str]]
    """(folders of runs, `Options`) -> lines to print. All runs come at once: a probe may compare them."""
    Options: type = Options
    """a dataclass of `option`s"""
    more: str = ""
    """a sentence that follows `help` in the probe's own help"""
    examples: Sequence[str] = ()
    report: Callable[[Mapping[str, Any]], Section] | None = None
    """one JSON result -> its section; without it, the report shows the result's plain numbers and pictures"""
    title: str = ""
    """heading in the report; by default the name"""
    keyed: bool = False
    """whether it takes a run, or ``key=value`` as for train, instead of runs"""
