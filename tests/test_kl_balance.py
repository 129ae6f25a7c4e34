"""Options of the KL: dyn parts the gradients of posteriors and priors, weights move with the updates."""

import dataclasses

import pytest
import torch
from conftest import STRUCTURES, configured, random_batch, small_agent

from denoised_mdp.models.denoised import DenoisedModel
from denoised_mdp.models.distributions import DISTRIBUTIONS
from denoised_mdp.models.losses import KLSchedule, KLWeights, kl_per_latent
from denoised_mdp.models.structure import Table

BETAS = {"x": 0.5, "y": 0.25, "z": 0.125}
T, B = 4, 3


def table_of(structure, betas=BETAS):
    return Table([dataclasses.replace(row, beta=betas[row.name]) for row in STRUCTURES[structure]])


def sides(table):
    """Posterior and prior of random numbers, and the numbers, {name: tensor} each."""
    torch.manual_seed(0)
    numbers, distributions = [], []
    for _ in range(2):
        raw, side = {}, {}
        for row in table.rows.values():
            kind = DISTRIBUTIONS[row.distribution]
            shape = (T, B, kind.raw_width(row.state, row.classes))
            raw[row.name] = torch.randn(shape, dtype=torch.float64).requires_grad_()
            side[row.name] = kind.from_raw(raw[row.name], row.classes)
        numbers.append(raw), distributions.append(side)
    return distributions, numbers


def gradients(kl, table):
    """Of the total, with respect to the raw numbers of posterior and prior: ({name: ...}, {name: ...})."""
    distributions, (posterior, prior) = sides(table)
    loss, _ = kl.total(*distributions, table)
    loss.backward()
    return [{name: raw.grad for name, raw in side.items()} for side in (posterior, prior)]


def middle(table):
    """Free nats that clamp half of the elements of the signal's KL."""
    distributions, _ = sides(table)
    return kl_per_latent(*distributions)["x"].median().item()


@pytest.mark.parametrize("strategy", ["A", "mean"])
@pytest.mark.parametrize("structure", ["2c", "categorical", "dreamer"])
def test_posteriors_keep_their_weights_and_priors_get_their_own(structure, strategy):
    """Of the loss without dyn: the posteriors' gradient as it is, the priors' times dyn / (alpha beta)."""
    table = table_of(structure)
    free = middle(table) if strategy == "A" else 0.01
    kl = configured(KLWeights, alpha=2.0, free_nats=free, free_nats_strategy=strategy)
    plain, balanced = gradients(kl, table), gradients(dataclasses.replace(kl, dyn=0.7), table)
    for name in table.rows:
        assert plain[0][name].abs().sum() > 0
        torch.testing.assert_close(balanced[0][name], plain[0][name], rtol=1e-6, atol=0)
        ratio = 0.7 / (2.0 * BETAS[name])
        torch.testing.assert_close(balanced[1][name], ratio * plain[1][name], rtol=1e-6, atol=1e-15)


def test_strategy_a_is_the_special_case_of_equal_weights():
    """dyn = alpha beta: every gradient of the whole model, to 1e-6."""
    found = []
    for dyn in (None, 2.0):
        agent = small_agent("2c")
        model, batch = agent.world_model, agent.to_device(random_batch())
        noise = model.draw_noise(4, 3, generator=torch.Generator().manual_seed(0))
        model.kl = configured(KLWeights, alpha=2.0, free_nats=1e-3, dyn=dyn)
        model.loss(**batch, noise=noise)[0].backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).norm() <= 1e-6 * gradient.norm(), name


def test_each_side_of_the_loss_moves_its_own_distribution():
    """With a vanishing dyn the priors stand still, with a vanishing alpha the posteriors; y's beta slows no prior."""
    table = table_of("2b", {"x": 1.0, "y": 1e-6})
    kl = configured(KLWeights, alpha=1.0, free_nats=0.0, dyn=1e-12)
    posterior, prior = gradients(kl, table)
    assert posterior["x"].abs().max() > 1e-2 and all(side.abs().max() < 1e-10 for side in prior.values())
    posterior, prior = gradients(dataclasses.replace(kl, alpha=1e-12, dyn=1.0), table)
    assert all(side.abs().max() < 1e-10 for side in posterior.values())
    assert all(side.abs().max() > 1e-2 for side in prior.values())


def test_the_value_is_the_sum_of_both_sides_and_metrics_are_nats():
    table = table_of("2c")
    distributions, _ = sides(table)
    free = middle(table)
    total, kl = configured(KLWeights, alpha=2.0, free_nats=free, dyn=0.7).total(*distributions, table)
    plain = kl_per_latent(*distributions)
    clamped = {name: (part.clamp(min=free) if name == "x" else part).mean() for name, part in plain.items()}
    expected = sum((2.0 * BETAS[name] + 0.7) * part for name, part in clamped.items())
    torch.testing.assert_close(total, expected)
    for name, part in plain.items():
        torch.testing.assert_close(kl[name], part)


def updated(alpha, warmup=0, updates=1, relax=1.0, relax_after=0, beta=None):
    """Loss of a small model's last update, and the model; its KL weight is alpha or moves from or to it."""
    agent = small_agent("2c")
    rows = [
        dataclasses.replace(row, beta=beta or row.beta) if row.free else row
        for row in agent.world_model.table.rows.values()
    ]
    schedule = configured(KLSchedule, warmup=warmup, relax=relax, relax_after=relax_after)
    model = configured(DenoisedModel, Table(rows), 2, depth=2, embed=16, hidden=8, kl_schedule=schedule).double()
    model.kl = configured(KLWeights, alpha=alpha, free_nats=0.1)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    for seed in range(updates):
        metrics = model.update(agent.to_device(random_batch()), torch.Generator().manual_seed(seed)).metrics
    return metrics["model/loss"].item(), model


def test_the_weight_grows_with_the_updates():
    """The first of 4 costs a quarter of alpha."""
    assert updated(2.0, warmup=4)[0] == pytest.approx(updated(0.5)[0], rel=1e-9)
    assert updated(2.0)[0] != pytest.approx(updated(0.5)[0], rel=1e-4)


def test_a_grown_weight_stays_and_is_saved():
    assert updated(2.0, warmup=4, updates=3)[1].state_dict()["kl_schedule.updates"].item() == 3
    assert updated(2.0, warmup=4, updates=6)[1].kl_schedule.weights()[0].item() == 1.0
    assert not any("kl_schedule" in key for key in updated(2.0)[1].state_dict())


@pytest.mark.parametrize("strategy", ["A", "B", "mean"])
def test_a_relaxed_signal_leaves_the_noise_its_price(strategy):
    """The factor is of the signal's terms alone."""
    table = table_of("2c")
    distributions, _ = sides(table)
    plain = kl_per_latent(*distributions)
    kl = configured(KLWeights, alpha=2.0, free_nats=0.1, free_nats_strategy=strategy)
    noise = sum(2.0 * BETAS[name] * plain[name].mean() for name in ("y", "z"))
    whole, _ = kl.total(*distributions, table)
    relaxed, _ = kl.total(*distributions, table, 1.0, 0.25)
    torch.testing.assert_close(relaxed, noise + 0.25 * (whole - noise))


def test_the_signal_is_relaxed_after_its_updates():
    """Updates 1 and 2 cost the whole, the third a quarter."""
    assert updated(2.0, relax=0.25, relax_after=2, updates=2)[0] == updated(2.0, updates=2)[0]
    assert updated(2.0, relax=0.25, relax_after=2, updates=3)[0] < updated(2.0, updates=3)[0] - 1e-6
    assert updated(2.0, relax=0.25)[0] == pytest.approx(updated(2.0, beta=0.25)[0], rel=1e-9)


@pytest.mark.parametrize("strategy", ["A", "B", "mean"])
def test_rows_that_are_free_share_their_nats(strategy):
    """Of the confounder's table: c and x together are clamped, written out."""
    table = table_of("confounder", {"c": 0.5, "x": 0.5, "y": 0.25})
    kl = kl_per_latent(*sides(table)[0])
    together = kl["c"] + kl["x"]
    for free in (together.median().item(), together.mean().item() + 0.1):
        clamped = together.clamp(min=free).mean()
        expected = {
            "A": 0.5 * clamped,
            "B": 0.25 * clamped + 0.25 * together.mean(),
            "mean": 0.5 * together.mean().clamp(min=free),
        }
        found = configured(KLWeights, alpha=2.0, free_nats=free, free_nats_strategy=strategy).weighted(kl, table)
        torch.testing.assert_close(found, 2.0 * (expected[strategy] + 0.25 * kl["y"].mean()))


def test_what_moves_with_the_updates_is_the_posteriors_price_alone():
    """With dyn: the shares weigh what posteriors pay, and the priors learn as fast as ever."""
    table = table_of("2c")
    distributions, _ = sides(table)
    free, plain = middle(table), kl_per_latent(*distributions)
    clamped = {name: (part.clamp(min=free) if name == "x" else part).mean() for name, part in plain.items()}
    posteriors = sum((0.25 if name == "x" else 1.0) * BETAS[name] * part for name, part in clamped.items())
    total, _ = configured(KLWeights, alpha=2.0, free_nats=free, dyn=0.7).total(*distributions, table, 0.3, 0.25)
    torch.testing.assert_close(total, 0.3 * 2.0 * posteriors + 0.7 * sum(clamped.values()))
