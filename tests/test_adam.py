"""Adam is PyTorch's, but for what it imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from denoised_mdp.optim import Adam


@pytest.mark.parametrize("options", [{}, {"eps": 0.1, "betas": (0.5, 0.99), "weight_decay": 0.3}])
def test_steps_are_those_of_pytorch(options):
    ours, theirs = ([torch.nn.Parameter(torch.arange(3.0).double() + n) for n in range(3)] for _ in range(2))
    optimizers = [Adam(ours, lr=0.1, **options), torch.optim.Adam(theirs, lr=0.1, foreach=False, **options)]
    for step in range(8):
        for optimizer, parameters in zip(optimizers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            sum(
                ((p - 5 * step) ** 3).sum() for p in parameters[: 2 + (step > 3)]
            ).backward()  # the last one joins later
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert optimizers[0].state[ours[2]]["step"] == 4
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    torch.testing.assert_close(optimizers[1].state[theirs[0]], optimizers[0].state[ours[0]])


def test_nothing_imports_pytorchs_compiler():
    """It takes as long as PyTorch itself."""
    program = """
import sys, torch
from denoised_mdp.config.training import TrainConfig
from denoised_mdp.device import configure
from denoised_mdp.optim import Adam, make_optimizer

configure(TrainConfig(device="cpu", deterministic=True))
assert torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
for name in ("adam", "laprop", "muon"):
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = make_optimizer([parameter], lr=0.1, eps=1e-8, name=name)
    parameter.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
configure(TrainConfig(device="cpu"))
assert not torch.are_deterministic_algorithms_enabled()
if "torch._dynamo" in sys.modules:
    sys.exit(f"PyTorch {torch.__version__} imports its compiler: see optim/adam.py")
"""
    where = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", program], cwd=where, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
