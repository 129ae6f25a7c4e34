"""Parse the ``key=value`` words of a command line in Hydra's grammar, as sweeps do; free texts need no quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from denoised_mdp.config.choices import ALIASES, GROUPS, check_key, choices
from denoised_mdp.errors import UserError, did_you_mean
from denoised_mdp.plugins import HINT

QUOTED = re.compile(r"""(['"])(\\.|(?!\1)[^\\])*\1""")
TEXTS = ("run_dir", "env.task", "env.clips", "train.device")  # free texts: taken as they are, commas and all


def refuse_control_characters(text: str) -> None:
    """Raise UserError for characters that would break files and messages."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text):
        raise UserError(f"{ascii(text)}: control characters and bytes that are not UTF-8 cannot be used.")


def split(text: str) -> tuple[str, str]:
    """Split ``key=value`` and check the key."""
    refuse_control_characters(text)
    key, equals, value = (part.strip() for part in text.removeprefix("++").partition("="))
    if not equals or not key:
        group = next((group for group in reversed(GROUPS) if text in choices(group)), None)
        hint = f" Did you mean '{group}={text}'?" if group else ""
        if has_config(text):
            hint = " To continue a run, its folder comes first."
        raise UserError(f"'{text}' is not of the form key=value.{hint} See 'denoised-mdp train --help'.")
    key = ALIASES.get(key, key)
    if not is_hydra(key):
        check_key(key)
    return key, value


def has_config(word: str) -> bool:
    """Whether a word is the path of a folder with a configuration; ``seed=1`` is an option, ``./seed=1`` a folder."""
    return re.match(r"hydra/|[^/]*=", word) is None and (Path(word) / "config.yaml").is_file()


def run_and_options(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the run folder that a command line begins with, if any, and the ``key=value`` words."""
    if words and has_config(words[0]):
        refuse_control_characters(words[0])
        return words[0], list(words[1:])
    return None, list(words)


def is_hydra(key: str) -> bool:
    """Whether a key is an option of Hydra itself."""
    return re.match(r"[+~]*hydra[./]", key) is not None


def value_of(key: str, text: str) -> Any:
    """Return the value of an override; refuse several values."""
    if is_hydra(key):
        raise UserError(f"{key}={text}: options of Hydra itself need --multirun.")
    if key == "distractors":
        sets = distractor_sets(text)
    elif key in GROUPS:
        sets = [check_choice(key, name) for name in text.split(",")]
    elif key in TEXTS and text != "null" and not QUOTED.fullmatch(text):
        sets = [text]
    else:
        override = parse(key, text)
        sets = [] if override.is_sweep_override() else [override.value()]
    if len(sets) != 1:
        raise UserError(
            f"{key}={text}: several values. To train a run for each, use --multirun, without sweep=; sweep.AXIS=..."
            " chooses values of an axis of sweep=."
        )
    return sets[0]


def check_choice(group: str, text: str) -> str:
    """Return the name of a choice without quotes; refuse a name that is not a choice of the group."""
    name, known = text.strip("'\""), choices(group)
    if name not in known:
        near, plugin = did_you_mean(name, known, listed=False), "" if group == "preset" else HINT
        raise UserError(f"{group}={text}: unknown choice.{near or did_you_mean(name, known) + plugin}")
    return name


def parse(key: str, value: str) -> Any:
    """Parse one override with Hydra's own grammar; return Hydra's Override."""
    from hydra.errors import HydraException

    try:
        return _parser().parse_override(f"{key}={value}")
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(f"{key}={value}: not understood; quote a value with special characters.") from error


@cache
def _parser() -> Any:
    """Hydra's parser, cached since it inspects all of its functions when it is made."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def outside_brackets(text: str) -> list[str]:
    """Split a text at the commas outside of square brackets."""
    return re.split(r",(?![^[]*\])", text)


def distractor_sets(text: str) -> list[dict[str, Any]]:
    """Return the sets of distractors that a text describes, each a mapping of names to options.

    ``none``, ``a,b``, ``[a,b]`` and ``{a: {strength: 2}, b: {}}`` are one set; ``[a,b],[c],none`` are three.
    """
    if text.startswith("{"):
        sets = [parse("distractors", text).value()]
        if not isinstance(sets[0], dict):
            raise UserError(f"distractors={text}: sweep over names, as in distractors=[a,b],[c],none.")
    else:
        parts = outside_brackets(text) if "[" in text else [text]
        lists = [re.sub(r"^\s*\[(.*)\]\s*$", r"\1", part).split(",") for part in parts]
        sets = [dict.fromkeys(name.strip(" '\"") for name in names) for names in lists]
        sets = [{} if list(names) in ([""], ["none"], ["null"]) else names for names in sets]
    if any("none" in names for names in sets):
        raise UserError(f"distractors={text}: 'none' stands alone. Leave it out, or the others.")
    for name, options in ((name, options) for names in sets for name, options in names.items()):
        if name not in choices("distractors"):
            raise UserError(f"unknown distractor '{name}'.{did_you_mean(name, [*choices('distractors'), 'none'])}")
        if not isinstance(options, dict | None):
            raise UserError(f"distractors.{name}={options}: must be a group of options.")
    return [{name: options or {} for name, options in names.items()} for names in sets]
