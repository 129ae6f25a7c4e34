"""policy=reinforce: its losses written out, scores of both actors, and that no gradient passes through the dynamics."""

import pytest
import torch
from conftest import configured, small_agent
from test_discrete_actions import A, latents, linear_mdp, probabilities
from test_policies import policy_batch

from denoised_mdp.config.schema import ReinforceConfig
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import arguments
from denoised_mdp.policies import ReinforcePolicy
from denoised_mdp.policies.actor import Actor, CategoricalActor


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def reinforce(mdp, **options):
    return ReinforcePolicy(mdp, **arguments(ReinforceConfig(hidden=8, **options))).double()


def with_ends(mdp):
    """The same MDP, in which the more an episode goes on the larger its first feature is."""
    mdp._continuation = lambda latent: latent.belief[..., 0].sigmoid()
    return mdp


def test_losses_written_out_for_every_start():
    """Step by step, of Gaussians; starts that have terminated weigh nothing."""
    agent = small_agent()
    mdp, batch = with_ends(agent.mdp), policy_batch(agent, length=2, batch=2)
    batch.is_terminal[1, 0] = True
    policy = reinforce(mdp, horizon=4, entropy=0.2, gamma=0.9, lambda_=0.7, value="gaussian")
    for parameter in policy.slow_value.parameters():
        parameter.data += 0.1
    noise = policy.draw_noise(batch, mdp, generator())
    actor_loss, value_loss, metrics = policy.losses(batch, mdp, noise)

    actor_terms, value_terms, all_returns = [], [], []
    for n in range(4):
        belief, state = batch.belief.flatten(0, 1)[n : n + 1], batch.state.flatten(0, 1)[n : n + 1]
        seen, r, c, log_pi, entropy = [torch.cat((belief, state), -1)], [], [], [], []
        for t in range(4):
            mean, std = policy.actor(seen[-1])
            raw = mean + std * noise[1][t, n]
            squashed = torch.distributions.TransformedDistribution(
                torch.distributions.Normal(mean, std), torch.distributions.TanhTransform(cache_size=1)
            )
            log_pi.append(squashed.log_prob(torch.tanh(raw)).sum())
            entropy.append(-log_pi[-1])
            belief, state = mdp.step(belief, state, torch.tanh(raw), noise[0][t, n : n + 1])
            seen.append(torch.cat((belief, state), -1))
            r.append(mdp.reward(seen[-1]).item())
            c.append(belief[0, 0].sigmoid().item())
        v = [policy.value(one).item() for one in seen]
        returns, last = [], v[4]
        for t in reversed(range(4)):
            last = r[t] + 0.9 * c[t] * (0.3 * v[t + 1] + 0.7 * last)
            returns.insert(0, last)
        weight, goes_on = 1.0, [0.0 if n == 2 else 1.0, *c]
        for t in range(4):
            weight *= 0.9 * goes_on[t]
            actor_terms.append((weight, log_pi[t], returns[t] - v[t], entropy[t]))
            guess = torch.distributions.Normal(policy.value(seen[t]), 1.0)
            target = guess.log_prob(torch.tensor(returns[t])) + guess.log_prob(policy.slow_value(seen[t]))
            value_terms.append(-weight * target.sum())
        all_returns += returns
    scale = max(
        1.0, 0.01 * (torch.tensor(all_returns).quantile(0.95) - torch.tensor(all_returns).quantile(0.05)).item()
    )
    assert metrics["policy/return_scale"].item() == pytest.approx(scale)
    expected = -sum(w * (p * a / scale + 0.2 * h) for w, p, a, h in actor_terms) / 16
    torch.testing.assert_close(actor_loss, expected)
    torch.testing.assert_close(value_loss, sum(value_terms) / 16)
    assert metrics["policy/entropy"].item() == pytest.approx(sum(h.item() for *_, h in actor_terms) / 16)


def test_the_entropy_teaches_the_actor():
    """It adds the gradient of the entropy itself, as estimated from the same draws."""
    agent = small_agent()
    mdp, batch = agent.mdp, policy_batch(agent)
    policy = reinforce(mdp, horizon=3, return_scale="none", discount_weights=False)
    noise, actor, found = policy.draw_noise(batch, mdp, generator()), list(policy.actor.parameters()), []
    for entropy in (0.0, 0.2):
        policy.entropy = entropy
        found.append(torch.autograd.grad(policy.losses(batch, mdp, noise)[0], actor))
    imagined, _ = policy.imagine(batch, mdp, noise)
    seen = torch.cat((batch.features.flatten(0, 1)[None], imagined[:-1].detach()))  # [H, N, F]
    own = torch.autograd.grad(-0.2 * policy.actor.score(seen, noise[1])[1].mean(), actor)
    for without, total, alone in zip(*found, own, strict=True):
        torch.testing.assert_close(total - without, alone)


def test_the_score_of_a_gaussian_holds_its_action_fixed():
    """Its gradient is that of the density at an action that does not move; its mean over actions vanishes."""
    actor = configured(Actor, 3, 2, hidden=4, layers=1, initial_std=1.0).double()
    features = torch.randn(1, 3, dtype=torch.float64)
    noise = torch.randn(40_000, 2, dtype=torch.float64)
    mean, std = actor(features)
    fixed = (mean + std * noise[:5]).detach()
    normal = torch.distributions.Normal(mean, std)
    expected = normal.log_prob(fixed).sum(-1) - torch.log1p(-(fixed.tanh() ** 2)).sum(-1)
    log_prob, entropy = actor.score(features.expand(5, 3), noise[:5])
    torch.testing.assert_close(log_prob, expected)
    weights, coefficients = list(actor.parameters()), torch.randn(5, dtype=torch.float64)
    ours = torch.autograd.grad((coefficients * log_prob).sum(), weights, retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad((coefficients * expected).sum(), weights))
    sampled = actor.sample_with_log_prob(features.expand(5, 3), noise[:5])[1]
    torch.testing.assert_close(entropy, -sampled)
    mean_score = torch.autograd.grad(actor.score(features.expand(len(noise), 3), noise)[0].mean(), weights)[-1]
    assert (mean_score.abs() < 0.05).all()


def test_the_gradient_of_a_gaussians_entropy_runs_through_the_action():
    """The noise is held instead; against PyTorch's own distribution."""
    actor = configured(Actor, 3, 2, hidden=4, layers=1, initial_std=1.0).double()
    features, noise = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    mean, std = actor(features)
    raw = mean + std * noise
    density = torch.distributions.Normal(mean, std).log_prob(raw) - torch.log1p(-(raw.tanh() ** 2))
    expected = torch.autograd.grad(-density.sum(), list(actor.parameters()))
    ours = torch.autograd.grad(actor.score(features, noise)[1].sum(), list(actor.parameters()))
    torch.testing.assert_close(ours, expected)


def test_the_score_of_choices_and_their_entropy():
    actor = configured(CategoricalActor, 3, A, hidden=4, layers=1).double()
    features = torch.randn(6, 3, dtype=torch.float64)
    noise = torch.randn(6, A, dtype=torch.float64)
    log_prob, entropy = actor.score(features, noise)
    p, chosen = probabilities(actor, features), actor.sample(features, noise).argmax(-1, keepdim=True)
    torch.testing.assert_close(log_prob, p.log().gather(-1, chosen).squeeze(-1))
    torch.testing.assert_close(entropy, -(p * p.log()).sum(-1))
    weights = list(actor.parameters())
    expected = torch.autograd.grad(p.log().gather(-1, chosen).sum(), weights)
    torch.testing.assert_close(torch.autograd.grad(log_prob.sum(), weights), expected)


def test_its_mean_gradient_is_that_of_the_expected_reward():
    """Of two choices, the second pays 1: over many draws, the gradient is that of its probability."""

    def step(latent, action, noise):
        return Latent(action, torch.zeros_like(latent.state), latent.layout)

    row = LatentSpec("x", 2, 1, sees_action=True, seen_by_policy=True, free=True)
    mdp = LatentMDP([row], 2, step, lambda latent: latent.belief[..., 1], discrete=True)
    policy = reinforce(mdp, horizon=2, entropy=0.0, gamma=1.0, lambda_=1.0, return_scale="none", value="gaussian")
    torch.nn.init.zeros_(policy.actor.net.output.weight)
    for parameter in policy.value.parameters():
        torch.nn.init.zeros_(parameter)
    n = 20_000
    zeros, ends = torch.zeros(1, n, 2, dtype=torch.float64), torch.zeros(1, n, dtype=torch.bool)
    batch = PolicyBatch(zeros, zeros[..., :1], zeros, zeros[..., 0], ends, ends)
    loss = policy.losses(batch, mdp, policy.draw_noise(batch, mdp, generator()))[0]
    ours = torch.autograd.grad(loss, policy.actor.net.output.bias, retain_graph=True)[0]
    p = probabilities(policy.actor, torch.zeros(1, 3, dtype=torch.float64))[0, 1]
    expected = torch.autograd.grad(-p, policy.actor.net.output.bias)[0]  # two steps, and the mean over both
    assert (ours - expected).abs().max() < 0.02 and ours[1] < -0.2 < 0.2 < ours[0]


@pytest.mark.parametrize("structure", ["2b", "confounder"])
def test_no_gradient_passes_through_the_dynamics(structure):
    """Neither loss has one for the start or for any weight of the model, though these are not frozen here."""
    agent = small_agent(structure)
    batch = policy_batch(agent)
    batch.belief.requires_grad_(), batch.state.requires_grad_()
    policy = reinforce(agent.mdp, value="gaussian")  # twohot begins at 0
    losses = policy.losses(batch, agent.mdp, policy.draw_noise(batch, agent.mdp, generator()))[:2]
    outside = list(agent.world_model.parameters())
    for loss, own, other in zip(losses, (policy.actor, policy.value), (policy.value, policy.actor), strict=True):
        gradients = torch.autograd.grad(loss, outside + list(other.parameters()), retain_graph=True, allow_unused=True)
        assert all(gradient is None for gradient in gradients)
        assert all((g != 0).any() for g in torch.autograd.grad(loss, list(own.parameters()), retain_graph=True))


def test_a_linear_mdp_is_climbed():
    """Reward falls with the distance of the action's push from a wanted one; 60 updates come closer to it."""
    mdp, *_ = linear_mdp()
    mdp.discrete = False
    wanted = torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64)

    def step(latent, action, noise):
        pay = -(action - wanted).square().sum(-1, keepdim=True)
        return Latent(pay.expand_as(latent.belief), torch.zeros_like(latent.state), latent.layout)

    mdp._step, mdp._reward = step, lambda latent: latent.belief[..., 0]
    policy = reinforce(mdp, horizon=3, actor_lr=1e-2, value_lr=1e-2, actor_layers=1)
    batch, random = latents(2, 64), generator()
    batch.is_terminal[:] = False

    def pay():
        return -(policy.act(batch.features[0], None) - wanted).square().sum(-1).mean().item()

    with torch.no_grad():
        policy.actor.net.output.bias[:A] = torch.tensor([-1.0, 1.0, 1.0])
    before = pay()
    for _ in range(60):
        policy.update(batch, mdp, random)
    assert pay() > 0.4 * before
