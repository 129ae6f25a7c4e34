"""Twohot scalars: published bins and weights, exact zero, large values, and a value net that learns both sizes."""

import pytest
import torch
from conftest import random_batch, small_agent
from test_policies import policy_batch

from denoised_mdp.models.scalars import GaussianScalar, TwohotScalar

LIKE = torch.zeros((), dtype=torch.float64)


def weights(value):
    """Of the bins of one target, {number: weight}, read from the gradient of the loss at equal logits."""
    logits = torch.zeros(1, 255, dtype=torch.float64, requires_grad=True)
    TwohotScalar.nll(logits, torch.tensor([value], dtype=torch.float64)).sum().backward()
    target = 1 / 255 - logits.grad[0]  # the gradient of cross entropy: softmax - target
    return {i: round(w, 6) for i, w in enumerate(target.tolist()) if w > 1e-9}


def test_bins_are_the_published_ones():
    bins = TwohotScalar.bins(LIKE)
    assert len(bins) == 255 and torch.equal(bins, -bins.flip(0)) and bool((bins.diff() > 0).all())
    assert bins[0].item() == pytest.approx(-4.85165194e8, rel=1e-8)
    assert bins[126:129].tolist() == pytest.approx([-0.17055772, 0, 0.17055772], abs=1e-8)
    float32 = TwohotScalar.bins(LIKE.float())
    torch.testing.assert_close(float32.double(), bins, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, {131: 0.617329, 132: 0.382671}),
        (-2.5, {119: 0.951584, 120: 0.048416}),
        (0.05, {127: 0.706844, 128: 0.293156}),
        (800.0, {169: 0.564254, 170: 0.435746}),
        (1e9, {254: 1.0}),
        (-1e9, {0: 1.0}),
        (0.0, {127: 1.0}),
    ],
)
def test_the_two_bins_of_a_value_are_the_published_ones(value, expected):
    assert weights(value) == pytest.approx(expected, abs=1.1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_logits_are_exactly_zero_and_no_bin_eats_the_others(dtype):
    assert bool((TwohotScalar.mean(torch.full((4, 255), 0.3, dtype=dtype)) == 0).all())
    logits = torch.zeros(255, dtype=dtype)
    logits[132] = logits[122] = 3.0  # alike on both sides: still 0, though bins of 5e8 take part
    assert TwohotScalar.mean(logits) == 0


def test_the_mean_of_a_targets_own_bins_is_the_target():
    for value in (1.0, -2.5, 0.05, 800.0, 3e5):
        probs = torch.full((255,), 1e-300, dtype=torch.float64)
        for number, weight in weights(value).items():
            probs[number] = weight
        assert TwohotScalar.mean(probs.log()).item() == pytest.approx(value, rel=1e-4)


def test_the_loss_by_hand_and_not_a_number():
    raw, target = torch.randn(3, 255, dtype=torch.float64), torch.tensor([1.0, -2.5, 800.0], dtype=torch.float64)
    pairs = zip(target.tolist(), raw.log_softmax(-1), strict=True)
    expected = [-sum(w * p[i] for i, w in weights(v).items()) for v, p in pairs]
    torch.testing.assert_close(TwohotScalar.nll(raw, target), torch.stack(expected), rtol=1e-5, atol=0)
    assert TwohotScalar.nll(raw[:1], torch.tensor([float("nan")])).isnan()
    normal = torch.distributions.Normal(raw[:, 0], 1.0)
    torch.testing.assert_close(GaussianScalar.nll(raw[:, :1], target), -normal.log_prob(target))


@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
def test_it_learns_values_of_any_size_with_one_learning_rate(size):
    raw, target = torch.zeros(2, 255, requires_grad=True), torch.tensor([size, -size])
    optimizer = torch.optim.Adam([raw], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        TwohotScalar.nll(raw, target).sum().backward()
        optimizer.step()
    torch.testing.assert_close(TwohotScalar.mean(raw), target, rtol=0.1, atol=0.01)


def test_a_twohot_value_net_begins_at_zero_and_learns_in_the_agent():
    agent = small_agent(value="twohot", slow_value=0.02, return_scale="percentile")
    policy, batch = agent.policy, policy_batch(agent)
    assert bool((policy.scalar.mean(policy.value(batch.features)) == 0).all())
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    _, value_loss, _ = policy.losses(batch, agent.mdp, noise)
    weight = 0.99 ** torch.arange(3, dtype=torch.float64)
    expected = 2 * torch.tensor(255.0, dtype=torch.float64).log() * weight.mean()  # of returns, and of the slow net
    torch.testing.assert_close(value_loss, expected)
    metrics = agent.update(random_batch())
    assert all(torch.isfinite(metric) for metric in metrics.values())
    assert bool((policy.value.output.weight != 0).any())
