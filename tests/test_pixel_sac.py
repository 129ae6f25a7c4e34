"""Pixel SAC: sizes, who is taught by what, targets and temperature from their formulas, acting, and whole runs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pixel_case import SIZE, changed, lively_agent, reached, tiny_agent, tiny_batch, tiny_step, weights, whole_batch
from small_runs import lines, run_in_parts, tiny

import denoised_mdp
from denoised_mdp.agents import pixel_sac
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config, read_config
from denoised_mdp.envs.actions import Actions
from denoised_mdp.errors import UserError
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train

AGENTS = ("sac_pixels", "curl")
ALL = (*AGENTS, "dbc", "pisac")


def test_parameters_are_those_of_the_publications():
    agent = build_agent(load_config(["agent=sac_pixels"]), 6)
    assert sum(p.numel() for p in agent.encoder.parameters()) == 1_990_518
    assert sum(p.numel() for p in agent.critics.nets[0].parameters()) == 1_108_993
    assert (agent.encoder.side, agent.encoder.head.linear.in_features) == (35, 39_200)


@pytest.mark.parametrize("name", ALL)
def test_optimizers_are_those_of_the_publications(name):
    agent = tiny_agent(name)
    for part, optimizer in agent.optimizers.items():
        (group,) = optimizer.param_groups
        momentum = 0.5 if part == "temperature" and name != "pisac" else 0.9
        decay = 1e-7 if (name, part) == ("dbc", "models") else 0
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((momentum, 0.999), 1e-8, decay), part
    rates = {part: optimizer.param_groups[0]["lr"] for part, optimizer in agent.optimizers.items()}
    usual = {"critics": 1e-3, "actor": 1e-3, "temperature": 1e-4}
    auxiliary = {"curl": {"contrastive": 1e-3}, "dbc": {"models": 1e-3, "encoder": 1e-3}}
    assert rates == (
        dict.fromkeys([*usual, "predictive"], 3e-4) if name == "pisac" else usual | auxiliary.get(name, {})
    )


def test_initial_weights_are_orthogonal_and_those_of_convolutions_in_the_middle_tap():
    agent = tiny_agent("sac_pixels", "agent.depth=32")
    for layer in agent.encoder.convolutions[1:]:
        middle = layer.weight[:, :, 1, 1].double()
        torch.testing.assert_close(middle @ middle.T, 2.0 * torch.eye(32).double(), atol=1e-5, rtol=0)
        assert layer.weight.abs().sum() == middle.abs().sum() and not layer.bias.any()
    weight = agent.critics.nets[0].hidden[0].weight
    narrow = min(weight.shape)
    product = weight.T @ weight if weight.shape[1] == narrow else weight @ weight.T
    torch.testing.assert_close(product, torch.eye(narrow).double(), atol=1e-5, rtol=0)
    for target, source in ((agent.target_encoder, agent.encoder), (agent.target_critics, agent.critics)):
        assert all(map(torch.equal, target.state_dict().values(), source.state_dict().values()))


def test_encoder_actor_and_critics_written_out():
    """Convolutions and hidden layers end in ReLU; a head is a linear layer and LayerNorm."""
    agent = lively_agent("sac_pixels")
    pictures, action = torch.rand(3, 9, SIZE, SIZE).double(), torch.rand(3, 2).double()

    def linear(x, layer):
        return F.linear(x, layer.weight, layer.bias)

    def head(x, part):
        return F.layer_norm(linear(x, part.linear), (8,), part.norm.weight, part.norm.bias)

    def mlp(x, net):
        first, second = net.hidden
        return linear(F.relu(linear(F.relu(linear(x, first)), second)), net.output)

    x = pictures
    for stride, layer in zip((2, 1, 1, 1), agent.encoder.convolutions, strict=True):
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, stride))
    hidden = x.flatten(1)
    phi = head(hidden, agent.encoder.head)
    torch.testing.assert_close(agent.encoder(pictures), phi)
    mean, raw = mlp(head(hidden, agent.actor.head), agent.actor.net).chunk(2, 1)
    torch.testing.assert_close(agent.actor(hidden), (mean, torch.exp(-10 + 6 * (torch.tanh(raw) + 1))))
    values = [mlp(torch.cat((phi, action), 1), net)[:, 0] for net in agent.critics.nets]
    torch.testing.assert_close(agent.critics(phi, action), torch.stack(values))


def test_the_critics_teach_the_encoder_and_the_actor_does_not():
    agent = tiny_agent("sac_pixels")
    step, now, following = tiny_step(agent)
    noise = torch.randn_like(step.action)
    loss = agent.critic_loss(step, now, following, noise)
    assert reached(agent, loss) == {"encoder.convolutions", "encoder.head", "critics"}
    loss, log_prob = agent.actor_loss(step, now, noise)
    assert reached(agent, loss) - {"critics"} == {"actor"}  # the critics' gradients are not taken
    assert reached(agent, agent.temperature_loss(step, log_prob)) == {"log_temperature"}


@pytest.mark.parametrize("name", AGENTS)
def test_actor_temperature_and_targets_move_in_every_second_update(name):
    agent = tiny_agent(name)
    for number in range(4):
        before = weights(agent)
        agent.update(tiny_batch(agent, number))
        moved = changed(agent, before)
        slow = {"actor", "log_temperature", "target_encoder", "target_critics"}
        assert moved == {"encoder", "critics"} | (slow if number % 2 == 0 else set()) | (
            {"similarity"} if name == "curl" else set()
        )


@pytest.mark.parametrize("name", AGENTS)
def test_a_policy_that_must_wait_stays_as_it_is(name):
    agent = tiny_agent(name)
    before = weights(agent)
    agent.update(tiny_batch(agent), policy=False)
    moved = changed(agent, before)
    assert moved == ({"encoder", "similarity"} if name == "curl" else set())


def test_the_critic_loss_is_the_soft_bellman_error():
    """Against the formulas, term by term; targets and their encoder are other weights than the rest."""
    agent = tiny_agent("sac_pixels", "agent.n_step=2")
    for part in (agent.target_encoder, agent.target_critics):
        for p in part.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.05)
    step, now, following = tiny_step(agent)
    noise = torch.randn_like(step.action)
    total, count = 0.0, 0
    for i in range(len(noise)):
        if not step.exists[i]:
            continue
        hidden = agent.encoder.convolve(following[i : i + 1])
        mean, raw = agent.actor.net(agent.actor.head(hidden))[0].chunk(2)
        std = torch.exp(-10 + 6 * (torch.tanh(raw) + 1))
        action = torch.tanh(mean + std * noise[i])
        density = torch.distributions.Normal(mean, std).log_prob(mean + std * noise[i])
        log_prob = (density - torch.log(1 - action**2 + 1e-6)).sum()
        both = torch.cat((agent.target_encoder(following[i : i + 1])[0], action))
        value = min(net(both) for net in agent.target_critics.nets)[0]
        target = step.reward[i] + step.discount[i] * (value - 0.1 * log_prob)
        own = torch.cat((agent.encoder(now[i : i + 1])[0], step.action[i]))
        total += sum((net(own)[0] - target) ** 2 for net in agent.critics.nets)
        count += 1
    assert 0 < count < len(noise) or bool(step.exists.all())
    torch.testing.assert_close(agent.critic_loss(step, now, following, noise), total / count)


def test_the_actor_maximizes_the_lower_value_and_its_entropy():
    agent = lively_agent("sac_pixels")
    step, now, _ = tiny_step(agent)
    noise = torch.randn_like(step.action)
    action, log_prob = agent.actor.sample(agent.encoder.convolve(now), noise)
    phi = agent.encoder(now)
    with torch.no_grad():
        one, other = agent.critics(phi, action)
        agent.critics.nets[1].output.bias += (one - other).mean()  # neither is the lower one everywhere
    one, other = agent.critics(phi, action)
    terms = agent.log_temperature.exp() * log_prob - torch.minimum(one, other)
    expected = (terms * step.exists).sum() / step.exists.sum()
    loss, found = agent.actor_loss(step, now, noise)
    torch.testing.assert_close((loss, found), (expected, log_prob))
    actor = list(agent.actor.parameters())
    ours, theirs = (torch.autograd.grad(total, actor) for total in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_the_temperature_rises_while_the_entropy_is_below_its_target():
    agent = tiny_agent("sac_pixels")
    step, *_ = tiny_step(agent)
    for entropy, sign in ((-5.0, 1), (5.0, -1)):  # the target is -2
        agent.log_temperature.grad = None
        log_prob = torch.full((6,), -entropy).double()
        loss = agent.temperature_loss(step, log_prob)
        loss.backward()
        temperature = agent.log_temperature.exp()
        torch.testing.assert_close(agent.log_temperature.grad, temperature.detach() * (entropy + 2.0))
        assert agent.log_temperature.grad.sign() == -sign


def test_targets_follow_at_their_rates():
    agent = tiny_agent("sac_pixels")
    for part in (agent.encoder, agent.critics):
        for p in part.parameters():
            p.data.add_(1.0)
    before = weights(agent)
    agent.update_targets()
    after = weights(agent)
    for name, rate in (("encoder", 0.05), ("critics", 0.01)):
        for key in before:
            if key.startswith(f"target_{name}"):
                torch.testing.assert_close(after[key] - before[key], torch.full_like(before[key], rate))


@pytest.mark.parametrize("name", ALL)
def test_acting_sees_what_a_stack_of_the_episode_shows(name):
    """Step by step as in whole episodes; what is carried from an earlier episode does not count."""
    agent, rng = tiny_agent(name), np.random.default_rng(0)
    observation = rng.integers(0, 256, (7, 2, SIZE, SIZE, 3), dtype=np.uint8)
    is_first = np.zeros((7, 2), bool)
    is_first[0], is_first[4, 1] = True, True
    found, carry = [], None
    for row, first in zip(observation, is_first, strict=True):
        action, carry = agent.act(row, carry, is_first=first)
        found.append(action)
    batch = {"observation": observation, "is_first": is_first, "action": np.zeros((7, 2, 2))}
    np.testing.assert_allclose(np.stack(found), agent.modes(batch).numpy(), atol=1e-6)
    parts = agent.representations(batch)
    assert agent.seen in parts and all(part.shape[:2] == (7, 2) for part in parts.values())
    single, _ = agent.act(observation[0, 0])
    np.testing.assert_allclose(single, found[0][0], atol=1e-6)


@pytest.mark.parametrize("name", ["sac_pixels", "pisac"])
def test_with_a_shift_all_pictures_are_learned_from_as_cut(name, monkeypatch):
    """Where the cut makes them black, the same is learned as from a batch of black pictures."""
    batch, asked, learned = whole_batch(tiny_agent(name)), [], []
    for shift, pictures in ((3, batch["observation"]), (0, torch.zeros_like(batch["observation"]))):
        agent = tiny_agent(name, f"agent.shift={shift}")
        with monkeypatch.context() as patch:
            patch.setattr(pixel_sac, "random_cut", lambda images, *how: asked.append(how) or torch.zeros_like(images))
            agent.update(batch | {"observation": pictures})
        learned.append(weights(agent))
    assert all(torch.equal(value, learned[1][part]) for part, value in learned[0].items())
    assert {how[:3] for how in asked} == {(-3, 3, SIZE)}


@pytest.mark.parametrize("overrides", [("sac_pixels", "agent.shift=3"), ("pisac", "agent.shift=3"), ("curl",)])
def test_every_picture_is_cut_on_its_own(overrides, monkeypatch):
    """In other places than the rest of its batch, and after an action in other places than before it."""
    agent, cut, places = tiny_agent(*overrides), pixel_sac.random_cut, []
    line = torch.arange(SIZE, dtype=torch.uint8)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)  # [H, W, 2], each pixel's row and column

    def recorded(pictures, *how):
        given = cut(torch.cat((pictures, grid.expand(len(pictures), -1, -1, -1)), -1), *how)
        places.append([tuple(place) for place in given[:, SIZE // 2, SIZE // 2, -2:].tolist()])
        return given[..., :-2]

    monkeypatch.setattr(pixel_sac, "random_cut", recorded)
    agent.update(tiny_batch(agent))
    assert len(places) >= 2 and all(len(set(of_a_call)) > 1 for of_a_call in places)
    assert len(set(map(tuple, places))) == len(places), "calls differ"


def test_acting_samples_only_where_it_explores():
    agent = tiny_agent("sac_pixels")
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    mode, carry = agent.act(picture)
    again, _ = agent.act(picture)
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    sampled = [agent.act(picture, explore=0.0, generator=one)[0] for one in generators]
    assert np.array_equal(mode, again) and np.array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2]) and np.abs(np.stack(sampled)).max() <= 1
    with pytest.raises(ValueError, match="carry is not of this agent"):
        agent.act(np.stack([picture] * 2), carry)
    assert agent.carry(**carry.tensors()) == carry


@pytest.mark.parametrize("scale", [0.5, 50.0])
def test_exploring_adds_noise_within_the_limits_of_actions(scale):
    agent, picture = tiny_agent("sac_pixels"), np.zeros((SIZE, SIZE, 3), np.uint8)
    sampled, _ = agent.act(picture, explore=0.0, generator=torch.Generator().manual_seed(0))
    found, _ = agent.act(picture, explore=scale, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    _, noise = (agent._noise(1, 2, generator)[0].numpy() for _ in range(2))  # that of the sample comes first
    np.testing.assert_allclose(found, np.clip(sampled + scale * noise, -1, 1), atol=1e-6)
    assert not np.array_equal(found, sampled)


@pytest.mark.parametrize("name", ALL)
def test_bf16_keeps_features_apart_that_lie_beside_one_large_number(name):
    """Heads, actor and critics have all bits: what pictures have in common may be a thousand times what they differ."""
    agent = lively_agent(name).float()
    with torch.no_grad():
        for head in {part for part in (agent.encoder, agent.actor) if hasattr(part, "head")}:
            head.head.linear.bias += torch.linspace(-30.0, 30.0, 8)
    agent.compute_in(torch.bfloat16)
    pictures = torch.rand(16, 9, agent.view_size, agent.view_size)
    action = torch.rand(16, 2) * 2 - 1
    with torch.no_grad():
        hidden = agent.encoder.convolve(pictures)  # [16, E], what bf16 may round
        seen = agent.actor_input(hidden)
        given = agent.encoder.head(hidden), agent.actor.mode(seen), agent.critics(agent.encoder.head(hidden), action)
        agent.compute_in(None)
        exact = agent.encoder.head(hidden), agent.actor.mode(seen), agent.critics(agent.encoder.head(hidden), action)
    assert not torch.equal(hidden, agent.encoder.convolve(pictures)), "convolutions were in bf16"
    assert 0 < exact[0].std(0).mean() < 0.1 * exact[0].std(), "pictures are close"
    assert all(map(torch.equal, given, exact))


@pytest.mark.parametrize("name", ["dbc", "pisac"])
@pytest.mark.parametrize("left", [0, 1])
def test_batches_with_too_few_whole_samples_teach_the_policy_alone(name, left):
    """Where episodes are short, all but `left` columns of a batch may cross an end."""
    agent, fresh = lively_agent(name), lively_agent(name)
    fresh.load_state_dict(agent.state_dict())
    batch = whole_batch(agent)
    batch["is_first"][agent.options.frames :, left:] = True
    for one in (agent, fresh):
        one.random.manual_seed(0)
    fresh.auxiliary = lambda *about: {}
    metrics = agent.update(batch)
    assert metrics.keys() == fresh.update(batch).keys() and "policy/critic_loss" in metrics
    for key, value in agent.state_dict().items():
        assert value.isfinite().all() and torch.equal(value, fresh.state_dict()[key]), key


def test_log_density_of_an_action_is_that_of_its_distribution():
    """By a histogram of many samples of one action dimension."""
    agent = tiny_agent("sac_pixels", actions=1)
    hidden = agent.encoder.convolve(torch.rand(1, 9, SIZE, SIZE).double())
    noise = torch.randn(400_000, 1, generator=torch.Generator().manual_seed(0)).double()
    mean, std = agent.actor(hidden)
    action, log_prob = agent.actor.sample(hidden.expand(3, -1), torch.tensor([[0.0], [0.5], [-1.0]]).double())
    samples = torch.tanh(mean + std * noise)
    for one, density in zip(action, log_prob.exp(), strict=True):
        near = (samples - one).abs() < 0.01
        assert near.double().mean() / 0.02 == pytest.approx(density.item(), rel=0.05)


@pytest.mark.parametrize("name", ALL)
def test_state_continues_bit_for_bit(name):
    """Between two updates, of which the second moves the actor only in one of two cases."""
    agent, other = tiny_agent(name), tiny_agent(name)
    for number in range(3):
        agent.update(tiny_batch(agent, number))
    other.restore(agent.state())
    for number in range(3, 5):
        found = [one.update(tiny_batch(agent, number)) for one in (agent, other)]
        assert found[0].keys() == found[1].keys() and all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    assert all(map(torch.equal, weights(agent).values(), weights(other).values()))


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=sac_pixels", "agent.n_step=3", "agent.shift=2"],
        ["agent=curl", "train.collect_envs=2"],
        ["agent=curl", "train.collect_workers=1", "train.overlap=true"],
        ["agent=sac_pixels", "replay.memory=prefetch", "train.updates=3"],
        ["agent=dbc", "env.size=32", "train.updates=3"],
        ["agent=pisac", "env.size=32", "train.updates=3"],
    ],
)
def test_a_run_stopped_anywhere_continues_exactly(tmp_path, overrides):
    """In the prefill, inside an episode, and after an odd number of updates; then it loads, acts and is evaluated."""
    short = ("train.total_steps=140", "train.eval_episodes=1")
    whole, parts = (tiny(tmp_path / name, *short, *overrides) for name in ("whole", "parts"))
    assert train(whole)
    run_in_parts(parts, 7, 29, 16)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    assert {name for line in lines(tmp_path / "parts") for name in line} >= {"eval/return", "policy/critic_loss"}
    agent = denoised_mdp.load(tmp_path / "parts")
    environment = denoised_mdp.make_env(tmp_path / "parts")
    action, carry = agent.act(environment.reset(seed=0)[0])
    assert action.shape == (2,) and read_config(tmp_path / "parts") == agent.config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=curl", "model=2c"], "model: agent=curl has no world model"),
        (["agent=curl", "policy.hidden=3"], "policy.hidden: agent=curl has no world model"),
        (["agent=curl", "agent.crop=100"], "agent.crop=100: must be smaller than env.size=100"),
        (["agent=curl", "agent.crop=null"], "agent.crop=null"),
        (["agent=curl", "agent.shift=4"], "agent.shift=4: give a crop or a shift"),
        (["agent=curl", "train.processes=2"], "train.processes=2: agent=curl learns in one process"),
        (["agent=sac_pixels", "train.cuda_graph=true"], "train.cuda_graph=true: agent=sac_pixels"),
        (["agent=sac_pixels", "train.policy_after=9"], "train.policy_after=9: agent=sac_pixels learns nothing before"),
        (["agent=curl", "train.policy_after=9"], "train.policy_after=9: agent=curl compares pictures by its target"),
        (["agent=dbc", "agent.n_step=3"], "agent.n_step=3: agent=dbc compares single steps"),
        (["agent=pisac", "train.batch_size=1"], "train.batch_size=1: agent=pisac compares futures of a batch"),
        (["agent=curl", "train.batch_size=1"], "train.batch_size=1: agent=curl compares pictures of a batch"),
        (["agent=dbc", "train.batch_size=1"], "train.batch_size=1: agent=dbc compares pictures of a batch"),
        (["agent.contrastive_lr=1"], "only agent=curl has this option"),
        (["agent=crul"], "Did you mean 'curl'"),
        (["env.size=84"], "sees pictures of one of these sizes: 32, 48, 64, 96"),
    ],
)
def test_what_cannot_be_is_one_line(overrides, message):
    with pytest.raises(UserError) as error:
        load_config(overrides)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_choices_are_refused():
    with pytest.raises(UserError, match="has choices"):
        build_agent(load_config(["agent=sac_pixels"]), Actions(3, discrete=True))
