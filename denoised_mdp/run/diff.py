"""Whether two runs are bit-identical, and if not, where they first differ.

Compares the logs, the rows of the replay, and every value of a checkpoint except those in `APART`. Metrics that measure
time (`logger.is_wall_clock`) are ignored. Configurations may differ: one use is to compare settings that should not
matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denoised_mdp.errors import UserError, one_line
from denoised_mdp.files import json_lines
from denoised_mdp.replay.ring import Replay
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.event_files import event_files, event_records
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.logger import is_wall_clock
from denoised_mdp.run.state import load_state

ROWS = 256  # rows of the replay compared at a time

PARTS = {
    "weights": ("agent/weights/",),
    "optimizer": ("agent/optimizers/",),
    "replay": (),
    "generators": ("agent/random", "random", "collector/random", "collector/exploration"),
    "environment": ("collector/environments",),
    "progress": ("",),
}
"""part of a checkpoint -> prefixes of its leaves' names. The replay is compared row by row. The rest is progress"""
APART = ("config", "log", "precision", "replay")
"""not compared leaf by leaf: settings may differ, and logs and rows have their own comparison"""


@dataclass
class Verdict:
    """The result for one part of two runs: how much was compared, and the first difference (None: identical)."""

    part: str
    amount: str
    difference: str | None = None

    def __str__(self) -> str:
        result = f"different: {self.difference}" if self.difference else f"identical ({self.amount})"
        return f"{self.part:12} {result}"


def compare(first: Path | str, second: Path | str, *, checkpoint: int | None = None) -> list[Verdict]:
    """Compare two run folders, at the checkpoint of step `checkpoint` (default: the newest of each).

    Returns one verdict per part, in the order metrics, TensorBoard, weights, optimizer, replay, generators,
    environment, progress. With `checkpoint`, metrics are compared up to that step.

    Raises:
        UserError: a folder is not a run, or the checkpoint is missing or damaged.
    """
    runs = [RunFolder.existing(path) for path in (first, second)]
    for run in runs:
        if run.exported:
            raise UserError(f"{run.path} is an exported agent, which has weights alone: compare two runs.")
    if isinstance(checkpoint, str):
        raise UserError(f"checkpoint={checkpoint!r}: must be a step, a whole number: both runs are compared there.")
    loaded = [load_state(run, checkpoint) for run in runs]
    verdicts = [_metrics(runs, checkpoint), _tensorboard(runs, checkpoint)]
    if loaded[0][0] != loaded[1][0]:
        steps = " and ".join(f"{step:,}" for step, _ in loaded)
        return [*verdicts, Verdict("checkpoints", "", f"the newest are of steps {steps}; choose one with --checkpoint")]
    trees = [tree for _, tree in loaded]
    leaves = [_by_part(tree) for tree in trees]
    return verdicts + [
        _replay(runs, trees) if part == "replay" else _part(part, [parts[part] for parts in leaves]) for part in PARTS
    ]


def _metrics(runs: list[RunFolder], last: int | None) -> Verdict:
    """Compare metrics.jsonl, line by line and name by name."""
    logs = []
    for run in runs:
        try:
            rows = [row for _, row in json_lines(run.metrics)]
        except OSError as error:
            raise UserError(f"{run.metrics} cannot be read ({error.strerror}).") from error
        if not all(row is not None and isinstance(row.get("step"), int) for row in rows):
            raise UserError(f"{run.metrics} is damaged; resume the run to repair it.")
        logs.append([row for row in rows if last is None or row["step"] <= last])
    verdict = Verdict("metrics", f"{len(logs[0]):,} lines")
    for number, (a, b) in enumerate(zip(*logs, strict=False), 1):
        a, b = ({name: value for name, value in line.items() if not is_wall_clock(name)} for line in (a, b))
        if a != b:
            name = next(name for name in [*a, *b] if name not in a or name not in b or a[name] != b[name])
            values = " and ".join(str(line.get(name, "absent")) for line in (a, b))
            verdict.difference = f"{name} in line {number:,}, step {a['step']:,}: {values}"
            return verdict
    if len(logs[0]) != len(logs[1]):
        verdict.difference = f"{len(logs[0]):,} and {len(logs[1]):,} lines, equal as far as both go"
    return verdict


def _tensorboard(runs: list[RunFolder], last: int | None) -> Verdict:
    """Compare the scalars in TensorBoard's files: names, steps and values, in order."""
    found = []
    for run in runs:
        scalars = scalars_of(run.tensorboard)
        found.append([s for s in scalars if not is_wall_clock(s[1]) and (last is None or s[0] <= last)])
    verdict = Verdict("tensorboard", f"{len(found[0]):,} scalars")
    for a, b in zip(*found, strict=False):
        if a != b and not (a[:2] == b[:2] and a[2] != a[2] and b[2] != b[2]):
            verdict.difference = " and ".join(f"{name} = {value} at step {step:,}" for step, name, value in (a, b))
            return verdict
    if len(found[0]) != len(found[1]):
        verdict.difference = f"{len(found[0]):,} and {len(found[1]):,} scalars, equal as far as both go"
    return verdict


def scalars_of(folder: Path) -> list[tuple[int, str, float]]:
    """Return (step, name, value) of every scalar in TensorBoard's files, sorted by step and name, duplicates included.

    Raises:
        UserError: a file cannot be read, or a record in it is not whole.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    out = []
    for path in event_files(folder):
        try:
            for record in event_records(path):
                event = Event.FromString(record)
                scalars = [value for value in event.summary.value if value.HasField("simple_value")]
                out += [(event.step, value.tag, value.simple_value) for value in scalars]
        except (OSError, ValueError, DecodeError) as error:
            raise UserError(f"{path} is damaged ({error}); resume the run to repair a torn end.") from error
    return sorted(out, key=lambda scalar: scalar[:2])


def _by_part(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {part: {name: leaf}} of a checkpoint; a leaf goes to the first of `PARTS` whose prefix fits its name."""
    found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for name, leaf in checkpoints.leaves({key: value for key, value in tree.items() if key not in APART}):
        found[next(part for part, begins in PARTS.items() if name.startswith(begins))][name] = leaf
    return found


def _part(part: str, leaves: list[dict[str, Any]]) -> Verdict:
    """Compare one part of two checkpoints, leaf by leaf."""
    verdict = Verdict(part, f"{len(leaves[0]):,} values")
    for name in dict.fromkeys([*leaves[0], *leaves[1]]):
        if name not in leaves[0] or name not in leaves[1]:
            verdict.difference = f"{name} is only in the {'first' if name in leaves[0] else 'second'} run"
        else:
            verdict.difference = _difference(name, leaves[0][name], leaves[1][name])
        if verdict.difference:
            break
    return verdict


def _difference(name: str, a: Any, b: Any) -> str | None:
    """Describe the first difference between two leaves, compared bit by bit."""
    if isinstance(a, torch.Tensor | np.ndarray) and isinstance(b, torch.Tensor | np.ndarray):
        a, b = (torch.as_tensor(value).contiguous() for value in (a, b))
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
        unequal = (_bytes(a) != _bytes(b)).any(-1) if a.numel() else torch.zeros(0, dtype=torch.bool)
        if not unequal.any():
            return None
        flat = int(unequal.nonzero()[0])
        place = list(map(int, np.unravel_index(flat, a.shape))) if a.ndim else ""
        values = " and ".join(str(value.flatten()[flat].item()) for value in (a, b))
        return f"{name}{place}: {values} ({int(unequal.sum()):,} of {a.numel():,} elements differ)"
    same = type(a) is type(b) and (a == b or a != a and b != b)
    return None if same else f"{name}: {_shown(a)} and {_shown(b)}"


def _shown(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor | np.ndarray) else one_line(leaf, 200)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8 [elements, bytes]."""
    return tensor.flatten().view(torch.uint8).view(tensor.numel(), -1)


def _replay(runs: list[RunFolder], trees: list[dict[str, Any]]) -> Verdict:
    """Compare the rows that both checkpoints count, wherever they lie in the files."""
    replays = [Rings.open(run.replay, tree["replay"], read_only=True) for run, tree in zip(runs, trees, strict=True)]
    try:
        verdict = Verdict("replay", f"{len(replays[0]):,} rows")
        if len(replays[0].rings) != len(replays[1].rings):
            verdict.difference = " and ".join(f"{len(replay.rings)} environments" for replay in replays)
            return verdict
        for number, rings in enumerate(zip(*(replay.rings for replay in replays), strict=True)):
            verdict.difference = _ring(*rings)
            if verdict.difference:
                where = f"environment {number}, " if len(replays[0].rings) > 1 else ""
                verdict.difference = where + verdict.difference
                break
        return verdict
    finally:
        for replay in replays:
            replay.close()


def _ring(first: Replay, second: Replay) -> str | None:
    """Describe the first row in which two replays differ."""
    spans = [(replay.total - len(replay), replay.total) for replay in (first, second)]
    if spans[0] != spans[1]:
        return " and ".join(f"rows {begin:,} to {end - 1:,}" for begin, end in spans)
    for begin in range(*spans[0], ROWS):
        rows = np.arange(begin, min(begin + ROWS, spans[0][1]))
        a, b = first.read(rows), second.read(rows)
        for i, row in enumerate(rows):
            for name in a:
                if a[name][i].tobytes() != b[name][i].tobytes():
                    return f"row {row:,}, {_difference(name, np.asarray(a[name][i]), np.asarray(b[name][i]))}"
    return None


def report(verdicts: list[Verdict]) -> bool:
    """Print one line per verdict and a summary; return whether all are identical."""
    for verdict in verdicts:
        print(verdict)
    parts = [verdict.part for verdict in verdicts if verdict.difference]
    print(f"different: first in {parts[0]}" if parts else "identical")
    return not parts
