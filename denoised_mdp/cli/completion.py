"""Command-line completion in bash, zsh and fish with argcomplete, including ``key=value`` words."""

from __future__ import annotations

import argparse
import glob
import os
from typing import Any

from denoised_mdp.config.choices import CHOSEN, GROUPS, all_options, choices
from denoised_mdp.config.overrides import has_config
from denoised_mdp.envs.suites import all_tasks
from denoised_mdp.errors import UserError


def script(shell: str) -> str:
    """Return the code that `shell` must evaluate to complete ``denoised-mdp``.

    Raises:
        UserError: argcomplete is not installed.
    """
    try:
        import argcomplete
    except ImportError as error:
        raise UserError("Completion needs argcomplete, which is not installed: pip install argcomplete") from error
    return argcomplete.shellcode(["denoised-mdp"], shell=shell)


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit if it asks for completions; otherwise return."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser, default_completer=argcomplete.completers.FilesCompleter())


def complete(prefix: str, **_: Any) -> list[str]:
    """Return the words that begin with `prefix`: ``key=`` and runs, or, after the equals sign, the key's values."""
    key, equals, value = prefix.partition("=")
    if not equals:
        words = [f"{name}=" for name in dict.fromkeys([*GROUPS, "sweep", *all_options()]) if name not in CHOSEN]
        words += folders(prefix)
    elif key == "distractors":  # several, joined by commas
        before, comma, _ = value.rpartition(",")
        named = (*before.split(","), *(["none"] if comma else []))
        words = [f"{key}={before}{comma}{name}" for name in values(key) if name not in named]
    else:
        words = [f"{key}={value}" for value in values(key)]
    return [word for word in words if word.startswith(prefix)]


def folders(prefix: str) -> list[str]:
    """Return the runs whose paths begin with `prefix`, and, with a slash, the folders that may hold others."""
    found = [path.rstrip("/") for path in sorted(glob.glob(f"{glob.escape(prefix)}*/"))]
    others = [path for path in found if not has_config(path)]
    lead = [path for path in others if "/" in prefix or glob.glob(f"{glob.escape(path)}/*/config.yaml")]
    return [*filter(has_config, found), *(f"{path}/" for path in lead)]


def values(key: str) -> tuple[str, ...]:
    """Return all values of a group or an option; none if they cannot be listed."""
    if key == "distractors":
        return ("none", *choices(key))
    if key in GROUPS or key == "sweep":
        return choices(key)
    if key == "env.task":
        return all_tasks()
    default, limits = all_options().get(key, (None, {}))
    return tuple(map(str, limits.get("choices", ("true", "false") if isinstance(default, bool) else ())))
