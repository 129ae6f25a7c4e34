"""The package against an independent re-computation in float64 (Wang et al. 2022), with the same weights and noise.

Every structure at both image sizes: latents, predictions, each loss term, every gradient, and the weights after
clipped steps, for the world model and both policies. `test_oracle_sensitivity` shows that these checks can fail.
"""

import oracle
import oracle_policies
import pytest
import torch
from oracle_case import (
    ACTIONS,
    CLIPPED_RTOL,
    DEPTHS,
    HORIZON,
    RTOL,
    STRUCTURES,
    B,
    Case,
    T,
    X,
    agree,
    agree_all,
    change,
    parameter_gradients,
    weights,
)

from denoised_mdp.models.losses import kl_per_latent
from denoised_mdp.optim import optimize, without_gradients
from denoised_mdp.policies import BackpropPolicy, SACPolicy, imagination

every_structure = pytest.mark.parametrize("name", STRUCTURES)
every_size = pytest.mark.parametrize("size", DEPTHS)


# ---------------------------------------------------------------- world model


def check_latents(case):
    """Embeddings, beliefs, samples, posteriors, priors; images, reward shares; each KL of each row."""
    model, expected = case.model, case.oracle_loss()
    filtered = model.filter(*(case.batch[key] for key in ("observation", "action", "is_first")), case.noise)
    agree(model.embed(case.batch["observation"]), expected["embed"], "embedding")
    kl = kl_per_latent(filtered.posterior, filtered.prior)
    for name, latent in expected["latent"].items():
        belief, state = filtered.latent[name]
        found = {"h": belief, "s": state}
        for key, gaussians in (("q", filtered.posterior), ("p", filtered.prior)):
            found |= {f"{key}_mean": gaussians[name].mean, f"{key}_std": gaussians[name].std}
        agree_all(found, latent, f"latent {name}")
        agree(kl[name], expected["kl"][name], f"KL_{name}")
    agree(model.decode(filtered.latent), expected["decoded"], "images")
    agree_all(model.reward_shares(filtered.latent), expected["shares"], "reward share")


def check_loss(case):
    """Each loss term, the total, and the gradient of every parameter."""
    model, expected = case.model, case.oracle_loss()
    loss, latent, _, metrics = model.loss(**case.batch, noise=case.noise)
    constant = 0.5 * oracle.LOG_2PI  # of a scalar's likelihood; the metrics leave it out
    agree(metrics["model/image_error"], expected["image"] - 3 * case.size**2 * constant, "image term")
    agree(metrics["model/reward_error"], expected["reward"] - constant, "reward term")
    for name, kl in expected["kl"].items():
        agree(metrics[f"model/kl_{name}"], kl.mean(), f"KL_{name}")
    agree(model.kl.weighted(expected["kl"], model.table), expected["weighted_kl"], "weighted KL")
    if model.continuation is not None:
        agree(metrics["model/continuation_nll"], expected["ends"], "continuation term")
    agree(loss - metrics["model/image_error"], expected["total"] - metrics["model/image_error"], "total")
    agree(latent.features(), expected["features"], "features")
    loss.backward()
    agree_all(parameter_gradients(model), oracle.gradients(expected["total"], case.w), "gradient of")


def check_model_step(case):
    """The weights after one step of Adam whose clipping is active (and visible: eps is large)."""
    expected = case.oracle_loss()
    grads = oracle.gradients(expected["total"], case.w)
    assert oracle.norm(grads) > 2 * case.model.clip
    group = case.model.optimizers["model"].param_groups[0]
    stepped = oracle.Adam(group["lr"], group["eps"], case.model.clip).step(case.w, grads)
    loss, *_ = case.model.loss(**case.batch, noise=case.noise)
    agree(optimize(loss, case.model.optimizers["model"], case.model.clip), oracle.norm(grads), "gradient norm")
    found, wanted = change(weights(case.model), case.w), change(stepped, case.w)
    assert found.keys() == case.w.keys()
    agree_all(found, wanted, "step of", CLIPPED_RTOL)


@every_size
@every_structure
def test_latents_and_predictions(name, size):
    check_latents(Case(name, size))


@pytest.mark.parametrize("strategy", "AB")
@every_size
@every_structure
def test_loss_terms_and_gradients(name, size, strategy):
    check_loss(Case(name, size, strategy=strategy))


@every_size
@every_structure
def test_world_model_step(name, size):
    check_model_step(Case(name, size, model_eps=0.1))


@every_structure
def test_an_episode_that_begins_inside_a_segment_forgets_the_rows_before(name):
    """From its is_first row on, a segment is the same as a segment that starts there."""
    case = Case(name)
    whole = case.model.filter(*(case.batch[k] for k in ("observation", "action", "is_first")), case.noise)
    tail = {key: value[2:, 1:2] for key, value in case.batch.items()}
    alone = case.model.filter(*(tail[k] for k in ("observation", "action", "is_first")), case.noise[2:, 1:2])
    agree(whole.latent.features()[2:, 1:2], alone.latent.features(), "features")


@pytest.mark.parametrize("strategy", "AB")
def test_gradients_by_finite_differences(strategy):
    """Check the steepest entry of each layer by central differences of the package's loss, without reverse mode."""
    case, step = Case("2c", strategy=strategy), 1e-6
    grads = oracle.gradients(case.oracle_loss()["total"], case.w)
    for name, parameter in case.model.named_parameters():
        if not name.endswith("weight") or ".1." in name:
            continue
        entry = parameter.data.view(-1)
        index = int(grads[name].abs().argmax())
        losses = []
        for sign in (1, -1):
            entry[index] += sign * step
            losses.append(case.model.loss(**case.batch, noise=case.noise)[0].item())
            entry[index] -= sign * step
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(float(grads[name].view(-1)[index]), rel=5e-5), name


# ---------------------------------------------------------------- policies


def clips(policy):
    """{part: largest gradient norm} of a policy; SAC clips only its actor."""
    if isinstance(policy, SACPolicy):
        return {"actor": policy.actor_clip, "critics": None, "temperature": None}
    return {"actor": policy.clip, "value": policy.clip}


def policy_optimizers(policy):
    """The oracle's optimizers, with the settings of the package's."""
    group = {part: optimizer.param_groups[0] for part, optimizer in policy.optimizers.items()}
    return {part: oracle.Adam(group[part]["lr"], group[part]["eps"], clip) for part, clip in clips(policy).items()}


def check_backprop(case, imagined_noise=0.0):
    """Imagined latents, actions, rewards, values, returns, both losses, all gradients, and one step."""
    policy, mdp, batch = case.policy, case.mdp, case.x_latents()
    noise = torch.randn(HORIZON, T * B, X[1]).double(), torch.randn(HORIZON, T * B, ACTIONS).double()
    optimizers, settings = policy_optimizers(policy), {"gamma": 0.99, "lambda_": 0.95}
    if imagined_noise:
        settings["tried"] = imagined_noise * torch.randn(HORIZON, T * B, ACTIONS).double()
    after, expected, grads = oracle_policies.backprop_step(
        case.w, case.p, batch.belief, batch.state, batch.is_terminal, *noise, optimizers, **settings
    )
    if imagined_noise:
        policy.imagined_noise, noise = imagined_noise, (*noise, settings["tried"] / imagined_noise)
        share = (expected["actions"].abs() == 1).double().mean()
        assert 0.1 < share < 0.9, "limits do not matter"
    with without_gradients(case.model):
        features, actions = policy.imagine(batch, mdp, noise)
        rewards, values = mdp.reward(features), policy.value(features).squeeze(-1)
        agree(features, expected["features"], "imagined latents")
        agree(actions, expected["actions"], "actions")
        agree(rewards, expected["rewards"], "imagined rewards")
        agree(values, expected["values"], "values")
        goes_on = mdp.continuation(features)
        agree(goes_on, expected["goes_on"], "continuation")
        returns = imagination.lambda_returns(rewards, values, goes_on, policy.gamma, policy.lambda_)
        agree(returns, expected["returns"], "lambda-returns")
        metrics = policy.update(batch, mdp, noise=noise)
    agree(metrics["policy/actor_loss"], expected["actor"], "actor loss")
    agree(metrics["policy/value_loss"], expected["value"], "value loss")
    agree_step(case, grads, after)


def check_sac(case):
    """Losses of critics, actor and temperature, their gradients, one step of all, and the targets after it."""
    policy, mdp, batch = case.policy, case.mdp, case.x_latents()
    h, s, (next_noise, noise) = batch.belief, batch.state, torch.randn(2, T - 1, B, ACTIONS).double()
    after, expected, grads = oracle_policies.sac_step(
        case.p,
        h,
        s,
        batch.reward,
        batch.is_terminal,
        batch.is_first,
        batch.action,
        next_noise,
        noise,
        policy_optimizers(policy),
        gamma=0.99,
        tau=0.005,
    )
    actor_loss, log_prob = oracle_policies.sac_actor_loss(case.p, h, s, batch.is_first, noise)
    temperature_loss = oracle_policies.sac_temperature_loss(case.p, log_prob, -ACTIONS)
    with without_gradients(case.model):
        found_loss, found_log_prob = policy.actor_loss(batch, noise)
        agree(policy.critic_loss(batch, next_noise), expected["critics"], "critic loss")
        agree(found_loss, actor_loss, "actor loss")
        agree(found_log_prob[~batch.is_first[1:]], log_prob, "log density")
        agree(policy.temperature_loss(batch, found_log_prob), temperature_loss, "temperature loss")
        metrics = policy.update(batch, mdp, noise=(next_noise, noise))
    agree(metrics["policy/critic_loss"], expected["critics"], "critic loss")
    agree(metrics["policy/actor_loss"], expected["actor"], "actor loss against the new critics")
    agree_step(case, grads, after)


def agree_step(case, grads, after):
    """Compare the gradients that a policy's update left behind (unless clipped), and how it changed the weights."""
    for part, clip in clips(case.policy).items():
        found, wanted = (
            {name: g for name, g in some.items() if name.startswith(f"{part}.") or name == f"log_{part}"}
            for some in (parameter_gradients(case.policy), grads)
        )
        if clip is None:
            agree_all(found, wanted, "gradient of")
        else:
            assert oracle.norm(wanted) > 2 * clip, "the clip is not active"
    rtol = RTOL if set(clips(case.policy).values()) == {None} else CLIPPED_RTOL
    agree_all(change(weights(case.policy), case.p), change(after, case.p), "step of", rtol)


def check_updates(case):
    """Two whole updates of an agent: the policy learns from latents, and SAC also from r_x, of the *old* model.

    The backprop policy imagines latents and rewards with the *new* one.
    """
    agent, w, p, batch = case.agent, case.w, case.p, case.batch
    generator = torch.Generator()
    generator.set_state(agent.random.get_state())
    group = case.model.optimizers["model"].param_groups[0]
    model_optimizer = oracle.Adam(group["lr"], group["eps"], case.model.clip)
    sac = isinstance(case.policy, SACPolicy)
    optimizers = policy_optimizers(case.policy)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for _ in range(2):
        agent.update(batch)
        expected = case.oracle_loss(w, draw(*case.noise.shape))
        grads = oracle.gradients(expected["total"], w)
        scale = min(1.0, case.model.clip / float(oracle.norm(grads)))
        only_the_models = {name: scale * g for name, g in grads.items()}  # the policy added nothing
        agree_all(parameter_gradients(case.model), only_the_models, "gradient of", CLIPPED_RTOL)
        w = model_optimizer.step(w, grads)
        x, ended = expected["latent"]["x"], batch["is_terminal"]
        if sac:
            noise = draw(T - 1, B, ACTIONS), draw(T - 1, B, ACTIONS)
            r = expected["shares"]["x"].detach()
            p, *_ = oracle_policies.sac_step(
                p,
                x["h"],
                x["s"],
                r,
                ended,
                batch["is_first"],
                batch["action"],
                *noise,
                optimizers,
                gamma=0.99,
                tau=0.005,
            )
        else:
            noise = draw(HORIZON, T * B, X[1]), draw(HORIZON, T * B, ACTIONS)
            p, *_ = oracle_policies.backprop_step(
                w, p, x["h"], x["s"], ended, *noise, optimizers, gamma=0.99, lambda_=0.95
            )
    agree_all(change(weights(case.model), case.w), change(w, case.w), "model weight", CLIPPED_RTOL)
    agree_all(change(weights(case.policy), case.p), change(p, case.p), "policy weight", CLIPPED_RTOL)


CLIPPED = {"eps": 0.01, "returns": 1000.0}
free_and_clipped = pytest.mark.parametrize("clip", [None, 1.0], ids=["free", "clipped"])


@free_and_clipped
@every_structure
def test_policy_by_backpropagation(name, clip):
    check_backprop(Case(name, clip=clip, **(CLIPPED if clip else {})))


def test_policy_by_backpropagation_explores_in_imagination():
    check_backprop(Case("2c", clip=None), imagined_noise=0.7)


@free_and_clipped
@every_structure
def test_soft_actor_critic(name, clip):
    check_sac(Case(name, policy=SACPolicy, actor_clip=clip, **(CLIPPED if clip else {})))


@pytest.mark.parametrize("policy", [BackpropPolicy, SACPolicy])
@every_size
@every_structure
def test_whole_updates(name, size, policy):
    check_updates(Case(name, size, policy, strategy="B", clamped=0.1))  # if all were, Dreamer's prior would not learn


@every_structure
def test_terminations(name):
    """Their likelihood, their effect on returns, weights and targets, and whole updates."""
    check_loss(Case(name, ends=True))
    check_backprop(Case(name, ends=True, clip=None))
    check_sac(Case(name, policy=SACPolicy, ends=True))
    for policy in (BackpropPolicy, SACPolicy):
        check_updates(Case(name, policy=policy, ends=True, strategy="B", clamped=0.1))
