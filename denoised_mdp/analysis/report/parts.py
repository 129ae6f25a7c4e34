"""The parts of a report: plain dictionaries for the template, one function per part.

Parts that a damaged or unfinished run lacks are left out. `safely` turns errors into sentences.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from denoised_mdp.analysis.crossfit import Estimate, confidence
from denoised_mdp.analysis.factor_tables import from_tree, headline_text
from denoised_mdp.analysis.factors import FactorMatrix
from denoised_mdp.analysis.probe import Probe, Section
from denoised_mdp.analysis.report.choice import common_options, options_text, results_at_common_step
from denoised_mdp.analysis.report.data import BROKEN, RunData, short_text
from denoised_mdp.analysis.report.groups import Group, at_common_step
from denoised_mdp.analysis.report.plots import BAND_FROM, curves_plot, heat_map
from denoised_mdp.analysis.results import number_of, show
from denoised_mdp.errors import UserError
from denoised_mdp.files import read_bytes, whole_mp4
from denoised_mdp.progress import duration, track
from denoised_mdp.run.logger import is_wall_clock

RETURNS = {
    "eval/return": ("Return of held-out episodes", "actions without sampling, always the same episodes"),
    "train/return": ("Return while collecting", "with exploration noise"),
}
MODEL = {
    "model/image_error": ("Reconstruction error", "of the picture"),
    "model/reward_error": ("Reward error", ""),
    "model/kl_x": ("KL of x", "nats per step"),
    "model/kl_y": ("KL of y", "nats per step"),
    "model/kl_z": ("KL of z", "nats per step"),
    "probe/signal_from_x": ("Quick probe: signal from x", "R² on few episodes: a trend, not signal recall"),
    "probe/noise_from_x": ("Quick probe: noise from x", "R² on few episodes: a trend, not leakage"),
}
MOST_BYTES = 40_000_000
"""largest size of an embedded file"""


def safely(problems: list[str], what: str, make: Callable[[], Any]) -> Any:
    """Return `make()`. If damaged data make it fail, add a sentence to `problems` and return None."""
    try:
        return make()
    except (*BROKEN, UserError, Image.DecompressionBombError, StopIteration, SyntaxError) as error:  # last is Pillow's
        problems.append(f"{what} cannot be shown ({short_text(error)}).")
        return None


def mean_text(values: Sequence[float], digits: int = 1) -> str:
    """Mean of the finite values with its 95 % confidence interval; if two, with both values; if none, a dash."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if not len(known):
        return "-"
    mean = f"{known.mean():,.{digits}f}"
    if len(known) < BAND_FROM:
        return mean + ("" if len(known) < 2 else f" ({', '.join(f'{value:,.{digits}f}' for value in known)})")
    return f"{mean} ± {confidence(known):,.{digits}f}"


def marked(text: str, counted: int, group: Group, step: float) -> str:
    """Mark a mean over seeds with a second line if fewer than all count, or if the step is not the group's last."""
    marks = [f"{counted} of {len(group.runs)} seeds"] * (counted < len(group.runs))
    marks += [f"at step {step:,.0f}"] * (step < group.step)
    return text + (f"\n({', '.join(marks)})" if marks and text != "-" else "")


def overview(group: Group, compared: Mapping[str, str | None]) -> dict[str, str]:
    """The row of one group in the table at the top. compared: from `compared_options`."""
    runs = group.runs
    steps = [run.step for run in runs]
    totals = [run.config.train.total_steps for run in runs if run.config]
    progress = f"{min(steps):,}" + (f" to {max(steps):,}" if min(steps) != max(steps) else "")
    if totals and max(totals) > min(steps):
        progress += f" of {max(totals):,}"
    seconds = sorted(
        {duration(run.speed.seconds): run.speed.seconds for run in runs if run.speed}.items(), key=lambda one: one[1]
    )
    return {
        "Seeds": ", ".join("?" if run.seed is None else str(run.seed) for run in runs),
        "Steps": progress,
        "Last return": last_return(group),
        "Random policy": mean_text(
            [run.metrics["random/return"][1].mean() for run in runs if "random/return" in run.metrics]
        ),
        "Signal recall": probed(group, "factors", compared, lambda tree: recall_of(tree, "signal")),
        "Leakage": probed(group, "factors", compared, lambda tree: recall_of(tree, "noise")),
        "Ratio of the signal": probed(group, "invariance", compared, ratio_of_signal),
        "Training time": "\nto ".join(dict.fromkeys(text for text, _ in [*seconds[:1], *seconds[-1:]])) or "-",
    }


def last_return(group: Group) -> str:
    """Return of the evaluation at the last step that all seeds with an evaluation have reached."""
    curves = group.curves("eval/return")
    if not curves:
        return "-"
    step, values = at_common_step(curves)
    return marked(mean_text(values), len(values), group, step)


def compared_options(runs: Sequence[RunData]) -> dict[str, str | None]:
    """The options that the overview compares, for each of its probes."""
    return {probe: common_options(runs, probe) for probe in ("factors", "invariance")}


def probed(
    group: Group, probe: str, compared: Mapping[str, str | None], value_of: Callable[[dict[str, Any]], Estimate]
) -> str:
    """The mean over seeds of one probe's number, with the same options at the same step, or a dash."""
    found = results_at_common_step(group.runs, probe, compared[probe])
    values = [one for one in (safely([], "", lambda tree=tree: value_of(tree)) for _, tree in found) if one is not None]
    known = [one.value for one in values if one.known]
    if not known:
        return values[0].text(2) if values else "-"
    text = values[0].text(2) if len(values) == len(group.runs) == 1 else mean_text(known, 2)
    return marked(text, len(known), group, found[0][1]["step"])


def recall_of(tree: dict[str, Any], source: str) -> Estimate:
    """Signal recall (`source` "signal") or leakage ("noise") of one result of `probe factors`, with ridge."""
    matrix = from_tree(tree)
    return matrix.summary("ridge", matrix.seen, source)


def ratio_of_signal(tree: dict[str, Any]) -> Estimate:
    """How far other distractors move what the policy sees, relative to another state. tree: of `probe invariance`."""
    return Estimate(number_of(tree["distances"][tree.get("seen", "x")].get("ratio")))


def plots(groups: Sequence[Group], wanted: dict[str, tuple[str, str]], problems: list[str]) -> list[dict[str, str]]:
    """A plot for each wanted metric that any run has."""
    found = []
    for metric, (title, note) in track(list(wanted.items()), "drawing", "curves"):
        picture = safely(problems, f"The curve of {metric}", lambda metric=metric: curves_plot(groups, metric, ""))
        if picture:
            found.append({"title": title, "note": note, "picture": picture, "metric": metric})
    return found


def other_metrics(groups: Sequence[Group]) -> dict[str, tuple[str, str]]:
    """Logged metrics of model, policy and probes that have no title of their own, by name."""
    names = {name for group in groups for run in group.runs for name in run.metrics}
    kept = (name for name in sorted(names) if name.partition("/")[0] in ("model", "policy", "probe"))
    return {name: (name, "") for name in kept if name not in MODEL and not is_wall_clock(name)}


def title_of(run: RunData, tree: Mapping[str, Any]) -> str:
    """Run, step and options of a result."""
    return " · ".join(filter(None, (_place(run, tree["step"]), options_text(tree))))


def _place(run: RunData, step: int) -> str:
    """Folder, seed and step; without the seed if the configuration cannot be read."""
    seed = [] if run.seed is None else [f"seed {run.seed}"]
    return " · ".join([run.name, *seed, f"step {step:,}"])


def factor_part(run: RunData, tree: dict[str, Any]) -> dict[str, Any]:
    """The heat map of one result of `probe factors`, with its recall and leakage."""
    return factor_dict(title_of(run, tree), from_tree(tree), tree["split"])


def factor_dict(title: str, matrix: FactorMatrix, split: str) -> dict[str, str]:
    """The template's fields for a factor matrix, which was measured with the clips of `split`."""
    probe = "ridge" if "ridge" in matrix.scores else next(iter(matrix.scores))
    note = headline_text(matrix, probe, split if split in ("train", "test", "across") else "train")
    heads = {
        name: matrix.summary(probe, matrix.seen, source).text(2)
        for name, source in (("recall", "signal"), ("leakage", "noise"))
    }
    return {"title": title, "note": note, "picture": heat_map(matrix, probe), **heads}


def probe_part(probe: Probe | None, run: RunData, tree: dict[str, Any]) -> dict[str, Any]:
    """The section of one result. probe: None if it is not registered.

    Raises:
        UserError: the probe fails, as a plug-in may for any reason. Damaged data may also raise one of `BROKEN`.
    """
    section = _section(probe.report, tree) if probe and probe.report else plain_section(tree)
    return {"title": title_of(run, tree), **vars(section)}


def _section(report: Callable[[Mapping[str, Any]], Section], tree: dict[str, Any]) -> Section:
    try:
        return report(tree)
    except (*BROKEN, UserError):
        raise
    except Exception as error:
        raise UserError(f"its probe fails: {type(error).__name__}: {short_text(error)}") from error


def plain_section(tree: Mapping[str, Any]) -> Section:
    """The default section: pictures that a probe wrote beside its JSON file, and that file's plain values."""
    path: Path = tree["file"]
    pictures = [png for png in path.parent.glob("*.png") if png.stem.startswith(path.stem)]
    pictures.sort(key=lambda png: (not png.stem.endswith("_sizes"), png.stem))  # summaries first
    plain = {key: value for key, value in tree.items() if isinstance(value, int | float | str) and key != "probe"}
    rows = [[key, show(value) if isinstance(value, float) else str(value)] for key, value in plain.items()]
    return Section(
        pictures=[picture_uri(png) for png in pictures], folded={f"Numbers of {path.name}": (["", ""], rows)}
    )


def media_part(run: RunData, problems: list[str]) -> dict[str, Any] | None:
    """A run's newest video and contact sheet as data URIs; `problems` receives what is missing or broken."""
    if run.media is None:
        config = run.config
        if config is None or config.agent.has_model and getattr(config.model, "decoder", True):
            problems.append("There is no video of signal and noise yet: denoised-mdp render RUN makes one.")
        return None
    stem = run.media
    video, sheet = (stem.with_name(stem.name + suffix) for suffix in (".mp4", ".png"))
    clips = " · unseen clips" if stem.name.startswith("test_") else ""
    part = {
        "title": _place(run, int(stem.name.rpartition("_")[2])) + clips,
        "video": safely(problems, f"The video {video.name}", lambda: video_uri(video)),
        "sheet": safely(problems, f"The picture {sheet.name}", lambda: picture_uri(sheet)),
    }
    return part if part["video"] or part["sheet"] else None


def video_uri(path: Path) -> str:
    """An MP4 as a data URI.

    Raises:
        ValueError: it is not a complete MP4, or larger than `MOST_BYTES`.
    """
    data = read_bytes(path, MOST_BYTES)
    if not whole_mp4(data):
        raise ValueError("it is no whole MP4 file")
    return f"data:video/mp4;base64,{base64.b64encode(data).decode()}"


def picture_uri(path: Path) -> str:
    """A picture as the data URI of a JPEG, which is a tenth of the PNG's size."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(read_bytes(path, MOST_BYTES))) as image:
        image.convert("RGB").save(out, "JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"


def machine_row(run: RunData) -> list[str]:
    """Hardware and speed of one run, in the order of the table's columns."""
    last = run.machine[-1] if run.machine else {}

    def known(key: str) -> str:
        return str(last.get(key, "not recorded"))

    def per_second(name: str, total: Callable[[np.ndarray], float]) -> float:
        """Rate of a total over all steps. The speed may cover fewer: those whose TensorBoard files exist."""
        steps, values = run.metrics.get(name, ((), ()))
        known = run.speed and len(steps) and steps[-1] > 0
        return total(values) / steps[-1] * run.speed.steps_per_second if known else math.nan

    pace, share = per_second("train/updates", lambda values: values[-1]), per_second("eval/seconds", np.sum)
    return [
        run.name,
        "?" if run.seed is None else str(run.seed),
        known("cpu"),
        known("cores"),
        known("device"),
        known("precision"),
        known("pytorch"),
        str(len(run.machine) or "-"),
        duration(run.speed.seconds) if run.speed else "-",
        f"{run.speed.steps_per_second:.1f}" if run.speed else "-",
        f"{pace:.2f}" if math.isfinite(pace) else "-",
        f"{min(1.0, share):.0%}" if math.isfinite(share) else "-",
    ]
