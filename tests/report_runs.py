"""Run folders as training and probes leave them, made by hand so that every number on the page is known."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v2 as imageio
import numpy as np

from denoised_mdp.analysis.crossfit import Estimate
from denoised_mdp.analysis.factor_tables import as_tree
from denoised_mdp.analysis.factors import TOO_FEW, FactorMatrix
from denoised_mdp.analysis.results import write_json
from denoised_mdp.config import load_config, save_config
from denoised_mdp.envs.factors import NOISE, SIGNAL, Factor
from denoised_mdp.run.checkpoint import expect_first

OVERRIDES = ["preset=debug", "env=toy", "env.task=dot", "distractors=none"]


def make_run(path: Path, *overrides: str, returns=(1.0, 2.0), step: int = 100) -> Path:
    """A run with a configuration and a learning curve, one evaluation every `step` steps; no checkpoint yet."""
    path.mkdir(parents=True)
    expect_first(path / "checkpoints")
    save_config(load_config([*OVERRIDES, f"run_dir={path}", *overrides]), path / "config.yaml")
    lines = [{"step": 0, "random/return": 0.5}]
    for number, value in enumerate(returns, 1):
        lines += [
            {"step": number * step, "model/image_error": 9.0 / number, "model/kl_x": 1.5, "train/updates": number},
            {"step": number * step, "eval/return": value, "eval/standard_error": 0.1, "eval/seconds": 1.0},
        ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def matrix_of(scores: dict[str, tuple[float, float]], probe: str = "ridge") -> FactorMatrix:
    """The matrix of one signal and one noise factor: part -> R^2 of both; nan: too few episodes."""
    signal, noise = ("qpos/arm", "signal", (0,), "scalar", SIGNAL), ("light/level", "noise", (0,), "scalar", NOISE)
    values = np.array(list(scores.values()))  # [parts, factors]
    summaries = {
        source: {
            part: Estimate(row[n], row[n] - 0.05, row[n] + 0.05, "" if row[n] == row[n] else TOO_FEW)
            for part, row in scores.items()
        }
        for n, source in enumerate(("signal", "noise"))
    }
    intervals = np.stack((values - 0.05, values + 0.05))
    found = [Factor(*signal), Factor(*noise)]
    return FactorMatrix(
        found,
        list(scores),
        {probe: np.nan_to_num(values)[None]},
        {probe: intervals},
        np.zeros((1, 2)),
        {probe: summaries},
    )


def add_probes(
    run: Path,
    recall: float = 0.9,
    leakage: float = 0.2,
    warning: str = "y is unused",
    step: int = 200,
    episodes: int = 36,
) -> None:
    """Results of all probes: R^2 of one signal and one noise factor from x and y."""
    folder = run / "probes"
    folder.mkdir(exist_ok=True)
    matrix = matrix_of({"x": (recall, leakage), "y": (0.1, 0.8)})
    options = {"episodes": episodes, "steps": 200, "seeds": 1, "split": "train", "behaviour": "mixed"}
    about = {"run": str(run), "step": step, "options": options}
    distance = {"other_noise": 0.125, "other_state": 2.0, "resampled": 0.25, "ratio": 0.0625}
    earned = {"mean": 12.5, "standard_error": 0.5, "change": None, "change_error": None, "returns": [12, 13]}
    health = {
        "nats": {"x": 1.25, "y": 0.01},
        "active": {"x": [3, 6], "y": [0, 4]},
        "share": {"x": 0.9, "y": None},
        "image_r2": 0.77,
        "signal": {"x": recall, "y": 0.1},
        "noise": {"x": leakage, "y": 0.8},
        "warnings": [warning],
    }
    trees = {
        "factors": as_tree(matrix),
        "invariance": {"distances": {"x": distance}, "action_change": 0.375, "returns": {"as trained": earned}},
        "health": health,
    }
    for probe, tree in trees.items():
        variant = "" if episodes == 36 else f"_episodes{episodes}"
        write_json(folder / f"{probe}_train{variant}_{step:09d}.json", {"probe": probe, **about, **tree})


def add_video(run: Path, frames: int = 25) -> None:
    """A video of a moving bar, 160 x 96 pixels, and a picture."""
    folder = run / "videos"
    folder.mkdir(exist_ok=True)
    with imageio.get_writer(folder / "step_000000200.mp4", fps=25, codec="libx264", macro_block_size=2) as writer:
        for t in range(frames):
            frame = np.full((96, 160, 3), 240, np.uint8)
            frame[:, 4 * t : 4 * t + 12] = (31, 95, 168)
            writer.append_data(frame)
    imageio.imwrite(folder / "step_000000200.png", frame)
