"""Pictures of 32 and 48 pixels, and two other kinds of convolutions: shapes, counts, the plain layers, whole runs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import configured, options_of, random_batch, small_config

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.models.structure import CONVOLUTIONS
from denoised_mdp.models.vision import Decoder, Encoder, halvings

CASES = [(kind, size) for kind, sizes in CONVOLUTIONS.items() if kind != "paper" for size in sizes]


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("kind", "size"), CASES)
@pytest.mark.parametrize("norm", ["none", "rms"])
def test_networks_equal_the_plain_layers(kind, size, norm):
    """PyTorch's own layers one after the other, with the same gradients."""
    torch.manual_seed(0)
    encoder = configured(Encoder, size=size, depth=2, embed=9, norm=norm, convolutions=kind).double()
    decoder = configured(Decoder, 5, size=size, depth=2, norm=norm, convolutions=kind).double()

    def activate(x, norms, number):
        if norm == "none":
            return F.relu(x)
        x = x.permute(0, 2, 3, 1)
        return F.silu(F.rms_norm(x, x.shape[-1:], norms[number].scale, 1e-4)).permute(0, 3, 1, 2)

    plain = images = torch.rand(2, 3, size, size, dtype=torch.float64).to(memory_format=torch.channels_last)
    for number, layer in enumerate(encoder.convolutions):
        plain = layer(plain)
        plain = activate(F.max_pool2d(plain, 2) if kind == "pooled" else plain, encoder.norms, number)
    assert plain.shape[-1] == decoder.side == {32: 4, 48: 3, 64: 4, 96: 3}[size]
    pairs = [(encoder, encoder(images), encoder.output(plain.flatten(1)))]

    latent = torch.randn(2, 5, dtype=torch.float64)
    plain = decoder.input(latent).view(2, decoder.side, decoder.side, -1).permute(0, 3, 1, 2)
    plain = activate(plain, decoder.norms, 0)
    for number, layer in enumerate(decoder.convolutions, 1):
        plain = F.interpolate(plain, scale_factor=2) if kind == "pooled" else plain
        plain = layer(plain)
        plain = activate(plain, decoder.norms, number) if number < len(decoder.convolutions) else plain
    assert plain.shape == (2, 3, size, size)
    for module, ours, theirs in (*pairs, (decoder, decoder(latent), plain)):
        torch.testing.assert_close(ours, theirs)
        weight = torch.randn_like(theirs)
        gradients = [torch.autograd.grad((y * weight).sum(), list(module.parameters())) for y in (ours, theirs)]
        torch.testing.assert_close(*gradients)


def test_counts():
    """By hand: a kernel of k x k from i to o channels has k k i o + o numbers. DreamerV3's encoders as published."""
    k = 8
    stages = 16 * (3 * k + k * 2 * k + 2 * k * 4 * k) + k + 2 * k + 4 * k
    fourth = 16 * 4 * k * 8 * k + 8 * k
    for size, expected in {32: stages, 48: stages + fourth, 64: stages + fourth}.items():
        encoder = configured(Encoder, size=size, depth=k, embed=None, convolutions="strided")
        assert count(encoder) == expected and encoder.width == {32: 64, 48: 72, 64: 128}[size] * k
        decoder = configured(Decoder, 7, size=size, depth=k, convolutions="strided")
        mirrored = expected - sum(layer.bias.numel() for layer in encoder.convolutions)
        biases = {32: k + 2 * k, 48: k + 2 * k + 4 * k, 64: k + 2 * k + 4 * k}[size] + 3
        assert count(decoder) == mirrored + biases + 8 * encoder.width
    pooled = options_of(Encoder, size=64, embed=None, norm="rms", convolutions="pooled")
    assert count(Encoder(**pooled | {"depth": 4})) == 14_304
    assert count(Encoder(**pooled | {"depth": 16})) == 220_416


def test_sides_are_halved_until_four():
    assert [halvings(size) for size in (32, 48, 64, 96)] == [3, 4, 4, 5]


def test_which_convolutions_and_weights_a_size_gets():
    for size, kind, alpha in ((32, "strided", 0.25), (48, "strided", 0.5625), (64, "paper", 1.0), (96, "paper", 2.0)):
        config = load_config(["preset=debug", f"env.size={size}"])
        assert config.alpha == alpha
        same = Encoder(**Encoder.options(config)).state_dict()
        assert same.keys() == Encoder(**(Encoder.options(config) | {"convolutions": kind})).state_dict().keys()
    with pytest.raises(UserError, match=r"env.size=48.*paper.*64, 96"):
        load_config(["env.size=48", "model.convolutions=paper"])
    with pytest.raises(UserError, match=r"env.size=40.*32, 48, 64, 96"):
        load_config(["env.size=40"])


@pytest.mark.parametrize(("size", "kind"), [(32, None), (48, None), (48, "pooled"), (64, "strided")])
@pytest.mark.parametrize("model", ["denoised", "tia"])
def test_agents_learn_and_act(size, kind, model):
    """Updates on one picture bring what is shown nearer to it; what acts gives an action."""
    if model == "tia":
        config = load_config(
            ["preset=debug", "model=tia", f"env.size={size}", "model.adversary_weight=0", "model.adversary_steps=1"]
        )
    else:
        config = small_config(size=size)
    config.model.convolutions, config.model.init, config.model.optimizer.lr = kind, "scaled", 3e-3
    agent = build_agent(config, 2)
    batch = random_batch(size=size)
    batch["observation"][:] = np.linspace(0, 255, size, dtype=np.uint8)[:, None, None]
    errors = [agent.update(batch)["model/image_error"].item() for _ in range(10)]
    assert errors[-1] < 0.95 * errors[0]
    action, carry = agent.act(np.zeros((size, size, 3), np.uint8))
    assert action.shape == (2,) and agent.world_model.decode(carry.latent).shape == (1, 3, size, size)


def test_a_run_with_small_pictures(tmp_path, cache, clips):
    """Training with every distractor of the task, videos, the probe while training, and the probes afterwards."""
    run = tmp_path / "run"
    options = ["preset=debug", "env.size=48", f"run_dir={run}", "train.threads=1", "train.eval_episodes=1"]
    options += ["distractors=video_background,camera_jitter,noisy_sensor", f"env.clips={clips}"]
    options += ["env.episode_steps=30", "train.total_steps=180", "train.prefill_steps=120"]
    options += ["train.render_every=180", "train.probe_every=180"]
    assert main(["train", *options]) == 0
    assert list(run.rglob("*.mp4"))
    assert (
        main(["probe", "invariance", str(run), "--episodes", "2", "--worlds", "2", "--steps", "9", "--returns", "0"])
        == 0
    )
