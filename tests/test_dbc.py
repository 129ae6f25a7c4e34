"""DBC: sizes, closed forms, who is taught by what, and a toy in which distances are known."""

import copy

import pytest
import torch
from pixel_case import changed, lively_agent, weights, whole_batch
from test_oracle_sensitivity import plant, rows
from torch import nn

from denoised_mdp.agents.dbc import Bisimulation, distance
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.agents.transitions import make_transitions
from denoised_mdp.config import load_config

B, F, A = 8, 5, 2


def models(probabilistic: bool = False, members: int = 1, features: int = F) -> Bisimulation:
    return Bisimulation(features, A, hidden=16, members=members, probabilistic=probabilistic).double()


def batch(features: int = F) -> dict[str, torch.Tensor]:
    """Features, actions, rewards and the next features of random transitions."""
    shapes = {"features": (B, features), "action": (B, A), "reward": (B,), "following": (B, features)}
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("options", "transitions"), [(("agent.members=1", "agent.probabilistic=false"), 55_858), ((), 5 * 81_508)]
)
def test_sizes(options, transitions):
    agent = build_agent(load_config(["agent=dbc", *options]), 6)
    found = agent.parameter_counts()
    assert found["encoder"] == 1_990_518 and found["critics"] == 2 * 1_108_993
    assert (count(agent.models.transitions), count(agent.models.reward)) == (transitions, 27_649)
    assert found["models"] == transitions + 27_649


def test_distance_is_quadratic_near_zero_and_linear_beyond_one():
    a, b = torch.tensor([0.0, 0.0, 3.0, -1.0]), torch.tensor([0.5, 1.0, 0.0, -1.0])
    assert distance(a, b).tolist() == [0.125, 0.5, 2.5, 0.0] == distance(b, a).tolist()


@pytest.mark.parametrize("probabilistic", [False, True])
def test_losses_by_their_definition(probabilistic):
    """One pair and one feature at a time, from the equations; gradients too, where the metric's target is a number."""
    net, data, order = models(probabilistic, members=3), batch(), torch.randperm(B)
    noise = torch.randn(B, F, dtype=torch.float64)
    phi, following, reward = data["features"].requires_grad_(), data["following"].tolist(), data["reward"].tolist()
    given = [data[name] for name in ("features", "action", "reward")]
    loss, between = net.metric_loss(*given, order, 0.9)
    fitted = net.model_loss(*given, data["following"], 1, noise)

    def huber(x):
        return 0.5 * x * x if abs(x) < 1 else abs(x) - 0.5

    total = apart = likelihood = 0.0
    for member in range(3):
        means, stds = net.transitions[member](phi, data["action"])
        mean, std = means.tolist(), stds.tolist()
        for i, j in enumerate(order.tolist()):
            for k in range(F):
                if probabilistic:
                    future = ((mean[i][k] - mean[j][k]) ** 2 + (std[i][k] - std[j][k]) ** 2) ** 0.5
                else:
                    future = huber(mean[i][k] - mean[j][k])
                d = huber(phi[i, k] - phi[j, k])  # moves both
                total += (d - huber(reward[i] - reward[j]) - 0.9 * future) ** 2 / (3 * B * F)
                apart += (phi[i, k] - phi[j, k]).abs().detach() / (3 * B * F)
                error = (means[i, k] - following[i][k]) / stds[i, k]
                likelihood += (0.5 * error**2 + stds[i, k].log()) / (3 * B * F)
    torch.testing.assert_close((loss, between), (total, apart))
    torch.testing.assert_close(torch.autograd.grad(loss, phi), torch.autograd.grad(total, phi))

    mean, std = net.transitions[1](phi, data["action"])
    sample = mean + std * noise if probabilistic else mean  # R's error reaches P and phi through it
    wanted = likelihood + (net.reward(sample).squeeze(-1) - data["reward"]).square().mean()
    torch.testing.assert_close(fitted, wanted)
    taught = [phi, *net.parameters()]
    torch.testing.assert_close(torch.autograd.grad(fitted, taught), torch.autograd.grad(wanted, taught))


def test_stds_lie_between_their_limits():
    net = models(probabilistic=True).transitions[0]
    with torch.no_grad():
        for bias, limit in ((-100.0, 1e-4), (100.0, 10.0)):
            net.raw_std.bias.fill_(bias)
            assert net(torch.zeros(1, F).double(), torch.zeros(1, A).double())[1].unique().item() == pytest.approx(
                limit
            )


def test_who_is_taught_by_what():
    """The metric moves both features of a pair and no model; the models' loss, the present features and the models."""
    net, data = models(probabilistic=True, members=2), {n: v.requires_grad_() for n, v in batch().items()}
    given = [data[name] for name in ("features", "action", "reward")]
    order = torch.roll(torch.arange(B), 1)
    net.metric_loss(*given, order, 0.9)[0].backward()
    assert data["features"].grad.abs().sum(-1).gt(0).all()
    assert all(p.grad is None for p in net.parameters()) and data["reward"].grad is None
    # Pair (0, 7) alone: equal and opposite pushes on both.
    one = torch.autograd.grad(distance(given[0][0], given[0][7]).sum(), data["features"])[0]
    assert torch.equal(one[0], -one[7]) and one[0].any()

    data["features"].grad = None
    net.model_loss(*given, data["following"], 0, torch.randn(B, F).double()).backward()
    assert data["features"].grad.any() and data["following"].grad is None
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_distances_become_those_of_the_rewards():
    """Where every state stays, d = |r_i - r_j| + gamma d, that so |r_i - r_j| / (1 - gamma); texture does not count.

    Of smooth distances below 1 it is the squares that add up: |phi_i - phi_j| = |r_i - r_j| / sqrt(1 - gamma).
    """
    gamma, rewards = 0.5, torch.tensor([0.0, 0.2, 0.5]).repeat(8)  # each with eight textures
    texture = torch.rand(24, 4)
    encoder = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 4))
    net = Bisimulation(4, 1, hidden=64, members=1, probabilistic=False)
    optimizer = torch.optim.Adam([*encoder.parameters(), *net.parameters()], lr=3e-3)
    seen, still = torch.cat((2 * rewards[:, None], texture), -1), torch.zeros(24, 1)
    for step in range(800):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / 800)
        phi = encoder(seen)
        metric, _ = net.metric_loss(phi, still, rewards, torch.randperm(24), gamma)
        loss = 0.5 * metric + net.model_loss(phi, still, rewards, phi, 0, torch.zeros(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    phi = encoder(seen).detach()
    found = (phi[:, None] - phi[None]).abs().mean(-1)  # [24, 24]
    wanted = (rewards[:, None] - rewards[None]).abs() / (1 - gamma) ** 0.5
    assert (found - wanted).abs().max() < 0.1


# ---------------------------------------------------------------- in the agent


def test_a_step_of_the_losses_computed_anew():
    """Adam on both losses together, the models with weight decay; nothing else of the agent moves."""
    agent = lively_agent("dbc", "agent.encoder_lr=0.01", "agent.model_lr=0.02")
    batch = whole_batch(agent)
    for name in ("encoder", "models"):
        agent.optimizers[name].param_groups[0]["eps"] = 1.0  # else a first step is the gradient's sign alone
    step = make_transitions(batch, 3, 1, 0.99)
    now, following = agent.view(step.now), agent.view(step.following)
    twin, draws = copy.deepcopy(agent), torch.Generator().manual_seed(0)
    agent.random.manual_seed(0)
    before = weights(agent)
    metrics = agent.auxiliary(batch, step, now, following)
    assert changed(agent, before) == {"encoder", "models"}

    order, member = torch.randperm(6, generator=draws), int(torch.randint(5, (), generator=draws))
    assert member, "not the first one, which may be a constant"
    noise = torch.randn(6, 8, generator=draws, dtype=torch.float64)
    phi, after = twin.encoder(now), twin.encoder(following).detach()
    metric, apart = twin.models.metric_loss(phi, step.action, step.reward, order, 0.99)
    fitted = twin.models.model_loss(phi, step.action, step.reward, after, member, noise)
    adams = [
        torch.optim.Adam(twin.encoder.parameters(), lr=0.01, eps=1.0),
        torch.optim.Adam(twin.models.parameters(), lr=0.02, eps=1.0, weight_decay=1e-7),
    ]
    (0.5 * metric + fitted).backward()
    for one in adams:
        one.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(agent.state_dict()[name], value, msg=name)
    assert metrics["model/distance"] == apart and metrics["model/metric_loss"] == metric


def test_the_losses_come_between_critics_and_actor(monkeypatch):
    agent, order = lively_agent("dbc"), []
    for name in ("critic_step", "auxiliary", "actor_step", "update_targets"):
        done = getattr(agent, name)
        monkeypatch.setattr(agent, name, lambda *given, name=name, done=done: order.append(name) or done(*given) or {})
    agent.update(whole_batch(agent))
    agent.update(whole_batch(agent))
    assert order == ["critic_step", "auxiliary", "actor_step", "update_targets", "critic_step", "auxiliary"]


def test_ends_of_episodes_are_left_out():
    agent = lively_agent("dbc")
    batch = whole_batch(agent)
    batch["is_first"][3, 1] = True  # no transition leads there
    found = []
    for shade in (0, 255):
        twin = copy.deepcopy(agent)
        batch["observation"][2, 1] = shade
        step = make_transitions(batch, 3, 1, 0.99)
        found.append(twin.auxiliary(batch, step, agent.view(step.now), agent.view(step.following)))
    assert found[0] == found[1]


def test_options():
    config = load_config(["agent=dbc"])
    assert (config.agent.members, config.agent.probabilistic, config.train.batch_size) == (5, True, 512)
    assert config.updates_due(1999) == 0 and config.updates_due(2000) == 1000 and config.updates_due(2002) == 1001


# ---------------------------------------------------------------- errors that the tests must notice


ERRORS = {  # name: (function, right, wrong, test)
    "undiscounted": ("Bisimulation.metric_loss", "gamma * future", "future", "losses_by_their_definition"),
    "rewards-forgotten": (
        "Bisimulation.metric_loss",
        "distance(reward, reward[order])[:, None] + ",
        "",
        "losses_by_their_definition",
    ),
    "futures-learn": ("Bisimulation.metric_loss", "torch.no_grad()", "torch.enable_grad()", "who_is_taught_by_what"),
    "next-features-learn": ("Bisimulation.model_loss", "following.detach()", "following", "who_is_taught_by_what"),
    "std-for-nothing": ("Bisimulation.model_loss", " + std.log()", "", "losses_by_their_definition"),
    "mean-for-sample": ("Bisimulation.model_loss", "std[member] * noise", "0 * noise", "losses_by_their_definition"),
    "linear-distance": ("distance", "F.smooth_l1_loss", "F.l1_loss", "losses_by_their_definition"),
    "partners-stay": (
        "Bisimulation.metric_loss",
        "between = distance(features, features[order])",
        "between = distance(features, features[order].detach())",
        "losses_by_their_definition",
    ),
    "reward-teaches-itself-alone": (
        "Bisimulation.model_loss",
        "self.reward(predicted)",
        "self.reward(predicted.detach())",
        "losses_by_their_definition",
    ),
    "whole-metric": (
        "DBC.auxiliary",
        "metric_weight * metric",
        "metric_weight * 2 * metric",
        "a_step_of_the_losses_computed_anew",
    ),
    "target-encoder": (
        "DBC.auxiliary",
        "after = self.encoder",
        "after = self.target_encoder",
        "a_step_of_the_losses_computed_anew",
    ),
    "over-the-end": (
        "DBC.auxiliary",
        "step.exists.nonzero()[:, 0]",
        "torch.arange(len(now))",
        "ends_of_episodes_are_left_out",
    ),
}


@pytest.mark.parametrize(("where", "right", "wrong", "test"), rows(ERRORS))
def test_planted_errors_show(monkeypatch, where, right, wrong, test):
    plant(monkeypatch, f"agents.dbc:{where}", right, wrong)
    test = globals()[f"test_{test}"]
    with pytest.raises(AssertionError):
        test(*([True] if test.__code__.co_argcount else []))
