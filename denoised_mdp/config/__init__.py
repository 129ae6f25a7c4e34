"""Configuration: compose it, check it, save it, read it back, compare two of them.

``load_config(["env.task=walker_walk", "seed=1"])`` returns plain, checked dataclasses. Every mistake becomes
a `UserError` of one line that names the key, the value and what would be right.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import yaml

from denoised_mdp.config.compose import compose, flatten
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import as_text, build
from denoised_mdp.envs import check_distractors
from denoised_mdp.envs.suites import check_reward, check_task
from denoised_mdp.errors import UserError
from denoised_mdp.files import read_yaml, replace_file
from denoised_mdp.models.structure import BLOCKS, CONVOLUTIONS, Table, convolutions_for

# A run may be continued although these keys changed: they do not alter what is learned up to a given step.
MAY_CHANGE = frozenset(
    {"run_dir", "preset", "replay.capacity", "replay.memory"}
    | {f"train.{key}" for key in ("total_steps", "device", "act_device", "cuda_graph", "threads", "log_every")}
    | {"train.collect_workers", "train.eval_workers", "train.workers", "train.log_to"}
    | {f"train.{key}" for key in ("eval_every", "eval_episodes", "render_every", "probe_every", "checkpoint_every")}
    | {"train.snapshot_every"}
)


def load_config(overrides: list[str]) -> Config:
    """Compose and check the configuration that the command line asks for.

    Args:
        overrides: ``key=value`` texts as on the command line, e.g. ``["preset=debug", "model=2c"]``.

    Raises:
        UserError: unknown key or choice, wrong type, value out of range, or options that exclude each other.
    """
    config = build(Config, compose(overrides))
    if not config.agent.has_model:  # what a preset says of model and policy is of other agents
        config.model, config.policy = Config().model, Config().policy
    _check(config)
    config.distractors = check_distractors(config.distractors, config.env.task, config.env.suite)
    config.run_dir = default_run_dir(config) if config.run_dir is None else expanded(config.run_dir)
    return config


def expanded(run_dir: str) -> str:
    """`run_dir` with the home folder for ``~`` and ``~user``, as a shell would have it at the start of a word."""
    if not run_dir.strip():
        raise UserError("run_dir=: name a folder, or leave it out for one whose name is derived from the choices.")
    path = os.path.expanduser(run_dir)
    if path.startswith("~"):
        user = path.split("/")[0][1:]
        raise UserError(f"run_dir={run_dir}: there is no user {user}. For a folder of that name write ./{run_dir}.")
    return path


def default_run_dir(config: Config) -> str:
    """Return a folder derived from the choices: the same command gives the same folder, and so continues."""
    preset = [] if config.preset == "none" else [config.preset.split("/")[0]]
    task = re.sub(r"[^\w.-]+", "_", config.env.task)  # an id of Gymnasium may have slashes and colons
    names = [*preset, task, *config.distractors, *filter(None, config.method)]
    return os.path.join("runs", "-".join([*names, f"seed{config.seed}"]))


def as_tree(config: Config) -> dict[str, Any]:
    """Return nested mappings with the keys of the command line: rows of the table are ``model.x``, ``model.y`` ...

    Of an agent without a world model, there are no ``model`` and ``policy``.
    """
    tree = dataclasses.asdict(config)
    if not config.agent.has_model:
        return {group: options for group, options in tree.items() if group not in ("model", "policy")}
    model = tree["model"]
    for name, row in model.pop("latents").items():
        del row["name"]
        model[name] = {cell: list(value) if isinstance(value, tuple) else value for cell, value in row.items()}
    return tree


def save_config(config: Config, path: str | os.PathLike) -> None:
    """Write the configuration as YAML to `path` (a file), whole or not at all."""
    replace_file(Path(path), as_yaml(config).encode())


def as_yaml(config: Config) -> str:
    """Return the whole configuration as YAML, which `read_config` understands."""
    return yaml.safe_dump(as_tree(config), sort_keys=False, allow_unicode=True)


def read_config(path: str | os.PathLike) -> Config:
    """Read the configuration of a run: `path` is the run's folder or its ``config.yaml``.

    Options that the run does not know, because they came later, have their defaults.
    """
    file = Path(path) / "config.yaml" if Path(path).is_dir() else Path(path)
    if Path(path).name == "config.yaml" and not file.exists():
        raise UserError(f"{path} is gone: restore that file from a copy.")
    if not file.is_file():
        raise UserError(f"{path} is not a run folder: it has no config.yaml. Give the folder of a training.")
    try:
        tree = read_yaml(file)
    except ValueError as error:
        raise UserError(f"{file} is no configuration ({error}): restore it from a copy.") from error
    if not isinstance(tree, dict) or not tree:
        raise UserError(f"{file} is not the configuration of a run.")
    try:
        return build(Config, tree)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def differences(old: Config, new: Config) -> list[str]:
    """Return one line per option that differs and must not when a run continues; see `MAY_CHANGE`.

    Of another choice, such as ``model=``, the choice alone: most of its options differ as well. So do those of groups
    that it leaves out, as ``agent=curl`` leaves out the model.
    """
    found, other_distractors = _unlike(old, new), _other_distractors(old, new)
    named = [key for key in found if key.endswith(".name")]
    implied = tuple(key.removesuffix("name") for key in named)
    if other_distractors:
        implied += ("distractors",)
    chosen = {key.removesuffix(".name"): found[key] for key in named if "absent" not in found[key]} | other_distractors
    lines = [f"{key}: {a} -> {b}" for key, (a, b) in chosen.items()]
    for key, (a, b) in found.items():
        if key not in MAY_CHANGE and not key.startswith(implied):
            lines.append(f"{key}: {as_text(a)} -> {as_text(b)}")
    return lines


def differences_but_seed(old: Config, new: Config) -> list[str]:
    """The `differences` of two runs that may differ in their seeds."""
    return differences(old, dataclasses.replace(new, seed=old.seed))


def contrast(other: Config, config: Config) -> list[str]:
    """Return one line per option whose value differs, but for the run's folder: ``key: other's -> own``.

    Of distractors that are there no more, the names alone.
    """
    found, left_out = _unlike(other, config), [("run_dir",), ("distractors",)]
    left_out += [("distractors", name) for name in other.distractors if name not in config.distractors]
    kept = {key: sides for key, sides in found.items() if tuple(key.split(".")[:2]) not in left_out}
    return [
        f"{key}: {as_text(a)} -> {as_text(b)}" for key, (a, b) in (_other_distractors(other, config) | kept).items()
    ]


def _other_distractors(one: Config, other: Config) -> dict[str, tuple[str, str]]:
    """The names of both, if they differ, as in `_unlike`."""
    if one.distractors.keys() == other.distractors.keys():
        return {}
    return {"distractors": tuple(", ".join(each.distractors) or "none" for each in (one, other))}


def _unlike(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The options whose values differ: dotted key -> both values, "absent" where a configuration has no such option."""
    first, second = (dict(flatten(as_tree(config))) for config in (one, other))
    sides = {key: (first.get(key, "absent"), second.get(key, "absent")) for key in (*first, *second)}
    return {key: pair for key, pair in sides.items() if pair[0] != pair[1]}


def key_of_difference(difference: str, config: Config) -> str:
    """The dotted key of the option that a line of `differences` is about; of another choice, that of its name."""
    key = difference.partition(":")[0]
    return f"{key}.name" if f"{key}.name" in dict(flatten(as_tree(config))) else key


def _check(config: Config) -> None:
    """Refuse unknown tasks and combinations of options that are each in range but cannot go together."""
    train, env = config.train, config.env
    try:
        limit = check_task(env.task, env.suite)
    except UserError as error:
        if env.suite == "gym":
            raise UserError(f"env.id={env.task}: {error}") from None
        hint = " A Gymnasium environment needs env=gym." if re.search(r"-v\d+$", env.task) else ""
        raise UserError(f"env.task={env.task}: {error}{hint}") from None
    env.episode_steps = min(env.episode_steps, limit or env.episode_steps)
    check_reward(env.reward, env.suite)
    config.agent.check(config)
    if config.agent.has_model:
        _check_model(config)
    if config.replay.latents and (train.processes > 1 or not config.agent.has_model):
        raise UserError("replay.latents=true: only of a world model that learns in one process; set it to false.")
    if train.overlap and train.collect_workers == 0:
        raise UserError("train.overlap=true: the environments need their own process: set train.collect_workers=1.")
    if train.workers == "ray" and train.collect_workers == train.eval_workers == 0:
        raise UserError("train.workers=ray: set how many, by train.collect_workers or train.eval_workers.")
    if train.batch_size % train.processes:
        raise UserError(
            f"train.processes={train.processes}: train.batch_size={train.batch_size} must be a multiple of it, so that"
            " every process learns from as many segments."
        )
    if train.processes > 1 and ":" in train.device:
        raise UserError(
            f"train.device={train.device}: each of train.processes={train.processes} takes a GPU of its own: set"
            " train.device=cuda."
        )
    if train.processes > 1 and train.cuda_graph:
        raise UserError(f"train.processes={train.processes}: cannot be captured; set train.cuda_graph=false.")
    if env.episode_steps < env.action_repeat:
        raise UserError(f"env.episode_steps={env.episode_steps}: must be at least {env.action_repeat} (action_repeat).")
    _check_segments(config)
    if train.total_steps < train.prefill_steps:
        raise UserError(
            f"train.total_steps={train.total_steps}: must be at least train.prefill_steps={train.prefill_steps},"
            " which it includes; else nothing is learned."
        )


def _check_model(config: Config) -> None:
    """Refuse a table of latents, and weights of the KL, that cannot be."""
    model, kl = config.model, config.model.kl
    kind = model.convolutions or convolutions_for(config.env.size)
    if config.env.size not in CONVOLUTIONS[kind]:
        sizes = ", ".join(map(str, CONVOLUTIONS[kind]))
        raise UserError(
            f"env.size={config.env.size}: a world model with model.convolutions={kind} sees pictures of one of these"
            f" sizes: {sizes}."
        )
    try:
        table = Table(list(model.latents.values()))
        model.check(table)
    except ValueError as error:
        raise UserError(f"model={model.name}: {error}.") from None
    if kl.dyn is not None and kl.free_nats_strategy == "B":
        raise UserError(
            f"model.kl.dyn={kl.dyn}: strategy B weighs both sides alike; use model.kl.free_nats_strategy=A."
        )
    if not table.free and (kl.relax != 1 or kl.free_nats_strategy == "B"):
        key, value, usual = ("relax", kl.relax, 1) if kl.relax != 1 else ("free_nats_strategy", "B", "A")
        raise UserError(
            f"model.kl.{key}={value} has no effect: no latent has free=true. Set model.kl.{key}={usual}. To take only"
            " the free nats from a latent, leave its free=true and set model.kl.free_nats=0."
        )
    noise = [row for row in model.latents.values() if not row.free]
    for row in model.latents.values() if kl.free_nats_strategy == "B" else ():
        for other in noise:
            named = "model.kl.beta" if other.beta == kl.beta else f"model.{other.name}.beta"
            if row.free and row.beta < other.beta:
                raise UserError(f"{named}={other.beta}: strategy B needs at most model.{row.name}.beta={row.beta}.")
            if other.beta != noise[0].beta:
                first = f"model.{noise[0].name}.beta={noise[0].beta}"
                raise UserError(f"{named}={other.beta}: strategy B needs the same as {first}.")
    if model.core == "block" and (model.norm != "rms" or model.depth % 2):
        raise UserError("model.core=block: needs model.norm=rms and an even model.depth.")
    if model.core == "block" and kind == "paper" and model.embed is not None and model.embed % BLOCKS:
        raise UserError(
            f"model.embed={model.embed}: with model.core=block and model.convolutions=paper, a multiple of {BLOCKS}."
        )
    for row in model.latents.values():
        if model.core == "block" and row.belief % BLOCKS:
            raise UserError(f"model.{row.name}.belief={row.belief}: with model.core=block, a multiple of {BLOCKS}.")
    _check_warmup("model.optimizer.", model.optimizer.name, model.optimizer.warmup)
    if hasattr(config.policy, "optimizer"):  # else its warmup is another
        _check_warmup("policy.", config.policy.optimizer, getattr(config.policy, "warmup", 0))


def _check_warmup(group: str, optimizer: str, warmup: int) -> None:
    if warmup and optimizer != "laprop":
        raise UserError(f"{group}warmup={warmup}: only laprop warms up; leave it out, or choose laprop.")


def _check_segments(config: Config) -> None:
    """Refuse a replay that could lack a whole segment of one episode when an update is due."""
    train, length = config.train, config.batch_spec.segment_length
    wants = f"train.segment_length={length}" if config.agent.has_model else f"agent={config.agent.name}"
    if length > config.episode_rows:
        raise UserError(
            f"{wants}: an episode of env.episode_steps={config.env.episode_steps} has only {config.episode_rows} rows,"
            f" and {length} are needed."
        )
    least = (length - 1) * config.turn_steps  # each environment has played one then
    if train.prefill_steps < least:
        raise UserError(f"train.prefill_steps={train.prefill_steps}: one segment needs at least {least:,}.")
    # The latest rows may begin with the end of an episode and end with the start of the next, each a row too short.
    capacity, enough = config.replay.capacity, (2 * length - 1) * train.collect_envs
    if capacity is not None and capacity < enough:
        raise UserError(
            f"replay.capacity={capacity}: must be at least {enough}, so that there always is a segment of"
            f" {length} rows, as {wants} needs."
        )
