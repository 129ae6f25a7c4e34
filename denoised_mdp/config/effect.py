"""Options that a command line gives and a run does not use."""

from __future__ import annotations

from collections.abc import Sequence

from denoised_mdp.config.overrides import split
from denoised_mdp.config.schema import Config


def without_effect(config: Config, overrides: Sequence[str]) -> list[str]:
    """One line for each option of `overrides`, words ``key=value``, that changes nothing in this run, with the reason.

    A preset or a sweep may set such options for all its methods alike, so they are no mistake.
    """
    reasons = _reasons(config)
    given = dict(split(word) for word in overrides)
    return [f"{key}={value} changes nothing: {reasons[key]}." for key, value in given.items() if key in reasons]


def _reasons(config: Config) -> dict[str, str]:
    """The options that this run does not use, and why not."""
    if not config.agent.has_model:  # options of a model are refused there
        rows = config.batch_spec.segment_length
        return {"train.segment_length": f"agent={config.agent.name} learns from segments of {rows} rows"}
    model, late = config.model, (getattr(config.policy, name, 1) for name in ("late_lr", "late_imagined_value"))
    reasons = {f"model.{key}": f"model={model.name} does not use it" for key in model.UNUSED}
    if all(row.free for row in model.latents.values()):
        reasons.setdefault("model.kl.beta", f"no latent of model={model.name} is noise")
    if model.kl.relax == 1:
        reasons.setdefault("model.kl.relax_after", "model.kl.relax is 1")
    if all(factor == 1 for factor in late):
        reasons["policy.late_after"] = "policy.late_lr is 1, and so is policy.late_imagined_value"
    return reasons
