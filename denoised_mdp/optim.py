"""Where gradients meet an optimizer: the one place for clipping, and for the mean over processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from denoised_mdp.parallel import average


def adam(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    eps: float = 1e-8,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> torch.optim.Adam:
    """Adam as one kernel over each parameter; the same steps as PyTorch's default, several times sooner."""
    return torch.optim.Adam(parameters, lr=lr, eps=eps, betas=betas, weight_decay=weight_decay, fused=True)


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    eps: float,
    name: str = "adam",
    agc: float | None = None,
    warmup: int = 0,
) -> torch.optim.Optimizer:
    """Adam or LaProp. agc: see `clip_adaptively`, done before every step. warmup: of `LaProp`."""
    optimizer = (
        LaProp(parameters, lr=lr, eps=eps, warmup=warmup) if name == "laprop" else adam(parameters, lr=lr, eps=eps)
    )
    if agc is not None:
        optimizer.param_groups[0]["agc"] = agc
    return optimizer


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target's parameters by `rate` of the way to the source's: an exponential moving average."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.lerp_(fast, rate)


class LaProp(torch.optim.Optimizer):
    """Momentum of normalized gradients (Ziyin et al. 2020), as in DreamerV3 (Hafner et al. 2025).

    v <- beta2 v + (1 - beta2) g^2, m <- beta1 m + (1 - beta1) g / (sqrt(v / (1 - beta2^t)) + eps), and a step of
    lr m / (1 - beta1^t). The learning rate rises linearly from 0 at the first step to `lr` at step 1 + `warmup`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-20,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup: int = 0,
    ):
        super().__init__(parameters, {"lr": lr, "eps": eps, "betas": betas, "warmup": warmup})

    @torch.no_grad()
    def step(self) -> None:
        """One step with the gradients that are there; its number is a tensor, so that a graph can replay it."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for p in parameters:
                if not self.state[p]:
                    zeros = {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in ("v", "m")}
                    self.state[p] = {"count": p.new_zeros(())} | zeros
            if not parameters:
                continue
            counts, v, m = ([self.state[p][name] for p in parameters] for name in ("count", "v", "m"))
            gradients, (beta1, beta2) = [p.grad for p in parameters], group["betas"]
            torch._foreach_add_(counts, 1.0)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, gradients, gradients, 1.0 - beta2)
            count = counts[0]  # all have done as many steps
            unbias = [-torch.expm1(count * math.log(beta)) for beta in group["betas"]]  # 1 - beta^t, exact for small t
            scale = torch._foreach_sqrt(torch._foreach_div(v, unbias[1]))
            torch._foreach_add_(scale, group["eps"])
            torch._foreach_lerp_(m, torch._foreach_div(gradients, scale), 1.0 - beta1)
            rate = group["lr"] / unbias[0]
            if group["warmup"]:
                rate = rate * ((count - 1.0) / group["warmup"]).clamp(max=1.0)
            torch._foreach_sub_(parameters, torch._foreach_mul(m, rate))


@torch.no_grad()
def clip_adaptively(parameters: Sequence[nn.Parameter], agc: float) -> None:
    """Scale each parameter's gradient to at most `agc` times the norm of the parameter, or of 1e-3 (Brock et al. 2021).

    The norms are those of whole tensors.
    """
    parameters = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in parameters]
    allowed = agc * torch.stack(torch._foreach_norm(parameters)).clamp(min=1e-3)  # [P]
    factors = (allowed / torch.stack(torch._foreach_norm(gradients))).clamp(max=1.0)  # [P]
    torch._foreach_mul_(gradients, factors.unbind())


def optimize(loss: Tensor, optimizer: torch.optim.Optimizer, clip: float | None, *, keep_graph: bool = False) -> Tensor:
    """One step: gradients of `loss`, clipped to the global norm `clip` (None: not at all), then the optimizer.

    No other parameter gets a gradient. keep_graph: another loss of the same graph follows. Returns the gradient norm
    before clipping, a scalar tensor.
    """
    differentiate(loss, optimizer, keep_graph=keep_graph)
    return clipped_step(optimizer, clip)


def differentiate(loss: Tensor, *optimizers: torch.optim.Optimizer, keep_graph: bool = False) -> None:
    """New gradients of `loss` for the parameters of these optimizers, and for no others."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[p for one in optimizers for p in parameters_of(one)], retain_graph=keep_graph)


def clipped_step(optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor:
    """One step with the gradients that are there, clipped as by `optimize` and then by `clip_adaptively` if it is to.

    Returns their norm before.
    """
    average(p.grad for p in parameters_of(optimizer) if p.grad is not None)
    norm = nn.utils.clip_grad_norm_(parameters_of(optimizer), float("inf") if clip is None else clip)
    for group in optimizer.param_groups:
        if group.get("agc") is not None:
            clip_adaptively(group["params"], group["agc"])
    optimizer.step()
    return norm.detach()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """What an optimizer moves."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class without_gradients:
    """Context in which modules' parameters get no gradients, while gradients still flow through them."""

    def __init__(self, *modules: nn.Module):
        self.parameters = [p for module in modules for p in module.parameters() if p.requires_grad]

    def __enter__(self) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(False)

    def __exit__(self, *_) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(True)
