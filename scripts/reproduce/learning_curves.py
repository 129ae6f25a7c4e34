"""Learning curves on a real task: Denoised MDP against Dreamer and a random policy, both policy optimizers.

    python scripts/reproduce/learning_curves.py                      # everything that is still missing, one by one
    python scripts/reproduce/learning_curves.py --only sac --seeds 0 # a part of it
    python scripts/reproduce/learning_curves.py --only "camera jitter" backprop # not trained unless it is named
    python scripts/reproduce/learning_curves.py --draw               # table and picture from what is there

Every arm sees the same budget of steps and updates and goes through the same code and data path; only the model's
structure, the policy optimizer and the background differ. A run that ends adds its rows to curves.csv and
returns.csv in the output folder and is not repeated, so that the work can be spread over days and machines.

curves.csv: returns during training, by step. returns.csv: returns of the final checkpoint, and of a random policy,
over held-out episodes. The picture and the table show mean and spread over seeds; no seed is left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

TASK = "cheetah_run"
SETTINGS = [
    f"env.task={TASK}",
    "train.total_steps=16_000",
    "train.eval_every=2_000",
    "train.eval_episodes=4",
    "train.render_every=0",
    "train.probe_every=0",
]
VARIANTS = {
    "noiseless": ["distractors=none"],
    "video background": [],  # as the preset has it
    "camera jitter": ["distractors=camera_jitter"],
}
ON_REQUEST = ("camera jitter",)
"""variants that are trained only if `--only` names them"""
ARMS = {
    f"{title}, {policy}": [f"model={model}", f"policy={policy}"]
    for model, title in (("2b", "Denoised MDP"), ("dreamer", "Dreamer"))
    for policy in ("backprop", "sac")
} | {"Denoised MDP 2c, backprop": ["model=2c", "policy=backprop"]}
EPISODES = 10
COLORS = {
    "Denoised MDP, backprop": "#1f5fa8",
    "Denoised MDP, sac": "#3a9d6b",
    "Denoised MDP 2c, backprop": "#7b5ea7",
    "Dreamer, backprop": "#e4572e",
    "Dreamer, sac": "#b8860b",
}
CURVES = ("variant", "arm", "seed", "step", "return")
RETURNS = ("variant", "arm", "seed", "mean", "standard_error", "random", "random_standard_error", "minutes", "machine")


def slug(*parts: object) -> str:
    """A folder's name from the names of variant, arm and seed."""
    return "-".join(str(part).lower().replace(",", "").replace(" ", "_") for part in parts)


def wanted(variant: str, name: str, only: list[str]) -> bool:
    """Whether `--only` asks for the run called `name` of a variant; a word may have spaces or underscores."""
    words = [slug(word) for word in only]
    named = variant not in ON_REQUEST or any(word in slug(variant) for word in words)
    return named and all(word in name for word in words)


def command(*arguments: str) -> str:
    """Run one command of the package, as a user would, and return what it prints; stop at an error."""
    done = subprocess.run([sys.executable, "-m", "denoised_mdp", *arguments], text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, names: tuple[str, ...], rows: list[dict]) -> None:
    """Add rows to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def train(preset: str, variant: str, arm: str, seed: int, runs: Path, out: Path, extra: list[str]) -> None:
    """One run from its beginning (or where it was stopped) to its rows in the tables."""
    from denoised_mdp.evaluation import evaluate_run

    run, began = runs / slug(variant, arm, seed), time.perf_counter()
    overrides = [f"preset={preset}", *SETTINGS, *VARIANTS[variant], *ARMS[arm], *extra]
    print(f"{variant}; {arm}; seed {seed}: {run}", flush=True)
    command("train", *overrides, f"seed={seed}", f"run_dir={run}")
    minutes = (time.perf_counter() - began) / 60
    key = {"variant": variant, "arm": arm, "seed": seed}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [
        key | {"step": line["step"], "return": round(line["eval/return"], 2)} for line in lines if "eval/return" in line
    ]
    result = evaluate_run(run, episodes=EPISODES)
    random = evaluate_run(run, episodes=EPISODES, random=True)
    append(out / "curves.csv", CURVES, curve)
    row = {
        "mean": round(result.mean, 2),
        "standard_error": round(result.standard_error, 2),
        "random": round(random.mean, 2),
        "random_standard_error": round(random.standard_error, 2),
        "minutes": round(minutes, 1),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
    }
    append(out / "returns.csv", RETURNS, [key | row])
    print(f"  {result.mean:.1f} +- {result.standard_error:.1f}, random {random.mean:.1f}", flush=True)


def spread(values: list[float]) -> tuple[str, str, str]:
    """Mean, standard deviation and each of some returns, as text."""
    deviation = f"{statistics.stdev(values):.0f}" if len(values) > 1 else "-"
    return f"{statistics.mean(values):.0f}", deviation, ", ".join(f"{value:.0f}" for value in values)


def table(returns: list[dict[str, str]]) -> str:
    """A Markdown table: per variant and arm, the mean over seeds, the spread, and each seed."""
    lines = [
        "| variant | arm | seeds | mean return | std over seeds | each seed | random policy |",
        "|---|---|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        for arm in ARMS:
            rows = [row for row in returns if (row["variant"], row["arm"]) == (variant, arm)]
            if not rows:
                continue
            mean, deviation, each = spread([float(row["mean"]) for row in rows])
            random = statistics.mean(float(row["random"]) for row in rows)
            lines.append(f"| {variant} | {arm} | {len(rows)} | {mean} | {deviation} | {each} | {random:.0f} |")
    return "\n".join(lines) + "\n"


def draw(curves: list[dict[str, str]], returns: list[dict[str, str]], path: Path) -> None:
    """One panel per variant: mean over seeds, the range of seeds as a band, the random policy as a dashed line."""
    from denoised_mdp.analysis.plots import new_figure

    shown = [variant for variant in VARIANTS if any(row["variant"] == variant for row in curves)]
    if not shown:
        return
    figure = new_figure(5 * max(2, len(shown)), 4)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, variant in zip(axes, shown, strict=True):
        for arm in ARMS:
            rows = [row for row in curves if (row["variant"], row["arm"]) == (variant, arm)]
            seeds = sorted({row["seed"] for row in rows})
            if not seeds:
                continue
            steps = sorted({int(row["step"]) for row in rows})
            values = {(row["seed"], int(row["step"])): float(row["return"]) for row in rows}
            grid = np.array([[values.get((seed, step), np.nan) for step in steps] for seed in seeds])
            thousands = np.array(steps) / 1000
            axis.plot(thousands, np.nanmean(grid, 0), color=COLORS[arm], label=f"{arm} ({len(seeds)})")
            axis.fill_between(thousands, np.nanmin(grid, 0), np.nanmax(grid, 0), color=COLORS[arm], alpha=0.15, lw=0)
        random = [float(row["random"]) for row in returns if row["variant"] == variant]
        if random:
            axis.axhline(statistics.mean(random), color="#7b8794", ls="--", lw=1, label="random policy")
        axis.set(title=f"{TASK}, {variant}", xlabel="thousand environment steps")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="upper left", title="mean and range (seeds)", title_fontsize=8)
    axes[0].set_ylabel("return of held-out episodes")
    figure.savefig(path)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of every script that trains runs and publishes them as `name`."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs") / name, help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results") / name, help="folder of the results")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", default=[], help="key=value for every run, as of the machine")


def main() -> None:
    """Train what is missing, then write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser, "learning_curves")
    parser.add_argument("--preset", default="quickstart", help="preset that sets sizes and budget")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="train only what has all of these words in its name; camera jitter only so",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = {(row["variant"], row["arm"], int(row["seed"])) for row in read(options.out / "returns.csv")}
    if not options.draw:
        for seed in options.seeds:  # a whole comparison of one seed first
            for variant in VARIANTS:
                for arm in ARMS:
                    name = slug(variant, arm, seed)
                    if (variant, arm, seed) in done or not wanted(variant, name, options.only):
                        continue
                    train(options.preset, variant, arm, seed, options.runs, options.out, options.overrides)
    curves, returns = read(options.out / "curves.csv"), read(options.out / "returns.csv")
    text = table(returns)
    (options.out / "table.md").write_text(text)
    draw(curves, returns, options.out / "curves.png")
    print(text)


if __name__ == "__main__":
    main()
