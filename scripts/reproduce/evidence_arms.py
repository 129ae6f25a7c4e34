"""How evidence.py names and compares runs: by task, variant, arm and seed, from their configurations."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from denoised_mdp.config import as_tree, differences, key_of_difference, load_config
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import as_text
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError


def variant_of(config: Config) -> str:
    """The distractors in a word: names, and the strength and colour that are not usual; "noiseless" without any."""
    words = []
    for name, options in config.distractors.items():
        usual = vars(DISTRACTORS[name].Options())
        strength = options.get("strength")
        words += [name, *([f"{strength:g}"] if strength != usual.get("strength") else [])]
        words += ["color"] if options.get("color") and not usual["color"] else []
    return "_".join(words) or "noiseless"


def arm_of(config: Config, by: Sequence[str]) -> str:
    """What is compared with other arms on the same environment: model or agent, what it decodes, the options `by`.

    Raises:
        UserError: there is no such option.
    """
    options = dict(flatten(as_tree(config)))
    if unknown := [key for key in by if key not in options]:
        raise UserError(f"--by {unknown[0]}: there is no such option.")
    told = [f"{key.rpartition('.')[2]}={as_text(options[key])}" for key in by]
    return " ".join([config.method[0], *(["foreground"] if config.foreground else []), *told])


def key_of(config: Config, by: Sequence[str]) -> tuple[str, str, str, str]:
    """`KEY` of a run."""
    return config.env.task, variant_of(config), arm_of(config, by), str(config.seed)


def refuse_mixtures(runs: Sequence[tuple[str, Config]], by: Sequence[str]) -> None:
    """Runs of one arm, each with its name for messages, differ in the seed alone.

    Raises:
        UserError: two of them do not.
    """
    first: dict[tuple, tuple[str, Config]] = {}
    for name, config in runs:
        *arm, seed = key_of(config, by)
        known, one = first.setdefault(tuple(arm), (name, config))
        changed = differences(one, dataclasses.replace(config, seed=one.seed))
        if changed:
            raise UserError(
                f"{known} and {name} are both {', '.join(arm)}, but differ in {changed[0]}. Tell them apart with"
                f" --by {key_of_difference(changed[0], config)}, leave one out, or choose another --out."
            )
        known = first.setdefault((*arm, seed), (name, config))[0]
        if known != name:
            raise UserError(f"{known} and {name} have one seed ({seed}): leave one out.")


def refuse_other_measures(rows: Sequence[Mapping[str, str]], name: str, key: Sequence[str], measured: str) -> None:
    """The runs of one arm are measured alike: at one step, or each at its best, by as many episodes.

    rows: of runs.csv. name, key, measured: of the run that is to be measured: checkpoint and size.

    Raises:
        UserError: the arm has a run that was measured otherwise.
    """
    for row in rows:
        before, ours = row.get("measured"), measured
        if not before:  # an older row: its step is all that is known
            before, ours = f"step {row['step']}", measured.rpartition(" ")[0]
        if (row["task"], row["variant"], row["arm"]) == tuple(key[:3]) and row["seed"] != key[3] and before != ours:
            raise UserError(
                f"{name} is left out: it would be measured otherwise ({ours}) than {row['run']} of the same arm"
                f" ({before}). Choose the same --step, --size and --behaviour, or another --out."
            )


def overrides_of(config: Config) -> str:
    """The words after `train` of the command that began a run, without seed and folder."""
    model = {"model": config.model.name, "policy": config.policy.name}
    choices = {
        "env": config.env.suite,
        "env.task": config.env.task,
        "distractors": ",".join(config.distractors) or "none",
        **(model if config.agent.has_model else {"agent": config.agent.name}),
    }
    words = [f"preset={config.preset}", *(f"{key}={value}" for key, value in choices.items())]
    usual, own = (dict(flatten(as_tree(one))) for one in (load_config(words), config))
    changed = [key for key in own if own[key] != usual.get(key) and key not in ("run_dir", "seed")]
    return shlex.join([*words, *(f"{key}={as_text(own[key])}" for key in changed)])


def config_of(row: Mapping[str, str]) -> Config:
    """The configuration of a row of runs.csv."""
    return load_config([*shlex.split(row["overrides"]), f"seed={row['seed']}"])
