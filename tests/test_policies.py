"""Policy optimizers: lambda-returns, what gets gradients, squashed Gaussians, SAC's target."""

import math

import pytest
import torch
from conftest import configured, random_batch, small_agent

from denoised_mdp.config import schema
from denoised_mdp.config.schema import SACConfig
from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.optim import without_gradients
from denoised_mdp.options import arguments
from denoised_mdp.policies import POLICIES
from denoised_mdp.policies.actor import Actor
from denoised_mdp.policies.imagination import lambda_returns
from denoised_mdp.policies.sac import SACPolicy


def policy_batch(agent, length=4, batch=3):
    torch.manual_seed(0)
    shape = (length, batch)
    sizes = agent.mdp.belief_size, agent.mdp.state_size, agent.mdp.action_size
    belief, state, action = (torch.randn(*shape, size, dtype=torch.float64) for size in sizes)
    reward = torch.randn(*shape, dtype=torch.float64)
    return PolicyBatch(belief, state, action.tanh(), reward, *torch.zeros(2, *shape, dtype=torch.bool))


def test_lambda_returns_by_brute_force():
    """V_t as the weighted sum of n-step returns, written out; each step counts as it is probable to be reached."""
    torch.manual_seed(0)
    horizon, gamma, lam = 6, 0.9, 0.7
    reward, value = torch.randn(horizon, 2, dtype=torch.float64), torch.randn(horizon, 2, dtype=torch.float64)

    goes_on = torch.rand(horizon, 2, dtype=torch.float64)

    def reached(t, n):
        return gamma**n * goes_on[t : t + n].prod(0)

    def n_step(t, n):
        return sum(reached(t, k) * reward[t + k] for k in range(n)) + reached(t, n) * value[t + n]

    result = lambda_returns(reward, value, goes_on, gamma, lam)
    assert result.shape == (horizon - 1, 2)
    for t in range(horizon - 1):
        last = horizon - 1 - t
        expected = sum((1 - lam) * lam ** (n - 1) * n_step(t, n) for n in range(1, last))
        torch.testing.assert_close(result[t], expected + lam ** (last - 1) * n_step(t, last))


def test_actions_of_many_rows_are_those_of_each_row():
    agent = small_agent()
    features = policy_batch(agent).features
    expected = torch.stack([agent.policy.act(row, None) for row in features])
    torch.testing.assert_close(agent.policy.modes(features), expected)


@pytest.mark.parametrize(("name", "first"), [("backprop", 0), ("reinforce", 1)])
def test_later_imagined_steps_count_less_or_all_alike(name, first, monkeypatch):
    """Weights of the value's loss, gamma per step or 1; and by 1, backprop maximizes the mean return."""
    agent = small_agent()
    batch = policy_batch(agent)
    for discount in (True, False):
        options = schema.POLICIES[name](hidden=8, horizon=5, gamma=0.9, entropy=0.0, discount_weights=discount)
        policy, weights = POLICIES[name](agent.mdp, **arguments(options)).double(), []
        monkeypatch.setattr(policy, "value_loss", lambda raw, *args, kept=weights: kept.append(args[-1]) or raw.sum())
        noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
        actor_loss, _, metrics = policy.losses(batch, agent.mdp, noise)
        (weight,) = weights
        expected = (0.9 if discount else 1.0) ** torch.arange(first, first + len(weight), dtype=torch.float64)
        torch.testing.assert_close(weight, expected[:, None].expand_as(weight))
        if name == "backprop":
            mean = metrics["policy/imagined_return"]
            assert torch.allclose(-actor_loss, mean) != discount


def test_entropy_of_imagined_actions_enters_the_actor_loss():
    """What the weight adds is minus the entropy, estimated step by step from the same draws."""
    losses, agent = {}, small_agent()
    batch = policy_batch(agent)
    noise = agent.policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    for weight in (0.0, 0.3):
        agent.policy.entropy = weight
        losses[weight] = agent.policy.losses(batch, agent.mdp, noise)[0]
    belief, state, log_probs = batch.belief.flatten(0, 1), batch.state.flatten(0, 1), []
    for state_noise, action_noise in zip(*noise, strict=True):
        action, log_prob = agent.policy.actor.sample_with_log_prob(torch.cat((belief, state), -1), action_noise)
        log_probs.append(log_prob)
        belief, state = agent.mdp.step(belief, state, action, state_noise)
    assert len(log_probs) == agent.policy.horizon
    torch.testing.assert_close(losses[0.3] - losses[0.0], 0.3 * torch.stack(log_probs).mean())


def test_entropy_frees_an_actor_from_the_limits_of_its_actions():
    agent = small_agent()
    batch, actions = policy_batch(agent), agent.mdp.action_size
    with torch.no_grad():
        agent.policy.actor.net.output.bias[:actions] = 20.0  # a mean of almost 5: tanh lets next to nothing through
        agent.policy.actor.net.output.bias[actions:] = -10.0  # a narrow Gaussian around it
    noise = agent.policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    gradient = {}
    for weight in (0.0, 0.3):
        agent.policy.entropy = weight
        agent.policy.actor.zero_grad()
        agent.policy.losses(batch, agent.mdp, noise)[0].backward()
        gradient[weight] = agent.policy.actor.net.output.bias.grad[:actions].clone()
    assert (gradient[0.3].abs() > 100 * gradient[0.0].abs()).all()
    assert (gradient[0.3] > 0).all()  # a step downhill takes the mean back


@pytest.mark.parametrize("name", POLICIES)
def test_update_leaves_the_world_model_bit_identical(name):
    agent = small_agent()
    agent.policy = POLICIES[name](agent.mdp, **arguments(schema.POLICIES[name](hidden=8))).double()
    before = {key: value.clone() for key, value in agent.world_model.state_dict().items()}
    policy_before = {key: value.clone() for key, value in agent.policy.state_dict().items()}
    with without_gradients(agent.world_model):
        for seed in (0, 1):  # behind an output layer that begins at zero, layers move from the second on
            agent.policy.update(policy_batch(agent), agent.mdp, torch.Generator().manual_seed(seed))
    assert all(torch.equal(before[key], value) for key, value in agent.world_model.state_dict().items())
    assert all(parameter.grad is None for parameter in agent.world_model.parameters())
    assert all(parameter.requires_grad for parameter in agent.world_model.parameters())
    changed = {key for key, value in agent.policy.state_dict().items() if not torch.equal(policy_before[key], value)}
    assert changed == set(policy_before)


def test_whole_update_takes_one_step_of_everything():
    agent = small_agent("2c")
    # A clamped KL_x would leave its prior without gradients.
    agent.world_model.kl = configured(KLWeights, free_nats=0.0)
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    metrics = agent.update(random_batch())
    assert all(torch.isfinite(value).all() and not value.requires_grad for value in metrics.values())
    still = {key for key, value in agent.state_dict().items() if torch.equal(before[key], value)}
    assert not still


@pytest.mark.parametrize("structure", ["2b", "2c"])
def test_actor_loss_has_no_gradient_from_y_or_z(structure):
    agent = small_agent(structure)
    torch.manual_seed(0)
    latent = agent.world_model.rssm.initial(3).map(lambda t: torch.randn(2, *t.shape, dtype=t.dtype).requires_grad_())
    others = (torch.zeros(2, 3, *size, dtype=torch.float64) for size in ((2,), ()))
    batch = PolicyBatch(*latent["x"], *others, *torch.zeros(2, 2, 3, dtype=torch.bool))
    noise = agent.policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    loss, _, _ = agent.policy.losses(batch, agent.mdp, noise)
    gradients = torch.autograd.grad(loss, [latent.belief, latent.state])
    for gradient, split in zip(gradients, (latent.layout.split_belief, latent.layout.split_state), strict=True):
        for name, part in split(gradient).items():
            assert bool(part.abs().sum() > 0) == (name == "x")


@pytest.mark.parametrize("structure", ["2b", "2c"])
def test_policy_never_sees_y_or_z(structure):
    """Changing y and z of the latent changes no action; the policy's inputs have x's size alone."""
    agent = small_agent(structure)
    latent = agent.world_model.rssm.initial(3).map(torch.randn_like)
    noise = {name: tuple(map(torch.randn_like, latent[name])) for name in latent.layout.names if name != "x"}
    other = latent.replace(**noise)
    assert not torch.equal(latent.belief, other.belief)
    assert torch.equal(*(agent.policy.act(value.features("x"), None) for value in (latent, other)))
    assert isinstance(agent.mdp, LatentMDP)
    assert agent.mdp.feature_size == sum(size.shape[-1] for size in latent["x"])


def test_imagination_passes_gradients_through_dynamics_not_through_the_actors_input():
    agent = small_agent()
    batch, policy = policy_batch(agent), agent.policy
    noise = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    batch.belief.requires_grad_()
    features, actions = policy.imagine(batch, agent.mdp, noise)
    through_actor = torch.autograd.grad(actions[0].sum(), batch.belief, retain_graph=True, allow_unused=True)[0]
    assert through_actor is None  # the first action's input is detached
    assert torch.autograd.grad(features[-1].sum(), batch.belief)[0].abs().sum() > 0


def test_actor_density_integrates_to_one_and_matches_the_change_of_variables():
    torch.manual_seed(0)
    actor = configured(Actor, 3, 1, hidden=4, layers=1).double()
    features = torch.randn(1, 3, dtype=torch.float64)
    mean, std = actor(features)
    noise = torch.linspace(-9, 9, 20001, dtype=torch.float64)[:, None]
    action, log_prob = actor.sample_with_log_prob(features.expand(len(noise), -1), noise)
    assert torch.trapezoid(log_prob.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-3)
    middle = 10000 + torch.arange(-800, 800, 100)
    raw = mean + std * noise[middle]
    expected = torch.distributions.Normal(mean, std).log_prob(raw) - torch.log1p(-(torch.tanh(raw) ** 2))
    torch.testing.assert_close(log_prob[middle], expected[:, 0], rtol=1e-6, atol=1e-6)


def test_actor_parametrization():
    actor = configured(Actor, 3, 2, hidden=4, layers=4)
    for parameter in actor.parameters():
        torch.nn.init.zeros_(parameter)
    mean, std = actor(torch.zeros(1, 3))
    assert torch.equal(mean, torch.zeros(1, 2))
    assert std[0, 0].item() == pytest.approx(5.0 + 1e-4, rel=1e-5)  # softplus(softplus^-1(5))
    torch.nn.init.constant_(actor.net.output.bias, 3.0)
    mean, std = actor(torch.zeros(1, 3))
    assert mean[0, 0].item() == pytest.approx(5 * math.tanh(3 / 5), rel=1e-6)
    assert actor.mode(torch.zeros(1, 3))[0, 0].item() == pytest.approx(math.tanh(5 * math.tanh(3 / 5)), rel=1e-6)


def test_sac_target_uses_the_next_action_at_the_next_latent():
    """The critic loss, written out for every transition."""
    agent = small_agent()
    batch, policy = policy_batch(agent), SACPolicy(agent.mdp, **arguments(SACConfig(hidden=8))).double()
    for parameter in policy.targets.parameters():
        parameter.data += 0.01
    noise, _ = policy.draw_noise(batch, agent.mdp, torch.Generator().manual_seed(0))
    errors = []
    for t in range(3):
        x, following = batch.features[t], batch.features[t + 1]
        action, log_prob = policy.actor.sample_with_log_prob(following, noise[t])
        soft = torch.minimum(*policy.targets(following, action)) - policy.log_temperature.exp() * log_prob
        target = (batch.reward[t + 1] + 0.99 * soft).detach()
        errors.append((policy.critics(x, batch.action[t + 1]) - target) ** 2)
    expected = 0.5 * torch.stack(errors, 1).mean((1, 2)).sum()
    torch.testing.assert_close(policy.critic_loss(batch, noise), expected)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_speaks_the_protocol(name):
    """It acts with and without chance, in one row and in many, and its update answers with detached finite numbers."""
    agent = small_agent()
    policy = POLICIES[name](agent.mdp, **arguments(schema.POLICIES[name](hidden=8))).double()
    batch = policy_batch(agent)
    noise = torch.randn(3, 2, dtype=torch.float64)
    sampled, mode = policy.act(batch.features[0], noise), policy.act(batch.features[0], None)
    for action in (sampled, mode):
        assert action.shape == noise.shape and action.abs().max() <= 1
    assert not torch.equal(sampled, mode) and torch.equal(sampled, policy.act(batch.features[0], noise))
    assert policy.modes(batch.features).shape == batch.action.shape
    with without_gradients(agent.world_model):
        metrics = policy.update(batch, agent.mdp, torch.Generator().manual_seed(0))
    assert metrics and policy.optimizers
    assert all(value.numel() == 1 and value.isfinite() and not value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("initial_std", [1e-3, 1.0, 5.0, 99.9, 100.0, 800.0])
def test_an_untrained_actor_has_the_standard_deviation_that_was_asked_for(initial_std):
    actor = configured(Actor, 3, 2, hidden=4, layers=1, initial_std=initial_std, min_std=0.0).double()
    for p in actor.net.output.parameters():
        torch.nn.init.zeros_(p)
    std = actor(torch.randn(5, 3, dtype=torch.float64))[1]
    torch.testing.assert_close(std, torch.full_like(std, initial_std))
