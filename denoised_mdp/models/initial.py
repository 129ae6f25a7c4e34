"""Initial weights other than PyTorch's own."""

from __future__ import annotations

import torch
from torch import nn

from denoised_mdp.models.blocks import BlockLinear
from denoised_mdp.models.vision import Decoder


def scale_initial_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of linear and convolutional layers anew so that signals keep their size; biases become zero.

    Before a ReLU: Gaussian with variance 2 / (inputs per output) (He et al. 2015). Other linear layers: uniform (Glorot
    and Bengio 2010). The layer that paints the image: small. PyTorch's default shrinks the signal of an image in every
    convolution: a small model begins to learn later.
    """
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    first = {decoder.convolutions[0] for decoder in decoders if decoder.side == 1}
    last = {decoder.convolutions[-1] for decoder in decoders}
    before_relu = {decoder.input for decoder in decoders if isinstance(decoder.input, nn.Linear)}
    for layer in model.modules():
        if layer in before_relu:
            nn.init.normal_(layer.weight, 0.0, (2.0 / layer.in_features) ** 0.5, generator)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            taps = float(layer.kernel_size[0])
            if isinstance(layer, nn.ConvTranspose2d):  # an output pixel meets every stride-th tap; a 1x1 input has one
                taps = 1.0 if layer in first else taps / layer.stride[0]
            std = (layer.in_channels * taps**2) ** -0.5 * (0.3 if layer in last else 2**0.5)
            nn.init.normal_(layer.weight, 0.0, std, generator)
        else:
            continue
        nn.init.zeros_(layer.bias)


def truncate_initial_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights anew as DreamerV3 does (Hafner et al. 2025); biases become zero, and the reward nets say 0.

    Gaussian of std 1.1368 / sqrt(inputs per output), cut at two of these. All of a `BlockLinear` are inputs.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear | BlockLinear):
            inputs = layer.in_features
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            inputs = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
        else:
            continue
        std = 1.1368 * inputs**-0.5
        nn.init.trunc_normal_(layer.weight, 0.0, std, -2.0 * std, 2.0 * std, generator)
        nn.init.zeros_(layer.bias)
    for net in getattr(model, "rewards", nn.ModuleDict()).values():
        nn.init.zeros_(net.output.weight)


INITIAL = {"scaled": scale_initial_weights, "truncated": truncate_initial_weights}
"""name in the configuration -> function; "pytorch" leaves the weights as they are"""
