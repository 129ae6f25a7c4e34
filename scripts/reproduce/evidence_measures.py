"""The measures of evidence.py: two probes and returns of held-out episodes, with their sizes and checkpoints."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denoised_mdp.analysis.probe import Options, Probe
from denoised_mdp.analysis.probes import PROBES, factors, invariance
from denoised_mdp.analysis.report.data import RunData, read_run
from denoised_mdp.analysis.results import subjects, write_json
from denoised_mdp.errors import UserError
from denoised_mdp.options import BEST, option
from denoised_mdp.progress import shown
from denoised_mdp.run.checkpoint import list_steps
from denoised_mdp.run.environments import environment_maker, shows_clips
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.state import best_step, choosing_episodes


@dataclasses.dataclass
class ReturnOptions(Options):
    """Options of `returns`."""

    episodes: int = option(10, "held-out episodes", low=1)
    after: int = option(0, "episodes to leave out before them: those by which a checkpoint was chosen", low=0)


def returns(runs: Sequence[Path], options: ReturnOptions) -> list[str]:
    """Play the episodes of `denoised-mdp evaluate` and write {split: [returns]}, with unseen clips if there are any."""
    from denoised_mdp.evaluation import evaluate, evaluation_seeds

    lines = []
    for subject in subjects(runs, options):
        config, seeds = subject.config, evaluation_seeds(subject.config.seed, options.episodes, options.after)
        played = {
            split: evaluate(subject.agent, environment_maker(config, split), seeds).returns
            for split in ("train", *(["test"] if shows_clips(config) else []))
        }
        path = f"{subject.stem('returns', options.output, options.variant())}.json"
        lines.append(f"  {write_json(path, subject.about('returns', options.measured()) | {'returns': played})}")
    return lines


PLAYED = Probe("returns of held-out episodes", returns)
"""not a command; used by two of the measures"""
MEASURES: dict[str, tuple[Probe, Options]] = {
    "factors": (PROBES["factors"], factors.Options()),
    "invariance": (PROBES["invariance"], invariance.Options(returns=0)),
    "returns": (PLAYED, ReturnOptions()),
    "best": (PLAYED, ReturnOptions(episodes=20)),
}
"""`best`: of the weights with the highest evaluation return up to the step of the other measures, if all were kept"""
KEPT_AS = {"best": "returns"}
"""measure -> the probe under whose name its result is stored, where it differs"""
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "full": {},
    "small": {"factors": {"episodes": 20, "steps": 150}, "invariance": {"episodes": 4, "worlds": 3, "steps": 100}},
    "least": {
        "factors": {"episodes": 3, "steps": 20},
        "invariance": {"episodes": 2, "worlds": 2, "steps": 10},
        "returns": {"episodes": 2},
        "best": {"episodes": 2},
    },
}
"""how much is measured: the probes' defaults (a minute or two per run), fewer episodes, or as little as possible"""


def measured_at(size: str, behaviour: str = "mixed") -> dict[str, Options]:
    """The options of all `MEASURES` at one of the `SIZES`."""
    options = {name: dataclasses.replace(one, **SIZES[size].get(name, {})) for name, (_, one) in MEASURES.items()}
    return options | {"factors": dataclasses.replace(options["factors"], behaviour=behaviour)}


def asked_of(run: RunData, options: Mapping[str, Options], step: int | str | None) -> dict[str, Options]:
    """The options of the measures that a run can have, each with its checkpoint.

    step: of the checkpoint, or "best"; None: the newest.

    Raises:
        UserError: the run has no such checkpoint.
    """
    folder = RunFolder(run.path)
    at = best_step(folder) if step == BEST else step or max(list_steps(folder.checkpoints), default=0)
    stored = {*list_steps(folder.checkpoints), *list_steps(folder.snapshots)}
    if at not in stored:
        raise UserError(f"{run.path}: no checkpoint{f' of step {step:,}' if step else ' yet'}")
    asked = {name: dataclasses.replace(one, checkpoint=at) for name, one in options.items()}
    if not run.config.distractors:
        asked.pop("invariance", None)
    best, evaluated = asked.pop("best", None), [int(n) for n in run.metrics.get("eval/return", ((),))[0] if n <= at]
    after = functools.partial(choosing_episodes, folder, run.config.train.eval_episodes)
    if chosen := after(step):
        asked["returns"] = dataclasses.replace(asked["returns"], after=chosen)
    elif best and evaluated and stored.issuperset(evaluated):  # else the best weights may be gone
        asked["best"] = dataclasses.replace(best, checkpoint=best_step(folder, until=at), after=after(BEST))
    return asked


def measure(run: Path, asked: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """Results of the measures that `asked_of` chose for a run; computes those that are not in RUN/probes."""

    def known() -> dict[str, dict[str, Any]]:
        trees = read_run(run).probes
        fitting = {name: [t for t in trees.get(KEPT_AS.get(name, name), []) if fits(name, t)] for name in asked}
        return {name: found[-1] for name, found in fitting.items() if found}

    def fits(name: str, tree: dict[str, Any]) -> bool:
        usual = type(asked[name])().measured()  # covers options that are newer than the result
        return tree["step"] == asked[name].checkpoint and usual | tree.get("options", {}) == asked[name].measured()

    done = known()
    for name in asked.keys() - done.keys():
        with shown():
            MEASURES[name][0].run([run], asked[name])
    return known()
