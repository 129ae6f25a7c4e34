"""When a run updates, logs, evaluates, probes, renders and saves."""

from __future__ import annotations

from collections.abc import Sequence

from denoised_mdp.config.schema import Config


class Schedule:
    """When updates and hooks are due, which the numbers of steps and updates alone decide."""

    def __init__(self, config: Config):
        train = self.train = config.train
        self.turn_steps, self.updates_due, self._times_due = config.turn_steps, config.updates_due, config.times_due
        self.every = {
            "log": train.log_every,
            "evaluate": train.eval_every,
            "probe": train.probe_every,
            "render": train.render_every,
            "snapshot": train.snapshot_every,
            "save": train.checkpoint_every,
        }

    def complete(self, step: int, updates: int, pending: Sequence[str]) -> bool:
        """Whether nothing is left to do after this many steps and updates, with these hooks still to run."""
        return step >= self.train.total_steps and not self.still_due(pending) and updates >= self.updates_due(step)

    def still_due(self, pending: Sequence[str]) -> list[str]:
        """The pending hooks that have not been switched off since."""
        return [name for name in pending if self.every.get(name, 1)]

    def hooks_due(self, before: int, step: int, updates: int) -> list[str]:
        """Names of the hooks that come due between two steps, in order; before the first update only ``save``."""
        return [name for name in self.every if self.due(name, before, step) and (updates or name == "save")]

    def due(self, name: str, before: int, step: int) -> bool:
        """Whether a hook's interval (0: never) ends after step `before` and by `step`, or the run ends at `step`."""
        every = self.every[name]
        if every == 0:
            return False
        return self._times_due(step, every) > self._times_due(before, every) or step >= self.train.total_steps
