"""Nested mappings to checked dataclasses: every key, type and limit, each mistake answered in one line."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from denoised_mdp.config.schema import MODELS, POLICIES, ModelConfig
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError, did_you_mean, one_line
from denoised_mdp.models.structure import LatentSpec

RETIRED = ("policy.clip",)
"""options of saved configurations that no longer exist; where they are null, nothing is lost"""

LARGEST = 2**63 - 1  # whole number; arrays and tensors hold no larger one


def build(kind: Any, tree: Any, path: str = "") -> Any:
    """Turn nested mappings into the dataclass `kind`, checking every key, type and limit on the way.

    Missing keys take their defaults, those of a distractor's options as well. `path` is the dotted key of `tree`
    with a final dot, for messages.
    """
    if not isinstance(tree, Mapping):
        raise UserError(f"{path.rstrip('.')}={shown(tree)}: must be a group of options.")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in tree.items():
        if key not in fields and value is None and f"{path}{key}" in RETIRED:
            continue
        if issubclass(kind, ModelConfig) and (key == "latents" or key not in fields) and isinstance(value, Mapping):
            values.setdefault("latents", {})[key] = build(LatentSpec, {"name": key, **value}, f"{path}{key}.")
            continue
        if key not in fields:
            hint = did_you_mean(f"{path}{key}", [path + name for name in fields])
            raise UserError(f"unknown option '{path}{shown(key)}'.{hint}")
        if f"{path}{key}" == "policy":
            values[key] = build(_chosen("policy.name", POLICIES, "backprop", value), value, "policy.")
        elif f"{path}{key}" == "model":
            values[key] = build(_chosen("model.kind", MODELS, "denoised", value), value, "model.")
        elif f"{path}{key}" == "distractors":
            values[key] = _distractors(value or {})
        elif dataclasses.is_dataclass(hints[key]):
            values[key] = build(hints[key], value, f"{path}{key}.")
        else:
            values[key] = convert(f"{path}{key}", value, hints[key], fields[key].metadata)
    return kind(**values)


def convert(key: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    """Return `value` as type `kind` (bool, int, float, str or one of them or None) within `limits`.

    A whole float is accepted where an int is due (``1e6``). `limits` are those of `schema.option`.
    """
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
            raise UserError(f"{key}={as_text(value)}: must be a list of names, such as [x, y].")
        return tuple(value)
    optional = isinstance(kind, types.UnionType)
    if optional:
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
        if value is None:
            return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if kind is int and number and value == int(value):
        result = int(value)
        if result > LARGEST:  # mentioned only where it matters
            limits = {"high": LARGEST, **limits}
    elif kind is float and number and abs(value) <= sys.float_info.max:  # whole numbers can be larger
        result = float(value)
    elif kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        result = str(value)
    elif kind is bool and isinstance(value, bool):
        result = value
    else:
        result = None
    if result is None or not _within(result, limits):
        allowed = _describe(kind, limits) + (" or null" if optional else "")
        raise UserError(f"{key}={shown(value)}: must be {allowed}.")
    return result


def _within(value: Any, limits: Mapping[str, Any]) -> bool:
    return not (
        ("low" in limits and value < limits["low"])
        or ("above" in limits and value <= limits["above"])
        or ("high" in limits and value > limits["high"])
        or ("choices" in limits and value not in limits["choices"])
        or ("pattern" in limits and not re.fullmatch(limits["pattern"], value))
    )


def _describe(kind: type, limits: Mapping[str, Any]) -> str:
    """Say in words which values are allowed."""
    if "choices" in limits:
        return f"one of {', '.join(map(str, limits['choices']))}"
    if "pattern" in limits:
        return limits["help"]
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
    low = f"at least {limits['low']}" if "low" in limits else ""
    low = f"greater than {limits['above']}" if "above" in limits else low
    high = f"at most {limits['high']}" if "high" in limits else ""
    return ", ".join([noun, *filter(None, [" and ".join(filter(None, [low, high]))])])


def _distractors(tree: Any) -> dict[str, dict[str, Any]]:
    """Complete the options; names and values that do not exist are left to `envs.check_distractors`."""
    for name, options in tree.items() if isinstance(tree, Mapping) else [("", tree)]:
        if not isinstance(options, Mapping):
            key = f"distractors.{name}".rstrip(".")
            raise UserError(f"{key}={shown(options)}: must be a group of options.")
    return {
        str(name): DISTRACTORS[name].complete(options) if name in DISTRACTORS else dict(options)
        for name, options in tree.items()
    }


def _chosen(key: str, known: Mapping[str, type], default: str, tree: Any) -> type:
    """The class of options of a group that says in `key` which one it has; `default` where it does not."""
    group, _, field = key.partition(".")
    name = tree.get(field, default) if isinstance(tree, Mapping) else tree
    if not isinstance(name, str) or name not in known:
        raise UserError(f"{key}={shown(name)}: unknown {group}.{did_you_mean(str(name), known)}")
    return known[name]


def as_text(value: Any) -> str:
    """Write a value as YAML and the command line do."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value as a message shows it: not all of one that is very long."""
    return one_line(as_text(value), 200)
