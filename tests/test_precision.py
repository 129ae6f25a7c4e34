"""The comparison of precisions: its products, its table and its picture."""

import contextlib
import importlib
from collections import Counter

import pytest
import torch
from conftest import random_batch, small_config
from reproducing import script
from torch.utils._python_dispatch import TorchDispatchMode

from denoised_mdp.agents.registry import build_agent


@pytest.fixture(scope="module")
def scripts():
    """The scripts as modules."""
    with script("precision") as module:
        yield {"common": importlib.import_module("common"), "precision": module}


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
