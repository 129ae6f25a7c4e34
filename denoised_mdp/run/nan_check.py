"""Detects non-finite values within a few updates, without stalling the device, and saves the batch that led to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.folder import RunFolder

LAG = 2  # updates that may be unchecked; their batches stay in memory
LARGEST = float(np.finfo(np.float32).max)
SMALLER = "Smaller learning rates, or train.precision=float32, may help."


def scalars(metrics: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """The metrics of one update as detached scalar tensors.

    Raises:
        UserError: one has several elements.
    """
    found = {name: torch.as_tensor(value).detach() for name, value in metrics.items()}
    for name, value in found.items():
        if value.numel() != 1:
            raise UserError(f"Metric {name!r} has shape {list(value.shape)}: a metric is one number.")
    return {name: value.reshape(()) for name, value in found.items()}


class NonFiniteError(UserError):
    """A loss, gradient, weight or reward is nan or infinite; the run must stop.

    run: the folder whose newest checkpoint the message names.
    """

    def __init__(self, text: str, run: RunFolder, advice: str = SMALLER):
        steps = checkpoints.list_steps(run.checkpoints)
        kept = f"The checkpoint of step {steps[-1]:,} is intact" if steps else "No checkpoint had been due yet"
        super().__init__(f"{text}. {kept}. {advice}")

    exit_code = 3


@dataclass
class Update:
    """The record of one update: its number, batch and metrics."""

    step: int
    number: int
    batch: Mapping[str, Any]
    names: list[str]
    values: Tensor
    """the metrics in the order of `names`, [n]"""
    finite: Tensor
    """whether all are finite: a bool scalar on the host, valid once `ready`"""
    ready: torch.cuda.Event | None
    """None if nothing is asynchronous"""


class NanCheck:
    """Checks the metrics of every update, which include all loss terms and gradient norms.

    One flag per update is computed on the device and copied to the host asynchronously. `check` reads the flags that
    have arrived, and waits only for updates more than `LAG` updates old, so the device never idles.

    run: the batch of a failed update is written into its folder, as ``diagnostics/update_000000123.npz``.
    """

    def __init__(self, run: RunFolder):
        self.run = run
        self._pending: deque[Update] = deque()

    def add(self, step: int, number: int, batch: Mapping[str, Any], metrics: Mapping[str, Tensor]) -> None:
        """Queue update `number` after `step` environment steps: its batch (the replay's arrays) and scalar metrics."""
        if not metrics:  # nothing was learned
            return
        device = next((value.device for value in metrics.values() if value.is_cuda), "cpu")
        values = torch.stack([value.float().to(device) for value in metrics.values()])
        finite, ready = values.isfinite().all(), None
        if finite.is_cuda:
            host = torch.empty((), dtype=torch.bool, pin_memory=True)
            finite = host.copy_(finite, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        self._pending.append(Update(step, number, batch, list(metrics), values, finite, ready))

    def check(self, wait: bool = False) -> None:
        """Check the queued updates whose flags have arrived; with `wait`, all of them.

        Raises:
            NonFiniteError: a metric is nan or infinite; the message names it, and the file with its batch.
        """
        while self._pending:
            update = self._pending[0]
            if update.ready is not None and not update.ready.query():
                if not wait and len(self._pending) <= LAG:
                    return
                update.ready.synchronize()
            if not update.finite:
                self._pending.clear()
                self._fail(update)
            self._pending.popleft()

    def _fail(self, update: Update) -> None:
        bad = {
            name: value
            for name, value in zip(update.names, update.values.tolist(), strict=True)
            if not np.isfinite(value)
        }
        # A term that failed says more than the total loss.
        terms = sorted(bad, key=lambda name: name.rpartition("/")[2] == "loss")
        batch = {name: torch.as_tensor(value).cpu().numpy() for name, value in update.batch.items()}
        dirty = [name for name, value in batch.items() if not np.isfinite(value).all()]
        text = f"Update {update.number:,} at step {update.step:,}: {terms[0]} is {bad[terms[0]]}"
        text += f" (and {len(terms) - 1} more: {', '.join(terms[1:4])})" if len(terms) > 1 else ""
        text += f"; so is the batch's {' and '.join(dirty)}" if dirty else ""
        path = self.run.diagnostics / f"update_{update.number:09d}.npz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **batch, metric_names=np.array(update.names), metric_values=update.values.cpu().numpy())
            text += f". Its batch is in {path}"
        except OSError as error:
            text += f". Its batch could not be written to {path} ({error.strerror})"
        raise NonFiniteError(text, self.run)

    def check_weights(self, step: int, tree: Any) -> None:
        """Raise NonFiniteError naming the first tensor in nested dicts, lists and tuples that is not finite."""
        leaves = checkpoints.leaves(tree)
        tensors = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        devices: dict[torch.device, list[str]] = {}
        for name, tensor in tensors.items():
            devices.setdefault(tensor.device, []).append(name)
        for names in devices.values():  # one wait per device
            finite = torch.stack([tensors[name].isfinite().all() for name in names]).tolist()
            for name, good in zip(names, finite, strict=True):
                if not good:
                    raise NonFiniteError(f"At step {step:,} {name} has values that are not finite", self.run)

    def check_reward(self, step: int, reward: float) -> None:
        """Raise NonFiniteError if the environment's reward is not finite as float32, which the replay stores."""
        if not abs(reward) <= LARGEST:  # nan compares as False
            text, advice = f"The environment's reward after step {step:,} is {reward}", "Mend the environment."
            raise NonFiniteError(text, self.run, advice)
