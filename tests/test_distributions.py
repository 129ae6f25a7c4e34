"""Distributions of the stochastic state: closed forms, samples, gradients, and a whole run with categorical states."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_runs import run_in_parts, tiny

from denoised_mdp.cli.main import main
from denoised_mdp.models.distributions import DISTRIBUTIONS, UNIMIX, Categorical
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train


def one_hot(position: int, classes: int, variables: int = 1) -> Categorical:
    """What logits that are certain of one class become."""
    logits = F.one_hot(torch.full((variables,), position), classes).double() * 1e4  # [S, K]
    return Categorical.from_raw(logits.flatten(), classes)


def random_pair(kind: str, variables: int = 5, classes: int = 4):
    """Two different distributions [3, S] and the raw parameters of the first."""
    width = DISTRIBUTIONS[kind].raw_width(variables, classes)
    raw = torch.randn(3, width, dtype=torch.float64, requires_grad=True)
    other = DISTRIBUTIONS[kind].from_raw(torch.randn(3, width, dtype=torch.float64), classes)
    return DISTRIBUTIONS[kind].from_raw(raw, classes), other, raw


def test_a_certain_categorical_keeps_one_percent_for_chance():
    """Closed forms; DreamerV3 mixes 1 % of the uniform distribution into every categorical (Hafner et al. 2023)."""
    certain = one_hot(0, 4)
    expected = torch.tensor([[0.9925, 0.0025, 0.0025, 0.0025]], dtype=torch.float64)
    torch.testing.assert_close(certain.log_probs.exp(), expected)
    uniform = Categorical.from_raw(torch.zeros(4, dtype=torch.float64), 4)
    assert certain.kl(uniform).item() == pytest.approx(1.333887, abs=5e-7)
    assert uniform.kl(certain).item() == pytest.approx(3.109186, abs=5e-7)


def test_the_kl_of_categoricals_is_bounded():
    """Of 32 classes: at most 7.980560 nats a variable, 255.378 of 32 variables."""
    assert one_hot(3, 32).kl(one_hot(17, 32)).item() == pytest.approx(7.980560, abs=5e-7)
    assert one_hot(3, 32, 32).kl(one_hot(17, 32, 32)).sum().item() == pytest.approx(255.378, abs=5e-4)


@pytest.mark.parametrize("classes", [2, 4, 32])
def test_every_class_keeps_its_share_of_chance(classes):
    raw = 1e3 * torch.randn(100, 6 * classes)
    probs = Categorical.from_raw(raw, classes).log_probs.exp()  # [100, 6, K]
    assert probs.min() >= UNIMIX / classes * (1 - 1e-6)
    torch.testing.assert_close(probs.sum(-1), torch.ones(100, 6))


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_kl_and_entropy_equal_pytorchs(kind):
    one, other, _ = random_pair(kind)
    if kind == "gaussian":
        p, q = (torch.distributions.Normal(d.mean, d.std) for d in (one, other))
    else:
        p, q = (torch.distributions.Categorical(logits=d.log_probs) for d in (one, other))
    torch.testing.assert_close(one.kl(other), torch.distributions.kl_divergence(p, q))
    torch.testing.assert_close(one.entropy(), p.entropy())
    torch.testing.assert_close(one.kl(one), torch.zeros(3, 5, dtype=torch.float64))


def test_samples_are_one_hot_and_as_frequent_as_their_probabilities():
    raw, draws = torch.randn(3 * 4, dtype=torch.float64), 40_000
    categorical = Categorical.from_raw(raw, 4)
    many = Categorical(categorical.log_probs.expand(draws, 3, 4))
    samples = many.sample(torch.randn(draws, 12, dtype=torch.float64)).unflatten(-1, (3, 4))  # [draws, S, K]
    assert torch.equal(samples.sum(-1), torch.ones(draws, 3)) and set(samples.unique().tolist()) == {0.0, 1.0}
    probs = categorical.log_probs.exp()
    error = (samples.mean(0) - probs).abs() / (probs * (1 - probs) / draws).sqrt()
    assert error.max() < 4.5  # standard errors; 12 of them exceed it once in 12,000 seeds
    pairs = torch.einsum("nk,nl->kl", samples[:, 0], samples[:, 1]) / draws  # variables are independent
    assert (pairs - probs[0, :, None] * probs[1]).abs().max() < 4.5 * 0.5 / math.sqrt(draws)


def test_extreme_noise_still_makes_a_sample():
    noise = torch.tensor([[40.0, -40.0, 0.0], [-40.0, -40.0, -40.0], [40.0, 40.0, 40.0]])
    samples = Categorical.from_raw(torch.zeros(3, 3), 3).sample(noise)
    assert samples.isfinite().all() and torch.equal(samples.sum(-1), torch.ones(3))
    assert samples[0, 0] == 1


@pytest.mark.parametrize("draw", ["sample", "mode"])
def test_the_gradient_of_a_one_hot_is_that_of_the_probabilities(draw):
    raw = torch.randn(5, 6 * 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 6 * 4, dtype=torch.float64)
    categorical = Categorical.from_raw(raw, 4)
    chosen = categorical.mode() if draw == "mode" else categorical.sample(torch.randn_like(weight))
    through = torch.autograd.grad((chosen * weight).sum(), raw)[0]
    mixed = (1 - UNIMIX) * raw.unflatten(-1, (-1, 4)).softmax(-1) + UNIMIX / 4
    torch.testing.assert_close(through, torch.autograd.grad((mixed.flatten(-2) * weight).sum(), raw)[0])
    assert through.any()


def test_the_mode_is_the_likeliest():
    one, _, _ = random_pair("categorical")
    mode = one.mode().unflatten(-1, (-1, 4))
    assert torch.equal(mode.argmax(-1), one.log_probs.argmax(-1)) and torch.equal(mode.sum(-1), torch.ones(3, 5))
    gaussian, _, _ = random_pair("gaussian")
    assert torch.equal(gaussian.mode(), gaussian.mean)


def test_a_gaussian_sample_has_mean_std_and_both_gradients():
    gaussian, _, raw = random_pair("gaussian")
    noise = torch.randn(3, 5, dtype=torch.float64)
    sample = gaussian.sample(noise)
    torch.testing.assert_close((sample - gaussian.mean) / gaussian.std, noise)
    to_mean, to_std = torch.autograd.grad(sample.sum(), [gaussian.mean, gaussian.std], retain_graph=True)
    torch.testing.assert_close(to_mean, torch.ones_like(noise))
    torch.testing.assert_close(to_std, noise)
    assert torch.autograd.grad(sample.sum(), raw)[0].all()


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_map_applies_to_every_parameter(kind):
    one, other, _ = random_pair(kind)
    both = one.map(lambda *parts: torch.stack(parts), other)
    assert isinstance(both, DISTRIBUTIONS[kind])
    torch.testing.assert_close(both.map(lambda tensor: tensor[1]).kl(other), torch.zeros(3, 5, dtype=torch.float64))
    assert not one.map(torch.detach).entropy().requires_grad and one.entropy().requires_grad


def test_a_run_with_a_categorical_signal_resumes_bit_for_bit_renders_and_probes(tmp_path):
    options = (
        "model.x.distribution=categorical",
        "model.x.classes=4",
        "train.total_steps=120",
        "train.eval_episodes=1",
    )
    whole, parts = (tiny(tmp_path / name, *options) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 41)  # between the two updates
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    quick = ["--episodes", "3", "--steps", "12", "--device", "cpu"]
    assert main(["render", whole.run_dir, "--device", "cpu"]) == 0
    assert main(["probe", "factors", whole.run_dir, *quick]) == 0
    assert main(["probe", "health", whole.run_dir, *quick]) == 0
    assert list((tmp_path / "whole" / "videos").glob("*.mp4"))
