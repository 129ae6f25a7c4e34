"""The value net's loss on stored rows: returns by their forward view, what is left out, what it may change."""

import copy

import numpy as np
import pytest
import torch
from conftest import small_agent
from test_policies import policy_batch

from denoised_mdp.config import load_config
from denoised_mdp.config.schema import BackpropConfig, ReinforceConfig
from denoised_mdp.errors import UserError
from denoised_mdp.optim import optimize
from denoised_mdp.options import arguments
from denoised_mdp.policies import BackpropPolicy, ReinforcePolicy

GAMMA, LAMBDA = 0.9, 0.8
KINDS = [(BackpropPolicy, BackpropConfig), (ReinforcePolicy, ReinforceConfig)]


@pytest.fixture(params=KINDS, ids=["backprop", "reinforce"])
def learner(request):
    """A policy and a batch [7, 4] in which one episode ends by its time limit, one by terminating, one at the end."""
    kind, config = request.param
    agent = small_agent()
    options = arguments(config(hidden=8, gamma=GAMMA, lambda_=LAMBDA, value="gaussian", slow_value=0.0))
    batch = policy_batch(agent, length=7, batch=4)
    batch.is_first[3, 1] = batch.is_first[4, 2] = batch.is_first[6, 3] = True
    batch.is_terminal[3, 2] = batch.is_terminal[5, 3] = batch.is_terminal[6, 0] = True
    return kind(agent.mdp, **options).double(), batch


def forward_view(t, reward, value, terminal, first, own):
    """The mixture of n-step returns from row t of one segment, whose last row counts as its value says."""
    last = t
    while last + 1 < len(value) and not first[last + 1]:
        last += 1
    n_step = []
    for n in range(1, last - t + 1):
        rewards = reward[t : t + n] if own else reward[t + 1 : t + n + 1]
        follows = 0.0 if terminal[t + n] and not own else value[t + n]
        n_step.append(np.polynomial.polynomial.polyval(GAMMA, [*rewards, follows]))
    if own and terminal[last]:  # its own reward, and nothing more
        n_step.append(np.polynomial.polynomial.polyval(GAMMA, reward[t : last + 1]))
    if not n_step:
        return value[t]
    weights = [(1 - LAMBDA) * LAMBDA**n for n in range(len(n_step) - 1)] + [LAMBDA ** (len(n_step) - 1)]
    return float(np.dot(weights, n_step))


def test_the_loss_is_of_lambda_returns_within_episodes(learner):
    policy, batch = learner
    value = policy.value(batch.features).squeeze(-1)  # [T, B]
    total, count, own = 0.0, 0, policy.value_has_own_reward
    for b in range(4):
        column = [part[:, b].numpy() for part in (batch.reward, value.detach(), batch.is_terminal, batch.is_first)]
        for t in range(7):
            follows = t < 6 and not batch.is_first[t + 1, b]
            if follows or own and batch.is_terminal[t, b]:
                target = forward_view(t, *column, own=own)
                total = total - torch.distributions.Normal(value[t, b], 1.0).log_prob(torch.tensor(target))
                count += 1
    assert count == (24 if own else 21), "a terminal row's own reward is all of its value"
    loss = policy.replay_loss(batch)
    torch.testing.assert_close(loss, total / count)
    parameters = list(policy.value.parameters())
    for one, other in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(total / count, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)  # targets are fixed


def test_a_slow_value_net_draws_on_stored_rows_as_well(learner):
    policy, batch = learner
    plain = policy.replay_loss(batch)
    policy.slow_value = copy.deepcopy(policy.value)
    with torch.no_grad():
        for parameter in policy.slow_value.parameters():
            parameter += 0.1
    fast, slow = (net(batch.features).squeeze(-1) for net in (policy.value, policy.slow_value))  # [T, B]
    goes_on = torch.cat((~batch.is_first[1:], torch.zeros(1, 4, dtype=torch.bool)))  # [T, B]
    known = goes_on | batch.is_terminal if policy.value_has_own_reward else goes_on
    expected = -torch.distributions.Normal(fast, 1.0).log_prob(slow)[known].mean()
    torch.testing.assert_close(policy.replay_loss(batch) - plain, expected)


def test_values_of_a_steady_reward_stay(learner):
    """Where every row earns r, r / (1 - gamma) is right, and the loss has no gradient there."""
    policy, batch = learner
    batch.is_terminal[:], batch.reward[:] = False, 0.3
    with torch.no_grad():
        policy.value.output.weight.zero_(), policy.value.output.bias.fill_(0.3 / (1 - GAMMA))
    policy.replay_loss(batch).backward()
    assert policy.value.output.bias.grad.abs() < 1e-12
    with torch.no_grad():
        policy.value.output.bias.fill_(4.0)
    policy.value.zero_grad()
    policy.replay_loss(batch).backward()
    assert policy.value.output.bias.grad > 0, "too much was expected"


def test_it_is_added_to_the_value_nets_loss_and_changes_nothing_else(learner):
    policy, batch = learner
    agent = small_agent()
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    more = copy.deepcopy(policy)  # deep copies have optimizers of their own parameters
    more.replay_value = 0.5
    plain = policy.update(batch, agent.mdp, noise=noise)
    found = more.update(batch, agent.mdp, noise=noise)
    assert found.pop("policy/replay_value_loss") > 0
    assert found.keys() == plain.keys()
    assert {name for name in plain if not torch.equal(plain[name], found[name])} == {"policy/value_gradient"}
    for one, other in zip(policy.actor.parameters(), more.actor.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not all(torch.equal(*pair) for pair in zip(policy.value.parameters(), more.value.parameters(), strict=True))


def test_returns_are_of_whole_segments_whichever_rows_imagination_starts_from(learner):
    policy, batch = learner
    agent = small_agent()
    policy.imagine_rows, policy.replay_value = 2, 0.5
    expected = policy.replay_loss(batch).detach()
    noise = policy.draw_noise(batch.last(2), agent.mdp, torch.Generator().manual_seed(0))
    found = policy.update(batch, agent.mdp, noise=noise)
    torch.testing.assert_close(found["policy/replay_value_loss"], expected)


def test_the_value_net_may_learn_from_stored_rows_alone(learner):
    """Then no imagined return moves it; the actor learns as before."""
    policy, batch = learner
    agent = small_agent()
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    alone, by_hand = copy.deepcopy(policy), copy.deepcopy(policy)
    alone.imagined_value, alone.replay_value = 0.0, 0.5
    policy.update(batch, agent.mdp, noise=noise)
    alone.update(batch, agent.mdp, noise=noise)
    optimize(0.5 * by_hand.replay_loss(batch), by_hand.optimizers["value"], by_hand.clip)
    for one, other in zip(alone.value.parameters(), by_hand.value.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(alone.actor.parameters(), policy.actor.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_may_do_so_late(learner):
    """After two updates, as one that never learned imagined returns, from the same weights."""
    policy, batch = learner
    agent = small_agent()
    late = copy.deepcopy(policy)
    late.late, late.late_after, late.replay_value = {"lr": 1.0, "imagined_value": 0.0}, 2, 0.5
    late.register_buffer("updates", torch.zeros(()))
    policy.replay_value = 0.5
    for number in range(4):
        noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(number))
        policy.imagined_value = 1.0 if number < 2 else 0.0
        policy.update(batch, agent.mdp, noise=noise)
        late.update(batch, agent.mdp, noise=noise)
        for one, other in zip(late.parameters(), policy.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert late.updates == 4


@pytest.mark.parametrize("option", ["imagined_value", "late_imagined_value"])
def test_a_value_net_that_would_learn_nothing_is_refused(option):
    with pytest.raises(UserError, match=f"policy.{option}=0: .*would learn nothing"):
        load_config(["preset=debug", f"policy.{option}=0"])
    load_config(["preset=debug", f"policy.{option}=0", "policy.replay_value=1"])
