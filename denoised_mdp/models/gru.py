"""GRU cells whose gates are one differentiable function each (Cho et al. 2014; Hafner et al. 2021).

Composed of elementary operations, a step takes some fifty of them, gradients included. On small batches their overhead
exceeds the arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models import kernels
from denoised_mdp.models.norms import RMSNorm


class NormGRUCell(nn.Module):
    """A GRU whose three gates share one RMSNorm (Hafner et al. 2021, with a layer norm).

    The reset gate multiplies the candidate. The update gate starts around sigmoid(-1), which keeps most of the state.
    """

    def __init__(self, inputs: int, size: int):
        super().__init__()
        self.gates = nn.Linear(inputs + size, 3 * size)
        self.norm = RMSNorm(3 * size, silu=False)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Inputs [B, I], hidden state [B, D] -> next hidden state [B, D]."""
        raw = self.gates(torch.cat((x, h), -1))  # [B, 3 D]
        if raw.dtype == h.dtype == torch.float32 and kernels.serves(raw, self.norm.scale):
            return kernels.NormGates.apply(raw, self.norm.scale, h)
        return candidate_gates(self.norm(raw), h)


def make_gru(inputs: int, size: int, norm: str) -> nn.GRUCell | NormGRUCell:
    """Make the cell for `norm`: none or rms."""
    return NormGRUCell(inputs, size) if norm == "rms" else nn.GRUCell(inputs, size)


def gru_step(x: Tensor, h: Tensor, cell: nn.GRUCell | NormGRUCell) -> Tensor:
    """Evaluate `cell`: inputs [B, I], hidden state [B, D] -> next hidden state [B, D]."""
    if isinstance(cell, NormGRUCell):
        return cell(x, h)
    return _Gates.apply(F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh), h)


class _Gates(torch.autograd.Function):
    """r = s(x_r + h_r), u = s(x_u + h_u), n = tanh(x_n + r h_n), h' = (1 - u) n + u h; x_* and h_* are [B, 3 D]."""

    @staticmethod
    def forward(ctx, x: Tensor, hidden: Tensor, h: Tensor) -> Tensor:
        size = h.shape[-1]
        gates = (x[:, : 2 * size] + hidden[:, : 2 * size]).sigmoid_()  # [B, 2 D]: reset, update
        inner = hidden[:, 2 * size :]  # [B, D]
        new = torch.addcmul(x[:, 2 * size :], gates[:, :size], inner).tanh_()  # [B, D]
        ctx.save_for_backward(gates, inner, new, h)
        return torch.lerp(new, h, gates[:, size:])  # [B, D]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, inner, new, h = ctx.saved_tensors
        reset, update = gates.chunk(2, -1)  # [B, D] each
        to_h = gradient * update  # [B, D]
        to_new = torch.ops.aten.tanh_backward(gradient - to_h, new)  # [B, D]
        to_gates = torch.cat((to_new * inner, gradient * (h - new)), -1)  # [B, 2 D]
        to_gates = torch.ops.aten.sigmoid_backward(to_gates, gates)  # [B, 2 D]
        return torch.cat((to_gates, to_new), -1), torch.cat((to_gates, to_new * reset), -1), to_h


def candidate_gates(raw: Tensor, h: Tensor) -> Tensor:
    """n = tanh(s(r) c), h' = h + s(k - 1) (n - h) of raw gates r, c, k [B, 3 D] and h [B, D] (Hafner et al. 2021)."""
    return _CandidateGates.apply(raw, h)


class _CandidateGates(torch.autograd.Function):
    """See `candidate_gates`."""

    @staticmethod
    def forward(ctx, raw: Tensor, h: Tensor) -> Tensor:
        reset, candidate, update = raw.chunk(3, -1)  # [B, D] each
        reset, update = reset.sigmoid(), (update - 1.0).sigmoid_()  # [B, D] each
        new = (reset * candidate).tanh_()  # [B, D]
        ctx.save_for_backward(reset, candidate, update, new, h)
        return torch.lerp(h, new, update)  # [B, D]

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        reset, candidate, update, new, h = ctx.saved_tensors  # [B, D] each
        to_update = torch.ops.aten.sigmoid_backward(gradient * (new - h), update)  # [B, D]
        to_new = gradient * update  # [B, D]
        inner = torch.ops.aten.tanh_backward(to_new, new)  # [B, D]
        to_reset = torch.ops.aten.sigmoid_backward(inner * candidate, reset)  # [B, D]
        return torch.cat((to_reset, inner * reset, to_update), -1), gradient - to_new
