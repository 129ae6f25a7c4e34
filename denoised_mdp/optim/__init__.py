"""Optimizers, and the one place where gradients are averaged over processes and clipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from denoised_mdp.optim.adam import Adam
from denoised_mdp.optim.laprop import LaProp
from denoised_mdp.optim.muon import Muon
from denoised_mdp.optim.parallel import average


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    eps: float,
    name: str = "adam",
    agc: float | None = None,
    warmup: int = 0,
) -> torch.optim.Optimizer:
    """Make an `Adam`, `LaProp` or `Muon`. agc: of `clip_adaptively` before every step. warmup: of `LaProp`."""
    optimizer: torch.optim.Optimizer
    if name == "laprop":
        optimizer = LaProp(parameters, lr=lr, eps=eps, warmup=warmup)
    elif name == "muon":
        optimizer = Muon(parameters, lr=lr, eps=eps)
    else:
        optimizer = Adam(parameters, lr=lr, eps=eps)
    if agc is not None:
        for group in optimizer.param_groups:
            group["agc"] = agc
    return optimizer


@torch.no_grad()
def soft_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target's parameters a share `rate` of the way to the source's (Lillicrap et al. 2016)."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.lerp_(fast, rate)


@torch.no_grad()
def clip_adaptively(parameters: Sequence[nn.Parameter], agc: float) -> None:
    """Scale each gradient down to a norm of at most agc * max(norm of its parameter, 1e-3) (Brock et al. 2021).

    Norms are taken over whole tensors.
    """
    parameters = [p for p in parameters if p.grad is not None]
    if not parameters:  # a group of Muon may be empty
        return
    gradients = [p.grad for p in parameters]
    allowed = agc * torch.stack(torch._foreach_norm(parameters)).clamp(min=1e-3)  # [P]
    factors = (allowed / torch.stack(torch._foreach_norm(gradients))).clamp(max=1.0)  # [P]
    torch._foreach_mul_(gradients, factors.unbind())


def optimize(loss: Tensor, optimizer: torch.optim.Optimizer, clip: float | None, *, keep_graph: bool = False) -> Tensor:
    """Take one step: gradients of `loss`, clipped to the global norm `clip` (None: not at all), then the optimizer.

    No other parameter gets a gradient. keep_graph: another loss of the same graph follows. Returns the gradient norm
    before clipping, a scalar tensor.
    """
    differentiate(loss, optimizer, keep_graph=keep_graph)
    return clipped_step(optimizer, clip)


def differentiate(loss: Tensor, *optimizers: torch.optim.Optimizer, keep_graph: bool = False) -> None:
    """Replace the gradients of these optimizers' parameters, and of no others, by those of `loss`."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[p for one in optimizers for p in parameters_of(one)], retain_graph=keep_graph)


def clipped_step(optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor:
    """Take one step with the present gradients, clipped as in `optimize`, then by `clip_adaptively` in groups with agc.

    Returns the gradient norm before clipping.
    """
    average(p.grad for p in parameters_of(optimizer) if p.grad is not None)
    norm = nn.utils.clip_grad_norm_(parameters_of(optimizer), float("inf") if clip is None else clip)
    for group in optimizer.param_groups:
        if group.get("agc") is not None:
            clip_adaptively(group["params"], group["agc"])
    optimizer.step()
    return norm.detach()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer."""
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
