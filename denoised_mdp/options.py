"""How an option is declared: a dataclass field with its default, a line of help and its allowed range."""

from __future__ import annotations

import dataclasses
from typing import Any


def option(default: Any, help: str, **limits: Any) -> Any:
    """Declare one option.

    Limits: ``low`` (at least), ``above`` (strictly more), ``high`` (at most), ``choices``, ``pattern`` (a
    regular expression that the whole text must match).
    """
    return dataclasses.field(default=default, metadata={"help": help, **limits})


def group(factory: Any, help: str) -> Any:
    """Declare a nested group of options with a line of help."""
    return dataclasses.field(default_factory=factory, metadata={"help": help})
