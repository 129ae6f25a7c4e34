"""Health of a run: does each latent do its job? Metrics, and warnings where one does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan

import numpy as np
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.world_model_agent import WorldModelAgent
from denoised_mdp.analysis.data import Frozen, decode
from denoised_mdp.analysis.factors import TOO_FEW, FactorMatrix
from denoised_mdp.models.latent import Latent
from denoised_mdp.models.structure import Table
from denoised_mdp.progress import track
from denoised_mdp.rollout import Episode

ACTIVE = 0.01
"""nats per step from which a dimension counts as active"""
UNUSED_NATS, UNUSED_SHARE = 0.05, 0.02
"""a noise latent with fewer nats, or one that explains a smaller share of the reconstruction's movement, is unused"""
AT_FLOOR = 1.05
"""the signal's KL sits on its floor at up to this many times the free nats"""
EXPLAINED = 0.25
"""R^2 from which a latent counts as holding something"""
VARIES = 0.01
"""std over situations from which a feature counts as varying, relative to the root mean square of all features"""
EVERY = 5
"""only one in this many rows is decoded"""


@dataclass
class Health:
    """Metrics of one run's latents, and warnings."""

    nats: dict[str, float]
    """mean KL between posterior and prior of each latent, nats per step"""
    active: dict[str, tuple[int, int]]
    """(dimensions of a latent's state with at least `ACTIVE` nats, all); without latents, (features that vary, all)"""
    share: dict[str, float]
    """share of the reconstruction's movement that each latent explains when it alone moves; the sum need not be 1"""
    below_floor: float
    """share of the steps in which the signal's KL is at most the free nats"""
    image_r2: float
    """share of the pixels' variance, about each pixel's mean, that decoded observations explain; nan if none are"""
    signal: dict[str, float]
    """mean R^2 of the signal factors from each latent, by a quick probe; nan if there are too few episodes"""
    noise: dict[str, float]
    """the same for the noise; also nan without noise"""
    warnings: list[str]


def measure_health(
    agent: Agent, recordings: Sequence[Episode], frozen: Sequence[Frozen], matrix: FactorMatrix | None
) -> Health:
    """Examine an agent on held-out episodes; `matrix`: the same model's factor matrix, None without ground truth."""
    if not isinstance(agent, WorldModelAgent):
        return features_health(agent.seen, frozen, matrix)
    table, floor, decodes = agent.world_model.table, agent.world_model.free_nats, agent.decodes
    reconstructs = decodes and agent.world_model.target == "observation"
    split = {
        name: torch.cat([one.posterior[name].kl(one.prior[name]) for one in frozen]) for name in table.names
    }  # {name: [n, variables]}
    counted = [row.name for row in table.free if row.seen_by_policy]
    free = sum(split[name].sum(-1) for name in counted)  # [n]
    nats = {name: float(part.sum(-1).mean()) for name, part in split.items()}
    active = {name: (int((part.mean(0) >= ACTIVE).sum()), part.shape[-1]) for name, part in split.items()}
    sources = {
        source: {name: matrix.summary("ridge", name, source).value if matrix else nan for name in table.names}
        for source in ("signal", "noise")
    }
    health = Health(
        nats=nats,
        active=active,
        share=reconstruction_shares(agent, [one.latent for one in frozen]) if decodes else dict.fromkeys(nats, nan),
        below_floor=float((free <= floor).float().mean()) if counted else 0.0,
        image_r2=image_r_squared(agent, recordings, frozen) if reconstructs else nan,
        signal=sources["signal"],
        noise=sources["noise"],
        warnings=[],
    )
    health.warnings = warnings_of(health, table, floor) + _unknown(matrix)
    return health


def features_health(seen: str, frozen: Sequence[Frozen], matrix: FactorMatrix | None) -> Health:
    """Health of an agent without latents: how many features vary at all, and what they hold; all else is nan."""
    features = np.concatenate([one.parts()[seen] for one in frozen])  # [n, F]
    share = np.std(features, axis=0) / max(float(np.sqrt(np.square(features).mean())), 1e-12)  # [F]
    varying = int((share >= VARIES).sum())
    signal, noise = (
        {seen: matrix.summary("ridge", seen, source).value if matrix else nan} for source in ("signal", "noise")
    )
    warnings = []
    if 2 * varying < len(share):
        warnings.append(
            f"{seen} has collapsed: {varying} of {len(share)} features differ between situations. Train another seed,"
            " or with smaller learning rates."
        )
    none = {seen: nan}
    active = {seen: (varying, len(share))}
    return Health(none, active, none, nan, nan, signal, noise, warnings + _unknown(matrix))


def _unknown(matrix: FactorMatrix | None) -> list[str]:
    """Warnings about what too few episodes leave unknown."""
    return [
        f"Unknown how much {source} the latents hold: {matrix.reason('ridge', source)}"
        for source in ("signal", "noise")
        if matrix and matrix.summary("ridge", matrix.seen, source).note == TOO_FEW
    ]


def warnings_of(health: Health, table: Table, free_nats: float) -> list[str]:
    """Warnings that follow from the metrics, one text each."""
    out = []
    for name in table.noise:
        nats, share = health.nats[name], health.share[name]
        if nats < UNUSED_NATS or share < UNUSED_SHARE:
            out.append(
                f"{name} is unused: {nats:.2f} nats per step, {share:.0%} of the reconstruction's movement. Train"
                f" longer, or make it cheaper (smaller model.{name}.beta)."
            )
    free = [row.name for row in table.free if row.seen_by_policy]
    if free and 0 < free_nats and (nats := sum(health.nats[name] for name in free)) <= AT_FLOOR * free_nats:
        names = " + ".join(free)
        out.append(
            f"KL of {names} sits on its floor: {nats:.2f} nats per step where {free_nats:g} are free, and"
            f" {health.below_floor:.0%} of the steps below. Anything may stay in {names} free, noise included: train"
            " longer, or lower model.kl.free_nats."
        )
    signal, noise = health.signal, health.noise
    seen = [row.name for row in table.seen]
    best = _most(seen, signal)
    for name in table.noise:
        moved = table.rows[name].sees_action  # such a latent may model the agent
        if not moved and signal[name] >= EXPLAINED and not signal[name] < 0.5 * signal[best]:  # unknown best: warn
            out.append(
                f"{name} explains the agent: R^2 of the signal is {signal[name]:.2f} from {name} and"
                f" {_from(best, signal)}. {name} is too cheap, or the agent is predictable: raise model.{name}.beta, or"
                " explore more."
            )
    if table.noise:
        most = _most(table.noise, noise)
        out += [
            f"{name} holds noise: R^2 of the noise is {noise[name]:.2f} from {name} and {_from(most, noise)}."
            f" Lower model.{most}.beta, or train longer."
            for name in seen
            if noise[name] >= EXPLAINED and not noise[name] < 0.5 * noise[most]
        ]
    if signal[best] < EXPLAINED:
        out.append(
            f"{best} knows little of the signal (R^2 {signal[best]:.2f}): a policy cannot act on what it does not see."
            " Train longer, or use a larger model."
        )
    if health.image_r2 < EXPLAINED:
        out.append(f"The model reconstructs little of the picture (R^2 {health.image_r2:.2f}). Train longer.")
    return out


def _most(names: Sequence[str], r2: Mapping[str, float]) -> str:
    """The name with the largest R^2; an unknown one (nan) ranks last."""
    return max(names, key=lambda name: r2[name] if r2[name] == r2[name] else -inf)


def _from(name: str, r2: Mapping[str, float]) -> str:
    return f"{r2[name]:.2f} from {name}" if isfinite(r2[name]) else f"not known from {name}"


def reconstruction_shares(agent: WorldModelAgent, latents: Sequence[Latent]) -> dict[str, float]:
    """For each latent: 1 - |all move - it alone moves|^2 / |all move - all stand still|^2, over pixels and steps.

    Latents that stand still are frozen at the middle of their episode. 1: the latent by itself causes all movement in
    the reconstruction. Shares of latents that act on the same pixels can sum to less or more than 1. They are nan if
    nothing moves.
    """
    names = latents[0].layout.names
    total, missing = 0.0, dict.fromkeys(names, 0.0)
    for whole in track(latents, "decoding", "episodes"):
        latent = whole.map(lambda tensor: tensor[::EVERY])
        still = whole.map(lambda tensor: tensor[len(tensor) // 2])
        moving = decode(agent, latent)
        total += float((moving - decode(agent, still.map(lambda tensor: tensor[None]))).square().sum())
        for name in names:
            held = latent.replace(**{other: still[other] for other in names if other != name})
            missing[name] += float((moving - decode(agent, held)).square().sum())
    return {name: 1 - value / total if total > 0 else float("nan") for name, value in missing.items()}


def image_r_squared(agent: WorldModelAgent, recordings: Sequence[Episode], frozen: Sequence[Frozen]) -> float:
    """Share of the variance of all pixels, about each pixel's mean, that the reconstruction explains."""
    images = np.concatenate([recording.observation[::EVERY] for recording in recordings]).astype(np.float32)
    images = torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5
    decoded = torch.cat([decode(agent, one.latent.map(lambda tensor: tensor[::EVERY])) for one in frozen])
    variance = (images - images.mean(0)).square().sum()
    return float(1 - (images - decoded).square().sum() / variance)
