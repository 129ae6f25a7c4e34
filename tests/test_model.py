"""The world model's structure: sizes, who sees whom, filtering, losses."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import STRUCTURES, configured, random_batch, small_agent, small_config
from torch import nn

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.models.distributions import Gaussian
from denoised_mdp.models.losses import KLWeights, _SquaredError, image_nll, scalar_nll
from denoised_mdp.models.networks import float_to_images, images_to_float, set_compute_dtype
from denoised_mdp.models.structure import Table
from denoised_mdp.models.vision import Decoder, Encoder


def observed(agent, noise_seed=0, **changes):
    """Filter a random batch with fixed noise; `changes` replace entries. Returns what `RSSM.observe` returns."""
    batch = agent.to_device(random_batch()) | changes
    generator = torch.Generator().manual_seed(noise_seed)
    noise = agent.world_model.draw_noise(*batch["reward"].shape, generator=generator)
    return agent.world_model.filter(batch["observation"], batch["action"], batch["is_first"], noise)


@pytest.mark.parametrize(
    ("preset", "model", "actions", "total"),
    [
        ("reacher_easy_video_background", "2b", 2, 7_478_826),
        ("reacher_easy_video_background", "dreamer", 2, 7_479_789),
        ("robodesk_tv_green_hue", "2b", 5, 6_384_248),
        ("robodesk_tv_green_hue", "dreamer", 5, 6_385_511),
        ("cheetah_run_video_background", "2c", 6, 7_487_244),
        ("cheetah_run_video_background", "2c model.z.parents=[x,y]", 6, 7_492_844),
    ],
)
def test_parameter_count_of_the_paper(preset, model, actions, total):
    """Wang et al. 2022, Table D.4, whose numbers include the value net; the others were counted outside the package."""
    agent = build_agent(load_config([f"preset=paper/{preset}", *f"model={model}".split()]), actions)
    assert sum(agent.parameter_counts().values()) == total
    assert sum(p.numel() for p in agent.parameters()) == total


@pytest.mark.parametrize("size", [64, 96])
def test_networks_equal_the_plain_layers(size):
    """The fast evaluations are the same functions, with the same gradients, as PyTorch's own layers."""
    torch.manual_seed(0)
    sizes = {"size": size, "depth": 3, "embed": 16}
    encoder, decoder = configured(Encoder, **sizes).double(), configured(Decoder, 9, **sizes).double()
    images = torch.rand(2, 3, size, size, dtype=torch.float64).to(memory_format=torch.channels_last)
    latent = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)

    embedding = images
    for layer in encoder.convolutions:
        embedding = F.relu(layer(embedding))
    embedding = encoder.output(embedding.flatten(1))
    image = torch.relu(decoder.input(latent))[..., None, None]
    for layer in decoder.convolutions[:-1]:
        image = F.relu(layer(image))
    image = decoder.convolutions[-1](image)
    assert image.shape == (2, 3, size, size)

    for module, fast, plain in ((encoder, encoder(images), embedding), (decoder, decoder(latent), image)):
        torch.testing.assert_close(fast, plain)
        weight = torch.randn_like(plain)
        gradients = [torch.autograd.grad((y * weight).sum(), list(module.parameters())) for y in (fast, plain)]
        torch.testing.assert_close(*gradients)


def test_images_survive_the_round_trip():
    images = torch.arange(256, dtype=torch.uint8).repeat(48).reshape(1, 64, 64, 3)
    floats = images_to_float(images)
    assert floats.shape == (1, 3, 64, 64) and floats.min() == -0.5 and floats.max() == 0.5
    assert torch.equal(float_to_images(floats), images)
    assert torch.equal(float_to_images(images_to_float(images, torch.bfloat16)), images)


def test_kl_is_the_closed_form():
    torch.manual_seed(0)
    q = Gaussian(torch.randn(5, 3), torch.rand(5, 3) + 0.1)
    p = Gaussian(torch.randn(5, 3), torch.rand(5, 3) + 0.1)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(q.mean, q.std), normal(p.mean, p.std))
    torch.testing.assert_close(q.kl(p), expected)
    assert q.kl(q).abs().max() < 1e-6


def test_likelihoods_are_those_of_unit_gaussians():
    torch.manual_seed(0)
    prediction, image = torch.randn(4, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 8, 8)
    normal = torch.distributions.Normal(prediction, 1.0)
    expected = -normal.log_prob(image).sum((1, 2, 3)).mean()
    torch.testing.assert_close(image_nll(prediction, image), expected)
    gradients = [torch.autograd.grad(loss, prediction)[0] for loss in (image_nll(prediction, image), expected)]
    torch.testing.assert_close(*gradients)
    nll = scalar_nll(torch.tensor(2.0), torch.tensor(0.5))
    assert nll.item() == pytest.approx(0.5 * 1.5**2 + 0.5 * math.log(2 * math.pi))


def test_the_gradient_of_rounded_pictures_has_no_common_error():
    """1 / 240 itself, rounded to bf16, would be a third of a percent too large for every pixel."""
    image, prediction = torch.rand(240, 3, 4, 4) - 0.5, torch.zeros(240, 3, 4, 4, dtype=torch.bfloat16).requires_grad_()
    image_nll(prediction, image).backward()
    exact = -image / 240
    assert (prediction.grad * exact).sum() / exact.square().sum() == pytest.approx(1, abs=3e-4)


def test_a_rounded_prediction_is_compared_with_the_exact_image():
    """Nearly right pictures, whose error is of the size of bf16's rounding."""
    image = torch.rand(4, 3, 8, 8) - 0.5
    prediction = (image + 0.002 * torch.randn_like(image)).to(torch.bfloat16).requires_grad_()
    loss = _SquaredError.apply(prediction, image)
    difference = prediction.detach().float() - image
    torch.testing.assert_close(loss, 0.5 * difference.square().sum() / 4)
    loss.backward()
    assert torch.equal(prediction.grad, difference.to(torch.bfloat16) / 4)


def test_images_keep_their_bits_whatever_convolutions_compute_in():
    model = small_agent().float().world_model
    observation = random_batch()["observation"]
    exact = model.float_images(torch.as_tensor(observation))
    set_compute_dtype(model, torch.bfloat16)
    assert torch.equal(model.float_images(torch.as_tensor(observation)), exact) and exact.dtype == torch.float32
    assert torch.equal(float_to_images(exact), torch.as_tensor(observation).flatten(0, 1))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_priors_see_only_what_the_table_allows(structure):
    """Through one transition: in 2c d prior_y / d action = 0, d prior_x / d (y, z) = 0, d prior_y / d (x, z) = 0."""
    agent = small_agent(structure)
    rssm = agent.world_model.rssm
    torch.manual_seed(0)
    initial = rssm.initial(3).map(lambda t: torch.randn_like(t).requires_grad_())
    action = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    embed = torch.randn(1, 3, 12, dtype=torch.float64)
    is_first = torch.zeros(1, 3, dtype=torch.bool)
    noise = agent.world_model.draw_noise(1, 3)
    _, _, prior = rssm.observe(embed, action, is_first, noise, initial)

    rows = rssm.table.rows
    allowed = {name: {name, *["action"] * row.sees_action} for name, row in rows.items()}
    for number, stage in enumerate(rssm.table.stages):  # a parent's posterior sample depends on all that its stage read
        before = [row for earlier in rssm.table.stages[:number] for row in earlier]
        for row in stage if before else ():
            allowed[row.name] |= {*rows, *["action"] * any(other.sees_action for other in before)}
    for name, distribution in prior.items():
        mean = distribution.mean if rows[name].distribution == "gaussian" else distribution.log_probs[..., 0]
        gradients = torch.autograd.grad(
            mean.sum(), [action, initial.belief, initial.state], retain_graph=True, allow_unused=True
        )
        reach = {"action": gradients[0]}
        for part, split in ((1, rssm.layout.split_belief), (2, rssm.layout.split_state)):
            for other, gradient in split(gradients[part]).items():
                reach[other] = reach.get(other, 0.0) + gradient.abs().sum()
        for source, gradient in reach.items():
            touched = gradient is not None and bool(gradient.abs().sum() > 0)
            assert touched == (source in allowed[name]), f"prior of {name} and {source}"


def test_z_prior_without_y_depends_on_y_only_through_the_posterior():
    """z's transition takes (h^x, x, z, a) and, only if asked, (h^y, y)."""
    seeing, blind = small_agent("2c").world_model.rssm, small_agent("2c-blind").world_model.rssm
    assert seeing.table.rows["z"].parents == ("x", "y") and blind.table.rows["z"].parents == ("x",)
    extra = seeing.table.rows["y"].belief + seeing.table.rows["y"].state
    widths = [rssm.transitions["z"].inputs[0].in_features for rssm in (seeing, blind)]
    assert widths[0] - widths[1] == extra


@pytest.mark.parametrize("structure", STRUCTURES)
def test_reward_never_sees_z(structure):
    agent = small_agent(structure)
    latent = observed(agent).latent.map(lambda t: t.detach().requires_grad_())
    reward = sum(agent.world_model.reward_shares(latent).values())
    gradients = torch.autograd.grad(reward.sum(), [latent.belief, latent.state])
    read = {row.name for row in STRUCTURES[structure] if row.rewarded} | {"c"}
    for gradient, split in zip(gradients, (latent.layout.split_belief, latent.layout.split_state), strict=True):
        for name, part in split(gradient).items():
            assert (name in read) == (name != "z")
            assert bool(part.abs().sum() > 0) == (name != "z"), name


def test_a_reward_that_no_noise_touches_is_explained_by_the_signal_alone():
    config = small_config("2c")
    config.model.latents["y"] = replace(config.model.latents["y"], rewarded=False)
    agent = build_agent(config, 2).double()
    latent = observed(agent).latent.map(lambda t: t.detach().requires_grad_())
    reward = sum(agent.world_model.reward_shares(latent).values())
    for gradient, split in zip(
        torch.autograd.grad(reward.sum(), [latent.belief, latent.state]),
        (latent.layout.split_belief, latent.layout.split_state),
        strict=True,
    ):
        assert {name for name, part in split(gradient).items() if part.any()} == {"x"}


def test_reward_std_is_that_of_the_likelihood():
    torch.manual_seed(0)
    prediction, target = torch.randn(2, 5, dtype=torch.float64)
    expected = -torch.distributions.Normal(prediction, 0.2).log_prob(target)
    torch.testing.assert_close(scalar_nll(prediction, target, 0.2), expected)

    def losses(std):
        config = small_config()
        config.model.reward_std = std
        agent = build_agent(config, 2).double()
        batch = agent.to_device(random_batch())
        noise = agent.world_model.draw_noise(4, 3, generator=torch.Generator().manual_seed(0))
        loss, *_, metrics = agent.world_model.loss(**batch, noise=noise)
        return loss.detach(), metrics["model/reward_error"]

    (unit, error), (narrow, same) = losses(1.0), losses(0.2)
    torch.testing.assert_close(same, error)  # the metric stays comparable
    torch.testing.assert_close(narrow - unit, error * (1 / 0.2**2 - 1) + math.log(0.2))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_step_at_a_time_equals_the_sequence(structure):
    agent = small_agent(structure)
    batch = agent.to_device(random_batch(length=5))
    rssm, noise = agent.world_model.rssm, agent.world_model.draw_noise(5, 3)
    embed = agent.world_model.embed(batch["observation"])
    whole, posterior, prior = rssm.observe(embed, batch["action"], batch["is_first"], noise)
    latent = None
    for t in range(5):
        now = slice(t, t + 1)
        latent, post, pri = rssm.observe(embed[now], batch["action"][now], batch["is_first"][now], noise[now], latent)
        latent = latent.map(lambda tensor: tensor[0])
        torch.testing.assert_close(latent.belief, whole.belief[t])
        torch.testing.assert_close(latent.state, whole.state[t])
        for name in prior:
            torch.testing.assert_close(post[name].mode()[0], posterior[name].mode()[t])
            torch.testing.assert_close(pri[name].entropy()[0], prior[name].entropy()[t])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_reset_inside_is_a_fresh_start(structure):
    """From an is_first row on, nothing before it matters, not even the action stored in that row."""
    agent = small_agent(structure)
    batch = agent.to_device(random_batch(length=4, batch=1))  # is_first in row 2
    rssm, noise = agent.world_model.rssm, agent.world_model.draw_noise(4, 1)
    embed = agent.world_model.embed(batch["observation"])
    whole, _, _ = rssm.observe(embed, batch["action"], batch["is_first"], noise)
    action = batch["action"].clone()
    action[2] = 0.0
    fresh, _, _ = rssm.observe(embed[2:], action[2:], torch.zeros_like(batch["is_first"][2:]), noise[2:])
    torch.testing.assert_close(whole.belief[2:], fresh.belief)
    torch.testing.assert_close(whole.state[2:], fresh.state)


def test_free_nats_clamp_elements_of_x_alone():
    kl = {"x": torch.tensor([[1.0, 5.0]]), "y": torch.tensor([[1.0, 1.0]]), "z": torch.tensor([[0.5, 0.5]])}
    betas = {"y": 0.25, "z": 0.5}
    table = Table([replace(row, beta=betas.get(row.name, 1.0)) for row in STRUCTURES["2c"]])
    whole = configured(KLWeights, alpha=2.0)
    assert float(whole.weighted(kl, table)) == pytest.approx(2 * (4.0 + 0.25 * 1.0 + 0.5 * 0.5))
    split = configured(KLWeights, alpha=2.0, free_nats_strategy="B")
    assert float(split.weighted(kl, table)) == pytest.approx(2 * (0.25 * 4.0 + 0.75 * 3.0 + 0.25 * 1.0 + 0.5 * 0.5))


def test_decoding_with_y_held_does_not_depend_on_y():
    agent = small_agent("2c")
    latent = observed(agent).latent.map(lambda t: t.detach()[:, 0])
    held = {name: tuple(part[0] for part in latent[name]) for name in "yz"}
    changed = latent.replace(y=tuple(part + 1.0 for part in latent["y"]))
    decode = agent.world_model.decode
    assert not torch.allclose(decode(latent), decode(changed))
    assert torch.equal(decode(latent.replace(**held)), decode(changed.replace(**held)))


def test_initialization_comes_from_the_seed_alone():
    before = torch.random.get_rng_state()
    first, second = (build_agent(small_config(), 2).state_dict() for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = small_config()
    other.seed = 1
    assert not torch.equal(
        first["world_model.decoder.input.weight"],
        build_agent(other, 2).state_dict()["world_model.decoder.input.weight"],
    )


def test_default_initialization_is_pytorchs():
    """Bounds of `nn.Linear`'s default: 1 / sqrt(fan in)."""
    layer = build_agent(load_config([]), 2).world_model.decoder.input
    reference = nn.Linear(layer.in_features, layer.out_features)
    assert layer.weight.abs().max() <= reference.in_features**-0.5
    assert layer.weight.std().item() == pytest.approx(reference.weight.std().item(), rel=0.02)


@pytest.mark.parametrize("size", [64, 96])
def test_scaled_initialization_keeps_the_size_of_signals(size):
    """Through the whole encoder and decoder, the spread over inputs stays of order one; with PyTorch's, it vanishes."""
    spreads = {}
    for init in ("pytorch", "scaled"):
        config = small_config(size=size)
        config.model.depth, config.model.embed, config.model.init = 8, 64, init
        model = build_agent(config, 2).world_model
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(16, 3, size, size, generator=generator)
        latent = torch.randn(16, model.decoder.input.in_features, generator=generator)
        with torch.no_grad():
            spreads[init] = [y.std(0).mean().item() for y in (model.encoder(images), model.decoder(latent))]
    assert 0.3 < spreads["scaled"][0] < 3 and 0.05 < spreads["scaled"][1] < 1
    assert spreads["pytorch"][0] < 0.1 and spreads["pytorch"][1] < 0.02


def test_scaled_initial_weights_are_of_the_runs_own_seed():
    found, config = [], small_config()
    config.model.init = "scaled"
    for config.seed in (3, 3, 4):
        found.append(build_agent(config, 2).world_model.decoder.input.weight)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
