"""Joint position regression (Wang et al. 2022): finetune an encoder and a head to read joint positions from pictures.

It measures how much labelled data an encoder needs: the error on test episodes against the number of training pairs,
and its curve during training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoised_mdp.analysis.joints.data import JointData
from denoised_mdp.models.initial import INITIAL
from denoised_mdp.models.networks import MLP, set_compute_dtype
from denoised_mdp.models.vision import Encoder
from denoised_mdp.seeding import generator, torch_seed

PAPER_SIZES = (5_000, 10_000, 25_000, 50_000, 100_000, 150_000)
PAPER_TEST = 100_000
LR, WEIGHT_DECAY = 8e-5, 3e-5
HIDDEN, LAYERS = 256, 3
EVALUATED = 512
"""test rows that are predicted at once"""


@dataclass(frozen=True)
class Schedule:
    """Finetuning options, the same for all encoders."""

    updates: int = 10_000
    batch: int = 256
    lr: float = LR
    evaluations: int = 20
    """number of test evaluations, evenly spaced; the last one is at the end"""
    scale: str = "physical"
    """unit of the loss: "physical", as in the paper, or "standard", the standard deviation of each target"""


@dataclass(frozen=True)
class Curve:
    """Test error of one finetuning."""

    updates: np.ndarray
    """updates done at each evaluation, int [n]"""
    mse: np.ndarray
    """mean squared error of each joint, in rad^2 or m^2, float64 [n, J]"""
    baseline: np.ndarray
    """the same for predicting the mean of the training pairs, [J]"""

    @property
    def relative(self) -> np.ndarray:
        """`mse` / `baseline` [n, J]; 1 is no better than predicting the mean. nan for a joint that never moves."""
        return self.mse / np.where(self.baseline > 1e-12, self.baseline, np.nan)

    @property
    def pooled(self) -> np.ndarray:
        """Sum of `mse` over joints / sum of `baseline` [n], weighted as in a loss in physical units."""
        return self.mse.sum(1) / max(float(self.baseline.sum()), 1e-12)


class Regressor(nn.Module):
    """An encoder and an MLP head, three layers of 256: pictures [N, stack, H, W, 3] -> encoded positions [N, K].

    The embeddings of stacked frames are concatenated, unless the encoder embeds a whole stack at once.
    """

    def __init__(self, encoder: Encoder, outputs: int, stack: int = 1):
        super().__init__()
        self.encoder = encoder
        self.head = MLP(encoder.width * stack // encoder.frames, HIDDEN, outputs, LAYERS)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [N, stack, H, W, 3] -> [N, K]."""
        return self.head(self.encoder.read(images))


def fresh_encoder(init: str, seed: int, **options: Any) -> Encoder:
    """A new encoder, its weights drawn from `seed` as `init` (``model.init``) says. options: those of `Encoder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "joints encoder"))
        encoder = Encoder(**options)
    if init in INITIAL:
        INITIAL[init](encoder, torch.Generator().manual_seed(torch_seed(seed, "joints encoder")))
    return encoder


def finetune(
    encoder: Encoder,
    data: JointData,
    train: np.ndarray,
    test: np.ndarray,
    schedule: Schedule,
    *,
    stack: int = 1,
    weight_decay: float = WEIGHT_DECAY,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Curve:
    """Finetune a copy of `encoder` with a new head on rows `train` [n]; test on rows `test` [m].

    `encoder` and PyTorch's global generator are not changed. weight_decay: L2 penalty of Adam on all weights.
    """
    device = encoder.like.device
    encoder = copy.deepcopy(encoder).float().requires_grad_(True)
    set_compute_dtype(encoder, None)
    targets = data.targets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "joints head"))
        net = Regressor(encoder, targets.size, stack).to(device)
    order = generator(seed, "joints batches")
    truth, held = data.positions(train), data.positions(test)
    encoded = targets.encode(truth)  # [n, K]
    mean, spread = encoded.mean(0), np.maximum(encoded.std(0), 1e-6)
    if schedule.scale == "physical":
        mean, spread = np.zeros_like(mean), np.ones_like(spread)
    labels = torch.as_tensor((encoded - mean) / spread, dtype=torch.float32, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=schedule.lr, weight_decay=weight_decay)
    when = set(np.linspace(0, schedule.updates, schedule.evaluations + 1).round().astype(int)[1:].tolist())
    waiting = np.zeros(0, np.int64)
    steps, errors = [], []
    for done in range(1, schedule.updates + 1):
        if len(waiting) < min(schedule.batch, len(train)):
            waiting = order.permutation(len(train))
        chosen, waiting = np.split(waiting, [schedule.batch])
        images = torch.as_tensor(data.images(train[chosen], stack)).to(device)
        loss = (net(images) - labels[torch.as_tensor(chosen, device=device)]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done in when:
            predicted = predict(net, data, test, stack) * spread + mean
            steps.append(done)
            errors.append(targets.squared_errors(predicted, held).mean(0))
        progress(done)
    baseline = targets.squared_errors(encoded.mean(0, keepdims=True), held).mean(0)
    return Curve(np.array(steps), np.stack(errors), baseline)


@torch.no_grad()
def predict(net: Regressor, data: JointData, rows: np.ndarray, stack: int) -> np.ndarray:
    """Predictions for rows [m], float64 [m, K]."""
    device = net.encoder.like.device
    parts = [
        net(torch.as_tensor(data.images(part, stack)).to(device)).double().cpu().numpy()
        for part in np.split(rows, range(EVALUATED, len(rows), EVALUATED))
    ]
    return np.concatenate(parts)


def scaled_sizes(available: int, policies: int) -> list[int]:
    """The paper's train sizes, scaled so that the largest uses all available pairs."""
    sizes = {available * size // PAPER_SIZES[-1] // policies * policies for size in PAPER_SIZES}
    return sorted(size for size in sizes if size)
