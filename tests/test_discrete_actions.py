"""Discrete actions: one-hot rows from prefill to replay, the categorical actor in both policies, exact resume."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import assert_plain, configured, random_batch, small_config
from small_runs import run_in_parts, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.analysis import invariance
from denoised_mdp.config.schema import BackpropConfig, ReinforceConfig, SACConfig
from denoised_mdp.envs import make_env
from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import UserError
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.mdp import LatentMDP, PolicyBatch
from denoised_mdp.models.structure import LatentSpec
from denoised_mdp.options import arguments
from denoised_mdp.policies import BackpropPolicy, ReinforcePolicy, SACPolicy
from denoised_mdp.policies.actor import CategoricalActor, explored
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import load_run
from denoised_mdp.session import train

A, SIZE = 3, 2
ROW = LatentSpec("x", SIZE, SIZE, sees_action=True, seen_by_policy=True, free=True)


def linear_mdp(seed=0):
    """A latent MDP in which belief and reward are linear: h' = M h + W a, r = w h. With M, W and w, in float64."""
    m, w_action, w = (torch.randn(*s, dtype=torch.float64) for s in ((SIZE, SIZE), (SIZE, A), (SIZE,)))

    def step(latent, action, noise):
        belief = latent.belief @ m.T + action @ w_action.T
        return Latent(belief, torch.zeros_like(belief), latent.layout)

    mdp = LatentMDP([ROW], A, step, lambda latent: latent.belief @ w, discrete=True)
    return mdp, m, w_action, w


def latents(length, batch, seed=0):
    """A batch of a policy: random latents, choices and rewards; one row is terminal, and one begins an episode."""
    random = torch.Generator().manual_seed(seed)
    belief, state = (torch.randn(length, batch, SIZE, generator=random, dtype=torch.float64) for _ in range(2))
    choices = torch.randint(A, (length, batch), generator=random)
    reward = torch.randn(length, batch, generator=random, dtype=torch.float64)
    is_terminal, is_first = torch.zeros(2, length, batch, dtype=torch.bool)
    is_terminal[-1, 0] = is_first[-1, 1] = True
    action = torch.nn.functional.one_hot(choices, A).double()
    return PolicyBatch(belief, state, action, reward, is_terminal, is_first)


def probabilities(actor, features):
    """Those of the choices, by hand: 0.99 softmax + 0.01 / A."""
    return 0.99 * torch.softmax(actor.net(features), -1) + 0.01 / A


def test_random_choices_are_uniform_one_hot_rows():
    rng = np.random.default_rng(0)
    rows = np.stack([Actions(4, discrete=True).random(rng) for _ in range(8000)])
    assert rows.dtype == np.float32 and set(np.unique(rows)) == {0.0, 1.0}
    np.testing.assert_array_equal(rows.sum(1), 1)
    np.testing.assert_allclose(rows.mean(0), 0.25, atol=4 * math.sqrt(0.25 * 0.75 / 8000))
    assert Actions(2).random(rng).shape == (2,) and not Actions(4, discrete=True).none().any()


@pytest.mark.parametrize("name", ["Walk", "NarrowWalk"])
def test_an_environment_takes_the_number_or_the_row_of_a_choice(name):
    env, other = (make_env(f"gym_envs:{name}", suite="gym", episode_steps=9, action_repeat=1) for _ in range(2))
    with EnvironmentPool(lambda: env, 1) as pool:
        assert pool.actions == Actions(3, discrete=True)
    env.reset(seed=1), other.reset(seed=1)
    for choice in (0, 2, 1):
        before = env.world._env.unwrapped.place
        ours, theirs = env.step(choice), other.step(np.eye(3, dtype=np.float32)[choice])
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]
        assert env.world._env.unwrapped.place - before == pytest.approx(0.2 * (choice - 1), abs=0.05)
    assert_plain(env.get_state())
    other.set_state(env.get_state())
    np.testing.assert_array_equal(env.step(1)[0], other.step(1)[0])
    for wrong in (3, -1, 0.5, [0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [math.nan, 0, 0], [1, 0], "left", None):
        with pytest.raises(ValueError, match="give a whole number from 0 to 2, or a one-hot row of 3"):
            env.step(wrong)


def test_exploring_replaces_choices_by_uniform_ones():
    """At 0.4, a fixed choice stays with probability 0.6 + 0.4 / 3, the others come with 0.4 / 3 each."""
    n, noise = 20_000, torch.randn(20_000, A, dtype=torch.float64)
    fixed = torch.eye(A, dtype=torch.float64)[1].expand(n, A)
    for amount in (0.0, 0.4, 1.0):
        share = explored(fixed, amount, noise, discrete=True)
        assert set(share.unique().tolist()) == {0.0, 1.0} and bool((share.sum(1) == 1).all())
        expected = amount / A + (1 - amount) * fixed[0]
        torch.testing.assert_close(share.mean(0), expected, rtol=0, atol=0.015)


def test_straight_through_gradients_are_those_of_the_expectation():
    """Where dynamics and reward are linear, each draw's gradient is that of sum_a p(a) (...), written out.

    Three imagined steps; the actor's logits do not depend on what it sees.
    """
    mdp, m, w_action, w = linear_mdp()
    options = arguments(BackpropConfig(hidden=4, actor_layers=1, horizon=3, gamma=0.9, lambda_=1.0, entropy=0.2))
    policy, batch = BackpropPolicy(mdp, **options).double(), latents(2, 3)
    batch.is_terminal[:] = False
    torch.nn.init.zeros_(policy.actor.net.output.weight)
    policy.actor.net.output.bias.data = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)
    value = torch.randn(SIZE, dtype=torch.float64)
    del policy.value
    policy.value = lambda features: (features[..., :SIZE] @ value)[..., None]
    noise = policy.draw_noise(batch, mdp, torch.Generator().manual_seed(0))
    loss = policy.losses(batch, mdp, noise)[0]

    logits = policy.actor.net.output.bias.detach().clone().requires_grad_()
    p = 0.99 * torch.softmax(logits, -1) + 0.01 / A
    h = [batch.belief.flatten(0, 1)]
    for _ in range(3):
        h.append(h[-1] @ m.T + w_action @ p)  # expected beliefs: all is linear
    returns = [h[1] @ w + 0.9 * (h[2] @ w + 0.9 * h[3] @ value), h[2] @ w + 0.9 * h[3] @ value]
    expected = -(returns[0] + 0.9 * returns[1]).mean() / 2 + 0.2 * (p * p.log()).sum()
    ours = torch.autograd.grad(loss, policy.actor.net.output.bias)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(expected, logits)[0])


def test_what_a_backprop_actor_samples_is_one_hot_and_follows_its_probabilities():
    actor = configured(CategoricalActor, 4, A, hidden=8, layers=1).double()
    features = torch.randn(1, 4, dtype=torch.float64)
    drawn = actor.sample(features.expand(20_000, 4), torch.randn(20_000, A, dtype=torch.float64))
    p = probabilities(actor, features)[0]
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), p, rtol=0, atol=0.015)
    _, log_prob = actor.sample_with_log_prob(features, torch.randn(1, A, dtype=torch.float64))
    torch.testing.assert_close(log_prob, (p * p.log()).sum()[None])
    assert actor.mode(features).argmax() == p.argmax() and actor.target_entropy == pytest.approx(0.5 * math.log(A))


def test_imagined_exploration_replaces_choices_which_then_teach_the_actor_nothing():
    mdp, *_ = linear_mdp()
    options = arguments(BackpropConfig(hidden=4, actor_layers=1, horizon=2, imagined_noise=0.5))
    policy, batch = BackpropPolicy(mdp, **options).double(), latents(4, 3)
    noise = policy.draw_noise(batch, mdp, torch.Generator().manual_seed(0))
    tried = policy.imagine(batch, mdp, noise)[1][0]  # [N, A] in the first imagined step
    chosen = policy.actor.sample(batch.features.flatten(0, 1), noise[1][0]).detach()  # [N, A]
    expected = explored(chosen, 0.5, noise[2][0], discrete=True)
    assert torch.equal(tried.detach(), expected)
    changed = (chosen != expected).any(-1)
    bias = policy.actor.net.output.bias
    (taught,) = torch.autograd.grad(tried[~changed][:, 0].sum(), bias, retain_graph=True)
    (nothing,) = torch.autograd.grad(tried[changed][:, 0].sum(), bias)
    assert changed.any() and taught.any() and not nothing.any()


def test_sac_losses_are_sums_over_all_choices():
    """Every transition and every choice, written out."""
    mdp, *_ = linear_mdp()
    batch, policy = latents(4, 3), SACPolicy(mdp, **arguments(SACConfig(hidden=8, initial_temperature=0.3))).double()
    for parameter in policy.targets.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    noise, temperature, critic, actor, entropies = torch.zeros(3, 3, A).double(), 0.3, [], [], []
    for t in range(3):
        for b in range(3):
            if batch.is_first[t + 1, b]:
                continue
            x, following, taken = batch.features[t, b], batch.features[t + 1, b], batch.action[t + 1, b].argmax()
            p, q = probabilities(policy.actor, following), [net(following) for net in policy.targets.nets]
            soft = sum(p[a] * (min(q[0][a], q[1][a]) - temperature * p[a].log()) for a in range(A))
            target = (batch.reward[t + 1, b] + 0.99 * soft * float(not batch.is_terminal[t + 1, b])).detach()
            critic += [0.5 * sum((net(x)[taken] - target) ** 2 for net in policy.critics.nets)]
            p, q = probabilities(policy.actor, x), [net(x) for net in policy.critics.nets]
            actor += [sum(p[a] * (temperature * p[a].log() - min(q[0][a], q[1][a])) for a in range(A))]
            entropies += [-sum(p[a] * p[a].log() for a in range(A))]
    torch.testing.assert_close(policy.critic_loss(batch, noise), sum(critic) / 8)
    loss, log_prob = policy.actor_loss(batch, noise)
    torch.testing.assert_close(loss, sum(actor) / 8)
    weights = list(policy.actor.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, weights), torch.autograd.grad(sum(actor) / 8, weights))
    expected = -policy.log_temperature * (0.5 * math.log(A) - sum(entropies) / 8).detach()
    torch.testing.assert_close(policy.temperature_loss(batch, log_prob), expected)


def discrete_agent(policy=None):
    config = small_config()
    config.policy = policy or config.policy
    return build_agent(config, Actions(A, discrete=True))


@pytest.mark.parametrize("policy", [None, SACConfig(hidden=8)])
def test_an_agent_acts_with_the_likeliest_choice_or_explores_by_each_generator(policy):
    agent, images = discrete_agent(policy), random_batch()["observation"][:, 0]  # [4, H, W, 3]
    agent.update(random_batch(actions=A))
    action, carry = agent.act(images, sample=False)
    seen = carry.latent.select(agent.world_model.table.seen).features()
    assert action.dtype == np.float32 and carry.action.shape == (4, A)
    np.testing.assert_array_equal(action, np.eye(A)[probabilities(agent.policy.actor, seen).argmax(-1).numpy()])

    def noises():
        return [torch.Generator().manual_seed(seed) for seed in range(4)]

    together = [agent.act(images, explore=0.5, generator=noises())[0] for _ in range(2)]
    np.testing.assert_array_equal(*together)
    alone = [agent.act(image, explore=0.5, generator=noise)[0] for image, noise in zip(images, noises(), strict=True)]
    np.testing.assert_array_equal(together[0], alone)


@pytest.mark.parametrize("policy", [BackpropPolicy, ReinforcePolicy, SACPolicy])
def test_a_policy_learns_the_right_choice(policy):
    """In a closed-form bandit: x is one of three signs, and only to name it is rewarded."""

    def step(latent, action, noise):
        earned = (latent.belief * action).sum(-1, keepdim=True).expand_as(latent.belief)
        return Latent(earned, torch.zeros_like(latent.state), latent.layout)

    row = LatentSpec("x", A, 1, sees_action=True, seen_by_policy=True, free=True)
    mdp = LatentMDP([row], A, step, lambda latent: latent.belief.mean(-1), discrete=True)
    if policy is not SACPolicy:
        kind = BackpropConfig if policy is BackpropPolicy else ReinforceConfig
        options = kind(hidden=32, actor_layers=1, horizon=2, actor_lr=1e-2, value_lr=1e-2)
    else:
        options = SACConfig(hidden=32, actor_lr=1e-2, critic_lr=1e-2, temperature_lr=1e-2)
    learner, random = policy(mdp, **arguments(options)), torch.Generator().manual_seed(0)
    signs = torch.eye(A)

    def right():
        return (learner.act(torch.cat((signs, torch.zeros(A, 1)), -1), None) * signs).sum().item()

    for _ in range(150):
        belief = signs[torch.randint(A, (2, 32), generator=random)]
        action = signs[torch.randint(A, (2, 32), generator=random)]
        reward = torch.stack((torch.zeros(32), (belief[0] * action[1]).sum(-1)))
        ends = torch.zeros(2, 32, dtype=torch.bool)
        ends[1] = policy is SACPolicy  # nothing follows
        learner.update(
            PolicyBatch(belief, torch.zeros(2, 32, 1), action, reward, ends, torch.zeros_like(ends)), mdp, random
        )
    assert right() == A


WALK = ["env=gym", "env.task=gym_envs:Walk", "env.episode_steps=16", "train.segment_length=4", "train.probe_every=0"]


@pytest.mark.parametrize("policy", ["backprop", "reinforce", "sac"])
def test_a_stopped_run_with_choices_ends_as_one_that_was_not(tmp_path, policy):
    options = [*WALK, f"policy={policy}", "train.collect_envs=2", "train.total_steps=160"]
    options += ["policy.imagined_noise=0.2"] if policy != "sac" else []
    assert train(tiny(tmp_path / "whole", *options))
    run_in_parts(tiny(tmp_path / "parts", *options), 43, 20)
    assert report(compare(tmp_path / "whole", tmp_path / "parts"))
    rows = np.concatenate([np.load(path) for path in sorted((tmp_path / "whole" / "replay").glob("ring_*/action.npy"))])
    sums = rows.sum(1)
    assert set(np.unique(rows)) == {0.0, 1.0} and set(sums) == {0.0, 1.0}  # none in first rows and unused places
    _, agent, _ = load_run(tmp_path / "whole", device="cpu")
    assert agent.mdp.discrete and isinstance(agent.policy.actor, CategoricalActor)


def test_a_checkpoint_that_does_not_say_of_which_kind_is_refused(tmp_path):
    config = tiny(tmp_path / "run", "train.total_steps=90", "train.probe_every=0", "train.eval_every=0")
    assert train(config)
    folder = RunFolder.existing(tmp_path / "run").checkpoints
    step, state = checkpoint.load(folder)
    assert state.pop("discrete") is False
    checkpoint.save(folder, step, state)
    with pytest.raises(UserError, match="state lacks discrete"):
        load_run(tmp_path / "run", device="cpu")


def test_another_choice_counts_as_the_whole_range(monkeypatch):
    """`probe invariance`: an action that always changes, changes by 2, as one from limit to limit."""
    eye = np.eye(A)
    actions = np.stack([eye[[0, 1]], eye[[1, 2]]] * 2)  # [episodes, T, A]
    monkeypatch.setattr(invariance, "_stack_means", lambda _: {})
    monkeypatch.setattr(invariance, "_actions", lambda *_: actions)
    monkeypatch.setattr(invariance, "freeze", lambda *_, **__: [SimpleNamespace(seen="x")] * 2)
    agent = SimpleNamespace(actions=SimpleNamespace(discrete=True))
    assert invariance.measure_invariance(agent, [[None, None]] * 2).action_change == 2
