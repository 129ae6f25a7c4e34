"""The block-diagonal GRU of DreamerV3 and the layers around it (Hafner et al. 2025).

Symbols: D belief size, H width of the layers around the GRU, n inputs (the belief is one of them), g = 8 blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from denoised_mdp.models.distributions import DISTRIBUTIONS, StateDistribution
from denoised_mdp.models.gru import candidate_gates
from denoised_mdp.models.networks import MLP
from denoised_mdp.models.norms import RMSNorm
from denoised_mdp.models.structure import BLOCKS, LatentSpec


class BlockLinear(nn.Module):
    """`BLOCKS` independent linear layers in one: [N, g, inputs / g] -> [N, g, outputs / g].

    `inputs` and `outputs` are totals over all blocks.
    """

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.in_features = inputs
        self.weight = nn.Parameter(torch.empty(BLOCKS, inputs // BLOCKS, outputs // BLOCKS))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[N, g, inputs / g] -> [N, g, outputs / g]."""
        bias = self.bias.view(BLOCKS, 1, -1)  # [g, 1, outputs / g]
        return torch.baddbmm(bias, x.transpose(0, 1), self.weight).transpose(0, 1)


class BlockTransition(nn.Module):
    """Prior of one latent: a layer of width H for the belief and for each input, the block GRU, two layers of width H.

    `inputs`: widths of the inputs, as `RSSM` concatenates them. With u [n H] the output of the first layers and v_b =
    (block b of the belief, u): c = SiLU(RMSNorm(W v)), norm over all D; (r, c', k)_b = W' c_b; `candidate_gates`.
    """

    def __init__(self, row: LatentSpec, inputs: list[int], width: int):
        super().__init__()
        self.row, self.widths, belief = row, inputs, row.belief
        widths = [belief, *inputs]
        self.inputs = nn.ModuleList(nn.Linear(size, width) for size in widths)
        self.norms = nn.ModuleList(RMSNorm(width) for _ in widths)
        self.hidden = BlockLinear(belief + BLOCKS * width * len(widths), belief)
        self.norm = RMSNorm(belief)
        self.gates = BlockLinear(belief, 3 * belief)
        self.kind = DISTRIBUTIONS[row.distribution]
        self.prior = MLP(belief, width, self.kind.raw_width(row.state, row.classes), layers=2, norm="rms")

    def forward(self, inputs: Tensor, belief: Tensor) -> Tensor:
        """Inputs [B, inputs], previous belief [B, D] -> next belief [B, D]."""
        parts = zip(self.inputs, self.norms, (belief, *inputs.split(self.widths, -1)), strict=True)
        shared = torch.cat([norm(layer(part)) for layer, norm, part in parts], -1)  # [B, n H]
        shared = shared[:, None].expand(-1, BLOCKS, -1)  # [B, g, n H]
        hidden = self.hidden(torch.cat((belief.unflatten(-1, (BLOCKS, -1)), shared), -1))  # [B, g, D / g]
        hidden = self.norm(hidden.flatten(1)).unflatten(-1, (BLOCKS, -1))  # [B, g, D / g]
        gates = self.gates(hidden).unflatten(-1, (3, -1))  # [B, g, 3, D / g]
        return candidate_gates(gates.transpose(1, 2).flatten(1), belief)

    def distribution(self, belief: Tensor) -> StateDistribution:
        """Belief [..., D] -> prior over states [..., S]."""
        return self.kind.from_raw(self.prior(belief), self.row.classes)


class BlockInput(nn.Module):
    """First layer of a decoder: a `BlockLinear` of all beliefs plus two layers of all states, the first of width 2 H.

    Block b of the beliefs writes the b-th part of the channels in every cell of the picture.
    """

    def __init__(self, beliefs: int, states: int, width: int, cells: int, channels: int):
        super().__init__()
        self.sizes, self.cells = (beliefs, states), cells
        self.belief = BlockLinear(beliefs, cells * channels)
        self.hidden, self.norm = nn.Linear(states, 2 * width), RMSNorm(2 * width)
        self.state = nn.Linear(2 * width, cells * channels)

    def forward(self, latent: Tensor) -> Tensor:
        """[N, D + S] -> [N, cells channels]."""
        belief, state = latent.split(self.sizes, -1)
        blocks = self.belief(belief.unflatten(-1, (BLOCKS, -1)))  # [N, g, cells C / g]
        blocks = blocks.unflatten(-1, (self.cells, -1)).transpose(1, 2).flatten(1)  # [N, cells C]
        return blocks + self.state(self.norm(self.hidden(state)))
