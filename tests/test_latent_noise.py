"""Every latent has draws of its own, in filtering and in imagination; a mean that is free has no gradient."""

import pytest
import torch
from conftest import STRUCTURES, configured, random_batch, small_agent

from denoised_mdp.models.distributions import Gaussian
from denoised_mdp.models.losses import KLWeights
from denoised_mdp.models.structure import Table


@pytest.mark.parametrize("structure", ["2b", "2c", "confounder", "categorical"])
def test_each_latent_is_sampled_from_its_own_noise(structure):
    """Of one filtered row: other noise of one latent changes its sample, and those of latents that read it."""
    agent = small_agent(structure)
    model, batch = agent.world_model, agent.to_device(random_batch(length=1, batch=200))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    layout, random = model.rssm.layout, torch.Generator().manual_seed(0)
    inputs = [batch[name] for name in ("observation", "action", "is_first")]
    noise = model.draw_noise(1, 200, generator=random)
    plain = model.filter(*inputs, noise).latent
    for name in layout.names:
        other = noise.clone()
        layout.split_state(other)[name].copy_(torch.randn(layout.split_state(other)[name].shape, generator=random))
        found = model.filter(*inputs, other).latent
        changed = {one for one in layout.names if not torch.equal(found[one][1], plain[one][1])}
        reads = {row.name for row in model.table.rows.values() if name in row.parents}
        stages = [[row.name for row in stage] for stage in model.table.stages]
        at = next(i for i, stage in enumerate(stages) if name in stage)
        allowed = {name} | {one for stage in stages[at + 1 :] for one in stage}
        assert name in changed and reads <= changed and changed <= allowed, (name, changed)


def test_what_is_imagined_is_drawn_from_the_prior_with_its_own_noise():
    """c from the first columns, x from those behind: mean and std of its prior, written out."""
    agent = small_agent("confounder")
    model = agent.world_model
    before = model.initial(5).select(model.table.seen).map(torch.randn_like)
    action, noise = torch.randn(5, 2, dtype=torch.float64), torch.randn_like(before.state)
    after, first = model.imagine_step(before, action, noise), 0
    assert before.layout.names == ("c", "x")
    for name, width in zip(before.layout.names, before.layout.states, strict=True):
        belief, state = after[name]
        prior = model.rssm.transitions[name].distribution(belief)
        torch.testing.assert_close(state, prior.mean + prior.std * noise[:, first : first + width])
        first += width


def test_a_mean_below_the_free_nats_moves_nothing():
    """Strategy "mean": the mean of the batch decides for all, and where it is free no element has a gradient."""
    table = Table(STRUCTURES["dreamer"])
    for scale, free in ((0.1, True), (2.0, False)):
        mean = scale * torch.arange(6.0, dtype=torch.float64).reshape(2, 3, 1)
        mean.requires_grad_()
        std = torch.ones_like(mean)
        kl = configured(KLWeights, alpha=1.0, free_nats=1.0, free_nats_strategy="mean", dyn=None)
        total, nats = kl.total({"x": Gaussian(mean, std)}, {"x": Gaussian(0 * std, std)}, table)
        total.backward()
        expected = torch.zeros_like(mean) if free else mean.detach() * table.free[0].beta / 6
        torch.testing.assert_close(mean.grad, expected)
        assert total.item() == pytest.approx(table.free[0].beta * max(1.0, nats["x"].mean().item()))
