"""RePo: sizes, losses in closed form and computed anew, who is taught by what, and whole runs."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import random_batch
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.models.distributions import Gaussian
from denoised_mdp.models.repo import RePo, balanced_kl
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train

SMALL = [
    "model=repo",
    "model.depth=2",
    "model.reward_hidden=7",
    "model.x={belief: 6, state: 3}",
    "policy.hidden=8",
    "policy.horizon=4",
]


def small_model(*overrides: str) -> RePo:
    """A tiny RePo in float64."""
    return build_agent(load_config([*SMALL, *overrides]), 2).double().world_model


def batch_and_noise(model: RePo) -> tuple[dict, torch.Tensor]:
    """A random batch in float64 and noise for it."""
    batch = {name: torch.as_tensor(value) for name, value in random_batch().items()}
    batch |= {name: value.double() for name, value in batch.items() if value.is_floating_point()}
    return batch, model.draw_noise(*batch["reward"].shape, generator=torch.Generator().manual_seed(0))


def test_sizes_are_those_of_the_paper():
    """5,466,433 with 6 actions, the decoder and the policy's nets included; beta is one more."""
    agent = build_agent(load_config(["preset=repo"]), 6)
    counts = agent.parameter_counts()
    assert sum(counts.values()) == 5_466_433
    assert counts["encoder"] == 690_144 and agent.world_model.encoder.width == 1024
    assert sum(parameter.numel() for parameter in agent.parameters()) == 5_466_434


def test_options_are_those_of_the_paper():
    config = load_config(["preset=repo"])
    model, policy, training = config.model, config.policy, config.train
    assert (model.kl_limit, model.kl_balance, model.initial_beta, model.dual_lr) == (3, 5 / 6, 1e-5, 1e-4)
    assert (model.optimizer.lr, model.optimizer.eps, model.optimizer.clip) == (3e-4, 1e-8, 100)
    assert (policy.actor_lr, policy.value_lr, policy.eps, policy.clip) == (8e-5, 8e-5, 1e-8, 100)
    assert (policy.horizon, policy.gamma, policy.lambda_, policy.entropy) == (14, 0.99, 0.95, 3e-4)
    assert not policy.discount_weights
    assert (training.batch_size, training.segment_length, training.exploration_noise) == (50, 50, 0)
    actor = build_agent(load_config([*SMALL, "preset=repo"]), 2).policy.actor
    torch.nn.init.zeros_(actor.net.output.weight)
    torch.nn.init.zeros_(actor.net.output.bias)
    _, std = actor(torch.randn(3, 9))
    torch.testing.assert_close(std, torch.full((3, 2), math.log(2) + 0.1))


@pytest.mark.parametrize("option", ["warmup=5", "relax=0.5"])
def test_a_schedule_of_the_kl_weight_is_refused(option):
    with pytest.raises(UserError, match=rf"no schedule: leave out model.kl.{option.split('=')[0]}"):
        load_config(["model=repo", f"model.kl.{option}"])


def test_pixels_enter_the_encoder_between_minus_one_and_one():
    encoder, seen = small_model().encoder, []
    encoder.convolutions[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert encoder.output is None
    plain = encoder.convolutions[0]
    encoder.scale, images = 2.0, torch.rand(2, 3, 64, 64, dtype=torch.float64) - 0.5
    doubled = encoder(images)
    encoder.scale = 1.0
    torch.testing.assert_close(encoder(2 * images), doubled)
    assert small_model().encoder.scale == 2.0 and plain.in_channels == 3 and doubled.shape == (2, 64)


def test_with_equal_stds_the_posterior_moves_a_fifth_as_fast_as_the_prior():
    mean_q, mean_p = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    std = torch.rand(4, 3, dtype=torch.float64) + 0.5
    kl = balanced_kl({"x": Gaussian(mean_q, std)}, {"x": Gaussian(mean_p, std)}, 5 / 6)
    torch.testing.assert_close(kl, Gaussian(mean_q, std).kl(Gaussian(mean_p, std)).sum(-1))
    to_q, to_p = torch.autograd.grad(kl.sum(), [mean_q, mean_p])
    torch.testing.assert_close(to_q, -to_p / 5)


def test_the_loss_computed_anew():
    """From PyTorch's own distributions; the posterior and prior come from the filter, the rest from the equations."""
    model = small_model("model.initial_beta=0.25", "model.kl_limit=1.5")
    batch, noise = batch_and_noise(model)
    loss, excess, latent, _, metrics = model.loss(**batch, noise=noise)
    filtered = model.filter(batch["observation"], batch["action"], batch["is_first"], noise)
    q, p = (torch.distributions.Normal(d["x"].mean, d["x"].std) for d in (filtered.posterior, filtered.prior))
    kl = torch.distributions.kl_divergence(q, p).sum(-1).mean()
    reward = model.rewards["x"](torch.cat((filtered.latent.belief, filtered.latent.state), -1)).squeeze(-1)
    nll = -torch.distributions.Normal(reward, 1.0).log_prob(batch["reward"]).mean()
    torch.testing.assert_close(excess, (kl - 1.5).detach())
    torch.testing.assert_close(loss, nll + 0.25 * (kl - 1.5))
    torch.testing.assert_close(metrics["model/kl_x"], kl.detach())
    torch.testing.assert_close(metrics["model/reward_error"], 0.5 * (reward - batch["reward"]).square().mean().detach())

    def detached(normal):
        return torch.distributions.Normal(normal.loc.detach(), normal.scale.detach())

    parts = [torch.distributions.kl_divergence(*pair).sum(-1).mean() for pair in ((detached(q), p), (q, detached(p)))]
    weights = [*model.rssm.parameters(), *model.encoder.parameters()]
    expected = torch.autograd.grad(nll + 0.25 * (5 * parts[0] + parts[1]) / 6, weights)
    torch.testing.assert_close(torch.autograd.grad(loss, weights), expected)


def test_reward_std_is_that_of_the_likelihood():
    """The logged error is of the reward's own scale."""
    model = small_model("model.reward_std=0.5")
    batch, noise = batch_and_noise(model)
    loss, excess, _, shares, metrics = model.loss(**batch, noise=noise)
    nll = -torch.distributions.Normal(shares["x"], 0.5).log_prob(batch["reward"]).mean()
    torch.testing.assert_close(loss, nll + metrics["model/beta"] * excess)
    error = 0.5 * (shares["x"] - batch["reward"]).square().mean()
    torch.testing.assert_close(metrics["model/reward_error"], error.detach())


def test_pictures_teach_the_decoder_alone():
    model = small_model()
    batch, noise = batch_and_noise(model)
    loss, *_ = model.loss(**batch, noise=noise)
    loss.backward()
    assert all(p.grad is None for p in [*model.decoder.parameters(), model.log_beta])
    assert all(p.grad is not None for part in (model.encoder, model.rssm, model.rewards) for p in part.parameters())

    before = {name: value.clone() for name, value in model.state_dict().items()}
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    metrics = model.learn_to_decode(latent.map(torch.detach), batch["observation"])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"decoder.{name}" for name, _ in model.decoder.named_parameters()}
    error = 0.5 * (before_decoding(model, before, latent) - model.float_images(batch["observation"])).square()
    torch.testing.assert_close(metrics["model/image_error"], error.sum((1, 2, 3)).mean().detach())


def test_a_subclass_may_have_another_reconstruction_loss():
    class Own(RePo):
        def image_nll(self, prediction, image):
            return 3 * super().image_nll(prediction, image)

    model = small_model()
    batch, noise = batch_and_noise(model)
    latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent.map(torch.detach)
    constant = 0.5 * math.log(2 * math.pi) * 3 * model.size**2
    model.clip = 1e-12  # of the decoder's gradient: the second loss is the first one's
    usual = model.learn_to_decode(latent, batch["observation"])["model/image_error"] + constant
    model.__class__ = Own
    own = model.learn_to_decode(latent, batch["observation"])["model/image_error"] + constant
    assert own / usual == pytest.approx(3, rel=1e-2)


def before_decoding(model: RePo, before: dict, latent) -> torch.Tensor:
    """What the decoder made of `latent` with earlier weights."""
    model.load_state_dict(before)
    return model.decode(latent)


def test_terminations_are_learned():
    model = small_model("model.continuation=true")
    batch, noise = batch_and_noise(model)
    batch["is_terminal"][1, 1] = True
    loss, *_, metrics = model.loss(**batch, noise=noise)
    loss.backward()
    assert all(p.grad.abs().max() > 0 for p in model.continuation.parameters())
    torch.testing.assert_close(metrics["model/loss"], loss.detach())
    model.continuation = None
    without, *_ = model.loss(**batch, noise=noise)
    torch.testing.assert_close(loss - without, metrics["model/continuation_nll"])


def test_a_decoder_changes_nothing_that_is_learned():
    """With and without one: the same weights of everything else after three updates, whatever is clipped."""

    def learned(*overrides):
        agent = build_agent(load_config([*SMALL, "model.optimizer.clip=0.01", *overrides]), 2)
        for seed in range(3):
            agent.update(random_batch(seed=seed))
        return agent

    with_one, without = learned(), learned("model.decoder=false")
    assert with_one.world_model.decodes and not without.world_model.decodes
    weights = with_one.state_dict()
    assert {name for name in weights if "decoder" in name} == set(weights) - set(without.state_dict())
    for name, value in without.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_beta_rises_above_the_limit_and_falls_below():
    """Adam's first step is its learning rate, in the direction of the sign."""
    for limit, sign in ((1e-6, 1), (1e6, -1)):
        agent = build_agent(load_config([*SMALL, f"model.kl_limit={limit}", "model.dual_lr=0.01"]), 2)
        before = agent.world_model.log_beta.item()
        agent.update(random_batch())
        assert agent.world_model.log_beta.item() - before == pytest.approx(sign * 0.01, rel=1e-3)


def test_under_a_limit_that_never_binds_beta_falls_to_nothing():
    agent = build_agent(load_config([*SMALL, "model.kl_limit=1e6", "model.dual_lr=0.3", "model.initial_beta=1"]), 2)
    betas = [agent.update(random_batch())["model/beta"].item() for _ in range(40)]
    assert betas[0] == 1 and (np.diff(betas) < 0).all() and betas[-1] < 1e-4


def test_the_constraint_comes_to_hold():
    """On one batch, with a dual learning rate for so few updates: the KL ends within 20 % of its limit."""
    options = ["model.kl_limit=1", "model.dual_lr=0.02", "model.initial_beta=0.3", "model.optimizer.lr=1e-3"]
    model, kl = small_model(*options, "model.decoder=false"), []
    batch, _ = batch_and_noise(model)
    embedding, random = torch.randn(4, 3, model.encoder.width).double(), torch.Generator().manual_seed(0)
    model.embed = lambda observation: embedding  # convolutions would take most of the time
    for _ in range(400):
        kl.append(model.update(batch, random).metrics["model/kl_x"].item())
    assert 0.8 < np.mean(kl[-200:]) < 1.2, np.mean(kl[-200:])


def test_a_run_resumes_and_serves_every_command(tmp_path, capsys):
    options = ("model=repo", "train.total_steps=120", "train.eval_episodes=1", "distractors=camera_jitter")
    whole, parts = (tiny(tmp_path / name, *options) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 41)  # between the two updates
    run = whole.run_dir
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    logged = {name for line in lines(tmp_path / "whole") for name in line}
    assert logged >= {"model/beta", "model/kl_x", "model/image_error", "eval/return"}

    quick = ["--episodes", "3", "--steps", "12", "--device", "cpu"]
    assert main(["evaluate", run, "--episodes", "1"]) == 0
    assert main(["render", run, "--device", "cpu"]) == 0
    assert main(["probe", "factors", run, *quick]) == 0
    assert main(["probe", "health", run, *quick]) == 0
    assert main(["compare", run, parts.run_dir]) == 0
    assert main(["report", run, "--output", str(tmp_path / "report.html")]) == 0
    assert "repo" in (tmp_path / "report.html").read_text()
    assert isinstance(denoised_mdp.load(run, device="cpu").world_model, RePo)
    health = json.loads(next((tmp_path / "whole" / "probes").glob("health*.json")).read_text())
    assert set(health["nats"]) == {"x"} and np.isfinite(health["image_r2"])
    capsys.readouterr()
