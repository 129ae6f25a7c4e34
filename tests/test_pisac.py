"""PI-SAC: sizes, closed forms, who is taught by what, and data in which the future is or is not foretold."""

import copy
import math

import pytest
import torch
from pixel_case import changed, lively_agent, weights, whole_batch
from test_oracle_sensitivity import plant, rows
from torch.distributions import Independent, Normal

from denoised_mdp.agents.pisac import CodeNet, FilterResponseNorm, bottleneck_loss
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.transitions import make_transitions
from denoised_mdp.config import load_config
from denoised_mdp.models.frames import stack_frames

B, C = 6, 4


def codes(scale: float = 1.0) -> list[torch.Tensor]:
    """z and the means of e(z|x), b(z|y) and b(z|y')."""
    return [scale * torch.randn(B, C, dtype=torch.float64) for _ in range(4)]


def test_sizes():
    agent = build_agent(load_config(["agent=pisac"]), 6)
    found = agent.parameter_counts()
    assert [found[name] for name in ("encoder", "present", "future")] == [1_990_902, 31_894, 29_974]
    assert found["actor"] == 50 * 256 + 256 + 256 * 256 + 256 + 256 * 12 + 12
    assert set(found) == {"encoder", "present", "future", "actor", "critics"}
    assert agent.target_entropy == -3 and agent.log_temperature == 0


def test_first_weights_are_glorots_but_the_last():
    agent = build_agent(load_config(["agent=pisac", "env.size=32"]), 6)
    last = {net.net[-1] for net in (agent.present, agent.future)}
    found = [layer for layer in agent.modules() if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)]
    for layer in found:
        assert not layer.bias.any()
        if layer not in last:
            taps = layer.weight[0, 0].numel()
            fans = taps * (layer.weight.shape[0] + layer.weight.shape[1])
            bound, std = math.sqrt(6 / fans), layer.weight.std().item()
            assert layer.weight.abs().max() <= bound
            assert std == pytest.approx(bound / math.sqrt(3), rel=5 / math.sqrt(layer.weight.numel()))
    for layer in last:
        std = math.sqrt(1e-4 / 128)
        assert layer.weight.std().item() == pytest.approx(std, rel=0.04)  # 6,400 numbers: five standard errors
        assert layer.weight.abs().max() <= 2 * std / 0.8796
    for target, source in ((agent.target_encoder, agent.encoder), (agent.target_critics, agent.critics)):
        assert all(map(torch.equal, target.state_dict().values(), source.state_dict().values()))


def test_the_loss_by_its_definition():
    """Its gradients too: all three means learn, and e through the sample as well."""
    e, b, later = means = [mean.requires_grad_() for mean in codes()[1:]]
    z = e + torch.randn(B, C, dtype=torch.float64)
    density = lambda mean, code: Independent(Normal(mean, 1.0), 1).log_prob(code)  # noqa: E731
    beta, wanted, information = 0.01, 0.0, 0.0
    for i in range(B):
        log_e, log_b, log_later = (density(mean[i], z[i]) for mean in (e, b, later))
        others = torch.stack([density(b[k], z[i]).exp() for k in range(B)]).mean().log()
        wanted += beta * (log_e - log_b) - (log_b - others) + 0.6 * beta * (log_e - log_later)
        information += log_b - others
    loss, bound = bottleneck_loss(z, e, b, later, beta)
    torch.testing.assert_close(loss, wanted / B)
    torch.testing.assert_close(bound, information / B)
    found, expected = (torch.autograd.grad(total, means, materialize_grads=True) for total in (loss, wanted / B))
    torch.testing.assert_close(found, expected)


def test_equal_futures_tell_nothing_and_distant_ones_everything():
    z, e, b, later = codes()
    assert bottleneck_loss(z, e, b[:1].expand(B, C), later, 0.01)[1].item() == pytest.approx(0, abs=1e-12)
    far = 100 * torch.eye(B, dtype=torch.float64)
    assert bottleneck_loss(far + 0.1, far, far, far, 0.01)[1].item() == pytest.approx(math.log(B), rel=1e-12)
    same = bottleneck_loss(z, e, e, e, 0.5)  # no residual: the loss is minus the bound
    torch.testing.assert_close(same[0], -same[1])


def test_first_codes_are_small_and_norms_follow_the_batch():
    net = CodeNet(10, 128, 50)
    first = net(torch.randn(256, 10)).detach()
    assert first.mean(0).abs().max() < 1e-5 and 0.01 < first.std() < 0.5
    assert not list(net.buffers())


def test_filter_response_norm():
    norm, x = FilterResponseNorm(3).double(), torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    assert sum(p.numel() for p in norm.parameters()) == 9
    assert torch.equal(norm(x) == 0, x < 0)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    scaled = norm.gamma * x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt() + norm.beta
    wanted = torch.maximum(scaled, norm.tau)
    torch.testing.assert_close(norm(x), wanted)
    weight, given = torch.randn_like(x), [x, *norm.parameters()]
    found, expected = (torch.autograd.grad((y * weight).sum(), given) for y in (norm(x), wanted))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(norm(torch.zeros_like(x)), torch.maximum(norm.beta, norm.tau).expand(2, 3, 5, 5))


@pytest.mark.parametrize("foretold", [True, False])
def test_the_bound_comes_near_log_k_where_the_present_tells_the_future(foretold):
    """The present is a rotation of the future and noise, or noise alone: then nothing can be predicted."""
    present, future = CodeNet(8, 64, 16), CodeNet(6, 64, 16)
    optimizer = torch.optim.Adam([*present.parameters(), *future.parameters()], lr=3e-3)
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    bounds = []
    for _ in range(300):
        y = torch.randn(32, 6)
        x = torch.cat((y @ rotation if foretold else torch.randn(32, 6), torch.randn(32, 2)), -1)
        e, b = present(x), future(y)
        loss, bound = bottleneck_loss(e + torch.randn_like(e), e, b, b, 0.01)
        bounds.append(bound.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = sum(bounds[-20:]) / 20
    assert found > 0.9 * math.log(32) if foretold else found < 0.1


# ---------------------------------------------------------------- in the agent


def small(*overrides: str):
    return lively_agent("pisac", *overrides)


def predictive(agent, batch):
    """The step of the predictive loss on a batch."""
    step = make_transitions(batch, 3, 1, 0.99)
    return agent.auxiliary(batch, step, agent.view(step.now), agent.view(step.following))


def test_a_predictive_step_computed_anew():
    """Present: rows up to 2 and the actions that led to rows 3 to 5. Futures: rows up to 5 and 6 with three rewards."""
    agent = small("agent.predictive_lr=0.01")
    batch = whole_batch(agent)
    assert len(batch["reward"]) == 7
    twin, before = copy.deepcopy(agent), weights(agent)
    agent.optimizers["predictive"].param_groups[0]["eps"] = 1.0  # else a first step is the gradient's sign alone
    agent.random.manual_seed(3)
    metrics = predictive(agent, batch)
    assert changed(agent, before) == {"encoder", "present", "future", "target_future"}

    frames = batch["observation"].permute(0, 1, 4, 2, 3).double() / 255  # [7, B, 3, H, W]
    stack = lambda last: torch.cat(list(frames[last - 2 : last + 1]), 1)  # noqa: E731
    action, reward = batch["action"], batch["reward"]
    e = twin.present(torch.cat((twin.encoder(stack(2)), action[3], action[4], action[5]), 1))
    z = e + torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    b, later = (twin.future(torch.cat((twin.target_future(stack(t)), reward[t - 2 : t + 1].T), 1)) for t in (5, 6))
    loss, bound = bottleneck_loss(z, e, b, later, 0.01)
    torch.testing.assert_close([metrics[f"model/predictive_{name}"] for name in ("loss", "bound")], [loss, bound])
    trained = [*twin.encoder.parameters(), *twin.present.parameters(), *twin.future.parameters()]
    optimizer = torch.optim.Adam(trained, lr=0.01, eps=1.0)
    loss.backward()
    optimizer.step()
    for slow, fast in zip(twin.target_future.parameters(), twin.encoder.parameters(), strict=True):
        slow.data = 0.95 * slow + 0.05 * fast
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(agent.state_dict()[name], value, msg=name)


def test_samples_that_cross_an_end_are_left_out():
    fresh = small()
    batch = whole_batch(fresh)
    for row, counts in ((2, True), (3, False), (6, False)):
        found = []
        for reward in (0.0, 100.0):
            given = {name: value.clone() for name, value in batch.items()}
            given["is_first"][row, 1], given["reward"][5, 1] = True, reward
            agent = copy.deepcopy(fresh)
            agent.random.manual_seed(0)
            found.append(predictive(agent, given)["model/predictive_loss"].item())
        assert (found[0] != found[1]) == counts, row


def test_before_the_policy_learns_only_the_representation_does():
    agent = small()
    before = weights(agent)
    metrics = agent.update(whole_batch(agent), policy=False)
    assert changed(agent, before) == {"encoder", "present", "future", "target_future"}
    assert all(name.startswith("model/") for name in metrics) and agent.updates == 0
    before = weights(agent)
    agent.update(whole_batch(agent))
    moved = {"encoder", "present", "future", "target_future", "actor", "critics", "log_temperature"}
    assert changed(agent, before) == moved | {"target_encoder", "target_critics"}


def test_the_actor_learns_on_features_from_before_the_critics_step(monkeypatch):
    agent, batch = small("agent.critic_lr=0.1"), whole_batch(small())
    before, seen = copy.deepcopy(agent.encoder), []
    sample = agent.actor.sample
    monkeypatch.setattr(agent.actor, "sample", lambda phi, noise: seen.append(phi) or sample(phi, noise))
    now = agent.view(make_transitions(batch, 3, 1, 0.99).now)
    agent.update(batch)
    torch.testing.assert_close(seen[1], before(now))
    assert not seen[1].requires_grad and not torch.allclose(seen[1], agent.encoder(now))


def test_which_parameters_each_loss_reaches():
    agent = small()
    batch = whole_batch(agent)
    step = make_transitions(batch, 3, 1, 0.99)
    now, following, noise = agent.view(step.now), agent.view(step.following), torch.randn(6, 2).double()
    agent.phi = agent.encoder(now).detach()
    actor, log_prob = agent.actor_loss(step, now, noise)
    losses = {
        agent.critic_loss(step, now, following, noise): {"encoder", "critics"},
        actor: {"actor", "critics"},  # which the actor's step holds fixed
        agent.temperature_loss(step, log_prob): {"log_temperature"},
    }
    for loss, wanted in losses.items():
        agent.zero_grad()
        loss.backward()
        reached = {name.split(".")[0] for name, p in agent.named_parameters() if p.grad is not None and p.grad.any()}
        assert reached == wanted
    torch.testing.assert_close(agent.log_temperature.grad, (-log_prob.mean() + 1.0).detach())  # minus the target, -A/2


def test_the_critics_loss_and_the_std():
    agent = small()
    batch = whole_batch(agent)
    step = make_transitions(batch, 3, 1, 0.99)
    now, following, noise = agent.view(step.now), agent.view(step.following), torch.randn(6, 2).double()
    mean, raw = agent.actor.net(agent.encoder(following)).chunk(2, 1)
    action = torch.tanh(mean + raw.exp() * noise)
    log_prob = Normal(mean, raw.exp()).log_prob(mean + raw.exp() * noise) - torch.log(1 - action.square() + 1e-6)
    entropy = -agent.log_temperature.exp() * log_prob.sum(1)
    value = agent.target_critics(agent.target_encoder(following), action).amin(0) + entropy
    target = (step.reward + 0.99 * value).detach()
    errors = [(q - target).square().mean() for q in agent.critics(agent.encoder(now), step.action)]
    torch.testing.assert_close(agent.critic_loss(step, now, following, noise), 0.5 * (errors[0] + errors[1]))


def test_probes_read_what_comes_before_layer_norm():
    agent = small()
    batch = whole_batch(agent)
    found = agent.representations(batch)
    rows = torch.arange(7)[:, None].expand(7, 6)
    pictures = agent.view(stack_frames(batch["observation"], batch["is_first"], rows, 3).flatten(0, 1))
    assert found["x"].shape == (7, 6, 8) and agent.seen == "x"
    normed = agent.encoder.head.norm(found["x"]).flatten(0, 1)
    torch.testing.assert_close(normed, agent.encoder(pictures))
    assert not torch.allclose(normed, found["x"].flatten(0, 1))


def test_options():
    config = load_config(["agent=pisac"])
    agent, due = config.agent, config.updates_due
    assert (agent.beta, agent.code, agent.tau, agent.encoder_tau, agent.future_tau) == (0.01, 50, 0.005, 0.005, 0.05)
    assert {agent.actor_lr, agent.critic_lr, agent.temperature_lr, agent.predictive_lr} == {3e-4}
    assert due(19_998) == 0 and due(20_000) == 10_000 == config.train.policy_after and due(20_002) == 10_001
    for task, steps, first in (
        ("cheetah_run", 40_000, 10_000),
        ("walker_walk", 20_000, 10_000),
        ("reacher_easy", 4000, 5000),
    ):
        config = load_config([f"preset=paper/{task}_video_background", "agent=pisac"])
        assert config.env.action_repeat == (2 if task == "walker_walk" else 4)
        assert config.updates_due(steps - 4) == 0 and config.updates_due(steps) == first == config.train.policy_after
        assert config.updates_due(steps + config.env.action_repeat) == first + 1


# ---------------------------------------------------------------- errors that the tests must notice


ERRORS = {  # name: (function, right, wrong, test)
    "not-glorots": ("glorot", "xavier_uniform_", "kaiming_uniform_", "first_weights_are_glorots_but_the_last"),
    "without-log-K": ("bottleneck_loss", " + math.log(len(code))", "", "the_loss_by_its_definition"),
    "over-codes": ("bottleneck_loss", "logsumexp(1)", "logsumexp(0)", "the_loss_by_its_definition"),
    "further-in-full": ("bottleneck_loss", "FURTHER * beta", "beta", "the_loss_by_its_definition"),
    "further-future-stays": (
        "bottleneck_loss",
        "log_density(code, later)",
        "log_density(code, later.detach())",
        "the_loss_by_its_definition",
    ),
    "present-learns-by-the-sample-alone": (
        "bottleneck_loss",
        "log_density(code, forward)",
        "log_density(code, forward.detach())",
        "the_loss_by_its_definition",
    ),
    "future-is-not-compressed": (
        "bottleneck_loss",
        "log_e - own",
        "log_e - own.detach()",
        "the_loss_by_its_definition",
    ),
    "same-rewards": (
        "PISAC.auxiliary",
        "reward[i : i + HORIZON]",
        "reward[:HORIZON]",
        "a_predictive_step_computed_anew",
    ),
    "later-actions": ("PISAC.auxiliary", "action[:HORIZON]", "action[1:]", "a_predictive_step_computed_anew"),
    "nearer-futures": (
        "PISAC.auxiliary",
        "begin + HORIZON, begin",
        "begin + HORIZON - 1, begin - 1",
        "a_predictive_step_computed_anew",
    ),
    "fast-futures": ("PISAC.auxiliary", "self.target_future(", "self.encoder(", "a_predictive_step_computed_anew"),
    "codes-without-noise": ("PISAC.auxiliary", "e + noise, e", "e, e", "a_predictive_step_computed_anew"),
    "over-the-end": ("PISAC.auxiliary", ".any(0)", ".all(0)", "samples_that_cross_an_end_are_left_out"),
    "new-features": (
        "PISAC.encode",
        "self.phi, self.phi",
        "self.encoder(now), self.encoder(now)",
        "the_actor_learns_on_features_from_before_the_critics_step",
    ),
    "temperature-itself": (
        "PISAC.temperature_loss",
        "self.log_temperature *",
        "self.log_temperature.exp() *",
        "which_parameters_each_loss_reaches",
    ),
    "after-layer-norm": (
        "NormedEncoder.probed",
        "head.linear(hidden)",
        "head(hidden)",
        "probes_read_what_comes_before_layer_norm",
    ),
    "mean-subtracted": (
        "FilterResponseNorm.forward",
        "vector_norm(x,",
        "vector_norm(x - x.mean((2, 3), keepdim=True),",
        "filter_response_norm",
    ),
}


@pytest.mark.parametrize(("where", "right", "wrong", "test"), rows(ERRORS))
def test_planted_errors_show(monkeypatch, where, right, wrong, test):
    plant(monkeypatch, f"agents.pisac:{where}", right, wrong)
    test = globals()[f"test_{test}"]
    with pytest.raises(AssertionError):
        test(*([monkeypatch] if test.__code__.co_argcount else []))
