"""A run's state in a checkpoint, checked before use, since anybody may have written it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from denoised_mdp.errors import UserError, one_line
from denoised_mdp.files import json_lines
from denoised_mdp.options import BEST, CHECKPOINT, LARGEST
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.folder import RunFolder


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_positive(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_none(value: Any) -> bool:
    return value is None


def _is_any(value: Any) -> bool:
    return True


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_mean(value: Any) -> bool:
    """The sum of a metric and the number of updates in it."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and _is_positive(value[1])
        and (_is_number(value[0]) or _is_tensor(value[0]) and value[0].numel() == 1)
    )


def _is_replay(value: Any) -> bool:
    """One ring. Its numbers must agree, since they decide where files are read and written."""
    if next(_misfits(value, _RING, ""), None):
        return False
    sample, total, oldest = value.get("sample", []), value["total"], value["oldest"]
    if next(_misfits(sample, [[_is_whole]], ""), None):
        return False
    return total - value["places"] <= oldest <= total and all(len(one) == 2 and one[0] < total for one in sample)


_RING = {name: _is_positive for name in ("capacity", "places", "action_size")}
_RING |= {"slack": _is_whole, "total": _is_whole, "oldest": _is_whole, "observation_shape": [_is_positive]}

STATE = {
    "action_size": _is_positive,
    "discrete": lambda value: isinstance(value, bool),
    "can_terminate": lambda value: isinstance(value, bool),
    "precision": lambda value: isinstance(value, str),
    "counters": {"step": _is_whole, "step_before": _is_whole, "updates": _is_whole},
    "episode_return": [_is_number],
    "last_return": (_is_none, _is_number),
    "block": _is_any,
    "collector": {
        "step": _is_whole,
        "observations": [_is_any],
        "carry": (_is_none, {str: _is_tensor}),
        "random": [_is_any],
        "exploration": [_is_any],
        "environments": (_is_none, [_is_any]),
    },
    "window": {str: _is_mean},
    "agent": {"weights": {str: _is_tensor}, "optimizers": {str: {}}, "random": _is_any},
    "config": {},
    "pending": [lambda value: isinstance(value, str)],
    "replay": (_is_replay, {"rings": [_is_replay]}),
    "latents": (_is_none, {"ring": _is_tensor, "row": _is_tensor, "value": _is_tensor}),
    "random": _is_any,
    "log": {"lines": _is_whole, "events": {str: _is_whole}},
}
"""The kind of each value in a run's state: a function that recognizes it; a mapping (these keys at least; `str` is any
key); a list of items of one kind; a tuple of alternatives."""

AGENT_PARTS = ("action_size", "discrete", "can_terminate", "agent", "config")
"""keys of `STATE` that an agent is built from"""


def load_state(
    run: RunFolder,
    step: int | str | None = None,
    parts: Collection[str] = tuple(STATE),
    accept: Callable[[dict[str, Any]], str | None] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return step and state of a run's newest whole checkpoint, or of the checkpoint or snapshot of `step`.

    step: a number, possibly as text; or "best", see `best_step`. parts: keys of `STATE` to be used, which are checked.

    Raises:
        UserError: see `checkpoint.load` and `best_step`; or the checkpoint does not hold a run's state.
    """
    if isinstance(step, np.integer):
        step = int(step)
    if isinstance(step, str) and re.fullmatch(CHECKPOINT, step):
        step = best_step(run) if step == BEST else int(step)

    def checked(state: Any) -> str | None:
        misfit = next(_misfits(state, {name: STATE[name] for name in parts}, "state"), None)
        if misfit:
            raise UserError(
                f"A checkpoint in {run.checkpoints} does not hold what a run has: {misfit}. Restore the run folder from"
                " a copy, or start in a new run_dir."
            )
        return accept(state) if accept else None

    weights = set(parts) <= set(AGENT_PARTS)  # snapshots hold only these
    return checkpoints.load(run.checkpoints, step, accept=checked, also=run.snapshots if weights else None)


def evaluations(run: RunFolder) -> list[dict[str, Any]]:
    """Return the evaluations in a run's log: rows with a step and a finite ``eval/return``; none without a log.

    Raises:
        UserError: the log cannot be read.
    """

    def told(row: dict[str, Any]) -> bool:
        value = row.get("eval/return")
        return type(row.get("step")) is int and type(value) in (int, float) and math.isfinite(value)

    try:
        return [row for _, row in json_lines(run.metrics) if row and told(row)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{run.metrics} cannot be read ({error.strerror}). Choose a step with --checkpoint.") from error


def evaluated_episodes(run: RunFolder, episodes: int) -> int:
    """The largest number of episodes in any evaluation of a run; these episodes may have chosen its best weights.

    episodes: the number in the current configuration. The run may have been continued with another one.
    """
    return max([episodes, *map(_episodes, evaluations(run))])


def _episodes(row: Mapping[str, Any]) -> int:
    """The number of episodes that an evaluation played; 0 if the log does not say, as in earlier versions."""
    count = row.get("eval/episodes")
    return int(count) if type(count) in (int, float) and math.isfinite(count) else 0


def choosing_episodes(run: RunFolder, episodes: int, checkpoint: int | str | None) -> int:
    """How many of the first held-out episodes may have chosen these weights; 0 unless "best" or an exported agent's.

    episodes: see `evaluated_episodes`. checkpoint: a step, "best", or None for the newest.
    """
    return evaluated_episodes(run, episodes) if checkpoint == BEST or run.exported else 0


def best_step(run: RunFolder, until: float = math.inf) -> int:
    """The step with the highest evaluation return in training, among those with weights on disk; of ties, the last.

    If a run was continued with another ``train.eval_episodes``, evaluations of fewer episodes than the most do not
    count: theirs may be the easy ones. An exported agent has one step, which its run's evaluations may have chosen.

    until: the last step to consider.

    Raises:
        UserError: there is no such step.
    """
    if run.exported and (steps := checkpoints.list_steps(run.checkpoints)):
        return steps[-1]
    rows = {row["step"]: row for row in evaluations(run) if row["step"] <= until}
    logged = {step: row["eval/return"] for step, row in rows.items()}
    kept = checkpoints.list_steps(run.checkpoints)
    stored = {*checkpoints.list_steps(run.snapshots)}
    stored |= {step for step in kept if step in rows and _as_evaluated(run, rows[step])}
    most = max((_episodes(row) for step, row in rows.items() if step in stored), default=0)
    fewer = {step for step, row in rows.items() if 0 < _episodes(row) < most}
    returns = {step: value for step, value in logged.items() if step in stored - fewer}
    if not returns:
        raise UserError(
            f"{run.path} has no checkpoint or snapshot of a step at which it was evaluated. Choose a step with"
            " --checkpoint, or train with train.snapshot_every as train.eval_every."
        )
    best = max(returns, key=lambda step: (returns[step], step))
    higher = {step for step, value in logged.items() if value > returns[best]}
    if few := higher & fewer:
        warnings.warn(
            f"{run.path}: evaluations of fewer than {most} episodes do not count for the best step; they returned up to"
            f" {max(logged[step] for step in few):.1f}, that of step {best:,} {returns[best]:.1f}.",
            stacklevel=2,
        )
    if lost := higher - fewer:
        warnings.warn(
            f"{run.path}: step {best:,} returned most of the evaluated steps whose weights are on disk"
            f" ({returns[best]:.1f}); others returned up to {max(logged[step] for step in lost):.1f}. With"
            " train.snapshot_every as train.eval_every, a run keeps them all.",
            stacklevel=2,
        )
    return best


def _as_evaluated(run: RunFolder, row: Mapping[str, Any]) -> bool:
    """Whether the checkpoint of an evaluation's step has the weights that were evaluated.

    It does not if a run that ended there was extended and stopped in its next updates: that replaced the checkpoint.
    """
    counted = checkpoints.plain_values(run.checkpoints, row["step"]).get("counters")
    known = isinstance(counted, dict) and "updates" in counted and "eval/updates" in row  # unknown in earlier versions
    return not known or counted["updates"] == row["eval/updates"]


def refuse_nonfinite(run: RunFolder, step: int, tree: Any) -> None:
    """Raise UserError if a tensor or number in a part of the checkpoint of `step` is nan or infinite."""
    for name, leaf in checkpoints.leaves(tree):
        finite = leaf.isfinite().all() if _is_tensor(leaf) else not isinstance(leaf, float) or math.isfinite(leaf)
        if not finite:
            raise UserError(
                f"The checkpoint of step {step:,} in {run.checkpoints} has values that are not finite, in {name}."
                " Restore it from a copy, or delete it to use the one before."
            )


def _misfits(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Describe each part of `value` that is not of its kind."""
    if isinstance(kind, tuple):
        found = [list(_misfits(value, one, path)) for one in kind]
        yield from [] if [] in found else found[-1][:1]
    elif isinstance(kind, dict) and isinstance(value, dict):
        for key, inner in kind.items():
            if key is str:
                for name, item in value.items():
                    yield from _misfits(item, inner, f"{path}/{name}")
            elif key not in value:
                yield f"{path} lacks {key}"
            else:
                yield from _misfits(value[key], inner, f"{path}/{key}")
    elif isinstance(kind, list) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _misfits(item, kind[0], f"{path}/{number}")
    elif isinstance(kind, dict | list) or not kind(value):
        yield f"{one_line(path, 100)} is {one_line(repr(value), 60)}"
