"""The gates of a GRU cell as one differentiable function (Cho et al. 2014).

Composed of elementary operations, a step costs some fifty of them with their gradients; on small batches their
administration takes longer than the arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def gru_step(x: Tensor, h: Tensor, cell: nn.GRUCell) -> Tensor:
    """Evaluate `cell`: inputs [B, I], hidden state [B, D] -> next hidden state [B, D]."""
    return _Gates.apply(F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh), h)


class _Gates(torch.autograd.Function):
    """r = s(x_r + h_r), u = s(x_u + h_u), n = tanh(x_n + r h_n), h' = (1 - u) n + u h; x_* and h_* are [B, 3 D]."""

    @staticmethod
    def forward(ctx, x: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
        size = h.shape[-1]
        gates = (x[:, : 2 * size] + hidden[:, : 2 * size]).sigmoid_()  # [B, 2 D]: reset, update
        inner = hidden[:, 2 * size :]
        new = torch.addcmul(x[:, 2 * size :], gates[:, :size], inner).tanh_()
        ctx.save_for_backward(gates, inner, new, h)
        return torch.lerp(new, h, gates[:, size:])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, inner, new, h = ctx.saved_tensors
        reset, update = gates.chunk(2, -1)
        to_h = gradient * update
        to_new = torch.ops.aten.tanh_backward(gradient - to_h, new)
        to_gates = torch.cat((to_new * inner, gradient * (h - new)), -1)
        to_gates = torch.ops.aten.sigmoid_backward(to_gates, gates)
        return torch.cat((to_gates, to_new), -1), torch.cat((to_gates, to_new * reset), -1), to_h
