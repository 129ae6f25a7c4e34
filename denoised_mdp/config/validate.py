"""Turn nested mappings into checked dataclasses: every key, type and limit, with one line for each mistake."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from denoised_mdp.config.choices import KINDS, unknown
from denoised_mdp.config.schema import Config, ModelConfig
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError, did_you_mean, one_line
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import convert, defaults
from denoised_mdp.plugins import HINT, Registry

RETIRED = {"policy.clip": None, "policy.replay_ahead": 0}
"""options in saved configurations that no longer exist -> the value that had no effect"""


def build(kind: Any, tree: Any, path: str = "") -> Any:
    """Turn nested mappings into the dataclass `kind`, checking every key, type and limit on the way.

    Missing keys take their defaults, including a distractor's options. `path` is the dotted key of `tree`
    with a final dot, for messages.
    """
    if not isinstance(tree, Mapping):
        raise UserError(f"{path.rstrip('.')}={shown(tree)}: must be a group of options.")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = _hints(kind)
    values = {}
    for key, value in tree.items():
        if key not in fields and f"{path}{key}" in RETIRED and value == RETIRED[f"{path}{key}"]:
            continue
        if issubclass(kind, ModelConfig) and (key == "latents" or key not in fields) and isinstance(value, Mapping):
            values.setdefault("latents", {})[key] = build(LatentSpec, {"name": key, **value}, f"{path}{key}.")
            continue
        if key not in fields:
            raise UserError(unknown(f"{path}{key}"))
        if f"{path}{key}" in KINDS:
            values[key] = build(_chosen(key, value), value, f"{key}.")
        elif f"{path}{key}" == "distractors":
            values[key] = _distractors(value or {})
        elif dataclasses.is_dataclass(hints[key]):
            values[key] = build(hints[key], value, f"{path}{key}.")
        else:
            try:
                values[key] = convert(value, hints[key], fields[key].metadata)
            except ValueError as error:
                hint = HINT if isinstance(fields[key].metadata.get("choices"), Registry) else ""
                raise UserError(f"{path}{key}={shown(value)}: must be {error}.{hint}") from None
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _distractors(tree: Any) -> dict[str, dict[str, Any]]:
    """Fill in default options; unknown names and bad values are left to `envs.check_distractors`."""
    for name, options in tree.items() if isinstance(tree, Mapping) else [("", tree)]:
        if not isinstance(options, Mapping):
            key = f"distractors.{name}".rstrip(".")
            raise UserError(f"{key}={shown(options)}: must be a group of options.")
    return {
        str(name): (defaults(DISTRACTORS[name].Options) if name in DISTRACTORS else {}) | dict(options)
        for name, options in tree.items()
    }


def _chosen(group: str, tree: Any) -> type:
    """The class of options that a group's own entry names; the default class if it names none."""
    field, known = KINDS[group]
    name = tree.get(field, getattr(getattr(Config(), group), field)) if isinstance(tree, Mapping) else tree
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{group}.{field}={shown(name)}: unknown {group}.{did_you_mean(name, known)}{HINT}")
    return known[name]


def as_text(value: Any) -> str:
    """Write a value as YAML and the command line do."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value as messages show it, shortened if it is very long."""
    return one_line(as_text(value), 200)
