"""Configuration: compose it, check it, save it, read it back.

``load_config(["env.task=walker_walk", "seed=1"])`` returns plain, checked dataclasses. Every mistake becomes
a `UserError` of one line that names the key, the value and what would be right.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import yaml

from denoised_mdp.config.check import check
from denoised_mdp.config.compose import changed, compose
from denoised_mdp.config.overrides import run_and_options
from denoised_mdp.config.schema import Config, as_tree
from denoised_mdp.config.validate import build
from denoised_mdp.envs import check_distractors
from denoised_mdp.errors import UserError
from denoised_mdp.files import read_yaml, replace_file


def load_config(overrides: list[str]) -> Config:
    """Compose and check the configuration that the command line asks for.

    Args:
        overrides: ``key=value`` texts as on the command line, e.g. ``["preset=debug", "model=2c"]``. A run folder may
            come first; the texts then change its configuration.

    Raises:
        UserError: unknown key or choice, wrong type, value out of range, or options that exclude each other.
    """
    if isinstance(overrides, str):  # else each letter would be an option
        raise UserError(f"load_config takes a list: load_config([{overrides!r}]).")
    run, overrides = run_and_options(overrides)
    config = build(Config, compose(overrides) if run is None else changed(_at(run), overrides))
    if not config.agent.has_model:  # a preset's model and policy are for other agents
        config.model, config.policy = Config().model, Config().policy
    check(config)
    config.distractors = check_distractors(config.distractors, config.env.task, config.env.suite)
    config.run_dir = default_run_dir(config) if config.run_dir is None else expanded(config.run_dir)
    return config


def _at(run: str) -> Config:
    """The configuration of a run, wherever its folder is now."""
    return dataclasses.replace(read_config(run), run_dir=run)


def expanded(run_dir: str) -> str:
    """`run_dir` with ``~`` and ``~user`` replaced by home folders, as a shell does at the start of a word."""
    if not run_dir.strip():
        raise UserError("run_dir=: name a folder, or leave it out for one whose name is derived from the choices.")
    path = os.path.expanduser(run_dir)
    if path.startswith("~"):
        user = path.split("/")[0][1:]
        raise UserError(f"run_dir={run_dir}: there is no user {user}. For a folder of that name write ./{run_dir}.")
    return path


def default_run_dir(config: Config) -> str:
    """Return a folder name derived from the choices, so that the same command continues the same run."""
    preset = [] if config.preset == "none" else [config.preset.split("/")[0]]
    task = re.sub(r"[^\w.-]+", "_", config.env.task)  # an id of Gymnasium may have slashes and colons
    names = [*preset, task, *config.distractors, *filter(None, config.method)]
    return os.path.join("runs", "-".join([*names, f"seed{config.seed}"]))


def save_config(config: Config, path: str | os.PathLike) -> None:
    """Write the configuration as YAML to `path` (a file), whole or not at all."""
    replace_file(Path(path), as_yaml(config).encode())


def as_yaml(config: Config) -> str:
    """Return the whole configuration as YAML, which `read_config` understands."""
    return yaml.safe_dump(as_tree(config), sort_keys=False, allow_unicode=True)


def read_config(path: str | os.PathLike) -> Config:
    """Read the configuration of a run: `path` is the run's folder or its ``config.yaml``.

    Options that are newer than the run take their defaults.
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
