"""Whether bf16 learns what float32 learns: the same runs in both, and how far their gradients agree.

    python scripts/reproduce/precision.py                    # everything that is still missing, one by one
    python scripts/reproduce/precision.py --only bf16 --seeds 0 1  # a part of it
    python scripts/reproduce/precision.py --draw             # table and picture from what is there

The runs use the preset quickstart without a background, and are shorter. Where the machine has no fast bf16, bf16
products are computed by float32 kernels (`RoundedProducts`), which rounds the same numbers in the same places; the
column `arithmetic` says so.

curves.csv: by step, the return of held-out episodes and the mean errors of the model since the last line. returns.csv:
returns of the final checkpoints. gradients.csv: for each part of the agent, before and after training, the cosine of
its float32 gradient with the bf16 one for the same weights, batch and noise, and with the float32 one of another batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import warnings
from pathlib import Path

import torch
from common import append, open_replay, read, spread
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

TASK = "cheetah_run"
SETTINGS = [
    "preset=quickstart",
    f"env.task={TASK}",
    "distractors=none",
    "train.total_steps=16_000",
    "train.eval_every=2_000",
    "train.eval_episodes=4",
    "train.render_every=0",
    "train.probe_every=0",
]
EPISODES = 10
PRECISIONS = ("float32", "bf16")
COLORS = {"float32": "#1f5fa8", "bf16": "#e4572e"}
ERRORS = {"model/image_error": "image_error", "model/reward_error": "reward_error"}
PARTS = {
    "encoder": "world_model.encoder",
    "rssm": "world_model.rssm",
    "decoder": "world_model.decoder",
    "reward": "world_model.rewards",
    "actor": "policy.actor",
    "value": "policy.value",
}
BATCHES = 8
"""for each agent whose gradients are compared"""
CURVES = ("precision", "arithmetic", "seed", "step", "return", *ERRORS.values())
RETURNS = ("precision", "arithmetic", "seed", "mean", "standard_error")
GRADIENTS = ("arithmetic", "seed", "step", "part", "cosine", "other_batch")


class RoundedProducts(TorchDispatchMode):
    """Computes bf16 products and convolutions as a processor with fast bf16 does, on one without.

    Such a processor multiplies rounded factors, sums in float32 and rounds the sum. Here float32 kernels multiply the
    same rounded factors. Only the order of the sums differs, as it does between any two processors.
    """

    KERNELS = {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten.convolution_backward.default,
    }

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if kernel not in self.KERNELS or not any(value.dtype == torch.bfloat16 for value in tensors):
            return kernel(*args, **kwargs)
        result = kernel(*tree_map_only(torch.Tensor, torch.Tensor.float, args), **kwargs)
        return tree_map_only(torch.Tensor, torch.Tensor.bfloat16, result)


def arithmetic(precision: str, device: str) -> tuple[str, contextlib.AbstractContextManager]:
    """How products of a precision are computed on a device (given as its option), and the context that does so."""
    from denoised_mdp.device import has_fast_bf16, resolve_device

    if precision == "bf16" and not has_fast_bf16(resolve_device(device)):
        return "rounded float32", RoundedProducts()
    return "native", contextlib.nullcontext()


def folder(runs: Path, precision: str, seed: int) -> Path:
    """Path of a run."""
    return runs / f"{precision}-{seed}"


def train(precision: str, seed: int, runs: Path, out: Path, extra: list[str]) -> None:
    """Train one run from its start (or from where it was stopped) and add its rows to the tables."""
    from denoised_mdp.config import load_config
    from denoised_mdp.evaluation import evaluate_run
    from denoised_mdp.progress import shown
    from denoised_mdp.session import train

    run = folder(runs, precision, seed)
    config = load_config([*SETTINGS, *extra, f"seed={seed}", f"train.precision={precision}", f"run_dir={run}"])
    made_by, context = arithmetic(precision, config.train.device)
    key = {"precision": precision, "arithmetic": made_by, "seed": seed}
    with context, warnings.catch_warnings(), shown():
        warnings.filterwarnings("ignore", "train.precision=bf16")  # it says that bf16 is slow: not with these products
        if not train(config):
            sys.exit(1)
        result = evaluate_run(run, episodes=EPISODES, device=config.train.device)
    curve: dict[int, dict] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        row = curve.setdefault(line["step"], {})
        row |= {name: round(line[metric], 5) for metric, name in ERRORS.items() if metric in line}
        row |= {"return": round(line["eval/return"], 2)} if "eval/return" in line else {}
    append(out / "curves.csv", CURVES, [key | {"step": step} | row for step, row in curve.items() if row])
    ended = {"mean": round(result.mean, 2), "standard_error": round(result.standard_error, 2)}
    append(out / "returns.csv", RETURNS, [key | ended])  # last: this row marks the run as done


def agreement(run: Path, seed: int) -> list[dict]:
    """Rows of gradients.csv for initial weights and for those at the end of a float32 run, on batches of its replay."""
    import numpy as np

    from denoised_mdp.config import read_config
    from denoised_mdp.device import configure
    from denoised_mdp.run.folder import RunFolder
    from denoised_mdp.run.load import agent_for
    from denoised_mdp.run.state import load_state

    found = RunFolder.existing(run)
    config = read_config(found.config)
    device, _ = configure(config.train)
    end, state = load_state(found)
    replay = open_replay(found, state)
    random, sizes = np.random.default_rng(0), (config.train.batch_size, config.train.segment_length)
    batches = [replay.sample(*sizes, random) for _ in range(BATCHES)]
    replay.close()
    made_by, context = arithmetic("bf16", config.train.device)

    def gradients(step: int, dtype: torch.dtype | None, batch: dict) -> dict[str, torch.Tensor]:
        agent = agent_for(config, state, device=device, dtype=dtype)
        if step:
            agent.restore(state["agent"])
        for group in agent.optimizers["model"].param_groups:
            group["lr"] = 0.0  # else the policy's gradient would come from an updated model
        agent.update_eagerly(batch)
        return {
            part: torch.cat([p.grad.flatten() for p in agent.get_submodule(name).parameters() if p.grad is not None])
            for part, name in PARTS.items()
        }

    rows = []
    for step in (0, end):
        exact = [gradients(step, None, batch) for batch in batches]
        with context:
            rounded = [gradients(step, torch.bfloat16, batch) for batch in batches]
        others = exact[1:] + exact[:1]
        for part in PARTS:
            rows.append(
                {
                    "arithmetic": made_by,
                    "seed": seed,
                    "step": step,
                    "part": part,
                    "cosine": f"{cosine(exact, rounded, part):.5f}",
                    "other_batch": f"{cosine(exact, others, part):.5f}",
                }
            )
    return rows


def cosine(left: list[dict[str, torch.Tensor]], right: list[dict[str, torch.Tensor]], part: str) -> float:
    """Mean over batches of the cosine between two gradients of a part."""
    pairs = zip(left, right, strict=True)
    return statistics.mean(torch.cosine_similarity(a[part], b[part], 0).item() for a, b in pairs)


def table(curves: list[dict[str, str]], returns: list[dict[str, str]], gradients: list[dict[str, str]]) -> str:
    """Two Markdown tables: returns by precision, and the agreement of gradients by part, means over seeds."""
    lines = [
        "| precision | seeds | return at the end | std over seeds | each seed | mean of last 4 evaluations | each |",
        "|---|---|---|---|---|---|---|",
    ]
    for precision in PRECISIONS:
        rows = sorted((row for row in returns if row["precision"] == precision), key=lambda row: int(row["seed"]))
        if not rows:
            continue
        made_by = "" if rows[0]["arithmetic"] == "native" else f" ({rows[0]['arithmetic']})"
        cells = [f"{precision}{made_by}", str(len(rows)), *spread([float(row["mean"]) for row in rows])]
        late = []
        for row in rows:
            seen = [one for one in curves if (one["precision"], one["seed"]) == (precision, row["seed"])]
            values = [float(one["return"]) for one in sorted(seen, key=lambda one: int(one["step"])) if one["return"]]
            late.append(statistics.mean(values[-4:]))
        mean, _, each = spread(late)
        lines.append(f"| {' | '.join([*cells, mean, each])} |")
    steps = sorted({int(row["step"]) for row in gradients})
    heads = [f"step {step:,}: {what}" for step in steps for what in ("bf16", "another batch")]
    lines += ["", " | ".join(["| cosine with the float32 gradient", *heads]) + " |", "|---" * (len(heads) + 1) + "|"]
    for part in PARTS:
        cells = []
        for step in steps:
            rows = [row for row in gradients if row["part"] == part and int(row["step"]) == step]
            cells += [f"{statistics.mean(float(row[name]) for row in rows):.4f}" for name in ("cosine", "other_batch")]
        lines.append(" | ".join([f"| {part}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def draw(curves: list[dict[str, str]], path: Path) -> None:
    """Draw a panel for the return and one for each error of the model: each seed thin, their mean thick."""
    import numpy as np

    from denoised_mdp.analysis.plots import FAINT, new_figure, plain_axes, save_figure
    from denoised_mdp.analysis.table.plots import draw_seeds

    label_of = {
        "return": "return of held-out episodes",
        "image_error": "model's image error, nats",
        "reward_error": "model's reward error",
    }
    names = ("return", *ERRORS.values())
    figure = new_figure(4.2 * len(names), 3.4)
    figure.set_layout_engine("constrained")
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        for precision in PRECISIONS:
            seeds: dict[str, list[tuple[int, float]]] = {}
            for row in curves:
                if row["precision"] == precision and row[name]:
                    seeds.setdefault(row["seed"], []).append((int(row["step"]), float(row[name])))
            if seeds:
                lines, label = [np.array(sorted(own)).T for own in seeds.values()], f"{precision} ({len(seeds)} seeds)"
                draw_seeds(axis, lines, len(lines), COLORS[precision], label, bands=False)
        plain_axes(axis, 9)
        axis.set(xlabel="thousand environment steps", ylabel=label_of[name])
        if name != "return":
            axis.set_yscale("log")
            axis.tick_params(which="minor", labelsize=7, colors=FAINT)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{TASK} without a background: float32 and bf16", fontsize=10)
    save_figure(figure, path)


def main() -> None:
    """Train what is missing, then write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/precision"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/precision"), help="folder of the results")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    parser.add_argument("overrides", nargs="*", default=[], help="key=value for every run, as of the machine")
    parser.add_argument("--only", choices=PRECISIONS, help="train only this precision")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = {(row["precision"], int(row["seed"])) for row in read(options.out / "returns.csv")}
    if not options.draw:
        for seed in options.seeds:
            for precision in PRECISIONS:
                if (precision, seed) not in done and options.only in (None, precision):
                    train(precision, seed, options.runs, options.out, options.overrides)
            compared = {int(row["seed"]) for row in read(options.out / "gradients.csv")}
            if seed not in compared and options.only != "bf16":
                rows = agreement(folder(options.runs, "float32", seed), seed)
                append(options.out / "gradients.csv", GRADIENTS, rows)
    points = {(row["precision"], row["seed"], row["step"]): row for row in read(options.out / "curves.csv")}
    curves = list(points.values())  # a run that was killed while writing its rows may have written some twice
    text = table(curves, read(options.out / "returns.csv"), read(options.out / "gradients.csv"))
    (options.out / "table.md").write_text(text)
    draw(curves, options.out / "curves.png")
    print(text)


if __name__ == "__main__":
    main()
