"""A contrastive encoder: alignment and uniformity on the sphere (Wang and Isola 2020), as in Wang et al. 2022.

    L = E ||f(a) - f(b)||^2 + log E exp(-t ||f(u) - f(v)||^2),   t = 2,

over positive pairs (a, b), two augmentations of one image, and pairs (u, v) of distinct images of a batch. The second
term is averaged over both views. Features f are the encoder's output, normalized to length 1; both weights are 1.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from denoised_mdp.analysis.augment import augment
from denoised_mdp.analysis.joints.data import JointData
from denoised_mdp.errors import UserError
from denoised_mdp.files import replace_file
from denoised_mdp.models.vision import Encoder
from denoised_mdp.seeding import generator, torch_seed

T = 2.0
LR = 3e-4


def alignment(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared distance between positive pairs: features [N, D] each -> scalar."""
    return (a - b).square().sum(1).mean()


def uniformity(features: Tensor) -> Tensor:
    """Log of the mean of exp(-T ||u - v||^2) over all distinct pairs: features [N, D] of length 1 -> scalar."""
    squared = (2 - 2 * features @ features.T).clamp(min=0)  # [N, N]; the lengths are 1
    pairs = torch.triu_indices(len(features), len(features), 1, device=features.device)
    return torch.logsumexp(-T * squared[pairs[0], pairs[1]], 0) - np.log(pairs.shape[1])


def contrastive_loss(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Alignment and uniformity of two views [N, D] of a batch; their sum is the loss."""
    return alignment(a, b), (uniformity(a) + uniformity(b)) / 2


def features(encoder: Encoder, images: Tensor) -> Tensor:
    """Encode images: floats in [0, 1], [N, 3, H, W] -> features [N, D] of length 1."""
    return F.normalize(encoder(images - 0.5), dim=1)


def train_contrastive(
    encoder: Encoder,
    data: JointData,
    *,
    updates: int = 20_000,
    batch: int = 256,
    flip: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[float, float]]:
    """Train `encoder` in place on the frames of the training episodes; return alignment and uniformity over time.

    It uses neither joint positions nor PyTorch's global generator.

    Raises:
        UserError: there are fewer than two frames to train on.
    """
    rows = data.choose("train", None, seed)
    if len(rows) < 2:
        raise UserError(
            f"{data.folder} has a single frame to train on, and a contrastive encoder tells frames from each other:"
            " make a larger data set, or give --references scratch."
        )
    device = encoder.like.device
    order, random = generator(seed, "contrastive rows"), torch.Generator(device)
    random.manual_seed(torch_seed(seed, "contrastive augmentations"))
    optimizer, history = torch.optim.Adam(encoder.parameters(), lr=LR), []
    for done in range(updates):
        chosen = np.sort(order.choice(rows, min(batch, len(rows)), replace=False))  # distinct images
        images = torch.as_tensor(data.images(chosen)[:, 0]).to(device).permute(0, 3, 1, 2).float().div_(255)
        views = [features(encoder, augment(images, random, flip=flip)) for _ in range(2)]
        align, uniform = contrastive_loss(*views)
        optimizer.zero_grad()
        (align + uniform).backward()
        optimizer.step()
        if done % max(1, updates // 100) == 0 or done == updates - 1:
            history.append((align.item(), uniform.item()))
        progress(done + 1)
    return history


def contrastive_encoder(
    encoder: Encoder, data: JointData, progress: Callable[[int], None], *, made: Mapping[str, Any], **options
) -> Encoder:
    """Run `train_contrastive`, or load its result from an earlier call with the same data, architecture and options.

    made: how the encoder was built: its options, and the scheme of its initial weights, which were drawn from `seed`.
    The trained weights are stored in the data set's folder.
    """
    checksums = [one["crc32"] for one in data.episodes]
    about = json.dumps({"encoder": dict(made), "data": checksums, **options}, sort_keys=True)
    path = data.folder / "contrastive" / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.safetensors"
    if path.exists():
        try:
            encoder.load_state_dict(safetensors.torch.load_file(path))
            return encoder
        except (safetensors.SafetensorError, RuntimeError, OSError):
            pass  # a damaged file is rebuilt
    train_contrastive(encoder, data, progress=progress, **options)
    try:
        _save(encoder, path, about)
    except OSError as error:  # such as a read-only folder
        warnings.warn(f"The contrastive encoder could not be kept in {path.parent} ({error.strerror}).", stacklevel=2)
    return encoder


def _save(encoder: Encoder, path: Path, about: str) -> None:
    path.parent.mkdir(exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    replace_file(path, safetensors.torch.save(weights, {"about": about}))
