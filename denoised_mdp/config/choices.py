"""What a configuration consists of: groups and their choices, YAML files, tables of latents, all options."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from denoised_mdp.config.schema import AGENTS, MODELS, POLICIES, TABLES, Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import SUITES
from denoised_mdp.errors import UserError, did_you_mean, one_line
from denoised_mdp.files import read_yaml
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import walk

ALIASES = {"env.id": "env.task"}  # Gymnasium's name for a task
# groups whose choices need no file
REGISTRIES = {"env": SUITES, "distractors": DISTRACTORS, "agent": AGENTS, "policy": POLICIES}
CHOICE = {"env": "suite", "agent": "name", "model": "name", "policy": "name"}
"""group -> the option that names its choice"""
KINDS = {"agent": ("name", AGENTS), "policy": ("name", POLICIES), "model": ("kind", MODELS)}
"""group whose options depend on the choice -> the option that selects their class, and all classes by name"""
CHOSEN = {f"{group}.{name}" for group, name in [*CHOICE.items(), *((key, name) for key, (name, _) in KINDS.items())]}
"""options that follow from the choice of their group, and cannot be set by themselves"""
Row = tuple[str, Any, Mapping[str, Any]]
"""an option's dotted key, its default, and help and limits"""
GROUPS = ("env", "distractors", "agent", "model", "policy", "preset")
HELP = " 'denoised-mdp train --help' lists them."


def config_folder() -> Path:
    """Return the folder of YAML files: in the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def choices(group: str) -> tuple[str, ...]:
    """Return the choices of a group, e.g. ``("2b", "2c", "dreamer")`` for ``model``."""
    if group == "model":
        return (*_files(group), *TABLES)
    return tuple(REGISTRIES[group]) if group in REGISTRIES else _files(group)


def register_table(path: Path | str) -> None:
    """Register a table of latents as ``model=NAME``; `path` leads to NAME.yaml, in the form of ``configs/model``.

    Raises:
        UserError: there is no such file, it is no valid table of latents, or its name is taken or not allowed.
    """
    path = Path(path).resolve()  # the working directory may change
    if not path.is_file():
        raise UserError(f"There is no table of latents {path}.")
    _check_table(path)
    if path.stem in _files("model"):
        raise UserError(f"There is a model {path.stem!r} already: choose another name for {path}.")
    TABLES.register(path.stem, path)


def _check_table(path: Path) -> None:
    """Refuse a file that is not a table of latents, or that names a latent like an option of a model."""
    try:
        tree = read_yaml(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is no table of latents: {one_line(error, 200)}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} is no table of latents: it must have a row for each, such as 'x: {{belief: 120}}'.")
    known = {field.name for kind in MODELS.entries.values() for field in dataclasses.fields(kind)}
    for name in (name for name, row in tree.items() if isinstance(row, dict)):
        if name in known:
            raise UserError(f"{path}: a latent cannot be called {name!r}, which is an option of models.")


@cache
def _files(group: str) -> tuple[str, ...]:
    folder = config_folder() / group
    files = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return tuple(sorted(file.with_suffix("").as_posix() for file in files))


def read_file(name: str) -> dict[str, Any]:
    """Return the content of ``configs/{name}.yaml`` or of a registered table; {} if there is no such file."""
    group, _, choice = name.partition("/")
    file = config_folder() / f"{name}.yaml"
    if group == "model" and choice in TABLES:
        file = TABLES[choice]
        if not file.is_file():
            raise UserError(f"The table of latents {file} is gone: put it back.")
    if not file.is_file():
        return {}
    seen = file.stat()
    return copy.deepcopy(_parsed(file, seen.st_mtime_ns, seen.st_size))


@cache
def _parsed(file: Path, changed: int, size: int) -> dict[str, Any]:
    """The content of a file as of its last change; cached, since the runs of a grid share the same few files."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(file))


@cache
def latents(model: str) -> tuple[str, ...]:
    """Return the names of the latents in the table of a choice of ``model``."""
    return tuple(key for key, row in read_file(f"model/{model}").items() if isinstance(row, dict))


def latent_names() -> tuple[str, ...]:
    """Return the names of the latents in all tables."""
    return tuple(dict.fromkeys(name for model in choices("model") for name in latents(model)))


def all_options() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return (default, help and limits) of every option that can be set, by its dotted key."""
    found: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for key, *rest in _all_rows():
        found.setdefault(key, tuple(rest))
    return found | {alias: found[key] for alias, key in ALIASES.items()}


def _all_rows() -> Iterator[Row]:
    """Yield every option that can be set; one that several models, policies or agents have comes several times."""
    yield from _rows("", Config)
    for group, (_, kinds) in KINDS.items():
        for kind in kinds.values():
            yield from _rows(f"{group}.", kind)
    for name, kind in DISTRACTORS.items():
        yield from _rows(f"distractors.{name}.", kind.Options)
    for name in latent_names():
        yield from _rows(f"model.{name}.", LatentSpec, name)


@cache
def _rows(prefix: str, kind: type, *names: str) -> tuple[Row, ...]:
    """The options of a dataclass with their defaults; cached, since every word of a command line needs them."""
    return tuple(walk(kind(*names), prefix))


def check_key(key: str) -> None:
    """Refuse a key that cannot be set; a whole group can, as in ``model.x={belief: 60}``."""
    if key in CHOSEN:
        group = key.partition(".")[0]
        raise UserError(f"{key} cannot be set by itself; choose one with {group}={'|'.join(choices(group))}.")
    keys = itertools.chain(ALIASES, (known for known, *_ in _all_rows()))
    if key not in GROUPS and not any(f"{known}.".startswith(f"{key}.") for known in keys):
        raise UserError(unknown(key))


def unknown(key: str) -> str:
    """Return a message about an unknown key that suggests what may have been meant."""
    what, end, keys = f"unknown option '{one_line(key, 200)}'", key.rpartition(".")[2], list(all_options())
    for group, (_, kinds) in KINDS.items():
        owners = [name for name, kind in kinds.items() if key in (known for known, *_ in walk(kind(), f"{group}."))]
        if owners:
            return f"{what}: only {group}={'|'.join(owners)} has this option."
    if key.partition(".")[0] == "sweep":
        return f"{what} here: 'denoised-mdp train sweep=NAME --dry-run' lists the runs of a sweep."
    if end in ("beta", "beta_y"):
        return f"{what}. Did you mean 'model.kl.beta'? (model.y.beta: of one latent.)"
    near = [known for known in keys if known.rpartition(".")[2] == end]
    near = near or [*keys, *GROUPS, *(known.partition(".")[0] for known in keys)]
    hint = did_you_mean(key, near)
    return f"{what}.{hint if 'mean' in hint or len(near) < 10 else HELP}"
