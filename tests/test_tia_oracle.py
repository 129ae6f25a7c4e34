"""TIA's update against an independent re-computation from its equations in float64; and errors that it must notice."""

import oracle
import oracle_tia
import pytest
import torch
from conftest import configured
from oracle_case import CLIPPED_RTOL, agree, agree_all, change, weights
from test_oracle_sensitivity import plant, rows
from test_tia import batch_and_noise, small_agent

from denoised_mdp.models.losses import KLWeights, kl_per_latent
from denoised_mdp.models.tia import TIA


def check_updates(size: int = 64) -> None:
    """Two updates: losses, gradient norm of each group, and all weights after clipped steps."""
    torch.manual_seed(0)
    options = ["model.adversary_steps=3", "model.adversary_weight=500"]
    options += ["model.optimizer.eps=1e-3", "model.optimizer.clip=2", "model.optimizer.lr=1e-3"]
    agent = small_agent(*options, f"env.size={size}")
    model, random = agent.world_model, torch.Generator().manual_seed(3)
    batch, noise = batch_and_noise(model, size)
    batch["reward"] *= 20  # every gradient far above the clip
    filtered = model.filter(*(batch[key] for key in ("observation", "action", "is_first")), noise)
    # A wrong clamp shows: the mean lies above, half of the elements below.
    floor = float(kl_per_latent(filtered.posterior, filtered.prior)["x"].detach().median())
    model.kl = configured(KLWeights, alpha=1.0, free_nats=floor, free_nats_strategy="mean")
    adams = {name: oracle.Adam(6e-4 if name == "adversary" else 1e-3, 1e-3, clip=2) for name in oracle_tia.GROUPS}
    w, drawn = weights(model), []
    model.draw_noise = lambda *shape, generator: (
        drawn.append(TIA.draw_noise(model, *shape, generator=generator)) or drawn[-1]
    )
    for number in range(2):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        metrics = model.update(batch, random).metrics
        noise = dict(zip("xy", drawn[-1].split([3, 4], -1), strict=True))
        old = w
        w, moves, expected = oracle_tia.update(
            w, batch, noise, adams, steps=3, size=size, adversary_weight=500, alone_weight=1.5, free_nats=floor
        )
        for name in ("x", "y"):
            agree(metrics[f"model/loss_{name}"], expected[name], f"loss of {name}")
            agree(metrics[f"model/kl_{name}"], expected["kl"][name], f"KL of {name}")
        agree(metrics["model/mask"], expected["mask"].mean().float(), "mask", 1e-6)
        for name, grads in moves.items():
            agree(metrics[f"model/gradient_{name}"], oracle.norm(grads), f"gradient norm of {name}", CLIPPED_RTOL)
            assert oracle.norm(grads) > 2, name  # the clip acts
        agree_all(change(model.state_dict(), before), change(w, old), f"update {number}:", CLIPPED_RTOL)


@pytest.mark.parametrize("size", [64, 96])
def test_updates_computed_anew(size):
    check_updates(size)


ERRORS = {  # name: (function, right, wrong)
    "picture-once-for-the-decoders": ("TIA.update", "mul_(2.0)", "mul_(1.0)"),
    "picture-twice-for-the-streams": ("TIA.update", ' - terms["image"]', ""),
    "no-adversary": ("TIA.losses", '- self.adversary_weight * terms["reward_y"]', ""),
    "ally": ("TIA.losses", "- self.adversary_weight", "+ self.adversary_weight"),
    "adversary-of-nothing": ("TIA.teach_adversary", "reward, self.reward_std", "0 * reward, self.reward_std"),
    "one-step": ("TIA.teach_adversary", "range(self.adversary_steps)", "range(1)"),
    "alone-paints-for-nothing": ("TIA.losses", "self.alone_weight *", "0.0 *"),
    "mask-mirrored": ("TIA.terms", "painted_y, painted_x, mask", "painted_x, painted_y, mask"),
    "features-for-pictures": ("TIA.paint", "both[:, :3]", "both[:, 3:]"),
    "noise-swapped": ("TIA._filter", "noises[row.name]", "noise.flip(-1)[..., : row.width]"),
    "one-encoder": ("TIA._filter", "stream.encoder(images)", "self.x.encoder(images)"),
    "clamp-of-each": ("KLWeights.weighted", '== "mean"', '== "A"'),
}


@pytest.mark.parametrize(("where", "right", "wrong"), rows(ERRORS))
def test_planted_errors_show(monkeypatch, where, right, wrong):
    plant(monkeypatch, f"models.{'losses' if 'KL' in where else 'tia'}:{where}", right, wrong)
    with pytest.raises(AssertionError):
        check_updates()
