"""Options that a command line gives and a run does not use."""

from __future__ import annotations

from collections.abc import Sequence

from denoised_mdp.config.models import ModelConfig
from denoised_mdp.config.overrides import run_and_options, split
from denoised_mdp.config.policies import BackpropConfig, ReinforceConfig, SACConfig
from denoised_mdp.config.schema import Config
from denoised_mdp.config.training import TrainConfig
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES


def without_effect(config: Config, overrides: Sequence[str]) -> list[str]:
    """One line for each option of `overrides`, see `load_config`, that changes nothing in this run, with the reason.

    A preset or a sweep may set such options for all its methods alike, so they are no mistake.
    """
    reasons = unused(config)
    given = dict(split(word) for word in run_and_options(overrides)[1])
    return [f"{key}={value} changes nothing{reasons[key]}." for key, value in given.items() if key in reasons]


def unused(config: Config) -> dict[str, str]:
    """The options that this run does not use, or not all of their value, and why not: what ends "changes nothing"."""
    if config.agent.has_model:  # else options of a model are refused
        reasons = _of_the_policy(config.policy) | _of_the_model(config.model)
    else:
        rows = config.batch_spec.segment_length
        reasons = {"train.segment_length": f"agent={config.agent.name} learns from segments of {rows} rows"}
    reasons |= _of_the_environment(config) | _of_training(config.train)
    return _beyond(config.train) | {key: f": {why}" for key, why in reasons.items()}


def _of_the_environment(config: Config) -> dict[str, str]:
    suite, distractors = config.env.suite, config.distractors
    reasons = {
        f"env.{name}": f"env={suite} does not take it"
        for name in ("camera", "quality")
        if name not in SUITES[suite].takes
    }
    if not any(DISTRACTORS[name].shows_clips for name in distractors):
        reasons["env.clips"] = "no chosen distractor shows clips"
    if not distractors.get("video_background", {}).get("dynamic", True):
        reasons["distractors.video_background.start"] = "the place of a still picture (dynamic=false) is always drawn"
    return reasons


def _of_training(train: TrainConfig) -> dict[str, str]:
    reasons = {}
    if train.eval_every == 0:
        reasons |= dict.fromkeys(("train.eval_episodes", "train.eval_workers"), "train.eval_every is 0")
    if train.cuda_graph and train.device == "cpu":
        reasons["train.cuda_graph"] = "train.device is cpu"
    return reasons


def _beyond(train: TrainConfig) -> dict[str, str]:
    """More processes than environments to run in them."""
    reasons = {}
    for key, limit in (("collect_workers", "collect_envs"), ("eval_workers", "eval_episodes")):
        if getattr(train, key) > (most := getattr(train, limit)):
            reasons[f"train.{key}"] = f" beyond {most}: train.{limit} is {most}"
    return reasons


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
    if not noise and model.kl.free_nats_strategy == "B":
        reasons["model.kl.free_nats_strategy"] = f"without a latent that is noise, as in model={model.name}, B is A"
    if len(noise) == len(rows):
        for key in ("free_nats", "free_nats_strategy"):
            reasons[f"model.kl.{key}"] = f"no latent of model={model.name} is signal (free)"
    if model.kl.relax == 1:
        reasons["model.kl.relax_after"] = "model.kl.relax is 1"
    return reasons | {f"model.{key}": f"model={model.name} does not use it" for key in model.UNUSED}
