"""Options that a command line gives and a run does not use."""

from __future__ import annotations

from collections.abc import Sequence

from denoised_mdp.config.models import ModelConfig
from denoised_mdp.config.overrides import split
from denoised_mdp.config.policies import BackpropConfig, ReinforceConfig, SACConfig
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
    return _of_the_policy(config.policy) | _of_the_model(config.model)


def _of_the_policy(policy: BackpropConfig | ReinforceConfig | SACConfig) -> dict[str, str]:
    reasons, late = {}, {name: getattr(policy, name, 1) for name in ("late_lr", "late_imagined_value")}
    if getattr(policy, "imagined_value", 1) == 0:
        reasons["policy.late_imagined_value"] = "policy.imagined_value is 0"
        del late["late_imagined_value"]
    if all(factor == 1 for factor in late.values()):
        reasons["policy.late_after"] = " and ".join(f"policy.{name} is 1" for name in late)
    return reasons


def _of_the_model(model: ModelConfig) -> dict[str, str]:
    rows = model.latents.values()
    noise = [row for row in rows if not row.free]
    reasons = {
        f"model.{row.name}.classes": f"model.{row.name}.distribution is {row.distribution}"
        for row in rows
        if row.distribution != "categorical"
    }
    if model.core == "gru":
        reasons["model.width"] = "model.core is gru"
    if not any(row.beta == model.kl.beta for row in noise):
        why = "each latent that is noise has its own beta" if noise else f"no latent of model={model.name} is noise"
        reasons["model.kl.beta"] = why
    if len(noise) == len(rows):
        for key in ("free_nats", "free_nats_strategy"):
            reasons[f"model.kl.{key}"] = f"no latent of model={model.name} is signal (free)"
    if model.kl.relax == 1:
        reasons["model.kl.relax_after"] = "model.kl.relax is 1"
    return reasons | {f"model.{key}": f"model={model.name} does not use it" for key in model.UNUSED}
