"""Completion of the command line in bash, zsh and fish, by argcomplete; ``key=value`` words complete as well."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

from denoised_mdp.config.compose import GROUPS, choices, option_keys
from denoised_mdp.config.schema import MODELS, POLICIES, Config
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.suites import all_tasks
from denoised_mdp.errors import UserError

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """Return what `shell` must evaluate to complete ``denoised-mdp``.

    Raises:
        UserError: argcomplete is not installed.
    """
    try:
        import argcomplete
    except ImportError as error:
        raise UserError("Completion needs argcomplete, which is not installed: pip install argcomplete") from error
    return argcomplete.shellcode(["denoised-mdp"], shell=shell)


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit, if it asks for completions; else return."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser, default_completer=argcomplete.completers.FilesCompleter())


def complete(prefix: str, **_: Any) -> list[str]:
    """Return the ``key=value`` words that begin with `prefix`: keys, and after the equals sign the key's values."""
    key, equals, value = prefix.partition("=")
    if not equals:
        words = [f"{name}=" for name in dict.fromkeys([*GROUPS, *option_keys()])]
    elif key == "distractors":  # several, joined by commas
        before = value.rpartition(",")[0]
        words = [f"{key}={before}{',' if before else ''}{name}" for name in values(key) if name not in before]
    else:
        words = [f"{key}={value}" for value in values(key)]
    return [word for word in words if word.startswith(prefix)]


def values(key: str) -> tuple[str, ...]:
    """Return all values of a group or an option; none where they cannot be listed."""
    if key == "distractors":
        return ("none", *choices(key))
    if key in GROUPS:
        return choices(key)
    if key == "env.task":
        return all_tasks()
    *groups, name = key.split(".")
    nodes = [Config()]
    if key.startswith("policy."):
        groups, nodes = [], [kind() for kind in POLICIES.values()]
    elif key.startswith("model."):
        groups, nodes = groups[1:], [kind() for kind in MODELS.values()]
    elif key.startswith("distractors."):
        groups, nodes = [], [DISTRACTORS[name].Options() for name in groups[1:] if name in DISTRACTORS]
    for node in nodes:
        for group in groups:
            node = getattr(node, group, None)
        for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
            if field.name == name:
                yes_or_no = ("true", "false") if isinstance(field.default, bool) else ()
                return tuple(map(str, field.metadata.get("choices", yes_or_no)))
    return ()
