"""What the latents of finished runs hold: factor matrix, invariance, returns under seen and unseen distractors.

    python scripts/reproduce/denoising.py            # of all finished runs of learning_curves.py that were not probed
    python scripts/reproduce/denoising.py RUN ...    # of others; all must have one task, one policy and one budget
    python scripts/reproduce/denoising.py --draw     # table and picture from what is there
    python scripts/reproduce/denoising.py runs/learning_curves/camera_jitter-* --out results/denoising_jitter \
        --title "cheetah_run with camera jitter"     # another set of runs has a folder of its own

It computes what `denoised-mdp probe factors` and `denoised-mdp probe invariance` do, with one difference: all actions
are random, and so runs of one seed are asked about the very same pictures, whatever their policies have learned.

Unseen distractors are clips that were never trained on, or without a video, a distractor of twice the strength
(`unseen` says which); "none" are no distractors at all.

denoising.csv has one row per run, factors.csv the factor matrix of each. A run that is in denoising.csv is not probed
again. The table and the picture show mean and spread over seeds; no seed is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from denoising_show import LATENTS, RETURNS, draw, table
from learning_curves import append, read

PHYSICS, WORLDS, GRID_STEPS = 6, 3, 60
"""of the grid of invariance: episodes, distractor seeds, actions of each"""
SEEN = "seen"
"""stands for the part that the policy sees: x, or several latents together"""
SCORES = {
    "recall_ridge": ("ridge", SEEN, "signal"),
    "leakage_ridge": ("ridge", SEEN, "noise"),
    "recall_mlp": ("mlp", SEEN, "signal"),
    "leakage_mlp": ("mlp", SEEN, "noise"),
    **{f"{what}_from_{part}": ("ridge", part, what) for part in ("y", "z", "encoder") for what in ("signal", "noise")},
}
"""column -> probe, part of the latent, what is predicted from it"""
COLUMNS = (
    "run",
    "model",
    "seed",
    "step",
    "parameters",
    *SCORES,
    *(f"ratio_{part}" for part in (*LATENTS, "action")),
    *(f"{kind}_{part}" for part in LATENTS for kind in ("other_noise", "other_state")),
    "action_change",
    *(f"return_{name}" for name in RETURNS),
    "unseen",
    "unseen_change",
    "unseen_change_error",
    "seconds",
    "machine",
)
FACTORS = (
    "run",
    "model",
    "seed",
    "probe",
    "part",
    "factor",
    "source",
    "quadrant",
    "r2",
    "r2_low",
    "r2_high",
    "mean_predictor_r2",
)


def finished(runs: list[Path]) -> list[Path]:
    """Those runs that were trained to their end; the others are named."""
    from denoised_mdp.config import read_config
    from denoised_mdp.run.checkpoint import list_steps
    from denoised_mdp.run.folder import RunFolder

    done = []
    for run in runs:
        folder = RunFolder.existing(run)
        steps, total = list_steps(folder.checkpoints), read_config(folder.config).train.total_steps
        if steps and max(steps) >= total:
            done.append(run)
        else:
            print(f"{run} is not finished ({max(steps, default=0):,} of {total:,} steps): left out", flush=True)
    return done


def same_comparison(runs: list[Path]) -> None:
    """Stop if runs differ in what they see, or in more than their models: their mean would say nothing."""
    from denoised_mdp.config import read_config
    from denoised_mdp.run.folder import RunFolder

    configs = [read_config(RunFolder.existing(run).config) for run in runs]
    fixed = [(c.env, c.distractors, c.policy, c.train.total_steps, c.train.updates) for c in configs]
    for run, one in zip(runs, fixed, strict=True):
        if one != fixed[0]:
            sys.exit(f"{run} and {runs[0]} differ in environment, policy or budget: probe them into different --out.")


def probe(run: Path, episodes: int | None) -> tuple[dict, list[dict]]:
    """Probe one run on the CPU: its row of denoising.csv, yet without returns, and its rows of factors.csv."""
    from denoised_mdp.analysis.crossfit import random_divisions
    from denoised_mdp.analysis.data import freeze, probe_seeds, record
    from denoised_mdp.analysis.factor_tables import factor_rows
    from denoised_mdp.analysis.factors import EPISODES, STEPS, factor_matrix, stack, targets_of
    from denoised_mdp.analysis.invariance import measure_invariance, record_grid
    from denoised_mdp.analysis.results import subjects
    from denoised_mdp.envs.factors import factors
    from denoised_mdp.run.environments import environment_maker

    began, episodes = time.process_time(), episodes or EPISODES
    subject = next(subjects([run], None, "cpu"))
    config, agent = subject.config, subject.agent
    make = environment_maker(config)
    environment = make()
    found = factors(environment)
    environment.close()

    recordings = record(make, probe_seeds(0, episodes), STEPS, behaviour="random")
    frozen = freeze(agent, recordings)
    parts, episode = stack(frozen)
    targets, divisions = targets_of(found, recordings), random_divisions(episodes)
    matrix = factor_matrix(parts, targets, episode, divisions, seen=frozen[0].seen)
    row = {
        "run": run.resolve().name,
        "model": config.model.name,
        "seed": config.seed,
        "step": subject.step,
        "parameters": sum(p.numel() for p in agent.world_model.parameters()),
    }
    asked = {name: (probe, matrix.seen if part == SEEN else part, what) for name, (probe, part, what) in SCORES.items()}
    row |= {name: matrix.summary(*key).value for name, key in asked.items() if key[1] in matrix.parts}

    invariance = measure_invariance(agent, record_grid(make, None, PHYSICS, WORLDS, GRID_STEPS))
    for part in (*LATENTS, "action"):
        if part in invariance.parts:
            distances = invariance.parts[part]
            row[f"ratio_{part}"] = distances.ratio
            if part != "action":
                row |= {f"other_noise_{part}": distances.other_noise, f"other_state_{part}": distances.other_state}
    row["action_change"] = invariance.action_change

    row |= {"seconds": time.process_time() - began, "machine": f"{os.cpu_count()} CPUs, {platform.machine()}"}
    lines = [{**line, "run": row["run"]} for line in factor_rows(subject, matrix)]
    return rounded(row), [{name: line[name] for name in FACTORS} for line in lines]


def earn(run: Path, episodes: int) -> dict[str, float]:
    """Columns of a run's row that say what it earns, on the same physics under each kind of distractors."""
    from denoised_mdp.analysis.data import probe_seeds
    from denoised_mdp.analysis.invariance import paired_change, variations
    from denoised_mdp.evaluation import evaluate
    from denoised_mdp.run.environments import environment_maker
    from denoised_mdp.run.load import load_run

    config, agent, _ = load_run(run, device="cpu")
    seeds, kinds = probe_seeds(2, episodes), variations(config)
    changed = [kind for kind in kinds if kind not in RETURNS.values()]  # unseen clips first, if there are any
    asked = RETURNS | ({"unseen": changed[0]} if changed else {})
    results = {
        name: evaluate(agent, environment_maker(*kinds[kind]), seeds) for name, kind in asked.items() if kind in kinds
    }
    row = {f"return_{name}": result.mean for name, result in results.items()}
    if "unseen" in results:
        row["unseen"] = asked["unseen"]
        row["unseen_change"], row["unseen_change_error"] = paired_change(results["unseen"], results["seen"])
    return rounded(row)


def rounded(row: dict) -> dict:
    """The same with four decimals; empty where the sample could not tell."""
    return {
        name: value if not isinstance(value, float) else round(value, 4) if value == value else ""
        for name, value in row.items()
    }


def rewrite(path: Path, rows: list[dict]) -> None:
    """Replace denoising.csv, all at once."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    append(new, COLUMNS, rows)
    new.replace(path)


def main() -> None:
    """Probe what is missing, then write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help="default: runs/learning_curves/video_background-*backprop-*"
    )
    parser.add_argument("--out", type=Path, default=Path("results/denoising"), help="folder of the results")
    parser.add_argument("--episodes", type=int, help="for the factor matrix; default: as probe factors")
    parser.add_argument("--returns", type=int, default=5, help="episodes of each return, 0: none; default: %(default)s")
    parser.add_argument("--title", default="cheetah_run with video background", help="of the picture")
    parser.add_argument("--draw", action="store_true", help="probe nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path, matrices = options.out / "denoising.csv", options.out / "factors.csv"
    rows = read(path)
    if rows and set(rows[0]) != set(COLUMNS):  # written when there were fewer columns
        rewrite(path, [{column: row.get(column, "") for column in COLUMNS} for row in rows])
    if not options.draw:
        runs = options.runs or sorted(Path("runs/learning_curves").glob("video_background-*backprop-*"))
        if not runs:
            sys.exit("There are no runs: train them with scripts/reproduce/learning_curves.py, or name others.")
        same_comparison(runs)
        done = {row["run"] for row in read(path)}
        for run in finished([run for run in runs if run.resolve().name not in done]):
            row, lines = probe(run, options.episodes)
            append(matrices, FACTORS, lines)
            append(path, COLUMNS, [row])  # last: a run that is in there is whole
            print(
                f"{row['run']}: recall {row['recall_ridge']}, leakage {row['leakage_ridge']}, x moves"
                f" {row['ratio_x']:.3f}, {row['seconds']:.0f} s",
                flush=True,
            )
        for run in runs if options.returns else []:  # they take most of the time, and so come last
            rows = read(path)
            for row in rows:
                if row["run"] == run.resolve().name and not row["return_seen"]:
                    row |= earn(run, options.returns)
                    rewrite(path, rows)
                    print(f"{row['run']}: return {row['return_seen']:.1f}", flush=True)
    rows = read(path)
    if not rows:
        sys.exit("Nothing has been probed yet.")
    text = table(rows)
    (options.out / "table.md").write_text(text)
    draw(rows, read(matrices), options.title, options.out / "denoising.png")
    print(text)


if __name__ == "__main__":
    main()
