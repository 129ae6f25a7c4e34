"""replay.latents: segments begin from the latent of the row before, and a stop changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import random_batch, small_agent
from small_runs import finished_run, lines, run_in_parts, run_units, tiny

from denoised_mdp.agents.registry import build_agent
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError
from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.rings import Rings
from denoised_mdp.replay.starts import StoredLatents
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare, report
from denoised_mdp.session import train


class Ring:
    """As much of one as latents need: its places, and which rows it holds."""

    def __init__(self, places, rows=range(100)):
        self.places, self.rows, self.total = places, rows, rows.stop

    def __len__(self):
        return len(self.rows)


def table(places=8, rings=2, width=3):
    return StoredLatents(SimpleNamespace(rings=[Ring(places) for _ in range(rings)]), width, torch.device("cpu"))


def segments(*starts, length=3):
    """Rows [T, B] of segments that start there."""
    return np.array(starts)[None] + np.arange(length)[:, None]


def numbered(ring, rows):
    """A latent for each row that says which one it is, [T, B, 3]."""
    parts = np.broadcast_arrays(100.0 * ring[None], rows, 1.0)
    return torch.from_numpy(np.stack(parts, -1)).float()


def test_segments_begin_from_the_row_before():
    """Of their own ring; rows that were never learned from, and rows whose place another one took, give zero."""
    stored, ring = table(), np.array([0, 1])
    stored.remember(ring, segments(3, 3), numbered(ring, segments(3, 3)))
    expected = torch.tensor([[0.0, 4.0, 1.0], [100.0, 5.0, 1.0]])
    assert torch.equal(stored.before(ring, segments(5, 6))[0], expected)
    assert torch.equal(stored.before(ring, segments(3, 7))[0], torch.zeros(2, 3))
    assert torch.equal(stored.before(ring, segments(0, 14))[0], torch.zeros(2, 3))  # 13 would lie where 5 does
    stored.remember(ring, segments(11, 3), numbered(ring, segments(11, 3)))
    assert torch.equal(stored.before(ring, segments(5, 12))[0], torch.zeros(2, 3))  # 12 took the place of 4


def test_a_row_that_has_left_its_ring_is_forgotten_whatever_the_slack():
    """Its place is free still: with more slack, it stays so for longer."""
    stored, ring = table(rings=1), np.zeros(1, int)
    stored.remember(ring, segments(3), numbered(ring, segments(3)))
    for oldest in (4, 5):
        stored.rings.rings[0] = Ring(8, range(oldest, 10))
        assert stored.before(ring, segments(5)).any() == (oldest == 4)


def test_in_larger_rings_the_newest_of_two_rows_of_one_place_counts():
    """Of 8 places, row 6 is evicted, but no learned row took its place; of 12, it would lie where 18 does."""
    stored, ring = table(rings=1), np.zeros(1, int)
    for row in (6, 18):
        stored.remember(ring, segments(row, length=1), numbered(ring, segments(row, length=1)))
    larger = table(places=12, rings=1)
    larger.restore(stored.state())
    for one in (stored, larger):
        assert torch.equal(one.before(ring, segments(19))[0], torch.tensor([[0.0, 18.0, 1.0]]))


def test_a_checkpoint_does_not_depend_on_the_slack():
    """Slack follows from how often they are written, which must change neither what is kept nor its order."""
    found = []
    for places in (8, 11, 14):
        stored, ring = table(places), np.array([0, 1])
        for first in (2, 8, 5, 12, 10):
            rows = segments(first, first + 1)
            stored.remember(ring, rows, numbered(ring, rows))
        for one in stored.rings.rings:
            one.rows, one.total = range(8, 16), 16
        found.append(stored.state())
    for state in found:
        assert state["row"].tolist() == [*range(8, 15), *range(8, 16)]
        assert state["ring"].tolist() == [0] * 7 + [1] * 8
        assert torch.equal(state["value"][:, 1], state["row"].float())
        assert all(torch.equal(state[name], found[0][name]) for name in state)


def test_of_a_row_in_several_segments_the_latest_in_its_segment_counts():
    ring, rows = np.zeros(3, int), segments(4, 5, 3)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        stored = table()
        latents = torch.arange(3.0)[:, None, None].expand(3, 3, 3)  # how many rows came before
        stored.remember(ring, rows[:, order], latents)
        assert torch.equal(stored.before(ring, rows + 3)[0, :, 0], torch.tensor([2.0, 2.0, 2.0]))
        assert stored.before(ring[:1], np.array([[4]]))[0, 0, 0] == 0.0  # row 3 begins the one segment that has it


def test_the_state_survives_and_grows():
    stored, ring = table(), np.array([0, 1])
    stored.remember(ring, segments(9, 10), numbered(ring, segments(9, 10)))
    for places in (8, 12):
        other = table(places)
        other.restore(stored.state())
        for at in (10, 11, 12):
            expected = stored.before(ring, segments(at, at + 1))
            assert torch.equal(other.before(ring, segments(at, at + 1)), expected) and expected.any()


@pytest.mark.parametrize("structure", ["2b", "2c"])
def test_a_segment_in_two_halves_is_the_whole(structure):
    """The second half, begun from the latents that the first one left, has the same posteriors and KL."""
    agent = small_agent(structure)
    model, batch = agent.world_model, agent.to_device(random_batch(length=6))
    batch["is_first"][:] = False
    batch["is_first"][4, 1] = True
    noise = model.draw_noise(6, 3, generator=torch.Generator().manual_seed(0))
    inputs = {name: batch[name] for name in ("observation", "action", "is_first")}
    whole = model.filter(**inputs, noise=noise).latent
    half = {name: value[3:] for name, value in batch.items()}
    _, latent, _, _ = model.loss(**half, noise=noise[3:], start=whole.features()[2:3])
    torch.testing.assert_close(latent.features(), whole.features()[3:])


@pytest.mark.parametrize("model", ["2b", "confounder", "repo", "tia"])
def test_an_update_learns_the_second_half_from_where_the_first_one_ended(model, monkeypatch):
    agent = build_agent(load_config(["preset=debug", f"model={model}"]), 2).double()
    learner, batch = agent.world_model, agent.to_device(random_batch(length=6))
    batch["is_first"][:] = False
    noise = learner.draw_noise(6, 3, generator=torch.Generator().manual_seed(0))
    whole = learner.filter(batch["observation"], batch["action"], batch["is_first"], noise).latent.features()
    monkeypatch.setattr(learner, "draw_noise", lambda *shape, **_: noise[3:])
    half = {name: value[3:] for name, value in batch.items()}
    found = learner.update(half | {"start": whole[2:3]}, agent.random).latent.features()
    torch.testing.assert_close(found, whole[3:])


def test_an_episode_begins_from_zero_whatever_is_stored():
    agent = small_agent()
    model, batch = agent.world_model, agent.to_device(random_batch())
    batch["is_first"][0] = True
    noise = model.draw_noise(4, 3, generator=torch.Generator().manual_seed(0))
    losses = [model.loss(**batch, noise=noise, start=start)[0] for start in (None, torch.ones(1, 3, agent.latent_size))]
    assert torch.equal(*losses)


@pytest.mark.parametrize("model", ["2b", "repo", "tia"])
def test_agents_give_the_latents_of_the_batch(model):
    agent = build_agent(load_config(["preset=debug", f"model={model}"]), 2)
    agent.update(random_batch())
    assert agent.learned is None
    twin = build_agent(load_config(["preset=debug", f"model={model}"]), 2)
    twin.update(random_batch() | {"start": torch.zeros(1, 3, twin.latent_size)})
    assert twin.learned.shape == (4, 3, twin.latent_size) and twin.learned.abs().sum() > 0
    for ours, theirs in zip(agent.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # zeros change nothing


SOURCES = {
    "rings": lambda replay: replay,
    "prefetch": lambda replay: Prefetch(replay, pin=False),
    "on device": lambda replay: OnDeviceReplay(replay, torch.device("cpu")),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_say_which_rows_they_gave(kind, tmp_path):
    """A batch that was read in advance, too."""
    replay = Rings(tmp_path, 2, 60, (8, 8, 3), 1)
    for row in range(30):
        for ring in range(2):
            replay.add(ring, np.zeros((8, 8, 3), np.uint8), np.zeros(1), 100.0 * ring + row, row % 10 == 0)
    source, rng = SOURCES[kind](replay), np.random.default_rng(0)
    for _ in range(3):
        batch = source.sample(5, 4, rng)
        ring, rows = source.chosen
        if kind == "prefetch":
            source.begin(5, 4, rng)
        assert np.array_equal(np.asarray(batch["reward"]), 100.0 * ring + rows)
    assert kind != "prefetch" or source.hits == 2
    source.close()


OPTIONS = ["policy.hidden=8", "train.eval_every=0", "replay.latents=true"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    return finished_run(tmp_path_factory.mktemp("whole"), *OPTIONS)


def test_a_stop_changes_nothing(whole, tmp_path):
    """Between two updates of a round, and when the replay is smaller than the run."""
    less = [*OPTIONS, "replay.capacity=30"]
    assert train(tiny(tmp_path / "small", *less))
    for undisturbed, options in ((whole, OPTIONS), (tmp_path / "small", less)):
        parts = tmp_path / f"parts of {undisturbed.name}"
        run_in_parts(tiny(parts, *options), 41, 1, 21)
        assert report(compare(undisturbed, parts))


def test_it_changes_what_is_learned_and_is_in_the_checkpoint(whole, tmp_path):
    assert train(tiny(tmp_path, *OPTIONS[:-1]))
    losses = [[line.get("model/loss") for line in lines(path)] for path in (whole, tmp_path)]
    assert losses[0] != losses[1]
    for path, kept in ((whole, True), (tmp_path, False)):
        _, state = checkpoint.load(path / "checkpoints")
        assert (state["latents"] is not None) == kept
    _, state = checkpoint.load(whole / "checkpoints")
    assert len(state["latents"]["row"]) > 50 and state["latents"]["value"].abs().sum() > 0


@pytest.mark.parametrize("change", [{"ring": 7}, {"value": 3}, None])
def test_latents_that_do_not_fit_are_one_line(tmp_path, change):
    """Whole files of impossible content: a ring that is not there, narrower latents, none."""
    config = tiny(tmp_path / "run", *OPTIONS)
    run_units(config, 60)
    folder = tmp_path / "run" / "checkpoints"
    (step,) = checkpoint.list_steps(folder)[-1:]
    _, state = checkpoint.load(folder, step)
    latents = state["latents"]
    changed = {"ring": lambda: latents["ring"] + 7, "value": lambda: latents["value"][..., :3]}
    state["latents"] = latents | {name: changed[name]() for name in change} if change else None
    checkpoint.save(folder, step, state, keep=1)
    with pytest.raises(UserError, match="does not fit"):
        run_units(config, 1)


def test_processes_and_other_agents_are_refused(tmp_path):
    for option in ("train.processes=2", "agent=sac_pixels"):
        with pytest.raises(UserError, match="replay.latents"):
            tiny(tmp_path, "replay.latents=true", option)
