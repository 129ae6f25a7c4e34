"""Plug-ins: modules outside this package that register suites, models, policies, agents, distractors or probes.

There are two ways to provide one. An installed package declares an entry point in the group ``denoised_mdp.plugins``: a
module, or a function without arguments. The environment variable DENOISED_MDP_PLUGINS names further modules, separated
by commas; they may lie in the working directory. Nothing is imported before a `Registry` is read.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, MutableMapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from denoised_mdp.errors import UserError, one_line

GROUP = "denoised_mdp.plugins"
VARIABLE = "DENOISED_MDP_PLUGINS"
HINT = f" One of a plug-in is known once {VARIABLE} names its module."
"""for messages about an unregistered name"""

Value = TypeVar("Value")
_state: dict[str, Any] = {"loaded": False, "error": None}


class Registry(MutableMapping[str, Value]):
    """A mapping from names to what is registered under them. Reading it first imports the plug-ins.

    what: the noun for messages. built_in: the package's own entries.
    """

    def __init__(self, what: str, built_in: dict[str, Value] | None = None):
        self.what, self.entries = what, dict(built_in or {})  # `entries`: known so far, read without plug-ins

    def __getitem__(self, name: str) -> Value:
        load_plugins()
        return self.entries[name]

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(tuple(self.entries))

    def __len__(self) -> int:
        load_plugins()
        return len(self.entries)

    def __setitem__(self, name: str, value: Value) -> None:
        """Set an entry without the checks of `register`."""
        self.entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def register(self, name: str, value: Value) -> None:
        """Add an entry, or replace one from an earlier run of the same definition, such as a notebook cell.

        Raises:
            UserError: the name is unusable on the command line or taken, or a class leaves methods abstract (reported
                here, not when a run creates an instance).
        """
        noun = f"an {self.what}" if self.what[0] in "aeiou" else f"a {self.what}"
        if not isinstance(name, str) or not re.fullmatch(r"\w*[^\W\d]\w*", name):
            raise UserError(f"{name!r} cannot name {noun}: use letters, digits and underscores.")
        before = self.entries.get(name, value)
        if before != value and not _same_definition(before, value):
            raise UserError(f"There is {noun} {name!r} already: choose another name.")
        if inspect.isabstract(value):
            lacks = ", ".join(sorted(value.__abstractmethods__))
            raise UserError(f"{self.what}={name}: {value.__name__} must define {lacks}.")
        self.entries[name] = value


def _same_definition(before: Any, now: Any) -> bool:
    """Whether both come from the same definition, run twice."""
    origin = _origin(now)
    return origin is not None and _origin(before) == origin


def _origin(value: Any) -> tuple[str, str] | None:
    """Return file and name of a class or function, or of a suite's or probe's function; None if it has no name.

    The file, not the module: a script that is run and also imported as a plug-in is two modules.
    """
    value = getattr(value, "make", None) or getattr(value, "run", None) or value
    if isinstance(value, str):  # "module:function"
        return "", value
    name = getattr(value, "__qualname__", "<lambda>")
    if "<lambda>" in name:
        return None
    return os.path.realpath(getattr(sys.modules.get(value.__module__), "__file__", None) or value.__module__), name


def load_plugins() -> None:
    """Import all plug-ins, once. An installed one that fails only warns: it must not stop users who do not need it.

    Raises:
        UserError: a module of DENOISED_MDP_PLUGINS cannot be imported.
    """
    if _state["error"] is not None:  # without the plug-in, its runs would look damaged
        raise UserError(_state["error"])
    if _state["loaded"]:
        return
    _state["loaded"] = True  # a plug-in may look into registries while it is imported
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
            if callable(found):
                found()
        except Exception as error:
            warnings.warn(f"plug-in {entry.name} ({entry.value}) is left out: {_reason(error)}", stacklevel=2)
    for name in os.environ.get(VARIABLE, "").split(","):
        if name.strip():
            try:
                import_path(f"{VARIABLE}={name.strip()}", name.strip())
            except UserError as error:
                _state["error"] = str(error)
                raise


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """Let registries be read without plug-ins, which cannot be imported while this package is being imported."""
    before, _state["loaded"] = _state["loaded"], True
    try:
        yield
    finally:
        _state["loaded"] = before


def import_path(what: str, module: str) -> ModuleType:
    """Import a module, which may lie in the working directory (searched last). what: for messages.

    Raises:
        UserError: it cannot be imported.
    """
    with contextlib.suppress(OSError):  # the working directory may have been deleted
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        lost = isinstance(error, ModuleNotFoundError) and module.partition(".")[0] == error.name
        hint = " It must be installed, or lie in the working directory or on PYTHONPATH." if lost else ""
        raise UserError(f"{what}: cannot be imported: {_reason(error).rstrip('.')}.{hint}") from error


def _reason(error: Exception) -> str:
    """Return an error in imported code as one line, with file and line number."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if one.filename != importlib.__file__ and not one.filename.startswith("<frozen")]
    place = f", {own[-1].filename} line {own[-1].lineno}" if own and own[-1].filename != __file__ else ""
    return one_line(f"{type(error).__name__}: {error}{place}", 300)
