"""How evidence.py names and compares runs: by task, variant, arm and seed, from their configurations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from denoised_mdp.config import as_tree, load_config
from denoised_mdp.config.compare import differences_but_seed, key_of_difference
from denoised_mdp.config.compose import flatten
from denoised_mdp.config.schema import Config
from denoised_mdp.config.validate import as_text
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.errors import UserError


def variant_of(config: Config) -> str:
    """The distractors as one word: their names and unusual options; "noiseless" without any.

    These options are strength, colour, "still" where a single picture is the whole video, and the matte.
    """
    words = []
    for name, options in config.distractors.items():
        usual = vars(DISTRACTORS[name].Options())
        strength = options.get("strength")
        words += [name, *([f"{strength:g}"] if strength != usual.get("strength") else [])]
        words += ["color"] if options.get("color") and not usual["color"] else []
        words += ["still"] if options.get("frames") == 1 else []
        words += [options["matte"]] if options.get("matte") != usual.get("matte") else []
    return "_".join(words) or "noiseless"


def arm_of(config: Config, by: Sequence[str]) -> str:
    """Name of an arm, to compare with others on the same environment: model or agent, decoding target, options `by`.

    Raises:
        UserError: an option of `by` does not exist.
    """
    options = dict(flatten(as_tree(config)))
    if unknown := [key for key in by if key not in options]:
        raise UserError(f"--by {unknown[0]}: there is no such option.")
    told = [f"{key.rpartition('.')[2]}={as_text(options[key])}" for key in by]
    return " ".join([config.method[0], *(["foreground"] if config.foreground else []), *told])


def key_of(config: Config, by: Sequence[str]) -> tuple[str, str, str, str]:
    """The values of `KEY` for a run."""
    return config.env.task, variant_of(config), arm_of(config, by), str(config.seed)


def refuse_mixtures(runs: Sequence[tuple[str, Config]], by: Sequence[str]) -> None:
    """Check that runs of one arm differ in the seed alone. Each run comes with its name for messages.

    Raises:
        UserError: two of them differ in more, or have the same seed.
    """
    first: dict[tuple, tuple[str, Config]] = {}
    for name, config in runs:
        *arm, seed = key_of(config, by)
        known, one = first.setdefault(tuple(arm), (name, config))
        changed = differences_but_seed(one, config)
        if changed:
            raise UserError(
                f"{known} and {name} are both {', '.join(arm)}, but differ in {changed[0]}. Tell them apart with"
                f" --by {key_of_difference(changed[0], config)}, leave one out, or choose another --out."
            )
        known = first.setdefault((*arm, seed), (name, config))[0]
        if known != name:
            raise UserError(f"{known} and {name} have one seed ({seed}): leave one out.")


def arms_measured_otherwise(
    planned: Sequence[tuple[str, Sequence[str], str]], rows: Sequence[Mapping[str, str]]
) -> dict[tuple[str, ...], str]:
    """Find arms whose runs would not all be measured at the same step (or each at its best) and with the same options.

    planned: name, key, and checkpoint with size, of each run to be measured. rows: the rows of runs.csv that stay; for
    older ones, without a column `measured`, only the step is known. Returns {arm: what is wrong}.
    """
    plans: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name, key, measured in planned:
        plans.setdefault(tuple(key[:3]), []).append((name, measured))
    found = {}
    for arm, runs in plans.items():
        there = [row for row in rows if (row["task"], row["variant"], row["arm"]) == arm]
        told = runs + [(row["run"], row["measured"]) for row in there if row.get("measured")]
        steps = {measured.rpartition(" ")[0] for _, measured in told}
        old = [(row["run"], f"step {row['step']}") for row in there if not row.get("measured")]
        if len({measured for _, measured in told}) > 1 or {step for _, step in old} - steps:
            each = ", ".join(f"{name} ({measured})" for name, measured in [*told, *old])
            found[arm] = (
                f"{', '.join(arm)}: left as it is, since its runs would be measured otherwise: {each}. Choose one"
                " --step, --size and --behaviour for all, or another --out."
            )
    return found


def overrides_of(config: Config) -> str:
    """The words after `train` in a command that starts such a run, without seed and folder."""
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
