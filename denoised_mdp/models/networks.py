"""MLP, and fast ways to evaluate convolutions (Wang et al. 2022, appendix).

Every network is built from plain numbers and works on its own in a notebook. Parameters live in ordinary `nn.Linear`,
`nn.Conv2d` and `nn.ConvTranspose2d` layers, so that checkpoints stay ordinary; some layers are *evaluated* in
an algebraically equal form that is several times faster on a CPU (see `convolve_as_product`, `upsample`).

Precision: parameters are float32 masters. `compute_dtype` (None: the parameters' own) is the type in which
large products are evaluated; see `set_compute_dtype`. Last layers and everything statistical stay in the
parameters' type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denoised_mdp.models.norms import activation

MAX_PHASE_CHANNELS = 16  # up to here `_SubPixel` is faster than oneDNN's transposed convolution


def set_compute_dtype(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Let every network inside `module` evaluate its large products in `dtype` (None: the parameters' own)."""
    for child in module.modules():
        if hasattr(child, "compute_dtype"):
            child.compute_dtype = dtype


def images_to_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 images [..., H, W, 3] -> floats in [-0.5, 0.5], [N, 3, H, W] in channels-last memory, N = prod(...).

    The permutation is a view: images are already stored in the order that convolutions read fastest.
    """
    flat = images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)
    return flat.to(dtype).div_(255.0).sub_(0.5)


def float_to_images(images: Tensor) -> Tensor:
    """The inverse of `images_to_float`: floats [N, 3, H, W] -> uint8 [N, H, W, 3], clipped and rounded."""
    return images.float().add(0.5).mul(255.0).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class MLP(nn.Module):
    """`layers` hidden layers of width `hidden` with ELU, or `norm`'s activation, then a linear layer without one.

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


class SideBySide(nn.Module):
    """K networks with the same input; their outputs, O each, are concatenated to [..., K O]."""

    def __init__(self, nets: Sequence[nn.Module]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., K O]."""
        return torch.cat([net(x) for net in self.nets], -1)


def dense(x: Tensor, layer: nn.Linear, dtype: torch.dtype) -> Tensor:
    """Evaluate a linear layer in `dtype`: [..., in_features] -> [..., out_features]."""
    return F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Evaluate a convolution in the type of `x`: [N, C, H, W] -> [N, O, H', W']."""
    return F.conv2d(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.stride, layer.padding)


def convolve_as_product(x: Tensor, layer: nn.Conv2d, *, relu: bool = False) -> Tensor:
    """`convolve`, and optionally a ReLU, as one matrix product over gathered patches; faster for a tiny output."""
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
    """Evaluate a transposed convolution, and optionally a ReLU, in the type of `x`: [N, C, H, W] -> [N, O, H', W'].

    For a 1x1 input, it is one matrix product. For few output channels on a CPU, it is a convolution to every phase of
    the stride. The bias is added afterwards: inside the call it makes oneDNN's kernel several times slower.
    """
    weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
    if x.shape[-2:] == (1, 1):
        k = layer.kernel_size[0]
        columns = weight.permute(0, 2, 3, 1).flatten(1)  # [C, k k O]
        y = (x.flatten(1) @ columns).unflatten(1, (k, k, -1)).permute(0, 3, 1, 2)  # [N, O, k, k]
    elif x.device.type == "cpu" and layer.out_channels <= MAX_PHASE_CHANNELS and layer.kernel_size[0] % 2 == 0:
        y = _SubPixel.apply(x, weight, layer.padding[0])
    else:
        y = F.conv_transpose2d(x, weight, None, layer.stride, layer.padding)
    return _BiasReLU.apply(y, bias, relu)


class _BiasReLU(torch.autograd.Function):
    """[N, O, H, W] + [O], then optionally a ReLU, in channels-last memory, a line of pixels at a time.

    A loop over the few channels of one pixel is slow. All is one function because an in-place ReLU on the views to
    lines and back would make autograd copy the gradient to another memory format, ten times slower to read.
    """

    @staticmethod
    def forward(ctx, y: Tensor, bias: Tensor, relu: bool) -> Tensor:
        lines = y.permute(0, 2, 3, 1).flatten(2) + bias.repeat(y.shape[3])  # [N, H, W O]
        y = (lines.relu_() if relu else lines).unflatten(2, (-1, len(bias))).permute(0, 3, 1, 2)  # [N, O, H, W]
        ctx.save_for_backward(*([y] if relu else []))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        for y in ctx.saved_tensors:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)  # [N, O, H, W]
        n, channels, _, width = gradient.shape
        lines = gradient.permute(0, 2, 3, 1).reshape(-1, width * channels)  # [N H, W O]
        return gradient, lines.sum(0).view(width, channels).sum(0), None


class _SubPixel(torch.autograd.Function):
    """A transposed convolution of stride 2 and even kernel k, as one k/2 convolution to 4 O channels.

    Output pixel (2 i + a, 2 j + b) sums x[i - m, j - n] w[2 m + a, 2 n + b]: each phase (a, b) is an ordinary
    convolution. The backward pass is the transposed convolution's own, which is faster there. padding: the number of
    pixels to leave out at each border of the output.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        channels, out, k, _ = weight.shape
        # [C, O, m, a, n, b] -> [a, b, O, C, m, n]
        phases = weight.view(channels, out, k // 2, 2, k // 2, 2).flip(2, 4).permute(3, 5, 1, 0, 2, 4)
        kernel = phases.reshape(4 * out, channels, k // 2, k // 2)  # [4 O, C, k/2, k/2]
        kernel = F.pad(kernel, (0, 0, 0, 0, 0, 0, 0, -4 * out % 16))  # whole vectors of channels are faster
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        y = F.conv2d(x, kernel, None, 1, k // 2 - 1).permute(0, 2, 3, 1)  # [N, H'/2, W'/2, a b O ...]
        n, h, w, _ = y.shape
        y = y[..., : 4 * out].unflatten(3, (2, 2, out)).transpose(2, 3).reshape(n, 2 * h, 2 * w, out)  # [N, H, W, O]
        y = y[:, padding : 2 * h - padding, padding : 2 * w - padding]  # without the borders
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return *_convolution_gradients(gradient, x, weight, 2, transposed=True, padding=ctx.padding), None


def _convolution_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, *, transposed: bool, padding: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients of a (transposed) convolution with respect to its input and weight."""
    to_x, to_weight, _ = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], 1, [True, True, False]
    )
    return to_x, to_weight
