"""LaProp and adaptive clipping: published numbers, the equations written out, resume, and who gets them."""

import copy
import math
from functools import partial

import pytest
import torch
from conftest import random_batch, small_config
from small_runs import run_in_parts, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.optim import LaProp, Muon, clip_adaptively, clipped_step, make_optimizer
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train


def descend(x, gradients, **options):
    """The path of a parameter under these gradients, one row per step."""
    optimizer, path = LaProp([x], **options), []
    for gradient in gradients:
        x.grad = gradient.clone()
        optimizer.step()
        path.append(x.detach().clone())
    return torch.stack(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_of_the_reference(dtype):
    """Four steps whose results were computed outside of this project."""
    x = torch.zeros(1, dtype=dtype, requires_grad=True)
    path = descend(x, torch.tensor([[1.0], [2.0], [-1.0], [0.5]], dtype=dtype), lr=0.01)
    expected = torch.tensor([[-0.01], [-0.0213933], [-0.0259731], [-0.0303846]], dtype=dtype)
    torch.testing.assert_close(path, expected, rtol=0, atol=6e-8)


def test_steps_are_the_equations():
    """Of two tensors together, with a warm-up of three updates."""
    torch.manual_seed(0)
    xs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in [(2, 3), (4,)]]
    optimizer = LaProp(xs, lr=0.1, eps=1e-3, betas=(0.8, 0.95), warmup=3)
    expected = [x.detach().clone() for x in xs]
    moments = [(torch.zeros_like(x), torch.zeros_like(x)) for x in expected]
    for t in range(1, 7):
        for i, x in enumerate(xs):
            x.grad = g = torch.randn_like(x)
            v, m = moments[i]
            v = 0.95 * v + 0.05 * g**2
            m = 0.8 * m + 0.2 * g / ((v / (1 - 0.95**t)).sqrt() + 1e-3)
            moments[i] = v, m
            expected[i] = expected[i] - 0.1 * min(1.0, (t - 1) / 3) * m / (1 - 0.8**t)
        optimizer.step()
        for x, known in zip(xs, expected, strict=True):
            torch.testing.assert_close(x.detach(), known)


@pytest.mark.parametrize("late_first", [False, True])
@pytest.mark.parametrize("kind", [partial(LaProp, warmup=4), Muon])
def test_parameters_that_join_late_or_rest_step_as_if_alone(kind, late_first, monkeypatch):
    """And those that were there before, too; over a restored state, which alone is read: on a GPU, one would wait."""
    read, convert = [], torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: read.append(step) or convert(tensor))
    torch.manual_seed(0)
    starts = torch.randn(3, 5, dtype=torch.float64)
    gradients = torch.randn(12, 3, 5, dtype=torch.float64)
    moves = [{0}, {0}, {0, 1}, {0, 1}, {1}, {0, 1, 2}, {0, 1, 2}, {2}, {0}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    xs = [start.clone().requires_grad_() for start in starts]
    optimizer = kind(xs[::-1] if late_first else xs, lr=0.1)
    alone = [start.clone().requires_grad_() for start in starts]
    others = [kind([x], lr=0.1) for x in alone]
    for step, moving in enumerate(moves):
        for i, (x, single) in enumerate(zip(xs, alone, strict=True)):
            x.grad = gradients[step, i].clone() if i in moving else None
            single.grad = gradients[step, i].clone()
            if i in moving:
                others[i].step()
        if step == 6:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()
        torch.testing.assert_close(torch.stack(xs).detach(), torch.stack(alone).detach(), rtol=0, atol=1e-12)
    assert read == [6, 6, 6]


def test_steps_do_not_depend_on_the_scale_of_gradients():
    gradients = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    paths = [descend(torch.zeros(3, requires_grad=True), gradients * scale, lr=0.1) for scale in (1.0, 1e-6, 1e6)]
    torch.testing.assert_close(paths[1], paths[0])
    torch.testing.assert_close(paths[2], paths[0])


def test_adaptive_clipping():
    """w [3, 4]: gradients of at most 0.3 * 5; a weight of zero counts as one of 1e-3; small gradients stay."""
    weights = [torch.tensor([3.0, 4.0]), torch.zeros(1), torch.tensor([10.0]), torch.ones(2), torch.ones(1)]
    gradients = [torch.tensor([0.0, 30.0]), torch.ones(1), torch.tensor([2.0]), torch.zeros(2), None]
    for w, g in zip(weights, gradients, strict=True):
        w.requires_grad_().grad = g
    clip_adaptively(weights, 0.3)
    expected = [torch.tensor([0.0, 1.5]), torch.tensor([0.0003]), torch.tensor([2.0]), torch.zeros(2)]
    for w, g in zip(weights, expected, strict=False):
        torch.testing.assert_close(w.grad, g)
    assert weights[-1].grad is None
    clip_adaptively(weights[-1:], 0.3)  # nothing to clip


@pytest.mark.parametrize("name", ["adam", "laprop"])
def test_clipping_comes_before_the_step(name):
    """Both clips, first the global norm; the norm that is returned is the one before."""
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    optimizer = make_optimizer([w], lr=0.1, eps=1e-8, name=name, agc=0.3)
    w.grad = torch.tensor([0.0, 30.0])
    assert clipped_step(optimizer, 20.0).item() == pytest.approx(30.0)
    torch.testing.assert_close(w.grad, torch.tensor([0.0, 1.5]))
    torch.testing.assert_close(w.detach(), torch.tensor([3.0, 3.9]))


def test_the_configuration_reaches_every_optimizer():
    options = [f"{key}={value}" for key, value in {"agc": 0.2, "warmup": 7}.items()]
    wanted = [f"model.optimizer.{o}" for o in ["name=laprop", *options]] + [
        f"policy.{o}" for o in ["optimizer=laprop", *options]
    ]
    for model in ("2b", "repo", "tia"):
        for policy in ("backprop", "sac"):
            config = load_config(["preset=debug", f"model={model}", f"policy={policy}", *wanted])
            agent = build_agent(config, 2)
            groups = {name: one.param_groups[0] for name, one in agent.optimizers.items()}
            scalars = {name for name, one in agent.optimizers.items() if not isinstance(one, LaProp)}
            assert scalars == {"dual"} & set(groups) | {"temperature"} & set(groups)
            steps = {"adversary": getattr(config.model, "adversary_steps", 1)}  # of it in each update
            for name in set(groups) - scalars:
                assert (groups[name]["agc"], groups[name]["warmup"]) == (0.2, 7 * steps.get(name, 1))


def test_a_warm_up_begins_at_zero_and_the_model_learns_with_it():
    config = small_config()
    config.model.optimizer.name, config.model.optimizer.warmup, config.model.optimizer.agc = "laprop", 2, 0.3
    agent = build_agent(config, 2)
    before = agent.world_model.encoder.like.detach().clone()
    changes = []
    for _ in range(3):
        assert all(math.isfinite(value) for value in agent.update(random_batch()).values())
        changes.append((agent.world_model.encoder.like - before).abs().max().item())
    assert changes[0] == 0.0 < changes[1] < changes[2]


def test_adam_does_not_warm_up():
    for option in ("model.optimizer.warmup=5", "policy.warmup=5"):
        with pytest.raises(UserError, match="laprop"):
            load_config([option])


def test_a_stop_changes_nothing(tmp_path):
    options = ["policy.hidden=8", "model.optimizer.agc=0.3", "model.optimizer.warmup=4", "policy.agc=0.3"]
    options += ["model.optimizer.name=laprop", "policy.optimizer=laprop"]
    assert train(tiny(tmp_path / "whole", *options))
    run_in_parts(tiny(tmp_path / "parts", *options), 42, 1, 1)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
