"""Episodes shorter than a segment: what is sampled, that it is learned from, and RePo with a head for ends."""

import numpy as np
import pytest
import torch
from conftest import random_batch
from small_runs import tiny
from test_replay import ACTIONS, SHAPE, EveryChoice, fill, numbers
from torch import nn

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.segments import choose_segments
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.session import Session


@pytest.mark.parametrize("lengths", [[7], [1, 5, 3], [3, 9, 4, 1, 6], [2, 13, 2, 2, 8, 5, 11], [31], [40, 3]])
@pytest.mark.parametrize("slack", [0, 4])
@pytest.mark.parametrize("length", [1, 5, 12])
def test_every_start_exactly_once_over_the_ends_of_episodes(tmp_path, lengths, slack, length):
    """By enumeration: equally likely draws are all runs of consecutive rows that are left, each once."""
    rings = Rings(tmp_path, 1, 20, SHAPE, ACTIONS, slack)
    rings.cross()
    (replay,) = rings.rings
    firsts = np.cumsum([0, *lengths[:-1]])
    for episode in lengths:
        fill(replay, [episode])
        starts = range(max(0, replay.total - 20), replay.total - length + 1)
        assert replay.count_segments(length) == len(starts)
        if not starts:
            continue
        batch = rings.sample(len(starts), length, EveryChoice())
        found = numbers(batch)
        assert sorted(found[0]) == list(starts)
        np.testing.assert_array_equal(found, found[0] + np.arange(length)[:, None])
        np.testing.assert_array_equal(batch["is_first"], np.isin(found, firsts))


def test_segments_never_mix_environments(tmp_path):
    rings = Rings(tmp_path, 2, 40, SHAPE, ACTIONS)
    rings.cross()
    for ring, lengths in zip(rings.rings, ([3, 2, 4], [1, 12]), strict=True):
        fill(ring, lengths)
    source, rows = choose_segments(rings.rings, 5 + 9, 5, EveryChoice())
    np.testing.assert_array_equal(source, [0] * 5 + [1] * 9)
    np.testing.assert_array_equal(rows[0], [*range(5), *range(9)])


@pytest.mark.parametrize(("task", "crosses"), [("dot", False), ("dot_terminating", True)])
def test_segments_cross_ends_where_episodes_can_terminate(tmp_path, task, crosses):
    config = tiny(tmp_path / "run", f"env.task={task}")
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    assert session.replay.rings[0].crosses is crosses
    session.close()


def countdown(left):
    """A picture of how many steps are left, 0 to 10."""
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[: 3 * left] = 255
    return picture


def countdowns(folder, rows=400):
    """A replay of episodes of 3 to 10 steps: a step earns a tenth of the steps that are left then."""
    rings, rng = Rings(folder, 1, rows + 10, (32, 32, 3), 2), np.random.default_rng(0)
    rings.cross()
    (replay,) = rings.rings
    while replay.total < rows:
        steps = int(rng.integers(3, 11))
        replay.add(countdown(steps), np.zeros(2), 0.0, True)
        for left in range(steps - 1, -1, -1):
            replay.add(countdown(left), rng.uniform(-1, 1, 2), left / 10, False, left == 0)
    return rings


class Rows(nn.Module):
    """Stands for an encoder: the mean brightness of each row of a picture, [N, 32]."""

    like, width = torch.zeros(()), 32

    def forward(self, images):
        return images.mean((1, 3))


SMALL = ["model.depth=2", "model.embed=32", "model.reward_hidden=32", "model.reward_std=0.1", "policy.hidden=8"]
SMALL += ["model.optimizer.lr=3e-3", "model.x.belief=16", "model.x.state=6", "policy.horizon=3"]


@pytest.mark.parametrize("model", ["2b", "dreamer", "repo"])
def test_rewards_and_ends_are_learned_from_short_episodes(tmp_path, model):
    """Of 3 to 10 steps, in segments of 20 rows: both are plain in the picture, so both losses fall towards nothing."""
    more = {"2b": ["model.y.belief=8", "model.y.state=4"], "repo": ["model.decoder=false"]}.get(model, [])
    agent = build_agent(load_config([f"model={model}", "env.size=32", *SMALL, *more]), 2, can_terminate=True)
    agent.world_model.encoder = Rows()  # convolutions would take most of the time
    agent.world_model.decode = lambda latent: torch.zeros(latent.belief[..., 0].numel(), 3, 32, 32)
    rings, rng = countdowns(tmp_path), np.random.default_rng(1)
    whole = rings.rings[0].read(np.arange(len(rings)))
    ends = whole["is_terminal"].mean()
    guess = {"reward_error": whole["reward"].var() / 2}  # of the best constant
    guess["continuation_nll"] = -(ends * np.log(ends) + (1 - ends) * np.log(1 - ends))
    found = [agent.update(rings.sample(8, 20, rng), policy=False) for _ in range(120)]
    for name, constant in guess.items():
        late = np.mean([metrics[f"model/{name}"].item() for metrics in found[-20:]])
        assert late < 0.15 * constant, (name, late, constant)


def test_repos_loss_with_a_head_computed_anew():
    """The head's cross-entropy is added, not bounded with the KL, and counts for every part that it reads."""
    options = ["model=repo", *SMALL, "model.initial_beta=0.25"]
    models = [build_agent(load_config(options), 2, can_terminate=ends).double().world_model for ends in (False, True)]
    batch = {name: torch.as_tensor(value) for name, value in random_batch().items()}
    batch |= {name: value.double() for name, value in batch.items() if value.is_floating_point()}
    batch["is_terminal"][1, 0] = batch["is_terminal"][3, 2] = True
    noise = models[1].draw_noise(*batch["reward"].shape, generator=torch.Generator().manual_seed(0))
    (plain, *_), (loss, excess, latent, _, metrics) = (model.loss(**batch, noise=noise) for model in models)
    logits = models[1].continuation(torch.cat((latent.belief, latent.state), -1)).squeeze(-1)
    goes_on = torch.distributions.Bernoulli(logits=logits)
    nll = -goes_on.log_prob((~batch["is_terminal"]).double()).mean()
    torch.testing.assert_close(loss - plain, nll)
    torch.testing.assert_close(metrics["model/continuation_nll"], nll.detach())
    for name, weight in models[1].named_parameters():
        reads = name.startswith(("continuation", "rssm.posteriors", "rssm.transitions.x.", "encoder"))
        gradient = torch.autograd.grad(nll, weight, retain_graph=True, allow_unused=True)[0]
        assert (gradient is not None) <= reads, name
    assert torch.autograd.grad(nll, models[1].encoder.convolutions[0].weight)[0].abs().sum() > 0
