"""Where gradients meet an optimizer: the one place for clipping, and for the mean over processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from denoised_mdp.parallel import average


def adam(parameters: Iterable[nn.Parameter], *, lr: float, eps: float) -> torch.optim.Adam:
    """Adam as one kernel over each parameter; the same steps as PyTorch's default, several times sooner."""
    return torch.optim.Adam(parameters, lr=lr, eps=eps, fused=True)


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
    """One step with the gradients that are there, clipped as by `optimize`; returns their norm before."""
    average(p.grad for p in parameters_of(optimizer) if p.grad is not None)
    norm = nn.utils.clip_grad_norm_(parameters_of(optimizer), float("inf") if clip is None else clip)
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
