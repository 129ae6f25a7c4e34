"""Image augmentations for contrastive learning; each image of a batch has its own random numbers.

Images are floats [N, 3, H, W] in [0, 1]. Definitions as in torchvision: a random crop is resized to full size;
brightness, contrast, saturation and hue are jittered, in an order drawn once per batch; some images become gray.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

AREA = (0.08, 1.0)
"""fraction of the image that a crop covers"""
SHAPE = (3 / 4, 4 / 3)
"""aspect ratio (width / height) of a crop"""
JITTER = 0.4
"""scales of brightness, contrast and saturation lie within 1 +- this; hue turns by up to this fraction of a circle"""
GRAY = 0.2
"""fraction of images that become gray"""
LUMA = (0.299, 0.587, 0.114)


def augment(images: Tensor, random: torch.Generator, *, flip: bool = False) -> Tensor:
    """One random view of each image: floats in [0, 1], [N, 3, H, W] -> the same.

    flip: mirror about half of them, for tasks where left and right do not matter. `random` is on the images' device.
    """
    count = len(images)
    images = resized_crop(images, *random_boxes(count, random))
    if flip:
        images = torch.where((_uniform(count, random) < 0.5)[:, None, None, None], images.flip(3), images)
    scales = 1 + JITTER * (2 * torch.rand(3, count, generator=random, device=random.device) - 1)
    turn = JITTER * (2 * _uniform(count, random) - 1)
    for kind in torch.randperm(4, generator=random, device=random.device).tolist():
        images = turn_hue(images, turn) if kind == 3 else (brighten, contrast, saturate)[kind](images, scales[kind])
    return torch.where((_uniform(count, random) < GRAY)[:, None, None, None], to_gray(images).expand_as(images), images)


def random_boxes(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Centers and sizes (x, y) of random crops, [N, 2] each, as fractions of the image.

    Areas are uniform in `AREA`, aspect ratios log-uniform in `SHAPE`; sides are clipped to the image.
    """
    area = AREA[0] + (AREA[1] - AREA[0]) * _uniform(count, random)
    low, high = (math.log(shape) for shape in SHAPE)
    shape = torch.exp(low + (high - low) * _uniform(count, random))
    size = torch.stack(((area * shape).sqrt(), (area / shape).sqrt()), 1).clamp(max=1.0)
    return size / 2 + (1 - size) * torch.rand(count, 2, generator=random, device=random.device), size


def resized_crop(images: Tensor, center: Tensor, size: Tensor) -> Tensor:
    """Crop boxes, [N, 2] each as from `random_boxes`, and resize them to the full image (bilinear)."""
    affine = torch.zeros(len(images), 2, 3, device=images.device, dtype=images.dtype)
    affine[:, 0, 0], affine[:, 1, 1] = size[:, 0], size[:, 1]
    affine[:, :, 2] = 2 * center - 1  # grid_sample's coordinates run from -1 to 1
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def brighten(images: Tensor, scale: Tensor) -> Tensor:
    """Multiply each image by its scale [N]."""
    return (images * scale[:, None, None, None]).clamp(0, 1)


def contrast(images: Tensor, scale: Tensor) -> Tensor:
    """Multiply each image's deviation from its mean gray by its scale [N]."""
    return _blend(images, to_gray(images).mean((1, 2, 3), keepdim=True), scale)


def saturate(images: Tensor, scale: Tensor) -> Tensor:
    """Multiply each image's deviation from its gray version by its scale [N]."""
    return _blend(images, to_gray(images), scale)


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue (HSV) of each image by its fraction of a circle [N]."""
    value, low = images.amax(1), images.amin(1)  # [N, H, W]
    chroma = value - low
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    hue = torch.where(value == red, (green - blue) / safe, hue) + 6 * turn[:, None, None]  # sixths of a circle
    channels = []
    for offset in (5, 3, 1):
        k = (offset + hue) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def to_gray(images: Tensor) -> Tensor:
    """The luma of each pixel, [N, 1, H, W]."""
    return (images * torch.tensor(LUMA, device=images.device, dtype=images.dtype)[:, None, None]).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, scale: Tensor) -> Tensor:
    return (other + (images - other) * scale[:, None, None, None]).clamp(0, 1)


def _uniform(count: int, random: torch.Generator) -> Tensor:
    return torch.rand(count, generator=random, device=random.device)
