"""Encoder and decoder of pictures (Wang et al. 2022, Tables D.2 and D.3; Hafner et al. 2025), by kind of convolutions.

| kind | sides of the inner pictures | encoder stage | decoder stage |
|---|---|---|---|
| paper | 64: 31, 14, 6, 2; 96: 47, 22, 10, 4, 2 | kernel 4, stride 2 | transposed, kernel 5 or 6, from 1x1 |
| strided | halved until at most 4 | kernel 4, stride 2, padded | transposed, kernel 4, stride 2, padded |
| pooled | halved until at most 4 | kernel 5, padded, 2x2 max pooling | nearest neighbours, kernel 5, padded |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.blocks import BlockInput
from denoised_mdp.models.networks import convolve, convolve_as_product, dense, images_to_float, upsample
from denoised_mdp.models.norms import RMSNorm
from denoised_mdp.models.structure import CONVOLUTIONS, convolutions_for

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config

SMALLEST = 4
MULTIPLES = {"strided": (1, 2, 4, 8, 8), "pooled": (2, 3, 4, 4, 4)}
"""channels after each stage, in multiples of the depth"""


def halvings(size: int) -> int:
    """Number of halvings until a side is at most 4: 64 -> 4."""
    count = 0
    while size > SMALLEST:
        size, count = size // 2, count + 1
    return count


def _check(size: int, kind: str) -> None:
    if size not in CONVOLUTIONS[kind]:
        raise ValueError(f"{kind} convolutions see pictures of size {CONVOLUTIONS[kind]}, not {size}")


def _norms(norm: str, channels: Sequence[int]) -> nn.ModuleList:
    """A norm for each of these numbers of channels; no norms if a ReLU follows instead."""
    return nn.ModuleList(RMSNorm(count) for count in channels if norm == "rms")


class Encoder(nn.Module):
    """Images [N, 3, size, size] -> embeddings [N, embed].

    `convolutions`: the kind, see above; None: `convolutions_for` the size. A ReLU follows each convolution, or RMSNorm
    and SiLU if `norm` is rms. `depth`: k; the paper's channels are k, 2k, 4k, 8k (at 96 pixels 8k once more, kernel 3,
    stride 1). `embed`: None leaves out the linear layer; the embedding, of size `width`, is then the flattened last
    convolution. `pixel_range`: largest magnitude of pixels after scaling them from [-0.5, 0.5].
    """

    frames = 1
    """number of frames that one embedding reads"""

    def __init__(
        self, *, size: int, depth: int, embed: int | None, pixel_range: float, norm: str, convolutions: str | None
    ):
        super().__init__()
        kind, k = convolutions or convolutions_for(size), depth
        _check(size, kind)
        self.pools = kind == "pooled"
        if kind == "paper":
            channels, side = [k, 2 * k, 4 * k, 8 * k], 2
            layers = [nn.Conv2d(i, o, 4, 2) for i, o in zip([3, *channels[:-1]], channels, strict=True)]
            if size == 96:
                channels.append(8 * k)
                layers.append(nn.Conv2d(8 * k, 8 * k, 3, 1))
        else:
            stages = halvings(size)
            channels, side = [k * multiple for multiple in MULTIPLES[kind][:stages]], size // 2**stages
            shape = {"kernel_size": 5, "padding": 2} if self.pools else {"kernel_size": 4, "stride": 2, "padding": 1}
            layers = [nn.Conv2d(i, o, **shape) for i, o in zip([3, *channels[:-1]], channels, strict=True)]
        self.convolutions, self.norms = nn.ModuleList(layers), _norms(norm, channels)
        flat = channels[-1] * side**2
        self.width, self.scale = embed or flat, pixel_range / 0.5
        self.output = nn.Linear(flat, embed) if embed else None
        self.compute_dtype: torch.dtype | None = None

    @staticmethod
    def options(config: Config) -> dict[str, Any]:
        """Constructor arguments from a configuration."""
        names = ("depth", "embed", "pixel_range", "norm", "convolutions")
        return {"size": config.env.size} | {name: getattr(config.model, name) for name in names}

    @property
    def like(self) -> Tensor:
        """A weight, for its device and type."""
        return self.convolutions[0].weight

    def read(self, pictures: Tensor) -> Tensor:
        """Stacks of k frames, uint8 [N, k, H, W, 3] -> the frames' embeddings, concatenated, [N, k width]."""
        return self(images_to_float(pictures)).view(len(pictures), -1)

    def forward(self, images: Tensor) -> Tensor:
        """Float images [N, 3, size, size] in [-0.5, 0.5] -> [N, width] in the parameters' type."""
        x = images.to(self.compute_dtype or images.dtype)
        if self.scale != 1.0:
            x = x * self.scale
        for number, layer in enumerate(self.convolutions[:-1]):
            x = convolve(x, layer)
            x = F.max_pool2d(x, 2) if self.pools else x
            x = self.norms[number].channels(x) if self.norms else F.relu(x, inplace=True)
        last = self.convolutions[-1]
        if last.padding == (0, 0):
            x = convolve_as_product(x, last, relu=not self.norms)  # [N, 8k, 2, 2]
        else:
            x = convolve(x, last)  # [N, C, H, W]
            x = F.max_pool2d(x, 2) if self.pools else x
            x = x if self.norms else F.relu(x, inplace=True)
        x = self.norms[-1].channels(x) if self.norms else x
        x = x.flatten(1)  # [N, C H W]
        return (x if self.output is None else dense(x, self.output, x.dtype)).to(self.like.dtype)


class Decoder(nn.Module):
    """Latents [N, inputs] -> mean images [N, channels, size, size].

    `convolutions`, `norm`, `depth`: as in `Encoder`. `embed`: width of the paper's first layer; other kinds begin with
    as many numbers as their encoder ends with. `blocks`: belief size, state size and width of a `BlockInput` as the
    first layer; None: a linear layer. `channels`: 3 of a picture, more if something is painted beside it.
    """

    def __init__(
        self,
        inputs: int,
        *,
        size: int,
        depth: int,
        embed: int,
        norm: str,
        convolutions: str | None,
        blocks: tuple[int, int, int] | None,
        channels: int = 3,
    ):
        super().__init__()
        kind, k = convolutions or convolutions_for(size), depth
        _check(size, kind)
        if kind == "paper":
            self.side, widths, kernels, strides = {
                64: (1, [embed, 4 * k, 2 * k, k], [5, 5, 6, 6], [2, 2, 2, 2]),
                # The paper prints kernel 5 for the first layer, which would not give its 3x3 output.
                96: (1, [embed, 4 * k, 4 * k, 2 * k, k], [3, 5, 5, 6, 6], [1, 2, 2, 2, 2]),
            }[size]
            shapes = list(zip(kernels, strides, strict=True))
        else:
            stages = halvings(size)
            self.side, widths = size // 2**stages, [k * multiple for multiple in MULTIPLES[kind][:stages]][::-1]
            shapes = [(5, 1, 2) if kind == "pooled" else (4, 2, 1)] * stages  # kernel, stride, padding
        layer = nn.Conv2d if kind == "pooled" else nn.ConvTranspose2d
        cells = self.side**2
        self.input = nn.Linear(inputs, widths[0] * cells) if blocks is None else BlockInput(*blocks, cells, widths[0])
        triples = zip(widths, [*widths[1:], channels], shapes, strict=True)
        self.convolutions = nn.ModuleList(layer(i, o, *shape) for i, o, shape in triples)
        self.norms = _norms(norm, widths)
        self.compute_dtype: torch.dtype | None = None

    def forward(self, latent: Tensor) -> Tensor:
        """[N, inputs] -> [N, channels, size, size], pictures around [-0.5, 0.5], in the compute type."""
        dtype, blocks = self.compute_dtype or latent.dtype, isinstance(self.input, BlockInput)
        x = self.input(latent).to(dtype) if blocks else dense(latent, self.input, dtype)  # [N, side side C]
        x = x if self.norms else F.relu(x, inplace=True)
        x = x.unflatten(1, (self.side, self.side, -1))  # [N, side, side, C]
        x = (self.norms[0](x) if self.norms else x).permute(0, 3, 1, 2)  # [N, C, side, side]
        for number, layer in enumerate(self.convolutions[:-1], 1):
            x = grow(x, layer, relu=not self.norms)
            x = self.norms[number].channels(x) if self.norms else x
        return grow(x, self.convolutions[-1])


def grow(x: Tensor, layer: nn.ConvTranspose2d | nn.Conv2d, *, relu: bool = False) -> Tensor:
    """`upsample`, or a convolution after doubling the sides: [N, C, H, W] -> [N, O, H', W']."""
    if isinstance(layer, nn.ConvTranspose2d):
        return upsample(x, layer, relu=relu)
    x = convolve(F.interpolate(x, scale_factor=2.0), layer)
    return F.relu(x, inplace=True) if relu else x
