"""TIA once more, from its equations alone (Fu et al. 2021); see `oracle`, whose elementary pieces it uses.

`w` is the world model's state_dict. Each stream is Dreamer's RSSM to itself; both are filtered with their part of the
noise, x before y. Symbols: T segment length, B batch.
"""

import torch
from oracle import decode, encode, gradients, kl, mlp, nll, observe, sigmoid

GROUPS = {
    "x": ("x.", "rewards.x."),
    "y": ("y.", "alone."),
    "decoders": ("decoders.", "mask."),
    "adversary": ("rewards.y.",),
}


def group(w, name):
    """Names of the weights that one optimizer moves."""
    return [key for key in w if key.startswith(GROUPS[name])]


def stream(w, name):
    """The weights of one stream under the names that Dreamer's would have."""
    own = {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}
    return {key.replace(f"transitions.{name}.", "transitions.x."): value for key, value in own.items()}


def paint(w, name, features, size):
    """What one decoder makes of features [N, .]."""
    own = {key.replace(f"{name}.", "decoder.", 1): v for key, v in w.items() if key.startswith(f"{name}.")}
    return decode(own, features, size)


def latents(w, batch, noise, size):
    """Both streams {name: {h, s, q_mean, q_std, p_mean, p_std: [T, B, .]}}, and the pictures [N, 3, H, W]."""
    images = batch["observation"].to(noise["x"].dtype) / 255 - 0.5
    images = images.permute(0, 1, 4, 2, 3).flatten(0, 1)
    found = {}
    for name in ("x", "y"):
        own = stream(w, name)
        embed = encode(own, images, size).reshape(*batch["reward"].shape, -1)
        found[name] = observe(own, embed, batch["action"], batch["is_first"], noise[name])["x"]
    return found, images


def adversary_loss(w, latent, reward):
    """NLL(r | R_y(sg(h_y, s_y))): trains R_y alone."""
    return nll(mlp(w, "rewards.y", latent.detach(), layers=2)[..., 0], reward).mean()


def losses(w, found, images, batch, *, size, adversary_weight, alone_weight, free_nats):
    """L_x, L_y, the joint picture, the mask and each stream's picture."""
    features = {name: torch.cat([one["h"], one["s"]], -1) for name, one in found.items()}  # [T, B, .]
    rows = {name: one.flatten(0, 1) for name, one in features.items()}
    raw = {name: paint(w, f"decoders.{name}", rows[name], size) for name in rows}  # [N, 6, H, W]
    mixed = torch.cat([raw["x"][:, 3:], raw["y"][:, 3:]], 1)
    mask = sigmoid((mixed * w["mask.weight"]).sum(1, keepdim=True) + w["mask.bias"][0])
    joint = mask * raw["x"][:, :3] + (1 - mask) * raw["y"][:, :3]
    picture = nll(joint, images).sum((1, 2, 3)).mean()
    alone = nll(paint(w, "alone", rows["y"], size), images).sum((1, 2, 3)).mean()
    reward = {
        name: nll(mlp(w, f"rewards.{name}", features[name], layers=2)[..., 0], batch["reward"]).mean() for name in found
    }
    bits = {
        name: kl(*(one[key] for key in ("q_mean", "q_std", "p_mean", "p_std"))).mean() for name, one in found.items()
    }
    floor = {name: value if value > free_nats else torch.full_like(value, free_nats) for name, value in bits.items()}
    return {
        "x": picture + reward["x"] + floor["x"],
        "y": picture + alone_weight * alone - adversary_weight * reward["y"] + floor["y"],
        "joint": joint,
        "mask": mask,
        "painted": {name: one[:, :3] for name, one in raw.items()},
        "kl": bits,
    }


def update(w, batch, noise, adams, *, steps, size, **weights):
    """One update: the adversary's steps, then one of each group by its own loss, all gradients taken before."""
    found, _ = latents(w, batch, noise, size)
    latent = torch.cat([found["y"]["h"], found["y"]["s"]], -1)
    for _ in range(steps):
        names = group(w, "adversary")
        w = adams["adversary"].step(w, gradients(adversary_loss(w, latent, batch["reward"]), w, names))
    found, images = latents(w, batch, noise, size)
    loss = losses(w, found, images, batch, size=size, **weights)
    totals = {"x": loss["x"], "y": loss["y"], "decoders": loss["x"] + loss["y"]}
    moves = {name: gradients(total, w, group(w, name)) for name, total in totals.items()}
    for name, grads in moves.items():
        w = adams[name].step(w, grads)
    return w, moves, loss
