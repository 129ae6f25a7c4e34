"""What policies that imagine share: goldens of returns and their scale, the slow value net, starts, switches off."""

import copy

import pytest
import torch
from conftest import random_batch, small_agent
from small_runs import run_in_parts, tiny
from test_policies import policy_batch

from denoised_mdp.config import schema
from denoised_mdp.models.mdp import PolicyBatch
from denoised_mdp.models.scalars import SCALARS
from denoised_mdp.options import arguments
from denoised_mdp.policies import POLICIES
from denoised_mdp.policies.imagination import ReturnScale, lambda_returns
from denoised_mdp.run.diff import compare, report
from denoised_mdp.run.load import load_run
from denoised_mdp.session import train


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_returns_are_those_of_dreamer_v3():
    """Rewards after arrival [., 1, .5, 2] and values [3, 2, 1, 4] of the latents 0..3, lambda 0.95."""
    value = torch.tensor([[3.0], [2.0], [1.0], [4.0]], dtype=torch.float64)
    reward = torch.tensor([[1.0], [0.5], [2.0]], dtype=torch.float64)
    expected = torch.tensor([6.99228405, 6.2213842, 5.988], dtype=torch.float64)
    returns = lambda_returns(reward, value, torch.ones_like(reward), gamma=0.997, lambda_=0.95)
    torch.testing.assert_close(returns[:, 0], expected, rtol=0, atol=5e-8)


def test_the_scale_of_returns_is_the_published_one():
    """0, 1, ..., 100 three times, from zero; the order does not count."""
    scale = ReturnScale().double()
    for _ in range(3):
        found = scale(torch.randperm(101).double().view(101, 1))
    expected = torch.tensor([0.148505, 2.821595, 2.67309], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([*scale.range, found]), expected, rtol=0, atol=1e-6)


def test_percentiles_lie_between_returns():
    """As PyTorch's, which interpolates linearly."""
    scale, returns = ReturnScale().double(), 100 * torch.randn(7, 3, dtype=torch.float64)
    scale(returns)
    expected = [0.01 * torch.quantile(returns, share).item() for share in (0.05, 0.95)]
    assert scale.range.tolist() == pytest.approx(expected)
    scale(torch.full((1, 1), 5.0, dtype=torch.float64))  # one return is all percentiles
    assert scale.range.tolist() == pytest.approx([0.99 * value + 0.05 for value in expected])


def test_small_returns_are_not_magnified():
    scale = ReturnScale()
    for _ in range(500):
        assert scale(1e-3 * torch.randn(50)) == 1


def losses_of(agent, batch, **switches):
    """Losses with some attributes of the policy replaced."""
    policy = copy.deepcopy(agent.policy)
    for name, value in switches.items():
        setattr(policy, name, value)
    noise = policy.draw_noise(batch, agent.mdp, generator())
    return policy, policy.losses(batch, agent.mdp, noise)


def test_what_the_actor_maximizes_is_divided_by_the_scale_but_not_the_entropy():
    agent, scale = small_agent(entropy=0.3), ReturnScale().double()
    batch = policy_batch(agent)
    _, (with_entropy, value_loss, _) = losses_of(agent, batch)
    _, (alone, _, _) = losses_of(agent, batch, entropy=0.0)
    scale.range.copy_(torch.tensor([-300.0, 700.0]))
    _, (scaled, scaled_value_loss, metrics) = losses_of(agent, batch, scale=copy.deepcopy(scale))
    found = metrics["policy/return_scale"]
    assert 900 < found < 1000  # this batch counts already
    torch.testing.assert_close(scaled - (with_entropy - alone), alone / found)
    assert value_loss == scaled_value_loss


def test_the_value_net_is_drawn_to_a_slow_copy_that_follows_it():
    agent = small_agent(slow_value=0.1)
    policy, batch = agent.policy, policy_batch(agent)
    with torch.no_grad():
        for parameter in policy.slow_value.parameters():
            parameter += 0.1
    noise = policy.draw_noise(batch, agent.mdp, generator())
    _, loss, _ = policy.losses(batch, agent.mdp, noise)
    _, (_, plain, _) = losses_of(agent, batch, slow_value=None)
    features, _ = policy.imagine(batch, agent.mdp, noise)
    fast, slow = policy.value(features[:-1]), policy.slow_value(features[:-1])
    weight = 0.99 ** torch.arange(3, dtype=torch.float64)[:, None, None]
    normal = torch.distributions.Normal(fast, 1.0)
    torch.testing.assert_close(loss - plain, -(weight * normal.log_prob(slow)).mean())
    expected = [0.9 * parameter.clone() for parameter in policy.slow_value.parameters()]
    policy.update(batch, agent.mdp, noise=noise)
    for before, after, now in zip(expected, policy.slow_value.parameters(), policy.value.parameters(), strict=True):
        torch.testing.assert_close(after, before + 0.1 * now)
        assert after.grad is None


def test_imagined_exploration_is_drawn_last():
    """So what is drawn without it stays as it was."""
    agent = small_agent()
    batch, policy = policy_batch(agent), agent.policy
    without = policy.draw_noise(batch, agent.mdp, generator())
    policy.imagined_noise = 0.3
    states, actions, exploration = policy.draw_noise(batch, agent.mdp, generator())
    assert torch.equal(states, without[0]) and torch.equal(actions, without[1]) and len(without) == 2
    assert exploration.shape == actions.shape and not torch.equal(exploration, actions)


@pytest.mark.parametrize("kind", ["backprop", "reinforce"])
def test_imagined_exploration_is_that_of_collecting(kind):
    """Latents follow the actions that are tried, and what the actor chose is what counts for its gradient."""
    agent = small_agent()
    batch = policy_batch(agent)
    options = schema.POLICIES[kind](hidden=8, horizon=4, imagined_noise=0.8)
    policy = POLICIES[kind](agent.mdp, **arguments(options)).double()
    states, chosen, exploration = noise = policy.draw_noise(batch, agent.mdp, generator())
    log_probs = []
    features, actions = policy.imagine(batch, agent.mdp, noise, log_probs)
    belief, state = batch.belief.flatten(0, 1), batch.state.flatten(0, 1)
    for t in range(4):
        seen = torch.cat((belief, state), -1)
        action, log_prob = policy.actor.sample_with_log_prob(seen, chosen[t])
        tried = (action + 0.8 * exploration[t]).clamp(-1, 1)
        torch.testing.assert_close(actions[t], tried)
        torch.testing.assert_close(log_probs[t], log_prob)
        belief, state = agent.mdp.step(belief, state, tried, states[t])
        torch.testing.assert_close(features[t], torch.cat((belief, state), -1))
    assert (actions.abs() == 1).double().mean() > 0.1
    policy.update(batch, agent.mdp, generator())


@pytest.mark.parametrize("value", ["gaussian", "twohot"])
@pytest.mark.parametrize("kind", ["backprop", "reinforce"])
def test_of_several_value_nets_the_lowest_counts_and_each_learns_its_targets(kind, value):
    """Values, and losses with those of stored rows and of a slow copy, as of nets that are asked one by one."""
    agent = small_agent()
    batch = policy_batch(agent)
    options = schema.POLICIES[kind](hidden=8, horizon=4, value=value, value_nets=3, slow_value=0.1)
    policy = POLICIES[kind](agent.mdp, **arguments(options)).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    scalar, nets, slow = SCALARS[value], policy.value.nets, policy.slow_value.nets
    means = torch.stack([scalar.mean(net(batch.features)) for net in nets])  # [3, T, B]
    assert value == "twohot" or len(set(means.argmin(0).flatten().tolist())) > 1
    torch.testing.assert_close(policy.scalar.mean(policy.value(batch.features)), means.min(0).values)
    targets, weight = torch.randn(2, *means.shape[1:], dtype=torch.float64)
    lowest = torch.stack([scalar.mean(net(batch.features)) for net in slow]).min(0).values
    losses = [scalar.nll(net(batch.features), aim) for net in nets for aim in (targets, lowest)]
    found = policy.value_loss(policy.value(batch.features), batch.features, targets, weight)
    torch.testing.assert_close(found, (weight * sum(losses) / 3).mean())
    agent.policy = policy
    assert all(torch.isfinite(one) for one in policy.update(batch, agent.mdp, generator()).values())


def test_without_switches_the_state_of_a_policy_is_that_of_actor_and_value_net():
    plain, more = small_agent(), small_agent(slow_value=0.02, return_scale="percentile")
    names = plain.policy.state_dict().keys()
    assert {name.split(".")[0] for name in names} == {"actor", "value"}
    extra = more.policy.state_dict().keys() - names
    assert {name.split(".")[0] for name in extra} == {"slow_value", "scale"}
    for name in names:
        assert torch.equal(plain.policy.state_dict()[name], more.policy.state_dict()[name])


def test_starts_are_the_last_rows_of_each_segment_whichever_episode_they_belong_to():
    """An episode ends within the last rows, and another begins: rows of both are starts, the terminal one weighs 0."""
    agent = small_agent()
    batch = policy_batch(agent, length=6, batch=2)
    batch.is_terminal[4, 1] = batch.is_first[5, 1] = True
    last = PolicyBatch(*(getattr(batch, name)[3:] for name in ("belief", "state", "action", "reward")),
                       batch.is_terminal[3:], batch.is_first[3:])  # fmt: skip
    one, other = copy.deepcopy(agent.policy), copy.deepcopy(agent.policy)
    one.imagine_rows = 3
    metrics = one.update(batch, agent.mdp, generator()), other.update(last, agent.mdp, generator())
    assert metrics[0] == metrics[1]
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    alive = batch.last(3).continues
    assert alive.tolist() == [[1, 1], [1, 0], [1, 1]]
    for rows in (None, 6, 100):
        assert torch.equal(batch.last(rows).belief, batch.belief)


def test_an_update_with_all_switches_runs_through_the_agent():
    agent = small_agent(
        "confounder", return_scale="percentile", slow_value=0.02, imagine_rows=2, entropy=3e-4, replay_value=0.3
    )
    metrics = agent.update(random_batch())
    assert all(torch.isfinite(value) and not value.requires_grad for value in metrics.values())
    assert metrics["policy/return_scale"] >= 1 and bool((agent.policy.scale.range != 0).any())


SWITCHES = [
    "policy.return_scale=percentile",
    "policy.slow_value=0.02",
    "policy.imagine_rows=2",
    "policy.replay_value=0.3",
    "policy.value_nets=2",
    "policy.imagined_noise=0.3",
    "policy.late_lr=0.2",
    "policy.late_imagined_value=0",
    "policy.late_after=3",
]


@pytest.mark.parametrize("optimizer", ["adam", "laprop", "muon"])
def test_late_learning_rates_count_after_so_many_updates_of_the_policy(optimizer):
    """Each step is one with that rate: of a twin whose rates are set by hand, to the rounding of a rate in float32."""
    options = {"actor_lr": 0.01, "value_lr": 0.02, "optimizer": optimizer}
    falling, twin = small_agent(late_lr=0.2, late_after=2, **options), small_agent(**options)
    batch = random_batch()
    falling.update(batch, policy=False), twin.update(batch, policy=False)  # does not count
    for n in range(4):
        for net, rate in (("actor", 0.01), ("value", 0.02)):
            for group in twin.policy.optimizers[net].param_groups:
                group["lr"] = rate * (1.0 if n < 2 else 0.2)
        falling.update(batch), twin.update(batch)
        for net, rate in (("actor", 0.01), ("value", 0.02)):
            rates = [float(group["lr"]) for group in falling.policy.optimizers[net].param_groups]
            assert rates == pytest.approx([rate * (1.0 if n < 2 else 0.2)] * len(rates), rel=1e-6)
        for one, other in zip(falling.policy.actor.parameters(), twin.policy.actor.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert falling.policy.updates == 4 and "updates" not in dict(twin.policy.named_buffers())


def test_a_stopped_run_with_all_switches_ends_as_one_that_was_not(tmp_path):
    """The percentiles and the slow value net are saved, to the last bit."""
    assert train(tiny(tmp_path / "whole", *SWITCHES))
    run_in_parts(tiny(tmp_path / "parts", *SWITCHES), 60, 3)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    agents = [load_run(tmp_path / name, device="cpu")[1] for name in ("whole", "parts")]
    ranges = [agent.policy.scale.range for agent in agents]
    assert torch.equal(*ranges) and bool((ranges[0] != 0).any())
