"""PI-SAC: features that predict the near future, compressed (Lee et al., NeurIPS 2020).

A code z of the present and the next actions must tell its own future from those of the other samples (a bound on the
predictive information) and hold little else (a conditional entropy bottleneck, CEB).

Symbols: B batch, A action size, F features, C size of a code.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from denoised_mdp.agents.pixel_sac import PixelSAC
from denoised_mdp.agents.transitions import Transitions
from denoised_mdp.config.agents import PISACConfig
from denoised_mdp.models import kernels
from denoised_mdp.models.frames import pick, stack_frames
from denoised_mdp.models.networks import MLP, convolve
from denoised_mdp.models.pixels import PixelActor, PixelEncoder
from denoised_mdp.optim import Adam, optimize, soft_update

HORIZON = 3
"""decisions between present and future"""
FURTHER = 0.6
"""weight, as a share of beta, of the term for the future one decision later"""
STD_OF_TRUNCATED = 0.87962566
"""std of a standard normal truncated at two standard deviations"""


class PISAC(PixelSAC):
    """`PixelSAC` with an encoder that actor and critics share completely, and that also learns to predict.

    Without the policy, an update is the predictive step alone: this pretrains the encoder until ``train.policy_after``.
    `present` is the net of e, `future` of b (`bottleneck_loss`); `target_future` follows the encoder, for futures.
    """

    def __init__(self, options: PISACConfig, size: int, action_size: int):
        super().__init__(options, size, action_size)
        self.actor = SharedActor(options.features, action_size, options.hidden)
        for part in (self.encoder, self.critics, self.actor):
            glorot(part)
        self.target_encoder.load_state_dict(self.encoder.state_dict())
        self.target_critics.load_state_dict(self.critics.state_dict())
        sizes = options.code_hidden, options.code
        self.present = CodeNet(options.features + HORIZON * action_size, *sizes)
        self.future = CodeNet(options.features + HORIZON, *sizes)
        self.target_future = copy.deepcopy(self.encoder).requires_grad_(False)
        if options.target_entropy is None:
            self.target_entropy = -action_size / 2

    def make_encoder(self) -> PixelEncoder:
        """See `PixelSAC.make_encoder`."""
        return NormedEncoder(self.options.frames, self.view_size, self.options.depth, self.options.features)

    def add_optimizers(self) -> None:
        """Add an optimizer for the predictive loss."""
        super().add_optimizers()
        options = self.options
        self._optimizers["temperature"] = Adam([self.log_temperature], lr=options.temperature_lr)
        trained = [p for part in (self.encoder, self.present, self.future) for p in part.parameters()]
        self._optimizers["predictive"] = Adam(trained, lr=options.predictive_lr)

    def actor_input(self, hidden: Tensor) -> Tensor:
        """Return phi [N, F]."""
        return self.encoder.head(hidden)

    def critic_loss(self, step: Transitions, now: Tensor, following: Tensor, noise: Tensor) -> Tensor:
        """Return half of `PixelSAC.critic_loss`."""
        return 0.5 * super().critic_loss(step, now, following, noise)

    def learned_from(self, now: Tensor) -> Tensor:
        """See `PixelSAC.learned_from`; keep phi from before the critics' step for the actor."""
        phi = super().learned_from(now)
        self.phi = phi.detach()
        return phi

    def encode(self, now: Tensor) -> tuple[Tensor, Tensor]:
        """Return phi [B, F] from before the critics' step, for both the actor and the critics."""
        return self.phi, self.phi

    def temperature_loss(self, step: Transitions, log_prob: Tensor) -> Tensor:
        """Return the mean of log(temperature) (-log pi - target entropy)."""
        return step.mean(self.log_temperature * (-log_prob.detach() - self.target_entropy))

    def auxiliary(
        self, batch: dict[str, Tensor], step: Transitions, now: Tensor, following: Tensor
    ) -> dict[str, Tensor]:
        """Take one step of the encoder and the code nets on `bottleneck_loss`; then `target_future` follows."""
        begin = self.options.frames - 1  # the row of `now`
        ahead = slice(begin + 1, begin + HORIZON + 2)
        kept = (~batch["is_first"][ahead].any(0)).nonzero()[:, 0]  # [B'], all of one episode
        if len(kept) < 2:  # too few for the codes' batch norm, and no other future
            return {}
        action, reward = batch["action"][ahead][:, kept], batch["reward"][ahead][:, kept]  # [4, B', ...]
        e = self.present(self.encoder(pick(now, kept)), action[:HORIZON].transpose(0, 1).flatten(1))  # [B', C]
        rows = torch.arange(begin + HORIZON, begin + HORIZON + 2, device=kept.device)[:, None].expand(-1, len(kept))
        futures = stack_frames(batch["observation"][:, kept], batch["is_first"][:, kept], rows, self.options.frames)
        with torch.no_grad():
            seen = [self.target_future(self.augment(pictures)) for pictures in futures]  # [B', F] each
        b, later = (self.future(seen[i], reward[i : i + HORIZON].T) for i in range(2))  # [B', C] each
        noise = torch.randn(e.shape, generator=self.random, device=e.device, dtype=e.dtype)  # [B', C]
        loss, bound = bottleneck_loss(e + noise, e, b, later, self.options.beta)
        norm = optimize(loss, self.optimizers["predictive"], None)
        soft_update(self.target_future, self.encoder, self.options.future_tau)
        return {
            "model/predictive_loss": loss.detach(),
            "model/predictive_bound": bound.detach(),
            "model/predictive_gradient": norm,
        }


class SharedActor(PixelActor):
    """phi -> a tanh-squashed Gaussian with std = exp(raw); the encoder is the critics'."""

    def __init__(self, features: int, action_size: int, hidden: int):
        nn.Module.__init__(self)
        self.net = MLP(features, hidden, 2 * action_size, layers=2, norm="relu")

    def forward(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """[N, F] -> mean and std before the squashing, [N, A]."""
        mean, raw = self.net(phi).chunk(2, -1)  # [N, A] each
        return mean, raw.exp()


class NormedEncoder(PixelEncoder):
    """`PixelEncoder` with `FilterResponseNorm` after each convolution, in place of ReLU."""

    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        self.norms = nn.ModuleList(FilterResponseNorm(layer.out_channels) for layer in self.convolutions)

    def convolve(self, pictures: Tensor) -> Tensor:
        """[N, 3 k, S, S] -> [N, E], in the parameters' type."""
        x = pictures.to(self.compute_dtype or pictures.dtype)
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolve(x, layer))  # [N, depth, ...]
        return x.flatten(1).to(layer.weight.dtype)

    def probed(self, hidden: Tensor) -> Tensor:
        """phi before LayerNorm, as in Wang et al. 2022; [N, E] -> [N, F]."""
        return self.head.linear(hidden)


class FilterResponseNorm(nn.Module):
    """Divide each channel of a picture by its root mean square, scale, shift, take the maximum with a learned tau."""

    compiled = True

    def __init__(self, channels: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta, self.tau = (nn.Parameter(torch.zeros(channels, 1, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape and dtype, computed in the parameters' dtype."""
        rows, given = x.permute(0, 2, 3, 1), x.dtype  # [N, H, W, C]
        if kernels.serves(rows, self.gamma):
            return kernels.ResponseNorm.apply(rows, self.gamma, self.beta, self.tau).permute(0, 3, 1, 2)
        x = x.to(self.gamma.dtype)
        power = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True).square() / x[0, 0].numel()  # [N, C, 1, 1]
        scale = self.gamma * (power + 1e-6).rsqrt()  # [N, C, 1, 1]
        # max(y, tau) as relu(y - tau) + tau: several times faster.
        return (torch.addcmul(self.beta - self.tau, x, scale).relu_() + self.tau).to(given)


class CodeNet(nn.Module):
    """Features and further inputs -> the mean of a code's unit Gaussian [B, C], normalized over the batch.

    The last layer starts small, so that codes start alike before the norm, whose epsilon keeps them small.
    """

    def __init__(self, inputs: int, hidden: int, code: int):
        super().__init__()
        layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, code)]
        self.net = nn.Sequential(*layers)
        glorot(self)
        std = math.sqrt(1e-4 / hidden) / STD_OF_TRUNCATED
        nn.init.trunc_normal_(layers[-1].weight, 0.0, std, -2 * std, 2 * std)
        self.norm = nn.BatchNorm1d(code, eps=1e-3, track_running_stats=False)  # codes are for the loss only

    def forward(self, *inputs: Tensor) -> Tensor:
        """[B, ...] each, concatenated -> [B, C]."""
        return self.norm(self.net(torch.cat(inputs, -1)))


def glorot(module: nn.Module) -> None:
    """Initialize linear and convolutional layers: weights uniform (Glorot and Bengio 2010), biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def log_density(code: Tensor, mean: Tensor) -> Tensor:
    """Return log N(code; mean, 1) of codes [..., C], without the constant: [...], nats."""
    return -0.5 * (code - mean).square().sum(-1)


def bottleneck_loss(
    code: Tensor, forward: Tensor, backward: Tensor, later: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Return the conditional entropy bottleneck and its bound on the predictive information; scalars, nats.

    L = beta (log e - log b_i) - (log b_i - log mean_k b_k) + 0.6 beta (log e - log b'_i), mean over B, with
    e = e(z_i | x_i), b_k = b(z_i | y_k), b'_i = b(z_i | y'_i).

    Args:
        code: [B, C], z_i, sampled from e.
        forward: [B, C], mean of e.
        backward, later: [B, C], means of b for the futures y_i and y'_i, one decision later.
        beta: weight of the compression.

    Returns:
        The loss, and the bound: the mean of the second bracket, at most log B.
    """
    log_e = log_density(code, forward)  # [B]
    log_b = log_density(code[:, None], backward[None])  # [B, B], row i has z_i, column k has y_k
    own = log_b.diagonal()  # [B]
    bound = own - log_b.logsumexp(1) + math.log(len(code))  # [B]
    residual = beta * (log_e - own) + FURTHER * beta * (log_e - log_density(code, later))  # [B]
    return (residual - bound).mean(), bound.mean()
