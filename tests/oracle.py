"""A second implementation of the world model, from the equations alone (Wang et al. 2022), to check the package.

It uses elementary tensor operations only, and nothing of the package: GRU gate by gate, convolutions as sums over
kernel positions, transposed convolutions as scatters, Adam and clipping by hand. It is slow and plain on purpose. It
shares two conventions with the package and nothing else: the names of the weights (`w` is the world model's
state_dict) and the layout of the noise (latents side by side in the order x, y, z). The policies are in
`oracle_policies`.

Symbols: T segment length, B batch, A action size, E embedding size.
"""

import math

import torch

LOG_2PI = math.log(2 * math.pi)


# ---------------------------------------------------------------- elementary pieces


def elu(v):
    """v where positive, exp(v) - 1 elsewhere."""
    return torch.where(v > 0, v, torch.expm1(v.clamp(max=0)))


def softplus(v):
    """log(1 + exp(v)), without overflow."""
    return torch.log1p(torch.exp(-v.abs())) + v.clamp(min=0)


def sigmoid(v):
    """1 / (1 + exp(-v))."""
    return 1 / (1 + torch.exp(-v))


def linear(w, name, v):
    """W v + b."""
    return v @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def mlp(w, name, v, layers=1):
    """`layers` hidden layers with ELU, then a linear one."""
    for i in range(layers):
        v = elu(linear(w, f"{name}.hidden.{i}", v))
    return linear(w, f"{name}.output", v)


def gru(w, name, v, h):
    """h' = (1 - u) n + u h with reset gate r, update gate u and candidate n, in this order in the weights."""
    size = h.shape[-1]
    rows = [slice(i * size, (i + 1) * size) for i in range(3)]
    (ri, ui, ni), (rh, uh, nh) = (
        [source @ w[f"{name}.weight_{k}"][row].T + w[f"{name}.bias_{k}"][row] for row in rows]
        for source, k in ((v, "ih"), (h, "hh"))
    )
    r, u = sigmoid(ri + rh), sigmoid(ui + uh)
    n = torch.tanh(ni + r * nh)
    return (1 - u) * n + u * h


def convolve(w, name, v, stride):
    """Valid cross-correlation [N, C, H, W] -> [N, O, H', W'], one kernel position at a time."""
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    kernel = weight.shape[-1]
    side = (v.shape[-1] - kernel) // stride + 1
    out = bias[None, :, None, None]
    for i in range(kernel):
        for j in range(kernel):
            seen = v[:, :, i : i + stride * side : stride, j : j + stride * side : stride]
            out = out + torch.einsum("nchw,oc->nohw", seen, weight[:, :, i, j])
    return out


def scatter(w, name, v, stride):
    """Transposed convolution: every input pixel adds its weighted kernel to the output."""
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    kernel, side = weight.shape[-1], v.shape[-1]
    out = torch.zeros(len(v), weight.shape[1], *[stride * (side - 1) + kernel] * 2, dtype=v.dtype)
    for i in range(kernel):
        for j in range(kernel):
            place = out[:, :, i : i + stride * side : stride, j : j + stride * side : stride]
            place += torch.einsum("nchw,co->nohw", v, weight[:, :, i, j])
    return out + bias[None, :, None, None]


def gaussian(raw):
    """Means followed by raw stds -> mean and std = softplus(raw) + 0.1."""
    mean, raw_std = raw.chunk(2, -1)
    return mean, softplus(raw_std) + 0.1


def kl(q_mean, q_std, p_mean, p_std):
    """KL(q || p) of diagonal Gaussians, summed over dimensions, nats."""
    each = torch.log(p_std / q_std) + (q_std**2 + (q_mean - p_mean) ** 2) / (2 * p_std**2) - 0.5
    return each.sum(-1)


def nll(mean, value):
    """-log N(value; mean, 1), elementwise."""
    return 0.5 * (value - mean) ** 2 + 0.5 * LOG_2PI


# ---------------------------------------------------------------- world model


def sizes(w):
    """{latent: (belief, state)} of the latents that have weights."""
    present = [n for n in "xyz" if f"rssm.transitions.{n}.gru.bias_hh" in w]
    beliefs = [w[f"rssm.transitions.{n}.gru.bias_hh"].numel() // 3 for n in present]
    states = [w[f"rssm.transitions.{n}.prior.output.bias"].numel() // 2 for n in present]
    return dict(zip(present, zip(beliefs, states, strict=True), strict=True))


def encode(w, images, size):
    """Float images [N, 3, H, W] -> embeddings [N, E]: ReLU convolutions, one linear layer."""
    strides = {64: [2, 2, 2, 2], 96: [2, 2, 2, 2, 1]}[size]
    for i, stride in enumerate(strides):
        images = convolve(w, f"encoder.convolutions.{i}", images, stride).clamp(min=0)
    return linear(w, "encoder.output", images.reshape(len(images), -1))


def decode(w, features, size):
    """All beliefs followed by all states [N, .] -> mean images [N, 3, H, W]; a ReLU follows the linear layer."""
    v = torch.relu(linear(w, "decoder.input", features))[:, :, None, None]
    layers = {64: 4, 96: 5}[size]
    for i in range(layers):
        v = scatter(w, f"decoder.convolutions.{i}", v.clamp(min=0) if i else v, 2)
    return v


def x_belief(w, x, action, h):
    """h^x_t = GRU_x(ELU(W [x_{t-1}, a_{t-1}]), h^x_{t-1})."""
    v = elu(linear(w, "rssm.transitions.x.inputs.0", torch.cat([x, action], -1)))
    return gru(w, "rssm.transitions.x.gru", v, h)


def y_belief(w, y, h):
    """h^y_t = GRU_y(ELU(W y_{t-1}), h^y_{t-1})."""
    return gru(w, "rssm.transitions.y.gru", elu(linear(w, "rssm.transitions.y.inputs.0", y)), h)


def z_belief(w, inputs, h):
    """h^z_t = GRU_z(ELU(W ELU(W [...])), h^z_{t-1})."""
    v = elu(linear(w, "rssm.transitions.z.inputs.0", torch.cat(inputs, -1)))
    return gru(w, "rssm.transitions.z.gru", elu(linear(w, "rssm.transitions.z.inputs.1", v)), h)


def prior(w, name, h):
    """Prior of one latent, N(MLP(h))."""
    return gaussian(mlp(w, f"rssm.transitions.{name}.prior", h))


def observe(w, embed, action, is_first, noise, z_prior_uses_y=True):
    """Filter [T, B, ...]; returns {latent: {h, s, q_mean, q_std, p_mean, p_std: [T, B, .]}}."""
    size = sizes(w)
    noise = dict(zip(size, noise.split([state for _, state in size.values()], -1), strict=True))
    batch = embed.shape[1]
    h = {n: embed.new_zeros(batch, belief) for n, (belief, _) in size.items()}
    s = {n: embed.new_zeros(batch, state) for n, (_, state) in size.items()}
    out = {n: {key: [] for key in ("h", "s", "q_mean", "q_std", "p_mean", "p_std")} for n in size}
    for t, e in enumerate(embed):
        first = is_first[t][:, None]
        h, s = ({n: torch.where(first, torch.zeros_like(v), v) for n, v in part.items()} for part in (h, s))
        a = torch.where(first, torch.zeros_like(action[t]), action[t])
        before_h, before_s = h, s
        h, s, q = {"x": x_belief(w, s["x"], a, h["x"])}, {}, {}
        posterior = [h["x"]]
        if "y" in size:
            h["y"] = y_belief(w, before_s["y"], before_h["y"])
            posterior.append(h["y"])
        if "z" in size:
            posterior += [before_h["z"], before_s["z"]]
        mean, std = gaussian(mlp(w, "rssm.posteriors.0.net", torch.cat([*posterior, e], -1)))
        split = size["x"][1]
        q["x"], q["y"] = (mean[:, :split], std[:, :split]), (mean[:, split:], std[:, split:])
        for n in "xy":
            if n in size:
                s[n] = q[n][0] + q[n][1] * noise[n][t]
        if "z" in size:
            y = [h["y"], s["y"]] if z_prior_uses_y else []
            h["z"] = z_belief(w, [h["x"], s["x"], before_s["z"], a, *y], before_h["z"])
            seen = torch.cat([h["x"], s["x"], h["y"], s["y"], h["z"], e], -1)
            q["z"] = gaussian(mlp(w, "rssm.posteriors.1.net", seen))
            s["z"] = q["z"][0] + q["z"][1] * noise["z"][t]
        for n in size:
            for key, value in zip(out[n], (h[n], s[n], *q[n], *prior(w, n, h[n])), strict=True):
                out[n][key].append(value)
    return {n: {key: torch.stack(values) for key, values in part.items()} for n, part in out.items()}


def reward(w, name, h, s):
    """Mean reward share of x or y, [...]."""
    return mlp(w, f"rewards.{name}", torch.cat([h, s], -1), layers=2)[..., 0]


def continuation(w, h, s):
    """Probability [...] that the episode goes on after x; 1 without a head."""
    if "continuation.output.bias" not in w:
        return torch.ones_like(h[..., 0])
    return sigmoid(mlp(w, "continuation", torch.cat([h, s], -1), layers=2)[..., 0])


def model_loss(w, batch, noise, *, size, alpha, beta_y, beta_z, free_nats, strategy, z_prior_uses_y=True):
    """Everything about one batch: latents, predictions, every term and the total of the variational bound.

    L = L_recon + alpha (KL_x + beta_y KL_y + beta_z KL_z); image summed over pixels, all else mean over T, B.
    """
    steps, count = batch["reward"].shape
    images = batch["observation"].to(noise.dtype) / 255 - 0.5
    images = images.permute(0, 1, 4, 2, 3).reshape(steps * count, 3, size, size)
    embed = encode(w, images, size).reshape(steps, count, -1)
    latent = observe(w, embed, batch["action"], batch["is_first"], noise, z_prior_uses_y)
    features = torch.cat([latent[n][part] for part in "hs" for n in latent], -1)
    decoded = decode(w, features.reshape(steps * count, -1), size)
    shares = {n: reward(w, n, latent[n]["h"], latent[n]["s"]) for n in latent if n != "z"}
    image_term = nll(decoded, images).sum((1, 2, 3)).mean()
    reward_term = nll(sum(shares.values()), batch["reward"]).mean()
    kls = {n: kl(*(v[key] for key in ("q_mean", "q_std", "p_mean", "p_std"))) for n, v in latent.items()}
    goes_on = continuation(w, latent["x"]["h"], latent["x"]["s"])
    ends = -torch.where(batch["is_terminal"], 1 - goes_on, goes_on).log().mean()  # 0 without a head
    clamped = kls["x"].clamp(min=free_nats)
    b = beta_y if strategy == "B" and "y" in kls else 1.0  # without y nothing regularizes x
    weighted = b * clamped.mean() + (1 - b) * kls["x"].mean()
    for n, beta in (("y", beta_y), ("z", beta_z)):
        if n in kls:
            weighted = weighted + beta * kls[n].mean()
    return {
        "embed": embed,
        "latent": latent,
        "features": features,
        "decoded": decoded,
        "shares": shares,
        "kl": kls,
        "image": image_term,
        "reward": reward_term,
        "weighted_kl": alpha * weighted,
        "ends": ends,
        "total": image_term + reward_term + alpha * weighted + ends,
    }


# ---------------------------------------------------------------- optimization


def gradients(loss, weights, names=None):
    """{name: d loss / d weight} by reverse mode through the operations here; zeros where there is no path."""
    names = list(weights) if names is None else names
    found = torch.autograd.grad(loss, [weights[n] for n in names], retain_graph=True, allow_unused=True)
    return {n: torch.zeros_like(weights[n]) if g is None else g for n, g in zip(names, found, strict=True)}


def norm(grads):
    """Global norm over all tensors together."""
    return sum((g**2).sum() for g in grads.values()).sqrt()


class Adam:
    """Adam (Kingma and Ba 2015) with bias correction, after clipping to a global norm."""

    def __init__(self, lr, eps, clip=None, betas=(0.9, 0.999)):
        self.lr, self.eps, self.clip, self.betas, self.steps, self.moments = lr, eps, clip, betas, 0, {}

    def step(self, weights, grads):
        """Return `weights` with those named in `grads` replaced."""
        self.steps += 1
        scale = 1.0 if self.clip is None else min(1.0, self.clip / float(norm(grads)))
        new = dict(weights)
        for name, g in grads.items():
            g = g * scale
            m, v = self.moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
            m = self.betas[0] * m + (1 - self.betas[0]) * g
            v = self.betas[1] * v + (1 - self.betas[1]) * g**2
            self.moments[name] = m, v
            m, v = m / (1 - self.betas[0] ** self.steps), v / (1 - self.betas[1] ** self.steps)
            new[name] = (weights[name] - self.lr * m / (v.sqrt() + self.eps)).detach().requires_grad_()
        return new
