"""Feed-forward networks: MLP, convolutional encoder and decoder (Wang et al. 2022, appendix, Tables D.1-D.3).

Every network takes plain numbers and works alone in a notebook. Parameters live in ordinary `nn.Linear`,
`nn.Conv2d` and `nn.ConvTranspose2d` layers, so that checkpoints stay ordinary; some layers are *evaluated* in
an algebraically equal form that is several times faster on a CPU (see `convolve_as_product`, `upsample`).

Precision: parameters are float32 masters. `compute_dtype` (None: the parameters' own) is the type in which
large products are evaluated; see `set_compute_dtype`. Last layers and everything statistical stay in the
parameters' type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.norms import RMSNorm, activation
from denoised_mdp.models.structure import IMAGE_SIZES

if TYPE_CHECKING:
    from denoised_mdp.config.schema import Config

MAX_PHASE_CHANNELS = 16  # up to here `_SubPixel` is faster than oneDNN's transposed convolution


def set_compute_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Let every network inside `module` evaluate its large products in `dtype` (None: the parameters' own)."""
    for child in module.modules():
        if hasattr(child, "compute_dtype"):
            child.compute_dtype = dtype


def scale_initial_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of linear and convolutional layers anew so that signals keep their size; biases become zero.

    Before a ReLU: Gaussian with variance 2 / (inputs per output) (He et al. 2015). Other linear layers: uniform (Glorot
    and Bengio 2010). The layer that paints the image: small. PyTorch's default shrinks the signal of an image in every
    convolution: a small model begins to learn later.
    """
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    first, last = ({decoder.convolutions[i] for decoder in decoders} for i in (0, -1))
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
    """`layers` hidden layers of width `hidden` with ELU, or what `norm` says, then a linear layer without activation.

    Input [..., inputs], output [..., outputs]. Hidden layers run in `compute_dtype`; the last one does not, since
    means, standard deviations, values and rewards need all their bits.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, layers: int = 1, norm: str = "none"):
        super().__init__()
        widths = [inputs] + [hidden] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.activations = nn.ModuleList(activation(norm, hidden) for _ in range(layers))
        self.output = nn.Linear(widths[-1], outputs)
        self.compute_dtype: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        dtype = self.compute_dtype or x.dtype
        for layer, activate in zip(self.hidden, self.activations, strict=True):
            x = activate(dense(x, layer, dtype))
        return dense(x, self.output, self.output.weight.dtype)


def dense(x: Tensor, layer: nn.Linear, dtype: torch.dtype) -> Tensor:
    """Evaluate a linear layer in `dtype`: [..., in_features] -> [..., out_features]."""
    return F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Evaluate a convolution in the type of `x`: [N, C, H, W] -> [N, O, H', W']."""
    return F.conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.stride)


def convolve_as_product(x: Tensor, layer: nn.Conv2d, *, relu: bool = False) -> Tensor:
    """The same as `convolve`, as one matrix product over gathered patches; faster where the output is tiny."""
    y = _PatchProduct.apply(x, layer.weight.to(x.dtype), layer.stride[0])
    return _BiasReLU.apply(y, layer.bias.to(x.dtype), relu)


class _PatchProduct(torch.autograd.Function):
    """A convolution as a product over patches; backward is the convolution's own, which needs no scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, k = stride, weight.shape[-1]
        patches = x.unfold(2, k, stride).unfold(3, k, stride).permute(0, 2, 3, 4, 5, 1)  # [N, H', W', k, k, C]
        columns = weight.permute(2, 3, 1, 0).flatten(0, 2)  # [k k C, O]
        return (patches.flatten(3) @ columns).permute(0, 3, 1, 2)  # [N, O, H', W']

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_convolution_gradients(gradient, *ctx.saved_tensors, ctx.stride, transposed=False), None


def upsample(x: Tensor, layer: nn.ConvTranspose2d, *, relu: bool = False) -> Tensor:
    """Evaluate a transposed convolution, and a ReLU, in the type of `x`: [N, C, H, W] -> [N, O, H', W'].

    A 1x1 input makes it one matrix product. To few channels, on a CPU, it is a convolution to every phase of
    the stride. The bias is added afterwards: inside the call it makes oneDNN's kernel several times slower.
    """
    weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
    if x.shape[-2:] == (1, 1):
        k = layer.kernel_size[0]
        columns = weight.permute(0, 2, 3, 1).flatten(1)  # [C, k k O]
        y = (x.flatten(1) @ columns).unflatten(1, (k, k, -1)).permute(0, 3, 1, 2)
    elif x.device.type == "cpu" and layer.out_channels <= MAX_PHASE_CHANNELS and layer.kernel_size == (6, 6):
        y = _SubPixel.apply(x, weight)
    else:
        y = F.conv_transpose2d(x, weight, None, layer.stride)
    return _BiasReLU.apply(y, bias, relu)


class _BiasReLU(torch.autograd.Function):
    """[N, O, H, W] + [O], then a ReLU, in channels-last memory, a line of pixels at a time.

    Per pixel a few channels are a slow loop. One function, since a ReLU in place on the views that lead to lines
    and back would make autograd copy the gradient to another memory format, ten times slower to read.
    """

    @staticmethod
    def forward(ctx, y: Tensor, bias: Tensor, relu: bool) -> Tensor:
        lines = y.permute(0, 2, 3, 1).flatten(2) + bias.repeat(y.shape[3])  # [N, H, W O]
        y = (lines.relu_() if relu else lines).unflatten(2, (-1, len(bias))).permute(0, 3, 1, 2)
        ctx.save_for_backward(*([y] if relu else []))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        for y in ctx.saved_tensors:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        n, channels, _, width = gradient.shape
        lines = gradient.permute(0, 2, 3, 1).reshape(-1, width * channels)
        return gradient, lines.sum(0).view(width, channels).sum(0), None


class _SubPixel(torch.autograd.Function):
    """A transposed convolution of stride 2 and even kernel k, as one k/2 convolution to 4 O channels.

    Output pixel (2 i + a, 2 j + b) sums x[i - m, j - n] w[2 m + a, 2 n + b]: each phase (a, b) is an ordinary
    convolution. The backward pass is the transposed convolution's own, which is the faster one there.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        channels, out, k, _ = weight.shape
        phases = weight.view(channels, out, k // 2, 2, k // 2, 2).flip(2, 4).permute(3, 5, 1, 0, 2, 4)
        kernel = phases.reshape(4 * out, channels, k // 2, k // 2)
        kernel = F.pad(kernel, (0, 0, 0, 0, 0, 0, 0, -4 * out % 16))  # whole vectors of channels are faster
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        y = F.conv2d(x, kernel, None, 1, k // 2 - 1).permute(0, 2, 3, 1)  # [N, H'/2, W'/2, a b O ...]
        n, h, w, _ = y.shape
        y = y[..., : 4 * out].unflatten(3, (2, 2, out)).transpose(2, 3).reshape(n, 2 * h, 2 * w, out)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _convolution_gradients(gradient, x, weight, stride=2, transposed=True)


def _convolution_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, transposed: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of a (transposed) convolution without padding with respect to its input and weight."""
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride, stride], [0, 0], [1, 1], transposed, [0, 0], 1, [True, True, False]
    )
    return to_x, to_weight


def _check_size(size: int) -> None:
    if size not in IMAGE_SIZES:
        raise ValueError(f"image size {size} is not supported: choose one of {IMAGE_SIZES}")


def _norms(norm: str, channels: Sequence[int]) -> nn.ModuleList:
    """A norm for each layer of so many channels; none where a ReLU follows instead."""
    return nn.ModuleList(RMSNorm(count) for count in channels if norm == "rms")


class Encoder(nn.Module):
    """Images [N, 3, size, size] -> embeddings [N, embed] (Wang et al. 2022, Table D.2).

    After each convolution a ReLU, or what `norm` says.

    `depth` is the table's k: channels are k, 2k, 4k, 8k (and 8k once more at 96 pixels). `embed`: None leaves out the
    linear layer; the embedding is then the flattened last convolution, of `width` 32 k. `pixel_range`: pixels are
    scaled from [-0.5, 0.5] to plus and minus this.
    """

    def __init__(
        self, size: int = 64, depth: int = 32, embed: int | None = 1024, pixel_range: float = 0.5, norm: str = "none"
    ):
        super().__init__()
        _check_size(size)
        k = depth
        shapes = [(3, k, 4, 2), (k, 2 * k, 4, 2), (2 * k, 4 * k, 4, 2), (4 * k, 8 * k, 4, 2)]
        if size == 96:
            shapes.append((8 * k, 8 * k, 3, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, kernel, stride) for i, o, kernel, stride in shapes)
        self.norms = _norms(norm, [out for _, out, _, _ in shapes])
        self.width, self.scale = embed or 32 * k, pixel_range / 0.5
        self.output = nn.Linear(32 * k, embed) if embed else None
        self.compute_dtype: torch.dtype | None = None

    @staticmethod
    def options(config: Config) -> dict[str, Any]:
        """Keyword arguments that a configuration implies."""
        m = config.model
        return {"size": config.env.size} | {
            name: getattr(m, name) for name in ("depth", "embed", "pixel_range", "norm")
        }

    @property
    def like(self) -> Tensor:
        """A weight, for its device and type."""
        return self.convolutions[0].weight

    def forward(self, images: Tensor) -> Tensor:
        """Float images [N, 3, size, size] in [-0.5, 0.5] -> [N, width] in the parameters' type."""
        x = images.to(self.compute_dtype or images.dtype)
        if self.scale != 1.0:
            x = x * self.scale
        for number, layer in enumerate(self.convolutions[:-1]):
            x = convolve(x, layer)
            x = self.norms[number].channels(x) if self.norms else F.relu(x, inplace=True)
        x = convolve_as_product(x, self.convolutions[-1], relu=not self.norms)  # [N, 8k, 2, 2]
        x = self.norms[-1].channels(x) if self.norms else x
        x = x.flatten(1)  # [N, 32 k]
        return (x if self.output is None else dense(x, self.output, x.dtype)).to(self.like.dtype)


class Decoder(nn.Module):
    """Latents [N, inputs] -> mean images [N, channels, size, size] (Wang et al. 2022, Table D.3).

    After each layer but the last a ReLU, or what `norm` says.
    """

    def __init__(
        self, inputs: int, size: int = 64, depth: int = 32, embed: int = 1024, channels: int = 3, norm: str = "none"
    ):
        super().__init__()
        _check_size(size)
        k = depth
        shapes = {
            64: [(embed, 4 * k, 5, 2), (4 * k, 2 * k, 5, 2), (2 * k, k, 6, 2)],
            # The paper prints kernel 5 for the first layer, which would not give its 3x3 output.
            96: [(embed, 4 * k, 3, 1), (4 * k, 4 * k, 5, 2), (4 * k, 2 * k, 5, 2), (2 * k, k, 6, 2)],
        }[size] + [(k, channels, 6, 2)]
        self.input = nn.Linear(inputs, embed)
        self.convolutions = nn.ModuleList(nn.ConvTranspose2d(i, o, kernel, stride) for i, o, kernel, stride in shapes)
        self.norms = _norms(norm, [embed, *(out for _, out, _, _ in shapes[:-1])])
        self.compute_dtype: torch.dtype | None = None

    def forward(self, latent: Tensor) -> Tensor:
        """[N, inputs] -> [N, channels, size, size], pictures around [-0.5, 0.5], in the compute type."""
        x = dense(latent, self.input, self.compute_dtype or latent.dtype)  # [N, embed]
        x = (self.norms[0](x) if self.norms else F.relu(x, inplace=True))[..., None, None]  # [N, embed, 1, 1]
        for number, layer in enumerate(self.convolutions[:-1], 1):
            x = upsample(x, layer, relu=not self.norms)
            x = self.norms[number].channels(x) if self.norms else x
        return upsample(x, self.convolutions[-1])
