"""model.norm and policy.norm: RMSNorm with SiLU, the GRU with a norm, in every net; off, nothing changes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import configured, random_batch, small_agent, small_config

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.models import kernels
from denoised_mdp.models.gru import NormGRUCell, gru_step
from denoised_mdp.models.networks import MLP, set_compute_dtype
from denoised_mdp.models.norms import RMSNorm
from denoised_mdp.models.vision import Decoder, Encoder


def rms(x, scale):
    return scale * x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt()


def rms_of_channels(x, scale):
    return rms(x.permute(0, 2, 3, 1), scale).permute(0, 3, 1, 2)


def normed_agent(actions=2, **policy):
    config = small_config(**{"norm": "rms"} | policy)
    config.model.norm = "rms"
    return build_agent(config, actions)


def same_gradients(ours, theirs, inputs):
    """Two outputs are equal, and so are their gradients along one random direction."""
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(theirs)
    pair = [torch.autograd.grad((y * weight).sum(), inputs) for y in (ours, theirs)]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("rows", [(3, 2), ()])
@pytest.mark.parametrize("silu", [True, False])
def test_a_norm_is_its_equation(silu, rows):
    torch.manual_seed(0)
    norm = RMSNorm(5, silu=silu).double()
    norm.scale.data.uniform_(0.5, 2.0)
    x = torch.randn(*rows, 5, dtype=torch.float64, requires_grad=True)
    plain = rms(x, norm.scale)
    same_gradients(norm(x), F.silu(plain) if silu else plain, [x, norm.scale])
    assert torch.equal(norm(torch.zeros(1, 5, dtype=torch.float64)), torch.zeros(1, 5, dtype=torch.float64))
    torch.testing.assert_close(RMSNorm(2, silu=False)(torch.tensor([3.0, 4.0])), torch.tensor([0.848527, 1.131370]))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [8, 40])
def test_a_norm_in_bf16_is_that_in_float32_but_for_rounding(size, compiled, monkeypatch):
    """Few channels and many take different ways there."""
    if not compiled:
        monkeypatch.setattr(kernels, "library", lambda: None)
    torch.manual_seed(0)
    norm, results = RMSNorm(size), []
    rounded, direction = torch.randn(50, size).bfloat16(), torch.randn(50, size).bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        x = rounded.to(dtype).requires_grad_()
        y = norm(x)
        assert y.dtype == dtype
        results.append((y.float(), *torch.autograd.grad(y, [x, norm.scale], direction.to(dtype))))
    for exact, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours.float(), exact, rtol=0.03, atol=0.02 * exact.abs().max().item())


def test_the_gru_is_its_equations():
    """(r, c, k) = RMSNorm(W [x, h] + b); h' = k n + (1 - k) h with n = tanh(s(r) c), k = s(k - 1)."""
    torch.manual_seed(0)
    cell = NormGRUCell(3, 4).double()
    cell.norm.scale.data.uniform_(0.5, 2.0)
    x, h = (torch.randn(2, size, dtype=torch.float64, requires_grad=True) for size in (3, 4))
    r, c, k = rms(cell.gates(torch.cat((x, h), -1)), cell.norm.scale).chunk(3, -1)
    new, k = torch.tanh(r.sigmoid() * c), (k - 1).sigmoid()
    same_gradients(gru_step(x, h, cell), k * new + (1 - k) * h, [x, h, *cell.parameters()])
    for parameter in cell.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(gru_step(x, h, cell), (1 - 0.2689414) * h)


def test_networks_equal_the_plain_layers():
    torch.manual_seed(0)
    mlp = MLP(5, 7, 2, layers=2, norm="rms").double()
    x = torch.randn(3, 5, dtype=torch.float64)
    plain = x
    for layer, norm in zip(mlp.hidden, mlp.activations, strict=True):
        plain = F.silu(rms(layer(plain), norm.scale))
    same_gradients(mlp(x), mlp.output(plain), list(mlp.parameters()))

    sizes = {"size": 64, "depth": 3, "embed": 16, "norm": "rms"}
    encoder, decoder = configured(Encoder, **sizes).double(), configured(Decoder, 9, **sizes).double()
    plain = images = torch.rand(2, 3, 64, 64, dtype=torch.float64).to(memory_format=torch.channels_last)
    for layer, norm in zip(encoder.convolutions, encoder.norms, strict=True):
        plain = F.silu(rms_of_channels(layer(plain), norm.scale))
    same_gradients(encoder(images), encoder.output(plain.flatten(1)), list(encoder.parameters()))

    latent = torch.randn(2, 9, dtype=torch.float64)
    plain = F.silu(rms(decoder.input(latent), decoder.norms[0].scale))[..., None, None]
    for layer, norm in zip(decoder.convolutions[:-1], decoder.norms[1:], strict=True):
        plain = F.silu(rms_of_channels(layer(plain), norm.scale))
    same_gradients(decoder(latent), decoder.convolutions[-1](plain), list(decoder.parameters()))


def test_parameters_added_are_the_scales():
    """The GRU's 3 D scales replace the second of its two biases."""
    options = ["preset=paper/cheetah_run_video_background"]
    plain, normed = (
        build_agent(load_config([*options, *more]), 6) for more in ([], ["model.norm=rms", "policy.norm=rms"])
    )
    before, after = plain.parameter_counts(), normed.parameter_counts()
    added = {name: after[name] - before[name] for name in before}
    assert added["encoder"] == 32 + 64 + 128 + 256 and added["decoder"] == 1024 + 128 + 64 + 32
    assert added["rssm"] == 2 * (120 + 120) + 240  # of each latent: input layer and prior; and the posterior
    assert added["rewards"] == 2 * 2 * 400 and added["actor"] == 4 * 400 and added["value"] == 3 * 400


@pytest.mark.parametrize("policy", ["backprop", "reinforce", "sac"])
def test_all_parameters_learn(policy):
    config = load_config(["preset=debug", f"policy={policy}", "model.norm=rms", "policy.norm=rms", "policy.hidden=8"])
    agent = build_agent(config, 2)
    scales = [
        p for name, p in agent.named_parameters() if name.endswith("scale") and not name.startswith("policy.targets")
    ]
    before = [p.detach().clone() for p in scales]
    for seed in range(2):  # a net whose output begins at zero learns from the second on
        metrics = agent.update(random_batch(seed=seed))
    assert all(torch.isfinite(value) for value in metrics.values())
    moved = [not torch.equal(now, old) for now, old in zip(scales, before, strict=True)]
    still = [policy == "reinforce" and p.shape == (8,) and not p.requires_grad for p in scales]  # the slow value net's
    assert all(m or s for m, s in zip(moved, still, strict=True))


def test_an_update_in_bf16_is_near_that_in_float32():
    results = []
    for dtype in (None, torch.bfloat16):
        agent = normed_agent()
        set_compute_dtype(agent, dtype)
        results.append(agent.update(random_batch()))
    for name in ("model/image_error", "model/kl_x", "policy/imagined_reward"):
        assert results[1][name].item() == pytest.approx(results[0][name].item(), rel=0.05, abs=0.01), name


def test_acting_is_training_one_step_at_a_time():
    """The filter of a normed model gives what `act` remembers."""
    agent = normed_agent().double()
    batch = random_batch(length=3, batch=1)
    batch["is_first"][:] = False
    batch["is_first"][0] = True
    carry = None
    for t in range(3):
        images = torch.as_tensor(batch["observation"][t])
        if carry is not None:
            carry = type(carry)(carry.latent, torch.as_tensor(batch["action"][t]).double())
        carry = agent.observe(images, carry, torch.as_tensor(batch["is_first"][t]), None, sample=False)
    whole = agent.representations(batch, sample=False)["x"][-1]
    torch.testing.assert_close(carry.latent.features("x"), whole)


def test_without_the_switch_there_is_no_new_weight():
    """Checkpoints of before stay readable."""
    names = small_agent().state_dict()
    assert not any("norm" in name or "activations" in name for name in names)
    assert np.isclose(F.elu(torch.tensor(-1.0)).item(), MLP(1, 1, 1).activations[0](torch.tensor([-1.0])).item())
