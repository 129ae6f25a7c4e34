"""Reward dissociation at work: the stream of distractors keeps the texture and forgets what tells the reward."""

import pytest
import torch
import torch.nn.functional as F
from conftest import configured
from torch import Tensor, nn

from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.networks import MLP
from denoised_mdp.models.structure import LatentSpec, Table
from denoised_mdp.models.tia import TIA
from denoised_mdp.optim import Adam

SIDE, FEATURES, B, LR = 8, 24, 32, 3e-3


class Flat(nn.Module):
    """Stands for an encoder or a decoder: tiny pictures need no convolutions."""

    def __init__(self, inputs: int, outputs: int, shape: tuple[int, ...]):
        super().__init__()
        self.net, self.shape, self.width = MLP(inputs, 64, outputs), shape, outputs

    @property
    def like(self) -> Tensor:
        """A weight."""
        return self.net.output.weight

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, *shape]."""
        return self.net(x.flatten(1)).unflatten(1, self.shape)


def tia(adversary_weight: float) -> TIA:
    """A small TIA for tiny pictures; all else is its own."""
    x = LatentSpec("x", 16, 8, sees_action=True, seen_by_policy=True, free=True)
    y = LatentSpec("y", 16, 8, sees_action=True, rewarded=False, free=True)
    table, pixels, features = Table([x, y]), 3 * SIDE * SIDE, 16 + 8
    options = {"adversary_weight": adversary_weight, "adversary_lr": 3e-3, "lr": LR, "hidden": 32}
    kl = configured(KLWeights, alpha=0.1, free_nats_strategy="mean")  # so small a picture has few nats to pay with
    model = configured(TIA, table, 1, depth=1, embed=FEATURES, kl=kl, **options)
    model.x.encoder, model.y.encoder = (Flat(pixels, FEATURES, (FEATURES,)) for _ in "xy")
    model.decoders = nn.ModuleDict({name: Flat(features, 2 * pixels, (6, SIDE, SIDE)) for name in "xy"})
    model.alone = Flat(features, pixels, (3, SIDE, SIDE))
    groups = {"x": [model.x, model.rewards["x"]], "y": [model.y, model.alone], "decoders": [model.decoders, model.mask]}
    for name, modules in groups.items():
        model.optimizers[name] = Adam((p for module in modules for p in module.parameters()), lr=LR, eps=1e-7)
    return model


def scenes(random: torch.Generator, count: int = B) -> tuple[dict[str, Tensor], Tensor]:
    """A batch of one row each: a dot as bright as the reward in [0, 2], beside stripes; and what the stripes show.

    That is the cosine of their phase, [count].
    """
    reward, phase = 2 * torch.rand(1, count, generator=random), torch.rand(1, count, 1, 1, generator=random)
    axis = torch.arange(SIDE) / SIDE
    picture = torch.full((1, count, SIDE, SIDE), 128.0)
    picture[..., 4:] += 100 * torch.sin(2 * torch.pi * (axis[:, None] + axis[None, 4:] + phase))
    picture[..., 2:6, 1:3] = (28 + 100 * reward)[..., None, None]
    batch = {
        "observation": picture[..., None].expand(*picture.shape, 3).to(torch.uint8),
        "action": torch.zeros(1, count, 1),
        "reward": reward,
        "is_first": torch.ones(1, count, dtype=torch.bool),
        "is_terminal": torch.zeros(1, count, dtype=torch.bool),
    }
    return batch, (2 * torch.pi * phase).cos().flatten()


def r_squared(features: Tensor, target: Tensor) -> float:
    """Of a fresh net [n, F] -> [n], fitted to the first half and tested on the second; a constant has 0."""
    half = len(features) // 2
    net = MLP(features.shape[1], 64, 1, layers=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(net(features[:half]).squeeze(-1), target[:half]).backward()
        optimizer.step()
    with torch.no_grad():
        return 1 - float(F.mse_loss(net(features[half:]).squeeze(-1), target[half:]) / target[half:].var(correction=0))


@pytest.mark.parametrize("adversary_weight", [0.0, 30.0])
def test_what_a_fresh_reward_net_finds_in_the_stream_of_distractors(adversary_weight):
    """Without dissociation most of the reward, since y paints the dot too; with it nothing, and the stripes stay."""
    model, random = tia(adversary_weight), torch.Generator().manual_seed(0)
    for _ in range(160):
        model.update(scenes(random)[0], random)
    batch, stripes = scenes(random, 1024)
    with torch.no_grad():
        noise = model.draw_noise(1, 1024, generator=random)
        latent = model.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent
    x, y = (latent.features(name)[0] for name in "xy")
    reward = batch["reward"][0]
    found = {"x": r_squared(x, reward), "y": r_squared(y, reward), "stripes": r_squared(y, stripes)}
    assert found["x"] > 0.85 and found["stripes"] > 0.6, found
    assert found["y"] < 0.1 if adversary_weight else found["y"] > 0.6, found
