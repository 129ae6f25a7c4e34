"""Quasimetric heads and the objective that learns temporal distances: closed forms, brute force, toy problems."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from denoised_mdp.analysis.qrl import QRL, learn_distance
from denoised_mdp.analysis.quasimetric import IQE, MRN, PQELH, Euclid, relu_network

U, V = torch.tensor([0.0, 1, -1, 2, 0, 0.5]), torch.tensor([2, 1.5, -2, 1, 3, 2])
REPEATABLE = settings(derandomize=True, deadline=None, max_examples=30)
HEADS = {
    "iqe-sum": lambda: IQE(4, 8),
    "iqe-maxmean": lambda: IQE(4, 8, "maxmean"),
    "pqe-lh": lambda: PQELH(8),
    "mrn": lambda: MRN(32),
    "euclid": Euclid,
}


def made(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return HEADS[name]().double()


def vectors(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def identity_mrn() -> MRN:
    head = MRN(6)
    head.symmetric = head.directed = nn.Identity()
    return head


@pytest.mark.parametrize(
    ("distance", "forth", "back"),
    [
        (IQE(2, 3).component_distances, [2, 3], [1, 1]),
        (IQE(2, 3), 5, 2),
        (IQE(2, 3, "maxmean"), 2.634471, 1.0),
        (PQELH(2, 3).component_distances, [0.283469, 0.283469], [0.565402, 0.776870]),
        (identity_mrn(), 2.707825, 4.707825),
        (Euclid(), math.sqrt(17.5), math.sqrt(17.5)),
    ],
    ids=["components", "sum", "maxmean", "pqe", "mrn", "euclid"],
)
def test_heads_give_known_values(distance, forth, back):
    """Computed by hand and, but for Euclid, with the package of the authors (torchqmet 0.1.0)."""
    torch.testing.assert_close(distance(U, V), torch.as_tensor(forth), rtol=1e-5, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(distance(V, U), torch.as_tensor(back), rtol=1e-5, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_a_quasimetric(name):
    head, points = made(name), vectors(1, 60, 32)
    with torch.no_grad():
        d = head(points[:, None], points)  # [60, 60]
    assert d.diagonal().abs().max() == 0 and d.min() >= 0
    detour = (d[:, :, None] + d[None]).amin(1)  # [a, b, c] -> the best way from a to c
    assert (d - detour).max() <= 1e-12
    asymmetry = (d - d.T).abs().max() / d.mean()
    assert asymmetry == 0 if name == "euclid" else asymmetry > 0.05


@pytest.mark.parametrize("name", HEADS)
@REPEATABLE
@given(seed=st.integers(0, 2**32), scale=st.floats(1e-3, 1e3), ties=st.booleans())
def test_quasimetrics_at_any_scale_and_with_ties(name, seed, scale, ties):
    a, b, c = scale * (vectors(seed, 3, 32).round() if ties else vectors(seed, 3, 32))
    head = made(name)
    assert head(a, a) == 0 and head(a, b) >= 0
    assert head(a, c) <= (head(a, b) + head(b, c)) * (1 + 1e-12)
    if "iqe" in name:  # homogeneous
        torch.testing.assert_close(head(4 * a, 4 * b), 4 * head(a, b), rtol=1e-12, atol=0)


def union_length(u, v):
    """The length of the union of the intervals [u_j, max(u_j, v_j)], by cutting the line at every end."""
    cuts = sorted({*u, *v})
    return sum(
        right - left
        for left, right in itertools.pairwise(cuts)
        if any(a <= left and right <= b for a, b in zip(u, v, strict=True))
    )


@REPEATABLE
@given(st.lists(st.tuples(*[st.integers(-9, 9)] * 2), min_size=1, max_size=9))
def test_iqe_is_the_length_of_a_union_of_intervals(intervals):
    u, v = (torch.tensor(side, dtype=torch.float64) for side in zip(*intervals, strict=True))
    assert IQE(1, len(u))(u, v) == union_length(u.tolist(), v.tolist())


def test_iqe_represents_any_finite_quasimetric_exactly():
    """With one number per component, the maximum alone, and f(x)_z = -d(x, z)."""
    d = np.random.default_rng(0).integers(1, 30, (12, 12)) * (1 - np.eye(12))
    for k in range(12):  # Floyd and Warshall: shortest paths of a random digraph
        d = np.minimum(d, d[:, k, None] + d[k])
    features = -torch.tensor(d)
    assert torch.equal(IQE(12, 1).component_distances(features[:, None], features).amax(-1), torch.tensor(d))


@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_finite_differences(name):
    u, v = vectors(2, 2, 32).requires_grad_()
    assert torch.autograd.gradcheck(made(name), (u, v))


@pytest.mark.parametrize("name", HEADS)
def test_gradients_at_distance_zero_are_finite(name):
    points = vectors(3, 2, 32).requires_grad_()
    made(name)(points, points).sum().backward()
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("name", HEADS)
def test_heads_broadcast(name):
    head, u, v = made(name), vectors(4, 5, 1, 32), vectors(5, 3, 32)
    one_by_one = torch.stack([torch.stack([head(a[0], b) for b in v]) for a in u])
    torch.testing.assert_close(head(u, v), one_by_one)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="maxmean"):
        IQE(2, 3, "max")


@pytest.mark.parametrize(
    ("offset", "sharpness", "distance", "phi"),
    [
        (500, 0.01, 0, -500.6715),
        (500, 0.01, 100, -401.8150),
        (500, 0.01, 500, -69.3147),
        (15, 0.1, 0, -17.01413),
        (15, 0.1, 5, -13.13262),
        (15, 0.1, 15, -6.93147),
    ],
)
def test_push_has_known_values(offset, sharpness, distance, phi):
    assert QRL(offset, sharpness).push(torch.tensor(float(distance))).item() == pytest.approx(phi, rel=1e-6)


def test_push_grows_and_flattens():
    phi = QRL().push(torch.linspace(0, 60, 50, dtype=torch.float64))
    assert (phi.diff() > 0).all() and (phi.diff().diff() < 0).all()


def test_the_objective_in_closed_form():
    objective = QRL()
    assert objective.raw.item() == pytest.approx(-4.600166, abs=1e-6)
    assert F.softplus(objective.raw).item() == pytest.approx(0.01)
    far, near = torch.tensor([5.0, 15]), torch.tensor([0.5, 3.0])
    expected = (13.13262 + 6.93147) / 2 + 0.01 * ((0 + 4) / 2 - 0.0625)
    assert objective(far, near).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("step", "sign"), [(3.0, 1), (1.0, -1), (1.25, 0)])
def test_lambda_rises_where_the_constraint_is_violated(step, sign):
    objective = QRL()
    near = torch.full((4,), step, requires_grad=True)
    objective(torch.tensor([5.0]), near).backward()
    derivative = torch.sigmoid(objective.raw.detach()) * (max(step - 1, 0) ** 2 - 0.0625)  # of lambda times the excess
    assert objective.raw.grad.item() == pytest.approx(-derivative.item(), rel=1e-6, abs=1e-12)  # descent on it ascends
    assert -np.sign(round(objective.raw.grad.item(), 9)) == sign
    torch.testing.assert_close(near.grad, F.softplus(objective.raw).detach() * 2 * (near.detach() - 1).relu() / 4)


PAIRS = {(0, 0): 0, (1, 1): 0, (2, 2): 0, (0, 1): 29, (1, 2): 2, (2, 1): 1, (1, 0): 1, (2, 0): 1}


@pytest.mark.parametrize(
    ("head", "features", "lr", "steps"),
    [
        (lambda: PQELH(16), 64, 3e-4, 500),
        (lambda: IQE(8, 8), 64, 3e-4, 500),
        (lambda: IQE(8, 8, "maxmean"), 64, 1e-3, 500),
        (Euclid, 64, 3e-3, 500),
    ],
    ids=["pqe", "sum", "maxmean", "euclid"],
)
def test_three_points_bound_the_held_out_distance(head, features, lr, steps):
    """Fitted to 8 of 9 distances, a quasimetric must say 28 to 31 for the ninth; Euclid cannot fit at all."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head, net = head(), relu_network(3, 128, 128, features)
    start, end = torch.tensor(list(PAIRS)).T
    truth = torch.tensor(list(PAIRS.values()), dtype=torch.float32)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=lr)
    for _ in range(steps):
        points = net(torch.eye(3))
        error = (head(points[start], points[end]) - truth).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    if isinstance(head, Euclid):
        assert error.item() == pytest.approx(58.83, abs=0.05)  # its exact optimum
    else:
        assert error < 1e-2 and 27.8 < head(points[0], points[2]) < 31.2


@pytest.mark.parametrize(
    ("head", "updates", "low", "high"), [(lambda: IQE(64, 4, "maxmean"), 1500, 0.85, 1), (Euclid, 500, 0, 0.35)]
)
def test_the_distance_around_a_ring(head, updates, low, high):
    """12 states in a ring that is walked one way: QRL finds (j - i) mod 12, a symmetric distance cannot."""
    random = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head, table = head(), nn.Linear(12, 256, bias=False)
        nn.init.normal_(table.weight)
    states = torch.eye(12)

    def sample():
        return states, states.roll(-1, 0), states[torch.randperm(12, generator=random)]

    learn_distance(table, head, QRL(), sample, updates, lr=0.05, multiplier_lr=0.1)
    with torch.no_grad():
        d = head(table(states)[:, None], table(states))  # [12, 12]
    truth = (torch.arange(12) - torch.arange(12)[:, None]) % 12
    assert low < np.corrcoef(d.flatten(), truth.flatten())[0, 1] < high
    if high == 1:
        assert F.relu(d[truth == 1] - 1).square().mean().item() == pytest.approx(0.0625, abs=0.01)  # eps^2


def test_the_learning_rate_falls_along_a_cosine_and_that_of_lambda_does_not(monkeypatch):
    rates, step = [], torch.optim.Adam.step

    def watched(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    states = torch.eye(4)
    learn_distance(nn.Linear(4, 2), Euclid(), QRL(), lambda: (states, states.roll(1, 0), states), 8, lr=0.4)
    own, multiplier = zip(*rates, strict=True)
    assert own == pytest.approx([0.2 * (1 + math.cos(math.pi * n / 8)) for n in range(8)])
    assert own[0] == 0.4 and own[4] == pytest.approx(0.2) and 0 < own[-1] < 0.02
    assert set(multiplier) == {0.01}
