"""What a run does not use: options that its command line gives, and parts of its schedule that it never reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from denoised_mdp.config.compare import MAY_CHANGE
from denoised_mdp.config.models import ModelConfig
from denoised_mdp.config.overrides import run_and_options, split, value_of
from denoised_mdp.config.policies import OwnPolicy
from denoised_mdp.config.schema import Config
from denoised_mdp.config.training import EVALUATED_AT_ONCE, TrainConfig
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES


def notes(config: Config, overrides: Sequence[str]) -> list[str]:
    """Notes for the user who begins a run with these `overrides`: `without_effect`, then `never_reached`."""
    return [*without_effect(config, overrides), *never_reached(config)]


def never_reached(config: Config) -> list[str]:
    """One line for each part of the schedule that the last update does not reach, as in a shortened preset.

    This is no mistake: with a larger train.total_steps the same run may reach it.
    """
    total, after = config.updates_due(config.train.total_steps), config.train.policy_after
    of_run = f"this run has {total:,} updates"
    lines = []
    if after >= total:
        lines.append(f"the policy never learns: train.policy_after={after} and {of_run}.")
    if config.agent.has_model:
        kl, learned = config.model.kl, max(0, total - after)
        if isinstance(config.policy, OwnPolicy) and learned:
            lines += _never_reached_by(config.policy, learned)
        if kl.relax != 1 and kl.relax_after >= total:
            lines.append(f"model.kl.relax_after={kl.relax_after} is never reached: {of_run}.")
        if kl.warmup > total:
            lines.append(f"alpha never reaches its value: model.kl.warmup={kl.warmup} and {of_run}.")
        if (warmup := config.model.optimizer.warmup) > total:
            lines.append(
                f"the model's learning rate never reaches its value: model.optimizer.warmup={warmup} and {of_run}."
            )
    return lines


def _never_reached_by(policy: OwnPolicy, updates: int) -> list[str]:
    """The lines of `never_reached` about a policy that has this many updates."""
    lines, late = [], getattr(policy, "late_after", 0)
    if updates <= late and any(factor != 1 for factor in _late(policy).values()):
        lines.append(f"policy.late_after={late} is never reached: the policy has {updates:,} updates.")
    if policy.warmup > updates:
        lines.append(
            f"the policy's learning rate never reaches its value: policy.warmup={policy.warmup} and the policy has"
            f" {updates:,} updates."
        )
    return lines


def without_effect(config: Config, overrides: Sequence[str]) -> list[str]:
    """One line for each option of `overrides`, see `load_config`, that changes nothing in this run, with the reason.

    A preset or a sweep may set such options for all its methods alike, so they are no mistake. A run that
    continues refuses most changes itself; these get no line here.
    """
    run, options = run_and_options(overrides)
    given = {key: value for key, value in map(split, options) if run is None or key in MAY_CHANGE}
    reasons = unused(config) | _cut_short(config, given)
    return [f"{key}={value} changes nothing{reasons[key]}." for key, value in given.items() if key in reasons]


def unused(config: Config) -> dict[str, str]:
    """Options whose value has no effect in this run, or only in part -> the reason, which follows "changes nothing"."""
    if config.agent.has_model:  # else options of a model are refused
        reasons = _of_the_model(config.model)
        if isinstance(config.policy, OwnPolicy):
            reasons |= _of_the_policy(config.policy, config.train.segment_length)
    else:
        rows = config.batch_spec.segment_length
        reasons = {"train.segment_length": f"agent={config.agent.name} learns from segments of {rows} rows"}
    reasons |= _of_the_environment(config) | _of_training(config.train)
    return _beyond(config.train) | {key: f": {why}" for key, why in reasons.items()}


def _cut_short(config: Config, given: Mapping[str, str]) -> dict[str, str]:
    """The reason if the environment itself ends an episode before the given length."""
    key, length = "env.episode_steps", config.env.episode_steps
    if key not in given or value_of(key, given[key]) == length:
        return {}
    return {key: f" beyond {length}: {config.env.task} ends by itself then"}


def _of_the_environment(config: Config) -> dict[str, str]:
    suite, distractors = config.env.suite, config.distractors
    reasons = {
        f"env.{name}": f"env={suite} does not take it"
        for name in ("camera", "quality")
        if name not in SUITES[suite].takes
    }
    if not any(DISTRACTORS[name].shows_clips for name in distractors):
        reasons["env.clips"] = "no chosen distractor shows clips"
    if config.env.clips.partition(":")[0] == "procedural":
        reasons["distractors.video_background.resize"] = "procedural clips are drawn at their final size"
    if not distractors.get("video_background", {}).get("dynamic", True):
        reasons["distractors.video_background.start"] = "the place of a still picture (dynamic=false) is always drawn"
    return reasons


def _of_training(train: TrainConfig) -> dict[str, str]:
    reasons = {}
    if train.eval_every == 0:
        reasons |= dict.fromkeys(("train.eval_episodes", "train.eval_workers"), "train.eval_every is 0")
    if train.cuda_graph and train.device == "cpu":
        reasons["train.cuda_graph"] = "train.device is cpu"
    if train.precision == "tf32" and train.device == "cpu":
        reasons["train.precision"] = "train.device is cpu, which takes float32"
    return reasons


def _beyond(train: TrainConfig) -> dict[str, str]:
    """The reasons if there are more processes than environments to run in them."""
    reasons = {}
    for key, limit in (("collect_workers", "collect_envs"), ("eval_workers", "eval_episodes")):
        if getattr(train, key) > (most := getattr(train, limit)):
            reasons[f"train.{key}"] = f" beyond {most}: train.{limit} is {most}"
    if train.eval_workers > EVALUATED_AT_ONCE < train.eval_episodes:
        reasons["train.eval_workers"] = f" beyond {EVALUATED_AT_ONCE}: no more episodes are played side by side"
    return reasons


def _late(policy: OwnPolicy) -> dict[str, float]:
    """Factors after policy.late_after updates, by name; 1: no change. The factor of a zero weight is left out."""
    names = "late_lr", *(["late_imagined_value"] if getattr(policy, "imagined_value", 1) else [])
    return {name: getattr(policy, name, 1) for name in names}


def _of_the_policy(policy: OwnPolicy, rows: int) -> dict[str, str]:
    """The reasons for options of the policy; rows: number of rows in a segment."""
    reasons, late = {}, _late(policy)
    if (getattr(policy, "imagine_rows", None) or 0) >= rows:
        reasons["policy.imagine_rows"] = f"a segment has {rows} rows (train.segment_length), and all are used"
    if getattr(policy, "imagined_value", 1) == 0:
        reasons["policy.late_imagined_value"] = "policy.imagined_value is 0"
    if all(factor == 1 for factor in late.values()):
        reasons["policy.late_after"] = " and ".join(f"policy.{name} is 1" for name in late)
    return reasons


def _of_the_model(model: ModelConfig) -> dict[str, str]:
    rows, reasons = model.latents.values(), _of_the_kl(model)
    for row in rows:
        if row.distribution != "categorical":
            reasons[f"model.{row.name}.classes"] = f"model.{row.name}.distribution is {row.distribution}"
        if not row.rewarded:
            reasons[f"model.{row.name}.reward_sees"] = f"model.{row.name}.rewarded is false"
    if model.core == "gru":
        reasons["model.width"] = "model.core is gru"
    of_rows = [f"{row.name}.{key}" for row in rows for key in model.UNUSED_OF_ROWS]
    return reasons | {f"model.{key}": f"model={model.name} does not use it" for key in (*model.UNUSED, *of_rows)}


def _of_the_kl(model: ModelConfig) -> dict[str, str]:
    kl, rows, reasons = model.kl, model.latents.values(), {}
    noise, strategy = [row for row in rows if not row.free], "model.kl.free_nats_strategy"
    if not any(row.beta == kl.beta for row in noise):
        why = "each latent that is noise has its own beta" if noise else f"no latent of model={model.name} is noise"
        reasons["model.kl.beta"] = why
    if kl.free_nats_strategy == "B" and not noise:
        reasons[strategy] = f"without a latent that is noise, as in model={model.name}, B is A"
    elif kl.free_nats_strategy == "B" and any(row.free and row.beta == noise[0].beta for row in rows):
        reasons[strategy] = "signal and noise have the same beta, so B is A"
    if kl.free_nats == 0:
        reasons[strategy] = "model.kl.free_nats is 0"
    if len(noise) == len(rows):
        reasons |= dict.fromkeys(("model.kl.free_nats", strategy), f"no latent of model={model.name} is signal (free)")
    if kl.relax == 1:
        reasons["model.kl.relax_after"] = "model.kl.relax is 1"
    return reasons
