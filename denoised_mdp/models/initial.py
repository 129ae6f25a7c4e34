"""Initial weights other than PyTorch's own."""

from __future__ import annotations

import math

import torch
from torch import nn

from denoised_mdp.models.blocks import BlockLinear
from denoised_mdp.models.vision import Decoder


def scale_initial_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw the weights of linear and convolutional layers so that signals keep their scale; biases become zero.

    Convolutions and a decoder's first linear layer: Gaussian with variance 2 / (inputs per output) (He et al. 2015),
    but a decoder's last convolution 0.09 / (inputs per output). Other linear layers: uniform (Glorot and Bengio 2010).
    PyTorch's default shrinks an image's signal in every convolution, so a small model begins to learn later. PyTorch's
    own recurrent cell (``model.core=gru`` without a norm) and every `BlockLinear` keep their weights.
    """
    decoders, first = _decoders(model)
    last = {decoder.convolutions[-1] for decoder in decoders}
    before_relu = {decoder.input for decoder in decoders if isinstance(decoder.input, nn.Linear)}
    for layer in model.modules():
        if layer in before_relu:
            nn.init.normal_(layer.weight, 0.0, (2.0 / layer.in_features) ** 0.5, generator)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            std = _inputs(layer, first) ** -0.5 * (0.3 if layer in last else 2**0.5)
            nn.init.normal_(layer.weight, 0.0, std, generator)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def truncate_initial_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw linear and convolutional layers as DreamerV3 does (Hafner et al. 2025); the reward nets start at 0.

    Gaussian of std 1.1368 / sqrt(inputs per output), truncated at two stds; biases zero. A `BlockLinear` counts the
    inputs of all blocks. PyTorch's own recurrent cell (``model.core=gru`` without a norm) keeps its weights.
    """
    _, first = _decoders(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | BlockLinear):
            inputs = layer.in_features
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            inputs = _inputs(layer, first)
        else:
            continue
        std = 1.1368 * inputs**-0.5
        nn.init.trunc_normal_(layer.weight, 0.0, std, -2.0 * std, 2.0 * std, generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for net in getattr(model, "rewards", nn.ModuleDict()).values():
        nn.init.zeros_(net.output.weight)


def _decoders(model: nn.Module) -> tuple[list[Decoder], set[nn.Module]]:
    """A model's decoders, and the first convolutions of those that begin with a single pixel."""
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    return decoders, {decoder.convolutions[0] for decoder in decoders if decoder.side == 1}


def _inputs(layer: nn.Conv2d | nn.ConvTranspose2d, first: set[nn.Module]) -> float:
    """Number of inputs that one output of a convolution sums over."""
    taps = float(math.prod(layer.kernel_size))
    if isinstance(layer, nn.ConvTranspose2d):  # an output pixel meets every stride-th tap; a 1x1 input has one
        taps = 1.0 if layer in first else taps / math.prod(layer.stride)
    return layer.in_channels / layer.groups * taps


INITIAL = {"scaled": scale_initial_weights, "truncated": truncate_initial_weights}
"""name in the configuration -> function; "pytorch" leaves the weights as they are"""
