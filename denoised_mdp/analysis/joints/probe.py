"""``denoised-mdp probe joints``: compare the encoders of runs with a contrastive one and one from scratch."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denoised_mdp.analysis.contrastive import contrastive_encoder
from denoised_mdp.analysis.joints import plots as joint_plots
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
from denoised_mdp.analysis.joints.resume import FinishedCurves, fingerprint
from denoised_mdp.analysis.plots import save_figure
from denoised_mdp.analysis.probe import Options
from denoised_mdp.analysis.results import Subject, subjects, write_csv, write_json
from denoised_mdp.config import differences
from denoised_mdp.config.schema import Config
from denoised_mdp.device import resolve_device
from denoised_mdp.errors import UserError
from denoised_mdp.models.networks import Encoder
from denoised_mdp.progress import Phase

SCRATCH, CONTRASTIVE = "from scratch", "contrastive"
FAR = 5.0
"""relative error of a joint from which the output explains it"""
MUST_AGREE = ("suite", "task", "size", "camera", "quality")
"""options of a run's environment that determine its encoder's input"""


@dataclass
class Result:
    """One finetuning."""

    encoder: str
    """name in the comparison; runs that differ only in the seed share one"""
    run: str
    """path of the run; empty for an encoder without one"""
    stack: int
    size: int
    """training pairs"""
    seed: int
    curve: Curve


def probe_joints(
    runs: Sequence[Path],
    output: Path | None = None,
    *,
    data: Path,
    sizes: Sequence[int] | str = PAPER_SIZES,
    test_pairs: int | None = None,
    stack: Sequence[int] = (1,),
    seeds: int = 1,
    schedule: Schedule | None = None,
    references: Sequence[str] = (SCRATCH, CONTRASTIVE),
    contrastive: dict[str, Any] | None = None,
    checkpoint: int | None = None,
    device: str = "auto",
) -> list[str]:
    """Finetune every encoder on every train size; write JSON, CSV and plots; return lines to print.

    Each finished finetuning is saved at once in the folder of results. After an interruption, the same call resumes
    with the next one; on a CPU the results are byte-identical.

    sizes: training pairs, or "scaled" (`scaled_sizes`). stack: numbers of frames whose features are concatenated.
    references: which of "from scratch" and "contrastive" join the comparison. contrastive: options of
    `train_contrastive`. The checkpoints of the runs are only read.

    Raises:
        UserError: no such run or data set, too few pairs, a run of another environment, or a folder with the results of
            another call.
    """
    schedule = schedule or Schedule()
    folder, members = output or Path("probes"), list(subjects(runs, Options(output, checkpoint, device)))
    with contextlib.closing(JointData(data)) as store, locked(folder):
        for subject in members:
            _check(subject.config, store)
        train, test = _rows(store, sizes, test_pairs)
        names = _names([subject.config for subject in members], [subject.path for subject in members])
        config, where = members[0].config, resolve_device(device)
        encoders: list[tuple[str, str, Callable[[int], Encoder]]] = [
            (name, str(subject.path), lambda _, subject=subject: subject.agent.world_model.encoder)
            for name, subject in zip(names, members, strict=True)
        ]
        encoders += [
            (name, "", lambda seed, name=name: _reference(name, config, store, seed, where, contrastive or {}))
            for name in references
        ]
        makers = {(name, run): make for name, run, make in encoders}
        keys = [
            (*one, frames, size, seed) for one in makers for seed in range(seeds) for frames in stack for size in train
        ]
        finished = FinishedCurves(
            folder,
            {
                "runs": [
                    {
                        "name": name,
                        "path": str(one.path),
                        "step": one.step,
                        "encoder": fingerprint(one.agent.world_model.encoder),
                    }
                    for name, one in zip(names, members, strict=True)
                ],
                "references": references,
                "sizes": train,
                "test_pairs": len(test),
                "stack": stack,
                "seeds": seeds,
                "finetuning": dataclasses.asdict(schedule),
                "contrastive": contrastive or {},
                "device": where.type,
                "data": str(store.folder),
                "data_checksums": store.fingerprint(),
            },
        )
        curves = {key: curve for key in keys if (curve := finished.get(key)) is not None}
        with Phase("joints", len(keys), "finetunings", done=len(curves)) as phase:
            last = None, None  # the last encoder, and its origin
            for key in keys:
                name, run, frames, size, seed = key
                if key in curves:
                    continue
                if last[1] != (name, run, seed):
                    last = makers[name, run](seed), (name, run, seed)
                rows = store.choose("train", size, seed)
                what = f"{name}, {frames} frame{'s' * (frames > 1)}, {size:,} pairs, seed {seed}"
                with _updates(what, schedule.updates) as inner:
                    curves[key] = finetune(
                        last[0],
                        store,
                        rows,
                        test,
                        schedule,
                        stack=frames,
                        seed=seed,
                        progress=inner.update,
                        weight_decay=0.0 if name == SCRATCH else WEIGHT_DECAY,
                    )
                finished.put(key, curves[key])
                phase.update(len(curves))
        results = [Result(*key, curves[key]) for key in keys]
        return _report(members, results, store, folder, output, schedule, len(test))


def _rows(store: JointData, sizes: Sequence[int] | str, test_pairs: int | None) -> tuple[list[int], np.ndarray]:
    """The train sizes and the rows to test on."""
    policies = len(store.plan.policies)
    available = {side: len(store.choose(side, None, 0)) for side in ("train", "test")}
    test = store.choose("test", min(PAPER_TEST, available["test"]) if test_pairs is None else test_pairs, 0)
    train = scaled_sizes(available["train"], policies) if isinstance(sizes, str) else sorted(set(sizes))
    for size in train:
        store.choose("train", size, 0)  # refuse an impossible one before anything is trained
    return [size // policies * policies for size in train], np.sort(test)


def _check(config: Config, store: JointData) -> None:
    """Refuse a run of another environment, and warn of other distractors."""
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


def _names(configs: Sequence[Config], paths: Sequence[Path]) -> list[str]:
    """A name for each run; runs that differ only in the seed share one."""
    titles = {config.model.name: config.model.name for config in configs}
    titles |= {"2b": "Denoised 2b", "2c": "Denoised 2c", "dreamer": "Dreamer", "repo": "RePo", "tia": "TIA"}
    groups: list[int] = []
    for number, config in enumerate(configs):
        same = (
            other
            for other in range(number)
            if not differences(configs[other], dataclasses.replace(config, seed=configs[other].seed))
        )
        groups.append(next(same, number))
    firsts = {titles[configs[group].model.name]: set() for group in groups}
    for group in groups:
        firsts[titles[configs[group].model.name]].add(group)
    return [
        title if len(firsts[title]) == 1 else f"{title} · {Path(paths[group]).resolve().name}"
        for group, title in ((group, titles[configs[group].model.name]) for group in groups)
    ]


def _reference(
    name: str, config: Config, store: JointData, seed: int, device: torch.device, options: dict[str, Any]
) -> Encoder:
    """An encoder of the first run's architecture without a world model."""
    model = config.model
    encoder = fresh_encoder(config.env.size, model.depth, model.embed, model.init, seed, model.pixel_range).to(device)
    if name == SCRATCH:
        return encoder
    with _updates(f"contrastive encoder, seed {seed}", options.get("updates", 20_000)) as phase:
        return contrastive_encoder(encoder, store, phase.update, init=model.init, seed=seed, **options)


def _updates(what: str, count: int) -> Phase:
    return Phase(what, count, "updates", delay=1)


def _report(
    members: Sequence[Subject],
    results: list[Result],
    store: JointData,
    folder: Path,
    output: Path | None,
    schedule: Schedule,
    tested: int,
) -> list[str]:
    """Write everything; return a table of the final errors as lines."""
    joints = store.targets.joints
    options = {**dataclasses.asdict(schedule), "data": str(store.folder), "test_pairs": tested, "split": "train"}
    title = f"{' + '.join([store.plan.environment['task'], *store.plan.environment['distractors']])} · joint positions"
    heads = [f"{short} ({joint.unit}^2)" for short, joint in zip(joint_plots.short_names(joints), joints, strict=True)]
    lines = [title, f"  {'encoder':28s}{'frames':>7s}{'pairs':>9s}{'relative':>10s}{'pooled':>9s}   MSE of each joint"]
    lines.append(f"  {'':63s}   {'  '.join(f'{head:>10s}' for head in heads)}")
    worst = np.zeros(len(joints))
    for (name, stack, size), group in grouped(results).items():
        final = np.mean([one.curve.mse[-1] for one in group], 0)
        relative = np.mean([np.nanmean(one.curve.relative[-1]) for one in group])
        pooled = np.mean([one.curve.pooled[-1] for one in group])
        worst = np.fmax(worst, np.mean([one.curve.relative[-1] for one in group], 0))
        cells = "  ".join(f"{value:>{max(10, len(head))}.4g}" for value, head in zip(final, heads, strict=True))
        lines.append(f"  {name:28s}{stack:7d}{size:9,d}{relative:10.3f}{pooled:9.3f}   {cells}")
    lines.append("  relative: MSE / that of predicting the mean, mean over joints; pooled: the same of their sums")
    far = [head for head, value in zip(heads, worst, strict=True) if value > FAR]
    if far and schedule.scale == "physical":
        lines.append(
            f"  far worse than predicting the mean: {', '.join(far)}; what moves little counts little in a loss"
        )
        lines.append("    in physical units: give more --updates, or --scale standard, which weighs all joints equally")
    tree = {"probe": "joints", "options": options, "joints": [dataclasses.asdict(joint) for joint in joints]}
    parts = [(folder / "joints", tree | {"runs": [str(one.path) for one in members]}, results)]
    for subject in members:
        own = [one for one in results if one.run in ("", str(subject.path))]
        best = max((one for one in own if one.run), key=lambda one: (one.size, -one.stack, -one.seed))
        numbers = {
            "train_size": best.size,
            "relative_mse": float(np.nanmean(best.curve.relative[-1])),
            "pooled_mse": float(best.curve.pooled[-1]),
        } | {
            f"mse_{unit}2": float(best.curve.mse[-1][[joint.unit == unit for joint in joints]].mean())
            for unit in dict.fromkeys(joint.unit for joint in joints)
        }
        about = subject.about("joints", options) | numbers
        parts.append((subject.stem("joints", output, "train"), {**tree, **about}, own))
    for stem, about, own in parts:
        lines.append(f"  {write_json(f'{stem}.json', about | {'results': [as_tree(one) for one in own]})}")
        write_csv(f"{stem}.csv", [row for one in own for row in as_rows(one, store)])
        for kind, figure in joint_plots.figures(grouped(own), joints, title).items():
            save_figure(figure, stem.with_name(f"{stem.name}_{kind}.png"))
    return lines


def grouped(results: Sequence[Result]) -> dict[tuple[str, int, int], list[Result]]:
    """(encoder, frames, pairs) -> finetunings that differ only in their seed or their run's."""
    groups: dict[tuple[str, int, int], list[Result]] = {}
    for one in results:
        groups.setdefault((one.encoder, one.stack, one.size), []).append(one)
    return groups


def as_tree(result: Result) -> dict[str, Any]:
    """All numbers of one finetuning, for JSON."""
    curve = result.curve
    about = {"encoder": result.encoder, "run": result.run, "frames": result.stack, "pairs": result.size}
    arrays = {"updates": curve.updates, "mse": curve.mse, "relative": curve.relative, "baseline": curve.baseline}
    return about | {"seed": result.seed} | {name: array.tolist() for name, array in arrays.items()}


def as_rows(result: Result, store: JointData) -> Iterator[dict[str, Any]]:
    """One row of a table per measurement and joint."""
    curve = result.curve
    for n, update in enumerate(curve.updates):
        for j, joint in enumerate(store.targets.joints):
            yield {
                "encoder": result.encoder,
                "run": result.run,
                "frames": result.stack,
                "pairs": result.size,
                "seed": result.seed,
                "update": int(update),
                "joint": joint.name,
                "unit": f"{joint.unit}^2",
                "mse": float(curve.mse[n, j]),
                "relative_mse": float(curve.relative[n, j]),
                "mean_predictor_mse": float(curve.baseline[j]),
            }
