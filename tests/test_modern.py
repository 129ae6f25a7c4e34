"""preset=modern: published parameter counts, the block GRU and the decoder's input written out, a whole small run."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import random_batch
from small_runs import tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import as_tree, load_config
from denoised_mdp.config.compose import flatten
from denoised_mdp.errors import UserError
from denoised_mdp.models.blocks import BlockInput, BlockLinear, BlockTransition
from denoised_mdp.models.initial import scale_initial_weights, truncate_initial_weights
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.session import train


def counts(*options, actions=6):
    """Parameters by part."""
    return build_agent(load_config(["preset=modern", "model.init=pytorch", *options]), actions).parameter_counts()


def test_counts_of_the_preset():
    """x and y of 1,424 each: 10,496,624 with six actions, next to the published model's 10,494,158."""
    found = counts()
    assert "slow_value" not in found  # a copy of the value net
    assert sum(found.values()) == 10_496_624
    assert found["encoder"] == 220_416


def test_counts_of_the_published_model():
    """Encoder, RSSM, decoder, policy and value net of DreamerV3 with 12 million parameters."""
    found = counts("model=dreamer")
    assert (found["encoder"], found["rssm"], found["decoder"]) == (220_416, 5_979_648, 1_272_003)
    assert (found["actor"], found["value"]) == (791_052, 853_503)
    assert found["rewards"] == 721_407 - 254 * 257  # its reward is one of 255 bins, ours a mean
    assert counts("model=dreamer", actions=2)["rssm"] == 5_979_648 - 4 * 256


def test_rows_learned_from_for_each_action():
    config = load_config(["preset=modern"])
    actions = 100_000 / config.env.action_repeat
    updates = config.updates_due(config.train.prefill_steps + 100_000) - config.updates_due(config.train.prefill_steps)
    assert updates * config.train.batch_size * config.train.segment_length / actions == 512


def norm_silu(x, scale):
    return F.silu(F.rms_norm(x, x.shape[-1:], scale, 1e-4))


def test_the_transition_is_its_equations():
    """Block by block, with inputs that no other block's belief reaches."""
    torch.manual_seed(0)
    row = LatentSpec("z", 16, 3, parents=("x",), sees_action=True)
    net = BlockTransition(row, [5, 3, 2], 4).double()
    for parameter in net.parameters():
        parameter.data = torch.randn_like(parameter)
    inputs, h = torch.randn(7, 10, dtype=torch.float64), torch.randn(7, 16, dtype=torch.float64)
    parts = (h, inputs[:, :5], inputs[:, 5:8], inputs[:, 8:])
    u = torch.cat(
        [norm_silu(layer(part), n.scale) for layer, n, part in zip(net.inputs, net.norms, parts, strict=True)], -1
    )
    hidden = [torch.cat((h[:, 2 * b : 2 * b + 2], u), -1) @ net.hidden.weight[b] for b in range(8)]
    hidden = norm_silu(torch.cat(hidden, -1) + net.hidden.bias, net.norm.scale)
    expected = []
    for b in range(8):
        gates = hidden[:, 2 * b : 2 * b + 2] @ net.gates.weight[b] + net.gates.bias[6 * b : 6 * b + 6]
        r, c, k = gates.chunk(3, -1)
        new, k = torch.tanh(r.sigmoid() * c), (k - 1).sigmoid()
        expected.append(k * new + (1 - k) * h[:, 2 * b : 2 * b + 2])
    torch.testing.assert_close(net(inputs, h), torch.cat(expected, -1))
    for parameter in net.gates.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(net(inputs, h), (1 - 0.2689414213699951) * h)


def test_blocks_of_beliefs_write_channels_of_their_own():
    torch.manual_seed(0)
    net = BlockInput(16, 3, 5, cells=4, channels=24).double()
    latent = torch.randn(2, 19, dtype=torch.float64)
    changed = latent.clone()
    changed[:, 4:6] += 1.0  # block 2
    moved = (net(changed) - net(latent)).view(2, 4, 24).abs().amax((0, 1)) > 1e-9
    assert moved.tolist() == [6 <= channel < 9 for channel in range(24)]
    state = norm_silu(net.hidden(latent[:, 16:]), net.norm.scale)
    latent[:, :16] = 0.0
    torch.testing.assert_close(net(latent), net.state(state) + net.belief.bias.view(8, 4, 3).transpose(0, 1).flatten())


def test_initial_weights():
    """Their std, after the cut: 0.8796 of the one before; reward nets say 0."""
    agent = build_agent(load_config(["preset=modern_debug"]), 2)
    model = agent.world_model
    layer = BlockLinear(800, 400)
    convolutions = [torch.nn.Conv2d(20, 100, 5), torch.nn.ConvTranspose2d(50, 40, 4, stride=2)]
    holder = torch.nn.ModuleList([layer, torch.nn.Linear(100, 400), *convolutions])
    truncate_initial_weights(holder, torch.Generator().manual_seed(0))
    for one, inputs in zip(holder, (800, 100, 20 * 5**2, 50 * 2**2), strict=True):  # half of the taps on each axis
        std = 1.1368 / math.sqrt(inputs)
        assert one.weight.std().item() == pytest.approx(0.8796 * std, rel=0.03)
        assert one.weight.abs().max().item() <= 2 * std and not one.bias.any()
    for one in (torch.nn.Linear(6, 900, bias=False), torch.nn.Conv2d(8, 900, (3, 5), groups=4, bias=False)):
        inputs = one.weight[0].numel()
        truncate_initial_weights(one, torch.Generator().manual_seed(0))
        assert one.weight.std().item() == pytest.approx(1.1368 * 0.8796 / math.sqrt(inputs), rel=0.03)
        scale_initial_weights(one, torch.Generator().manual_seed(0))
        variance = 2 / inputs if isinstance(one, torch.nn.Conv2d) else 2 / (6 + 900)  # He's, and Glorot's
        assert one.weight.std().item() == pytest.approx(math.sqrt(variance), rel=0.03)
    latent = model.initial(2).map(torch.randn_like)
    assert all(not share.any() for share in model.reward_shares(latent).values())
    assert not agent.policy.scalar.mean(agent.policy.value(latent.features("x"))).any()


@pytest.mark.parametrize("options", [[], ["model=dreamer"], ["model=2c", *(f"model.{n}.belief=16" for n in "xyz")]])
def test_it_learns(options):
    agent = build_agent(load_config(["preset=modern_debug", "model.optimizer.warmup=0", *options]), 2)
    batch = random_batch(size=32)
    batch["observation"][:] = 200
    losses = [agent.update(batch)["model/image_error"].item() for _ in range(6)]
    assert losses[-1] < losses[0] and math.isfinite(losses[-1])


def test_a_run(tmp_path):
    """All parts together: training, evaluation, a video, a checkpoint."""
    own = ["preset=modern_debug", "env=toy", "env.task=dot", "distractors=none", "train.deterministic=true"]
    short = ["env.episode_steps=30", "train.prefill_steps=120", "train.total_steps=240"]
    config = load_config([*own, *short, f"run_dir={tmp_path / 'run'}"])
    assert train(config)
    assert list((tmp_path / "run").rglob("*.mp4"))


def test_the_small_preset_differs_in_sizes_and_warmup_alone():
    """Both files say the same switches."""
    large, small = (dict(flatten(as_tree(load_config([f"preset={name}"])))) for name in ("modern", "modern_debug"))
    different = {
        key for key in large if large[key] != small[key] and not key.startswith(("train.", "env.", "run_dir", "preset"))
    }
    sizes = {"model.width", "model.depth", "model.reward_hidden", "policy.hidden", "model.kl.alpha"}
    sizes |= {"model.optimizer.warmup", "policy.warmup"}
    assert different - sizes == {f"model.{row}.{cell}" for row in "xy" for cell in ("belief", "state", "classes")}


def test_what_blocks_need():
    for wrong in ("model.norm=none", "model.depth=5", "model.x.belief=36", "model=tia"):
        with pytest.raises(UserError, match=r"block|model.core"):
            load_config(["preset=modern_debug", wrong])
    large = ["preset=modern_debug", "env.size=64", "model.convolutions=paper"]
    with pytest.raises(UserError, match="model.embed=100: with model.core=block .* a multiple of 8"):
        load_config([*large, "model.embed=100"])
    for embed in ("104", "null"):
        agent = build_agent(load_config([*large, f"model.embed={embed}"]), 2)
        assert math.isfinite(agent.update(random_batch(size=64))["model/loss"].item())


def test_every_policy_takes_the_preset(tmp_path):
    for policy in ("backprop", "reinforce", "sac"):
        tiny(tmp_path, "preset=modern_debug", f"policy={policy}")


@pytest.mark.parametrize("preset", ["modern", "modern_debug"])
def test_the_published_rates_are_those_of_the_published_policy(preset):
    reinforce = load_config([f"preset={preset}"]).policy
    assert reinforce.actor_lr == reinforce.value_lr == 4e-5
    assert reinforce.clip is None
    for policy in ("backprop", "sac"):
        own, default = (load_config([*given, f"policy={policy}"]).policy for given in ([f"preset={preset}"], []))
        rates = [name for name in vars(own) if name.endswith("_lr")]
        assert len(rates) >= 2
        assert {name: getattr(own, name) for name in rates} == {name: getattr(default, name) for name in rates}
