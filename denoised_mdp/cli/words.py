"""The words of a sweep: translate ours to Hydra's grammar, and read back what Hydra reports of a job."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from denoised_mdp.config import expanded, load_config
from denoised_mdp.config.choices import GROUPS
from denoised_mdp.config.compare import SAME_RESULTS
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.overrides import QUOTED, TEXTS, check_choice, distractor_sets, is_hydra, parse, split
from denoised_mdp.config.validate import as_text
from denoised_mdp.errors import UserError

MOST = 1000  # values of one option that are checked before a sweep begins
LONGEST = 100  # characters of a folder's name; file systems allow 255 bytes


def translate_multirun(overrides: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return `overrides` in Hydra's grammar, and those with a single value, which all jobs share.

    Keys and choices are checked; for values see `check_values`. ``run_dir`` becomes the folder of the whole sweep.
    Without it, the folder's name is derived from the shared overrides, so that the same command continues the sweep.
    The overrides that vary name each job's folder inside it.
    """
    result, fixed, folder, said = [], {}, None, {}
    for key, text in itertools.chain.from_iterable(itertools.starmap(_pairs, map(split, overrides))):
        said.pop(key, None)  # the last one counts, at its own position
        said[key] = text
    for key, text in said.items():
        if is_hydra(key):
            result.append(f"{key}={text}")
        elif key == "run_dir" and text != "null":
            folder = expanded(plain_value(key, text) if QUOTED.fullmatch(text) else text)
        elif key != "run_dir":
            _add(key, _quoted_parts(text) if key in TEXTS else text, result, fixed)
    if folder is not None or not any(text.startswith("hydra.sweep.dir=") for text in result):
        result.append(f"hydra.sweep.dir={quote(folder or sweep_folder(fixed))}")
    return [*result, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"], fixed


def check_values(words: Sequence[str]) -> None:
    """Compose the configurations of enough jobs to cover each value of a sweep; `words` are in Hydra's grammar.

    A typo in the last value of a sweep that takes days is thus reported before the first job begins.

    Raises:
        UserError: one of these jobs could not begin.
    """
    axes = {}
    for word in (word for word in words if not is_hydra(word.partition("=")[0])):
        override = parse(*word.lstrip("+").split("=", 1))
        if override.is_discrete_sweep():
            axes[word] = [f"{override.key_or_group}={text}" for text in _values(override)]
        elif not override.is_sweep_override():  # the sweeper chooses those of others, such as interval(0,1)
            axes[word] = [word]
    first = {word: values[0] for word, values in axes.items() if values}
    load_config([*map(word_of, first.values())])
    for word, values in axes.items():
        for value in values[1:]:
            load_config([*map(word_of, (first | {word: value}).values())])


def _values(override: Any) -> list[str]:
    """Return the first values of an option in a sweep, at most `MOST`.

    Raises:
        UserError: they cannot be listed, or two of them would name the same folder.
    """
    from hydra.errors import HydraException

    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST))
    except HydraException as error:  # glob(*), which needs config groups that Hydra loads
        raise UserError(f"{override.input_line}: not understood; list the values.") from error
    seen: dict[str, str] = {}
    for text in values:
        if seen.setdefault(plain(text), text) != text:
            raise UserError(
                f"{override.key_or_group}: {seen[plain(text)]} and {text} would name one folder. Train one of them by"
                " a command of its own."
            )
    return values


def word_of(text: str) -> str:
    """Return a job's override in our own form, from Hydra's text of it."""
    key, _, value = text.lstrip("+").partition("=")
    # Hydra has escaped the special characters of its grammar, such as colons.
    return f"{key}={quote(plain_value(key, value))}" if key in TEXTS and value != "null" else text.lstrip("+")


def _pairs(key: str, text: str) -> list[tuple[str, str]]:
    """Return an override as Hydra's keys and values: distractor sets in brackets, each of their options by itself."""
    if key != "distractors":
        return [(key, text)]
    sets = distractor_sets(text)
    return [(key, ",".join(f"[{','.join(names)}]" for names in sets)), *words_of_group(key, sets[0])[1:]]


def words_of_group(key: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a nested group of options as keys and values of a command line; names of distractors come first."""
    names = []
    if key == "distractors":  # one with its defaults is only named
        names = [(key, f"[{','.join(map(str, options))}]")]
        options = {name: own for name, own in options.items() if own}
    return names + [(inner, as_text(value)) for inner, value in flatten(options, f"{key}.")]


def _add(key: str, text: str, result: list[str], fixed: dict[str, str]) -> None:
    override = parse(key, text)
    result.append(f"{'' if key in GROUPS else '++'}{key}={text}")
    if not override.is_sweep_override():
        fixed[key] = text
    chosen = getattr(override.value(), "list", [override.value()])  # the values of a sweep are in its list
    for name in chosen if key in GROUPS and key != "distractors" else ():
        check_choice(key, str(name))


def plain(text: str) -> str:
    """Return a folder's name from overrides, without quotes and escapes; slashes, which would nest it, become _."""
    return re.sub(r"[\\'\"{}\s]+|(?:(?<=^)|(?<=,))\+\+", "", text).replace("/", "_")


def sweep_folder(fixed: Mapping[str, str], name: str = "sweep") -> str:
    """Return a folder named after the preset and those shared options that can change results."""
    words = [f"{key}={value}" for key, value in fixed.items() if key == "preset" or key not in SAME_RESULTS]
    name = plain("-".join([name, *words]))
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{zlib.crc32(name.encode()):08x}"
    return os.path.join("runs", name)


def quote(value: str) -> str:
    """Quote a text for Hydra's grammar."""
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value)  # a backslash is special only before a quote
    return "'" + value.replace("'", r"\'") + "'"


def _quoted_parts(value: str) -> str:
    """Quote each text in a comma-separated list, such as ``procedural:1,procedural:2``, for Hydra's grammar."""
    if value == "null" or re.fullmatch(r"\w+\(.*\)", value):  # choice(a,b) and the like are Hydra's
        return value
    parts = re.findall(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|[^,'"\\])+|^(?=,)|(?<=,)(?=,|$))""", value)
    if ",".join(parts) != value:
        return value
    return ",".join(part if QUOTED.fullmatch(part) else quote(part.strip().replace(r"\,", ",")) for part in parts)


def plain_value(key: str, value: str) -> str:
    """Return the text that a value in Hydra's grammar stands for."""
    return str(parse(key, value).value())
