"""Initial weights other than PyTorch's own."""

from __future__ import annotations

import torch
from torch import nn

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
    before_relu = {decoder.input for decoder in decoders}
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
