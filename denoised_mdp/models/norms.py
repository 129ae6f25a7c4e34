"""Activations of hidden layers: ELU (Wang et al. 2022), or RMSNorm and SiLU as in DreamerV3 (Hafner et al. 2025)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models import kernels

EPS = 1e-4
FEW = 16  # up to this size, bf16 means are matrix products: a reduction over so few numbers is a slow loop


class RMSNorm(nn.Module):
    """scale x / sqrt(mean x^2 + 1e-4) over the last axis, [..., size], then SiLU unless `silu` is False; no shift."""

    compiled = True

    def __init__(self, size: int, *, silu: bool = True):
        super().__init__()
        self.scale, self.silu = nn.Parameter(torch.ones(size)), silu

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size], in the type of `x`."""
        if kernels.serves(x, self.scale):
            return kernels.RMSNorm.apply(x, self.scale, self.silu)
        return _RMSNorm.apply(x, self.scale.to(x.dtype), self.silu)

    def channels(self, images: Tensor) -> Tensor:
        """The same over the channels of every pixel: [N, size, H, W] -> [N, size, H, W]."""
        return self(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def activation(norm: str, size: int) -> nn.Module:
    """The activation of a dense layer of `size` outputs. norm: none (ELU), rms (RMSNorm, SiLU) or relu (ReLU alone)."""
    if norm == "relu":
        return nn.ReLU(inplace=True)
    return RMSNorm(size) if norm == "rms" else nn.ELU(inplace=True)


def _mean(x: Tensor) -> Tensor:
    """Mean over the last axis, which is kept: [..., 1], or equal numbers [..., size] where that is faster."""
    size = x.shape[-1]
    if x.dtype == torch.bfloat16 and size <= FEW:
        return x @ x.new_full((size, size), 1.0 / size)  # [..., size]
    return x.mean(-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))


class _RMSNorm(torch.autograd.Function):
    """One function of few operations: composed of elementary ones, a layer takes some twenty, gradients included."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, silu: bool) -> Tensor:
        factor = _mean(x.square()).add_(EPS).rsqrt_().to(x.dtype)  # [..., 1 or size]
        normal = x * factor  # [..., size]
        ctx.save_for_backward(normal, factor, scale)
        ctx.silu, y = silu, normal * scale
        return F.silu(y, inplace=True) if silu else y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normal, factor, scale = ctx.saved_tensors
        if ctx.silu:
            gradient = torch.ops.aten.silu_backward(gradient, normal * scale)  # [..., size]
        to_scale = (gradient * normal).reshape(-1, len(scale)).sum(0)  # [size]
        gradient = gradient * scale
        shared = _mean(gradient * normal).to(gradient.dtype)  # [..., 1 or size]
        return torch.addcmul(gradient, normal, shared, value=-1.0) * factor, to_scale, None
