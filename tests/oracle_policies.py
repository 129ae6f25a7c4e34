"""A second implementation of both policy optimizers, from the equations alone (Wang et al. 2022); see `oracle`.

`w` is the world model's state_dict, `p` the policy's. Symbols: T segment length, B batch, A action size,
N = T B imagination starts, H horizon.
"""

import math

import torch
from oracle import LOG_2PI, continuation, gradients, mlp, nll, prior, reward, softplus, x_belief


def actor(p, features):
    """mean = 5 tanh(m / 5), std = softplus(raw + softplus^-1(5)) + 1e-4, before the squashing."""
    m, raw = mlp(p, "actor.net", features, layers=4).chunk(2, -1)
    return 5 * torch.tanh(m / 5), softplus(raw + math.log(math.exp(5) - 1)) + 1e-4


def act(p, features, noise):
    """A sampled action and its log density: Gaussian times |du / da| = cosh(u)^2 for a = tanh(u)."""
    mean, std = actor(p, features)
    u = mean + std * noise
    cosh = (torch.exp(u) + torch.exp(-u)) / 2
    log_prob = -0.5 * ((u - mean) / std) ** 2 - torch.log(std) - 0.5 * LOG_2PI + 2 * torch.log(cosh)
    return torch.tanh(u), log_prob.sum(-1)


def imagine(w, p, h, s, state_noise, action_noise, tried=None):
    """Roll out the x prior; starts h, s [N, .] are latent 0. Returns latents 1..H, and actions.

    tried: noise [H, N, A], added to the actions, which are then clipped; gradients ignore both (straight-through).
    """
    h, s = h.detach(), s.detach()
    beliefs, states, actions = [], [], []
    for e_state, e_action in zip(state_noise, action_noise, strict=True):
        action, _ = act(p, torch.cat([h, s], -1).detach(), e_action)
        if tried is not None:
            limited = torch.minimum(
                torch.maximum(action + tried[len(actions)], -torch.ones_like(action)), torch.ones_like(action)
            )
            action = action + limited.detach() - action.detach()
        h = x_belief(w, s, action, h)
        mean, std = prior(w, "x", h)
        s = mean + std * e_state
        for part, value in ((beliefs, h), (states, s), (actions, action)):
            part.append(value)
    return torch.stack(beliefs), torch.stack(states), torch.stack(actions)


def lambda_returns(rewards, values, goes_on, gamma, lambda_):
    """V_t = r_t + gamma c_t ((1 - lambda) v_{t+1} + lambda V_{t+1}), V_H = v_H; lists 1..H in, 1..H-1 out."""
    returns = [values[-1]]
    for t in reversed(range(len(values) - 1)):
        returns.insert(0, rewards[t] + gamma * goes_on[t] * ((1 - lambda_) * values[t + 1] + lambda_ * returns[0]))
    return torch.stack(returns[:-1])


def backprop_losses(w, p, h, s, ended, state_noise, action_noise, *, gamma, lambda_, tried=None):
    """Actor and value loss from starts h, s [T, B, .] of x, some of them ended, and their ingredients."""
    h, s, actions = imagine(w, p, h.flatten(0, 1), s.flatten(0, 1), state_noise, action_noise, tried)
    features = torch.cat([h, s], -1)
    rewards, values = reward(w, "x", h, s), mlp(p, "value", features, layers=3)[..., 0]
    goes_on = continuation(w, h, s)
    returns = lambda_returns(rewards, values, goes_on, gamma, lambda_)
    reached, discount = 1.0 - ended.flatten().to(returns.dtype), []  # the first imagined latent follows the start
    for t in range(len(returns)):
        discount.append(gamma**t * reached)
        reached = reached * goes_on[t].detach()
    discount = torch.stack(discount)
    guess = mlp(p, "value", features[:-1].detach(), layers=3)[..., 0]
    return {
        "features": features,
        "actions": actions,
        "rewards": rewards,
        "values": values,
        "goes_on": goes_on,
        "returns": returns,
        "actor": -(discount * returns).mean(),
        "value": (discount * nll(guess, returns.detach())).mean(),
    }


def backprop_step(w, p, h, s, ended, state_noise, action_noise, optimizers, *, gamma, lambda_, tried=None):
    """Step actor and value net, both from the old weights; return new weights, losses, gradients."""
    settings = {"gamma": gamma, "lambda_": lambda_, "tried": tried}
    losses = backprop_losses(w, p, h, s, ended, state_noise, action_noise, **settings)
    new, grads = p, {}
    for part in ("actor", "value"):
        found = gradients(losses[part], p, [n for n in p if n.startswith(f"{part}.")])
        new = optimizers[part].step(new, found)
        grads |= found
    return new, losses, grads


def q_values(p, nets, features, action):
    """Both Q nets `nets` ("critics" or "targets"): a pair of [...]."""
    v = torch.cat([features, action], -1)
    return [mlp(p, f"{nets}.nets.{i}", v, layers=3)[..., 0] for i in range(2)]


def sac_critic_loss(p, h, s, r, ended, first, action, noise, gamma):
    """1/2 squared error to r_x(x') + gamma (min Q_target(x', a') - temperature log pi(a' | x')); r is r_x of h, s.

    Nothing follows an x' that ended the episode. Where x' begins an episode, it does not follow x: no loss.
    """
    features = torch.cat([h, s], -1).detach()
    following = features[1:]
    next_action, log_prob = act(p, following, noise)
    temperature = torch.exp(p["log_temperature"])
    future = torch.minimum(*q_values(p, "targets", following, next_action)) - temperature * log_prob
    target = torch.where(ended[1:], r[1:], r[1:] + gamma * future).detach()
    errors = [(q - target) ** 2 for q in q_values(p, "critics", features[:-1], action[1:])]
    return sum(0.5 * error[~first[1:]].mean() for error in errors)


def sac_actor_loss(p, h, s, first, noise):
    """Mean of temperature log pi(a | x) - min Q(x, a) over the rows that have a successor; their log densities."""
    features = torch.cat([h, s], -1).detach()[:-1]
    action, log_prob = act(p, features, noise)
    temperature = torch.exp(p["log_temperature"]).detach()
    value = torch.minimum(*q_values(p, "critics", features, action))
    return (temperature * log_prob - value)[~first[1:]].mean(), log_prob[~first[1:]]


def sac_temperature_loss(p, log_prob, target_entropy):
    """-log(temperature) (log pi + target entropy), mean."""
    return -(p["log_temperature"] * (log_prob.detach() + target_entropy)).mean()


def sac_step(p, h, s, r, ended, first, action, next_noise, noise, optimizers, *, gamma, tau):
    """Step critics, actor (against the new critics), temperature, targets; return new weights, losses, gradients."""
    losses, grads, new = {}, {}, p

    def step(part, loss):
        losses[part] = loss
        found = gradients(loss, new, [n for n in p if n.startswith(f"{part}.") or n == f"log_{part}"])
        grads.update(found)
        return optimizers[part].step(new, found)

    new = step("critics", sac_critic_loss(new, h, s, r, ended, first, action, next_noise, gamma))
    actor_loss, log_prob = sac_actor_loss(new, h, s, first, noise)
    new = step("actor", actor_loss)
    new = step("temperature", sac_temperature_loss(new, log_prob, -action.shape[-1]))
    for name in p:
        if name.startswith("targets."):
            new[name] = (1 - tau) * new[name] + tau * new[name.replace("targets.", "critics.")]
    return new, losses, grads
