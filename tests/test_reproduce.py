"""The scripts that train and probe the published comparisons: what they take, and what table and picture say."""

import contextlib
import csv
import importlib
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import random_batch, small_config
from torch.utils._python_dispatch import TorchDispatchMode

from denoised_mdp.agents.world_model_agent import build_agent
from denoised_mdp.config.compose import choices
from denoised_mdp.envs.factors import NOISE, SIGNAL

FOLDER = Path(__file__).parents[1] / "scripts" / "reproduce"
UNSEEN = "camera_jitter at strength 2"


@pytest.fixture(scope="module")
def scripts():
    """The scripts as modules: learning_curves, denoising, denoising_show, precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        names = ("learning_curves", "denoising", "denoising_show", "precision")
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]


def test_variants_are_trained_when_they_are_asked_for(scripts):
    curves = scripts["learning_curves"]

    def trained(*only):
        return {(v, a) for v in curves.VARIANTS for a in curves.ARMS if curves.wanted(v, curves.slug(v, a, 0), only)}

    assert {variant for variant, _ in trained()} == {"noiseless", "video background"}
    assert trained() == {(v, a) for v in ("noiseless", "video background") for a in curves.ARMS}
    assert trained("backprop", "2c") == {(v, "Denoised MDP 2c, backprop") for v in ("noiseless", "video background")}
    for only in (["camera jitter"], ["camera_jitter"], ["jitter"]):
        assert trained(*only) == {("camera jitter", arm) for arm in curves.ARMS}
    assert trained("camera jitter", "dreamer", "sac") == {("camera jitter", "Dreamer, sac")}


def test_published_rows_are_still_known(scripts):
    """The committed results have the columns that the script reads, and models that still exist."""
    with open(FOLDER.parents[1] / "results" / "denoising" / "denoising.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and set(rows[0]) == set(scripts["denoising"].COLUMNS)
    assert {row["model"] for row in rows} <= set(choices("model"))


def rows_of(columns, seeds):
    """A row per model and seed in `seeds`: every number is its place among all; z is in model 2c alone."""
    rows, number = [], 0
    for model, own in seeds.items():
        for seed in own:
            row = {"run": f"{model}-{seed}", "model": model, "seed": str(seed), "unseen": UNSEEN}
            for column in columns:
                number += 1
                row.setdefault(column, "" if "z" in column.split("_") and model != "2c" else str(number))
            rows.append(row)
    return rows


def test_table_and_picture_of_three_arms_with_camera_jitter(scripts, tmp_path):
    show = scripts["denoising_show"]
    rows = rows_of(scripts["denoising"].COLUMNS, {"2b": (1, 0), "2c": (0, 1), "dreamer": (0,)})
    table = show.table(rows)
    lines = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in table.splitlines()}
    heads = lines["mean ± std over seeds (each seed)"]
    assert heads == ["Denoised MDP 2b (seeds 0, 1)", "Denoised MDP 2c (seeds 0, 1)", "Dreamer (seeds 0)"]
    for label, column in (
        ("return under camera jitter at strength 2", "return_unseen"),
        ("return without distractors", "return_none"),
    ):
        for cell, model in zip(lines[label], ("2b", "2c", "dreamer"), strict=True):
            known = [float(row[column]) for row in sorted(rows, key=lambda row: row["seed"]) if row["model"] == model]
            text = f"{np.mean(known):,.1f}"
            if len(known) > 1:
                text += f" ± {np.std(known, ddof=1):.1f} ({known[0]:.1f}, {known[1]:.1f})"
            assert cell == text
    z = [cells for label, cells in lines.items() if label == "the same of z; low is good"]
    assert len(z) == 1 and z[0][0] == z[0][2] == "-" != z[0][1]
    assert "background" not in table and "clips" not in table

    factors = []
    for row in rows:
        for part in ("x", "y", "z") if row["model"] == "2c" else ("x",) if row["model"] == "dreamer" else ("x", "y"):
            for factor, source, quadrant in (("qpos/a", "signal", SIGNAL), ("camera_jitter/shift", "noise", NOISE)):
                factors.append(
                    {
                        "run": row["run"],
                        "probe": "ridge",
                        "part": part,
                        "factor": factor,
                        "source": source,
                        "quadrant": quadrant,
                        "r2": "0.5",
                    }
                )
    show.draw(rows, factors, "cheetah_run with camera jitter", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 20_000


def test_rows_of_the_video_background_without_newer_columns(scripts):
    """denoising.csv of before: unseen clips, nothing without distractors."""
    columns = [c for c in scripts["denoising"].COLUMNS if c not in ("return_none", "unseen")]
    rows = [row | {"unseen": "", "return_none": ""} for row in rows_of(columns, {"2b": (0, 1)})]
    table = scripts["denoising_show"].table(rows)
    assert "return under unseen clips" in table and "without distractors" not in table


class Kernels(TorchDispatchMode):
    """Counts products and convolutions by the type of their factors."""

    def __init__(self):
        super().__init__()
        self.products = Counter()

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        if kernel.overloadpacket.__name__ in ("mm", "addmm", "bmm", "convolution", "convolution_backward"):
            self.products[args[-2 if kernel.overloadpacket.__name__ == "addmm" else 0].dtype] += 1
        return kernel(*args, **(kwargs or {}))


def test_rounded_products_are_those_of_a_processor_with_bf16(scripts):
    """Forwards and backwards: rounded factors, a sum in float32, a rounded sum; float32 products stay as they are."""
    bf16 = torch.bfloat16
    x, weight, out = torch.randn(5, 40), torch.randn(7, 40), torch.randn(5, 7)
    factors = x.to(bf16).requires_grad_(), weight.to(bf16).requires_grad_()
    kernels = Kernels()
    with kernels, scripts["precision"].RoundedProducts():
        result = torch.nn.functional.linear(*factors)
        result.backward(out.to(bf16))
        assert torch.equal(torch.nn.functional.linear(x, weight), x @ weight.T)
    exact = [tensor.detach().double() for tensor in factors]
    expected = exact[0] @ exact[1].T, out.to(bf16).double() @ exact[1], out.to(bf16).double().T @ exact[0]
    for found, wanted in zip((result, factors[0].grad, factors[1].grad), expected, strict=True):
        assert found.dtype == bf16
        near = torch.stack([wanted.float().to(bf16), (wanted * (1 - 1e-5)).to(bf16), (wanted * (1 + 1e-5)).to(bf16)])
        assert (found == near).any(0).all()  # the neighbour only where the sum lies between two
    assert kernels.products == {torch.float32: 5}  # three of bf16 factors, two of the comparison inside


def test_an_update_with_rounded_products_is_one_with_native_bf16(scripts):
    """PyTorch's own kernels, fast or slow; that they are others is what `done` shows."""
    gradients, done = [], []
    for context in (contextlib.nullcontext(), scripts["precision"].RoundedProducts()):
        agent, kernels = build_agent(small_config(), 2, dtype=torch.bfloat16), Kernels()
        with kernels, context:
            agent.update(random_batch())
        gradients.append(torch.cat([p.grad.flatten() for p in agent.world_model.parameters() if p.grad is not None]))
        done.append(kernels.products)
    native, rounded = gradients
    assert (native - rounded).norm() < 0.01 * native.norm()  # 0 where the sums have the same order
    assert done[0][torch.bfloat16] > 20 and set(done[1]) == {torch.float32}
    assert sum(done[0].values()) == sum(done[1].values())


def test_precision_table_and_picture(scripts, tmp_path):
    precision = scripts["precision"]
    returns = [
        {"precision": name, "arithmetic": made, "seed": str(seed), "mean": str(mean + seed), "standard_error": "1"}
        for name, made, mean in (("bf16", "rounded float32", 60), ("float32", "native", 50))
        for seed in (2, 0)
    ]
    gradients = [
        {
            "arithmetic": "native",
            "seed": str(seed),
            "step": str(step),
            "part": part,
            "cosine": str(0.9 + seed / 100),
            "other_batch": "0.5",
        }
        for part in precision.PARTS
        for step in (0, 1000)
        for seed in (0, 2)
    ]
    curves = [
        {
            "precision": name,
            "seed": str(seed),
            "step": str(step),
            "return": "" if step == 1 else str(10 * step + seed),
            "image_error": str(100 / step),
            "reward_error": "0.1",
        }
        for name in precision.PRECISIONS
        for seed in (0, 2)
        for step in (10, 9, 8, 7, 6, 1)
    ]
    lines = precision.table(curves, returns, gradients).splitlines()
    assert lines[2] == "| float32 | 2 | 51 | 1 | 50, 52 | 86 | 85, 87 |"
    assert lines[3] == "| bf16 (rounded float32) | 2 | 61 | 1 | 60, 62 | 86 | 85, 87 |"
    assert lines[5].endswith("| step 0: bf16 | step 0: another batch | step 1,000: bf16 | step 1,000: another batch |")
    assert lines[7] == "| encoder | 0.9100 | 0.5000 | 0.9100 | 0.5000 |" and len(lines) == 7 + len(precision.PARTS)
    precision.draw(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
