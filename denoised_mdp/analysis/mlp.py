"""An MLP probe: it also reads what a latent holds in a form that a linear probe cannot read."""

from __future__ import annotations

import numpy as np
import torch

from denoised_mdp.analysis.ridge import Standardizer, group_folds
from denoised_mdp.models.networks import MLP

HIDDEN, LAYERS = 128, 2
BATCH, LR, WEIGHT_DECAY = 256, 1e-3, 1e-4


def mlp_predictions(
    features: np.ndarray,
    targets: np.ndarray,
    groups: np.ndarray,
    others: np.ndarray,
    *,
    seed: int = 0,
    epochs: int = 30,
) -> np.ndarray:
    """Train on rows (features [n, F] -> targets [n, K]) and predict the targets of `others` [m, F]: float64 [m, K].

    One fold of the groups is held out to choose the epoch for each target. Predicting the mean is a candidate (epoch
    0), so targets that cannot be learned get no wild predictions. PyTorch's global generator is not changed.
    """
    held = group_folds(groups)[seed % len(group_folds(groups))]
    inputs, outputs = (Standardizer.of(values[~held]) for values in (features, targets))
    x, x_held, x_other = (
        torch.as_tensor(inputs(rows), dtype=torch.float32) for rows in (features[~held], features[held], others)
    )
    y, y_held = (torch.as_tensor(outputs(rows), dtype=torch.float32) for rows in (targets[~held], targets[held]))
    random = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MLP(x.shape[1], HIDDEN, y.shape[1], LAYERS)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, foreach=True)
    best, chosen = y_held.square().mean(0), torch.zeros(len(x_other), y.shape[1])  # predicting the mean
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = LR * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        for rows in torch.randperm(len(x), generator=random).split(BATCH):
            loss = (net(x[rows]) - y[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = (net(x_held) - y_held).square().mean(0)  # [K]
            better = error < best
            if better.any():
                best = torch.where(better, error, best)
                chosen = torch.where(better, net(x_other), chosen)
    return outputs.undo(chosen.double().numpy())
