"""Muon: its directions against a singular value decomposition, its steps against the equations and PyTorch, resume."""

import copy
import math

import pytest
import torch
from conftest import random_batch, small_agent, small_config
from small_runs import run_in_parts, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.optim import make_optimizer
from denoised_mdp.optim.muon import LARGE, Muon, _iterated, _polynomials, orthogonalized
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 5), (4, 30), (30, 4), (1, 7)])
@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
def test_directions_have_the_singular_vectors_of_the_matrix_and_nearly_equal_lengths(shape, scale):
    matrix = draw(*shape)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    lengths = u.T @ orthogonalized(matrix * scale) @ v.T
    torch.testing.assert_close(lengths, torch.diag(lengths.diagonal()), rtol=0, atol=1e-9)
    assert (lengths.diagonal() > 0.6).all() and (lengths.diagonal() < 1.25).all()


def test_a_singular_value_of_a_hundredth_grows_to_the_length_of_the_others():
    left, right = torch.linalg.qr(draw(4, 4)).Q, torch.linalg.qr(draw(9, 4, seed=1)).Q
    matrix = left @ torch.diag(torch.tensor([1.0, 0.1, 0.03, 0.01], dtype=torch.float64)) @ right.T
    lengths = (left.T @ orthogonalized(matrix) @ right).diagonal()
    assert (lengths > 0.6).all() and (lengths < 1.25).all()


@pytest.mark.parametrize("shape", [(64, 1024), (8, 48), (5, 7)])
@pytest.mark.parametrize("smallest", [-1, -6])
def test_products_of_small_matrices_are_the_iterations(shape, smallest):
    """In float32, whose rounding grows in them, against float64; also for singular values of 1e-6."""
    u, _, v = torch.linalg.svd(draw(*shape), full_matrices=False)
    x = u @ torch.diag(torch.logspace(0, smallest, len(u), dtype=torch.float64)) @ v
    x = x / x.norm()
    expected = _iterated(x)
    torch.testing.assert_close(_polynomials(x @ x.T) @ x, expected, rtol=0, atol=1e-8)
    single = x.float()
    error = (_polynomials(single @ single.T) @ single).double() - expected
    assert error.norm() < 2e-3 * expected.norm()


@pytest.mark.parametrize("shape", [(LARGE, LARGE), (LARGE, 3 * LARGE), (2 * LARGE, LARGE)])
@pytest.mark.parametrize("smallest", [-1, -4])
def test_products_in_bf16_turn_a_large_matrix_to_where_those_in_float64_do(shape, smallest):
    u, _, v = torch.linalg.svd(draw(*shape), full_matrices=False)
    matrix = u @ torch.diag(torch.logspace(0, smallest, min(shape), dtype=torch.float64)) @ v
    expected, found = orthogonalized(matrix), orthogonalized(matrix.float(), torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert (found.double() - expected).norm() < 0.1 * expected.norm()
    assert torch.linalg.svdvals(found.double())[0] < 1.25


def test_products_of_a_small_matrix_keep_its_type():
    matrix = draw(LARGE - 1, 2 * LARGE).float()
    assert torch.equal(orthogonalized(matrix, torch.bfloat16), orthogonalized(matrix))


def test_steps_with_products_in_bf16_are_nearly_those_without():
    weights = [draw(LARGE, LARGE).float().requires_grad_() for _ in range(2)]
    before = weights[0].detach().clone()
    for dtype, weight in zip((None, torch.bfloat16), weights, strict=True):
        optimizer = Muon([weight], lr=0.1)
        optimizer.compute_dtype = dtype
        for seed in range(3):
            weight.grad = draw(LARGE, LARGE, seed=seed + 1).float()
            optimizer.step()
        assert weight.dtype == optimizer.state[weight]["m"].dtype == torch.float32
    steps = [weight.detach() - before for weight in weights]
    assert 0 < (steps[1] - steps[0]).norm() < 0.1 * steps[0].norm()


def test_a_copy_steps_alike():
    weight = draw(LARGE, LARGE).float().requires_grad_()
    optimizer = Muon([weight], lr=0.1)
    optimizer.compute_dtype = torch.bfloat16
    twin = copy.deepcopy(optimizer)
    (other,) = (p for group in twin.param_groups for p in group["params"])
    for one, p in ((optimizer, weight), (twin, other)):
        p.grad = draw(LARGE, LARGE, seed=1).float()
        one.step()
    assert other is not weight and torch.equal(other, weight)


def test_the_type_of_large_products_reaches_it():
    config = small_config()
    config.model.optimizer.name = config.policy.optimizer = "muon"
    agent = build_agent(config, 2, dtype=torch.bfloat16)
    assert {one.compute_dtype for one in agent.optimizers.values()} == {torch.bfloat16}
    agent.compute_in(None)
    assert {one.compute_dtype for one in agent.optimizers.values()} == {None}


@pytest.mark.parametrize("shape", [(3, 4), (3, 9), (9, 3), (2 * LARGE, LARGE)])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_zeros_stay_zeros(shape, dtype):
    assert not orthogonalized(torch.zeros(shape), dtype).any()


def test_steps_are_the_equations():
    """Of a matrix and a transposed convolution; of a vector and of a single row, as Adam's."""
    shapes = [(3, 5), (6, 2, 2, 2), (4,), (1, 6)]
    mine = [draw(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    optimizer = Muon(mine, lr=0.1, eps=1e-6)
    adams = [p.detach().clone().requires_grad_() for p in mine[2:]]
    adam = torch.optim.Adam(adams, lr=0.1, eps=1e-6)
    expected = [p.detach().clone() for p in mine[:2]]
    averages = [torch.zeros_like(p) for p in expected]
    for t in range(4):
        gradients = [draw(*shape, seed=100 * t + i) for i, shape in enumerate(shapes)]
        for p, gradient in zip([*mine, *adams], [*gradients, *gradients[2:]], strict=True):
            p.grad = gradient.clone()
        optimizer.step()
        adam.step()
        for i, gradient in enumerate(gradients[:2]):
            averages[i] = 0.95 * averages[i] + 0.05 * gradient
            matrix = (0.05 * gradient + 0.95 * averages[i]).flatten(1)
            step = orthogonalized(matrix).reshape(shapes[i])
            expected[i] = expected[i] - 0.1 * 0.2 * math.sqrt(max(matrix.shape)) * step
        for p, known in zip(mine, [*expected, *adams], strict=True):
            torch.testing.assert_close(p.detach(), known.detach())


def test_blocks_are_independent_matrices():
    """A weight of three dimensions, as of the block GRU, takes the steps of its blocks by themselves."""
    whole = draw(4, 3, 5, seed=0).requires_grad_()
    blocks = [block.detach().clone().requires_grad_() for block in whole]
    together, apart = Muon([whole], lr=0.1), Muon(blocks, lr=0.1)
    for t in range(3):
        whole.grad = draw(4, 3, 5, seed=10 + t)
        for block, gradient in zip(blocks, whole.grad, strict=True):
            block.grad = gradient.clone()
        together.step(), apart.step()
    torch.testing.assert_close(whole.detach(), torch.stack(blocks).detach())


def test_steps_are_those_of_pytorch():
    """PyTorch's own computes the directions in bfloat16, which has three digits."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    mine, theirs = (draw(8, 20).float().requires_grad_() for _ in range(2))
    ours = Muon([mine], lr=0.1)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for t in range(3):
        mine.grad, theirs.grad = (draw(8, 20, seed=t).float() for _ in range(2))
        before = mine.detach().clone()
        ours.step()
        reference.step()
    step = (mine.detach() - before).norm()
    assert (mine - theirs).norm() < 0.03 * 3 * step


def test_a_step_is_as_large_as_one_of_adam():
    """The root mean square of a step is about 0.2 learning rates, whatever the shape and the scale of the gradient."""
    for shape in [(40, 40), (10, 300), (300, 10), (16, 8, 6, 6)]:
        for scale in (1e-6, 1.0):
            p = draw(*shape).requires_grad_()
            before, p.grad = p.detach().clone(), draw(*shape, seed=1) * scale
            Muon([p], lr=0.5).step()
            assert 0.14 < (p.detach() - before).square().mean().sqrt() / 0.5 < 0.25


def test_parameters_without_a_gradient_stay():
    p, q = draw(3, 3).requires_grad_(), draw(3).requires_grad_()
    before = [p.detach().clone(), q.detach().clone()]
    Muon([p, q], lr=0.1).step()
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])


def test_the_configuration_reaches_every_optimizer():
    wanted = ["model.optimizer.name=muon", "model.optimizer.agc=0.2", "policy.optimizer=muon", "policy.agc=0.2"]
    for model in ("2b", "repo", "tia"):
        for policy in ("backprop", "sac"):
            agent = build_agent(load_config(["preset=debug", f"model={model}", f"policy={policy}", *wanted]), 2)
            found = {name: one for name, one in agent.optimizers.items() if isinstance(one, Muon)}
            assert set(agent.optimizers) - set(found) <= {"dual", "temperature"}
            assert all(group["agc"] == 0.2 for one in found.values() for group in one.param_groups)


def test_every_parameter_is_in_one_group():
    parameters = list(small_agent().world_model.parameters())
    groups = make_optimizer(parameters, lr=0.1, eps=1e-8, name="muon").param_groups
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, parameters))
    assert all(p.ndim > 1 for p in groups[0]["params"]) and any(p.ndim == 4 for p in groups[0]["params"])


def test_a_model_learns_with_it():
    config = small_config()
    config.model.optimizer.name, config.model.optimizer.lr = "muon", 5e-3
    agent, batch = build_agent(config, 2), random_batch()
    losses = [agent.update(batch)["model/loss"].item() for _ in range(12)]
    assert all(math.isfinite(loss) for loss in losses) and losses[-1] < losses[0]


def test_a_stop_changes_nothing(tmp_path):
    options = [
        "policy.hidden=8",
        "model.optimizer.name=muon",
        "policy.optimizer=muon",
        "policy.late_lr=0.2",
        "policy.late_after=5",
    ]
    assert train(tiny(tmp_path / "whole", *options))
    run_in_parts(tiny(tmp_path / "parts", *options), 42, 1, 1)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
