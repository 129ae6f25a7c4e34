"""``denoised-mdp probe joints``: compare the encoders of runs with a contrastive encoder and one from scratch."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from denoised_mdp.analysis.contrastive import contrastive_encoder
from denoised_mdp.analysis.joints.data import JointData
from denoised_mdp.analysis.joints.record import locked
from denoised_mdp.analysis.joints.regression import (
    PAPER_SIZES,
    PAPER_TEST,
    WEIGHT_DECAY,
    Curve,
    Schedule,
    finetune,
    fresh_encoder,
    scaled_sizes,
)
from denoised_mdp.analysis.joints.results import Result, write_results
from denoised_mdp.analysis.joints.resume import FinishedCurves, Key, fingerprint
from denoised_mdp.analysis.results import Subject, subjects
from denoised_mdp.config.compare import groups_of_seeds
from denoised_mdp.config.schema import Config
from denoised_mdp.device import resolve_device
from denoised_mdp.errors import UserError
from denoised_mdp.models.vision import Encoder
from denoised_mdp.progress import Phase

if TYPE_CHECKING:
    from denoised_mdp.analysis.probes.joints import Options

SCRATCH, CONTRASTIVE = "from scratch", "contrastive"
REFERENCES = {"both": (SCRATCH, CONTRASTIVE), "scratch": (SCRATCH,), "contrastive": (CONTRASTIVE,), "none": ()}
STACKS = {"1": (1,), "3": (3,), "both": (1, 3)}
NO_DECAY = (SCRATCH, "CURL")
"""encoders that Wang et al. 2022 finetune without weight decay"""
MUST_AGREE = ("suite", "task", "size", "camera", "quality")
"""options of a run's environment that determine its encoder's input"""
Makers = dict[tuple[str, str], Callable[[int], Encoder]]
"""(name in the comparison, path of the run) -> function that makes the encoder from a seed"""


def probe_joints(runs: Sequence[Path], options: Options, sizes: Sequence[int] | str) -> list[str]:
    """Finetune every encoder on every train size; write JSON, CSV and plots; return lines to print.

    Each finetuning is saved in the results folder as soon as it is finished. After an interruption, the same call
    resumes with the next one. On a CPU, the results are byte-identical to those of an uninterrupted call.

    sizes: see `chosen_rows`. The checkpoints of the runs are only read.

    Raises:
        UserError: a run or the data set is missing, there are too few pairs, a run has another environment, or the
            folder holds the results of another call.
    """
    stack, references = STACKS[options.stack], REFERENCES[options.references]
    schedule = Schedule(**{key: getattr(options, key) for key in ("updates", "batch", "evaluations", "scale")})
    contrastive = {"updates": options.contrastive_updates, "batch": options.contrastive_batch, "flip": options.flip}
    folder, members = options.output or Path("probes"), list(subjects(runs, options))
    with contextlib.closing(JointData(options.data)) as store, locked(folder):
        for subject in members:
            _check(subject.config, store)
            _check_stack(subject, stack, store)
        train, test = chosen_rows(store, sizes, options.test_pairs)
        names = _names([subject.config for subject in members], [subject.path for subject in members])
        config, where = _first_model(members, references), resolve_device(options.device)
        makers: Makers = {
            (name, str(one.path)): lambda _, one=one: one.agent.picture_encoder
            for name, one in zip(names, members, strict=True)
        }
        for name in references:
            makers[name, ""] = lambda seed, name=name: _reference(name, config, store, seed, where, contrastive)
        about = {
            "runs": [_origin(name, one) for name, one in zip(names, members, strict=True)],
            "references": references,
            "sizes": train,
            "test_pairs": len(test),
            "stack": stack,
            "seeds": options.seeds,
            "finetuning": dataclasses.asdict(schedule),
            "contrastive": contrastive,
            "device": where.type,
            "data": str(store.folder),
            "data_checksums": store.fingerprint(),
        }
        every = itertools.product(makers, range(options.seeds), stack, train)
        keys = [(*one, frames, size, seed) for one, seed, frames, size in every]
        curves = _curves(makers, keys, FinishedCurves(folder, about), store, test, schedule)
        results = [Result(*key, curves[key]) for key in keys]
        return write_results(members, results, store, folder, options.output, schedule, len(test))


def _origin(name: str, subject: Subject) -> dict[str, Any]:
    """Identify a run's encoder, so that a resumed call can tell whether it is still the same."""
    weights = fingerprint(subject.agent.picture_encoder)
    return {"name": name, "path": str(subject.path), "step": subject.step, "encoder": weights}


def _curves(
    makers: Makers,
    keys: Sequence[Key],
    finished: FinishedCurves,
    store: JointData,
    test: np.ndarray,
    schedule: Schedule,
) -> dict[Key, Curve]:
    """Return the curves of all finetunings. Run those that are not finished yet, and save each at once."""
    curves = {key: curve for key in keys if (curve := finished.get(key)) is not None}
    encoder, origin = None, None  # of the previous finetuning
    with Phase("joints", len(keys), "finetunings", done=len(curves)) as phase:
        for key in (key for key in keys if key not in curves):
            name, run, stack, size, seed = key
            if origin != (name, run, seed):
                encoder, origin = makers[name, run](seed), (name, run, seed)
            rows, decay = (
                store.choose("train", size, seed),
                0.0 if name.partition(" · ")[0] in NO_DECAY else WEIGHT_DECAY,
            )
            what = f"{name}, {stack} frame{'s' * (stack > 1)}, {size:,} pairs, seed {seed}"
            with _updates(what, schedule.updates) as inner:
                options = {"stack": stack, "seed": seed, "weight_decay": decay, "progress": inner.update}
                curves[key] = finetune(encoder, store, rows, test, schedule, **options)
            finished.put(key, curves[key])
            phase.update(len(curves))
    return curves


def chosen_rows(store: JointData, sizes: Sequence[int] | str, test_pairs: int | None) -> tuple[list[int], np.ndarray]:
    """Return train sizes and test rows. sizes: numbers of training pairs, "paper" (`PAPER_SIZES`) or "scaled"."""
    policies = len(store.plan.policies)
    available = {side: len(store.choose(side, None, 0)) for side in ("train", "test")}
    test = store.choose("test", min(PAPER_TEST, available["test"]) if test_pairs is None else test_pairs, 0)
    if isinstance(sizes, str):
        sizes = PAPER_SIZES if sizes == "paper" else scaled_sizes(available["train"], policies)
    for size in sorted(sizes):
        store.choose("train", size, 0)  # refuse an impossible one before anything is trained
    return sorted({size // policies * policies for size in sizes}), np.sort(test)


def _check(config: Config, store: JointData) -> None:
    """Refuse a run with another environment, and warn of other distractors."""
    own, made = vars(config.env), store.plan.environment
    for key in MUST_AGREE:
        if own[key] != made[key]:
            raise UserError(
                f"{store.folder} was made with {key}={made[key]}, the run with {own[key]}: make a data set of this run"
                " (denoised-mdp probe joints-data RUN)."
            )
    if config.distractors != made["distractors"]:
        warnings.warn(
            f"{store.folder} was made with other distractors than a run: its pictures look different.", stacklevel=3
        )


def _check_stack(subject: Subject, stack: Sequence[int], store: JointData) -> None:
    """Refuse an encoder that reads other stacks of frames, and warn if its frames are spaced differently in time."""
    frames = subject.agent.picture_encoder.frames
    if frames not in (1, 3):  # the stacks that `probe joints` offers
        raise UserError(f"{subject.path}: this run's encoder reads {frames} frames at once, the probe 1 or 3.")
    if frames > 1 and tuple(stack) != (frames,):
        raise UserError(f"{subject.path}: this run's encoder reads {frames} frames at once: give --stack {frames}.")
    learned, recorded = subject.config.env.action_repeat, store.plan.environment["action_repeat"]
    if frames > 1 and learned != recorded:
        warnings.warn(
            f"{subject.path}: this run's encoder reads frames that are {learned} steps apart (env.action_repeat); those"
            f" of {store.folder} are {recorded} apart.",
            stacklevel=3,
        )


def _first_model(members: Sequence[Subject], references: Sequence[str]) -> Config:
    """The configuration whose encoder architecture the references have: that of the first run with a world model."""
    configs = [one.config for one in members if one.config.agent.has_model]
    if references and not configs:
        raise UserError("The references have a world model's encoder: name a run of one, or give --references none.")
    return (configs or [members[0].config])[0]


def _names(configs: Sequence[Config], paths: Sequence[Path]) -> list[str]:
    """A name for each run; runs that differ only in the seed share one."""
    titles = {config.method[0]: config.method[0] for config in configs}
    titles |= {"2b": "Denoised 2b", "2c": "Denoised 2c", "dreamer": "Dreamer", "repo": "RePo", "tia": "TIA"}
    titles |= {"curl": "CURL", "dbc": "DBC", "pisac": "PI-SAC", "sac_pixels": "Pixel SAC"}
    groups = groups_of_seeds(range(len(configs)), lambda number: configs[number])
    of_groups = [titles[configs[group[0]].method[0]] for group in groups]
    names = {}
    for group, title in zip(groups, of_groups, strict=True):
        told = title if of_groups.count(title) == 1 else f"{title} · {Path(paths[group[0]]).resolve().name}"
        names |= dict.fromkeys(group, told)
    return [names[number] for number in range(len(configs))]


def _reference(
    name: str, config: Config, store: JointData, seed: int, device: torch.device, options: dict[str, Any]
) -> Encoder:
    """An encoder with the architecture of `config`, see `_first_model`, that no world model has trained."""
    made = {"init": config.model.init, **Encoder.options(config)}
    encoder = fresh_encoder(seed=seed, **made).to(device)
    if name == SCRATCH:
        return encoder
    with _updates(f"contrastive encoder, seed {seed}", options["updates"]) as phase:
        return contrastive_encoder(encoder, store, phase.update, made=made, seed=seed, **options)


def _updates(what: str, count: int) -> Phase:
    return Phase(what, count, "updates", delay=1)
