"""Feed-forward networks: MLP, convolutional encoder and decoder (Wang et al. 2022, appendix, Tables D.1-D.3).

Every network takes plain numbers and works alone in a notebook. Parameters live in ordinary `nn.Linear`,
`nn.Conv2d` and `nn.ConvTranspose2d` layers, so that checkpoints stay ordinary; some layers are *evaluated* in
an algebraically equal form that is several times faster on a CPU (see `convolve_as_product`, `upsample`).

Precision: parameters are float32 masters. `compute_dtype` (None: the parameters' own) is the type in which
large products are evaluated; see `set_compute_dtype`. Last layers and everything statistical stay in the
parameters' type.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_SIZES = (64, 96)


def set_compute_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Let every network inside `module` evaluate its large products in `dtype` (None: the parameters' own)."""
    for child in module.modules():
        if hasattr(child, "compute_dtype"):
            child.compute_dtype = dtype


def images_to_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 images [..., H, W, 3] -> floats in [-0.5, 0.5], [N, 3, H, W] in channels-last memory, N = prod(...).

    The permutation is a view: images are stored the way convolutions like to read them.
    """
    flat = images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)
    return flat.to(dtype).div_(255.0).sub_(0.5)


def float_to_images(images: Tensor) -> Tensor:
    """The inverse of `images_to_float`: floats [N, 3, H, W] -> uint8 [N, H, W, 3], clipped and rounded."""
    return images.float().add(0.5).mul(255.0).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class MLP(nn.Module):
    """`layers` hidden layers of width `hidden` with ELU, then a linear layer without activation.

    Input [..., inputs], output [..., outputs]. Hidden layers run in `compute_dtype`; the last one does not, since
    means, standard deviations, values and rewards need all their bits.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, layers: int = 1):
        super().__init__()
        widths = [inputs] + [hidden] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.output = nn.Linear(widths[-1], outputs)
        self.compute_dtype: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        dtype = self.compute_dtype or x.dtype
        for layer in self.hidden:
            x = F.elu(dense(x, layer, dtype), inplace=True)
        return dense(x, self.output, self.output.weight.dtype)


def dense(x: Tensor, layer: nn.Linear, dtype: torch.dtype) -> Tensor:
    """Evaluate a linear layer in `dtype`: [..., in_features] -> [..., out_features]."""
    return F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Evaluate a convolution in the type of `x`: [N, C, H, W] -> [N, O, H', W']."""
    return F.conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.stride)


def convolve_as_product(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """The same as `convolve`, as one matrix product over gathered patches; faster where the output is tiny."""
    (k, _), (s, _) = layer.kernel_size, layer.stride
    patches = x.unfold(2, k, s).unfold(3, k, s).permute(0, 2, 3, 4, 5, 1)  # [N, H', W', k, k, C]
    weight = layer.weight.to(x.dtype).permute(2, 3, 1, 0).flatten(0, 2)  # [k k C, O]
    return (patches.flatten(3) @ weight + layer.bias.to(x.dtype)).permute(0, 3, 1, 2)  # [N, O, H', W']


def upsample(x: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
    """Evaluate a transposed convolution in the type of `x`: [N, C, H, W] -> [N, O, H', W'].

    A 1x1 input makes it one matrix product. Otherwise the bias is added afterwards: inside the call it
    makes oneDNN's kernel several times slower.
    """
    weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
    if x.shape[-2:] == (1, 1):
        k = layer.kernel_size[0]
        columns = weight.permute(0, 2, 3, 1).flatten(1)  # [C, k k O]
        return (x.flatten(1) @ columns).unflatten(1, (k, k, -1)).add(bias).permute(0, 3, 1, 2)
    return F.conv_transpose2d(x, weight, None, layer.stride).add_(bias[:, None, None])


def _check_size(size: int) -> None:
    if size not in IMAGE_SIZES:
        raise ValueError(f"image size {size} is not supported: choose one of {IMAGE_SIZES}")


class Encoder(nn.Module):
    """Images [N, 3, size, size] -> embeddings [N, embed] (Wang et al. 2022, Table D.2), ReLU in between.

    `depth` is the table's k: channels are k, 2k, 4k, 8k (and 8k once more at 96 pixels).
    """

    def __init__(self, size: int = 64, depth: int = 32, embed: int = 1024):
        super().__init__()
        _check_size(size)
        k = depth
        shapes = [(3, k, 4, 2), (k, 2 * k, 4, 2), (2 * k, 4 * k, 4, 2), (4 * k, 8 * k, 4, 2)]
        if size == 96:
            shapes.append((8 * k, 8 * k, 3, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, kernel, stride) for i, o, kernel, stride in shapes)
        self.output = nn.Linear(32 * k, embed)
        self.compute_dtype: torch.dtype | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Float images [N, 3, size, size] -> [N, embed] in the parameters' type."""
        x = images.to(self.compute_dtype or images.dtype)
        for layer in self.convolutions[:-1]:
            x = F.relu(convolve(x, layer), inplace=True)
        x = F.relu(convolve_as_product(x, self.convolutions[-1]), inplace=True)  # [N, 8k, 2, 2]
        return dense(x.flatten(1), self.output, x.dtype).to(self.output.weight.dtype)


class Decoder(nn.Module):
    """Latents [N, inputs] -> mean images [N, 3, size, size] (Wang et al. 2022, Table D.3), ReLU in between."""

    def __init__(self, inputs: int, size: int = 64, depth: int = 32, embed: int = 1024):
        super().__init__()
        _check_size(size)
        k = depth
        shapes = {
            64: [(embed, 4 * k, 5, 2), (4 * k, 2 * k, 5, 2), (2 * k, k, 6, 2), (k, 3, 6, 2)],
            # The paper prints kernel 5 for the first layer, which would not give its 3x3 output.
            96: [(embed, 4 * k, 3, 1), (4 * k, 4 * k, 5, 2), (4 * k, 2 * k, 5, 2), (2 * k, k, 6, 2), (k, 3, 6, 2)],
        }[size]
        self.input = nn.Linear(inputs, embed)
        self.convolutions = nn.ModuleList(
            nn.ConvTranspose2d(i, o, kernel, stride) for i, o, kernel, stride in shapes
        )
        self.compute_dtype: torch.dtype | None = None

    def forward(self, latent: Tensor) -> Tensor:
        """[N, inputs] -> [N, 3, size, size], floats around [-0.5, 0.5], in the compute type."""
        x = dense(latent, self.input, self.compute_dtype or latent.dtype)[..., None, None]  # [N, embed, 1, 1]
        for layer in self.convolutions[:-1]:
            x = F.relu(upsample(x, layer), inplace=True)
        return upsample(x, self.convolutions[-1])
