"""Options and their checks. Each is a dataclass field with a default, a line of help and an allowed range."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from denoised_mdp.errors import UserError

DEVICE = r"auto|cpu|cuda(:[0-9]{1,4})?"  # allowed names of devices
BEST = "best"  # the checkpoint or snapshot with the highest evaluation return in training
CHECKPOINT = rf"[0-9]{{1,15}}|{BEST}"  # allowed names of checkpoints
TYPES = "options are bool, int, float, str, these with '| None', and tuple[str, ...]"
LARGEST = 2**63 - 1  # the largest integer that arrays, tensors, TensorBoard and files hold


def option(default: Any, help: str, **limits: Any) -> Any:
    """Declare one option.

    Limits: ``low`` (at least), ``above`` (strictly more), ``high`` (at most), ``below`` (strictly less), ``choices``,
    ``pattern`` (a regular expression that the whole text must match). ``unset`` says what a default of None stands for.
    """
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def group(factory: Any, help: str) -> Any:
    """Declare a nested group of options with a line of help."""
    return dataclasses.field(default_factory=factory, metadata={"help": help})


def arguments(options: Any) -> dict[str, Any]:
    """Return a group of options as keyword arguments, without the `name` that selects it."""
    return {name: value for name, value in vars(options).items() if name != "name"}


def defaults(kind: type) -> dict[str, Any]:
    """Return the options of a dataclass with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(kind)}


def walk(options: Any, prefix: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield (dotted key, value, help and limits) of every option of a dataclass, those of its groups included."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        elif not (isinstance(value, dict) or field.default is dataclasses.MISSING):
            # skips groups of arbitrary number and name (latents, distractors), and required fields, which name a row
            yield f"{prefix}{field.name}", value, limits_of(field)


def limits_of(field: dataclasses.Field) -> Mapping[str, Any]:
    """Return help and limits of an option; a plain field, as a plug-in's class may have, has neither."""
    return {"help": ""} | field.metadata


def convert(value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    """Return `value` as type `kind`: bool, int, float, str, one of them or None, or a tuple of names.

    For an int, a whole float is accepted (``1e6``). `limits` are those of `option`.

    Raises:
        ValueError: it is not allowed; the message says what is: "a whole number, at least 1".
    """
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
            raise ValueError("a list of names, such as [x, y]")
        return tuple(value)
    optional = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    if optional:
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
        if value is None:
            return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    result = None
    if kind is int and number and value == int(value):
        result = int(value)
        if result > LARGEST:  # mentioned only if exceeded
            limits = {"high": LARGEST, **limits}
    elif kind is float and number and abs(value) <= sys.float_info.max:  # an int can be larger
        result = float(value)
    elif kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        result = str(value)
    elif kind is bool and isinstance(value, bool):
        result = value
    if result is None or not _within(result, limits):
        raise ValueError(_describe(kind, limits) + (" or null" if optional else ""))
    return result


def check_whole(name: str, value: Any, least: int) -> None:
    """Raise UserError unless a function's argument is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}.")


def check_options(kind: Any, whose: str, /, flags: bool = False, **chosen: str) -> None:
    """Refuse a class that cannot be options when it is registered, not when some command lists it.

    whose: for messages. flags: they are flags of a command, which may be Paths but not groups. chosen: the option that
    selects the class; it must exist and allow this value.

    Raises:
        UserError: it is no dataclass, lacks the chosen field, or a field lacks a default or has a wrong type or value.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise UserError(f"{whose}: its options are not a dataclass.")
    for part in kind.__mro__:
        if inspect.get_annotations(part) and "__dataclass_fields__" not in vars(part):
            raise UserError(f"{whose}: its options are not a dataclass: decorate {part.__name__} with @dataclass.")
    hints, fields = typing.get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name in chosen:
        if name not in fields:
            raise UserError(f"{whose}: its options need a field {name!r}, by which it is chosen.")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING:
            if field.default_factory is dataclasses.MISSING:
                raise UserError(f"{whose}: its option {name!r} has no default.")
            if flags or not (dataclasses.is_dataclass(hints[name]) or typing.get_origin(hints[name]) is dict):
                known = TYPES if flags else f"{TYPES}, and groups of them"
                raise UserError(f"{whose}: its option {name!r} has type {hints[name]}; {known}.")
            continue  # a group
        if typing.get_origin(hints[name]) is tuple and "choices" in limits_of(field):
            raise UserError(f"{whose}: its option {name!r} is a tuple, whose names cannot be limited to choices.")
        if flags and hints[name] in (Path, Path | None):
            continue
        try:
            convert(chosen.get(name, field.default), hints[name], limits_of(field))
        except ValueError as error:
            what = f"{chosen.get(name, field.default)!r}, which must be {error}"
            raise UserError(f"{whose}: its option {name!r} cannot be {what}.") from None
        except (KeyError, StopIteration) as error:
            raise UserError(f"{whose}: its option {name!r} has type {hints[name]}; {TYPES}.") from error


def _within(value: Any, limits: Mapping[str, Any]) -> bool:
    return not (
        ("low" in limits and value < limits["low"])
        or ("above" in limits and value <= limits["above"])
        or ("high" in limits and value > limits["high"])
        or ("below" in limits and value >= limits["below"])
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
    high = f"less than {limits['below']}" if "below" in limits else high
    return ", ".join([noun, *filter(None, [" and ".join(filter(None, [low, high]))])])
