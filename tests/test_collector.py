"""Several environments side by side, and blocks that are collected while the learner learns."""

import functools
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from faulty_envs import Dying
from small_runs import TINY, run_in_parts, tiny

from denoised_mdp import collector
from denoised_mdp import session as session_module
from denoised_mdp.cli.main import main
from denoised_mdp.collector import Collector, Overlap, ReplayRow
from denoised_mdp.errors import UserError
from denoised_mdp.replay import on_device, rings
from denoised_mdp.replay.on_device import OnDeviceReplay
from denoised_mdp.replay.prefetch import Prefetch
from denoised_mdp.replay.ring import Replay
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run import checkpoint
from denoised_mdp.run.diff import compare
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import prepare
from denoised_mdp.session import Session

SEVERAL = ["train.collect_envs=3", "distractors=camera_jitter,video_background", "train.total_steps=160"]
SEVERAL += ["train.eval_episodes=1", "policy.horizon=4"]
OVERLAP = ["train.overlap=true", "train.collect_workers=1"]


def identical(first, second):
    return {verdict.part: verdict.difference for verdict in compare(first, second) if verdict.difference} == {}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A run of three environments in this process, in one go."""
    config = tiny(tmp_path_factory.mktemp("several") / "run", *SEVERAL)
    run_in_parts(config)
    return config.run_dir


@pytest.fixture(scope="module")
def overlap(tmp_path_factory):
    """A run of three environments in a process, one block ahead of the learner, in one go."""
    config = tiny(tmp_path_factory.mktemp("overlap") / "run", *SEVERAL, *OVERLAP)
    run_in_parts(config)
    return config.run_dir


def test_processes_change_nothing(several, tmp_path):
    run_in_parts(tiny(tmp_path / "run", *SEVERAL, "train.collect_workers=2"))
    assert identical(several, tmp_path / "run")


def test_several_environments_resume_exactly(several, tmp_path):
    run_in_parts(tiny(tmp_path / "run", *SEVERAL), 7, 15)  # units: a turn of three actions, or an update
    assert identical(several, tmp_path / "run")


def test_a_run_that_overlaps_resumes_exactly(overlap, several, tmp_path):
    """Stopped between the updates of a round, while the next block is being played, and after a block."""
    run_in_parts(tiny(tmp_path / "run", *SEVERAL, *OVERLAP), 15, 2, 1)
    assert identical(overlap, tmp_path / "run")
    assert not identical(overlap, several)


class Synchronous:
    """An executor that has done everything before `submit` returns."""

    def __init__(self, *_):
        pass

    def submit(self, function):
        future = Future()
        future.set_result(function())
        return future

    def shutdown(self, **_):
        pass


def test_what_is_learned_does_not_depend_on_who_is_faster(overlap, tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "ThreadPoolExecutor", Synchronous)
    run_in_parts(tiny(tmp_path / "run", *SEVERAL, *OVERLAP))
    assert identical(overlap, tmp_path / "run")


def test_a_block_is_played_with_the_weights_before_the_round_and_arrives_after_it(tmp_path, monkeypatch):
    config = tiny(tmp_path / "run", *OVERLAP, "train.updates=3", "train.eval_every=0", "policy.horizon=4")
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    trainer, rounds = session.trainer, []
    weight = trainer.agent.world_model.encoder.output.weight
    learn, begin, collect = trainer.learn, Overlap.begin, trainer.collect

    def begun(self):
        begin(self)
        rounds.append((weight.detach().clone(),))

    def collected():
        count = len(rounds)
        collect()
        if len(rounds) > count:
            rounds[-1] += (trainer.step, len(session.replay))

    def learned():
        learn()
        before, step, rows = rounds[-1]
        assert torch.equal(trainer.collector.player.world_model.encoder.output.weight, before)
        assert not torch.equal(weight, before)
        assert (trainer.step, len(session.replay)) == (step, rows) or trainer.step == 200

    monkeypatch.setattr(Overlap, "begin", begun)
    trainer.learn, trainer.collect = learned, collected
    trainer.run_to_end()
    session.close()
    assert [step for _, step, _ in rounds] == [80, 120, 160]  # at 200 the run is over
    assert trainer.updates == 9 and trainer.step == 200
    assert [row for *_, row in rounds] == [42, 63, 84]  # an episode of 40 steps has 21 rows


def test_blocks_survive_a_checkpoint(tmp_path):
    """Rows that begin and end episodes come back in the turns that they were in."""
    config = tiny(tmp_path / "run", *SEVERAL, *OVERLAP, "train.collect_envs=2", "train.prefill_steps=120")
    player = Collector(config, environment_maker(config), "cpu")
    agent = session_module.build_agent(config, 2)
    block, again = (Overlap(player, agent, session_module.build_agent(config, 2)) for _ in range(2))
    block.begin()
    again.restore(block.state())
    turns, restored = block.take(), again.take()
    assert block.turns() == [] == block.state()["block"]
    block.close(), again.close()
    assert len(turns) == len(restored) == 30 and len(turns[20][0]) == 2
    for turn, other in zip(turns, restored, strict=True):
        for rows, others in zip(turn, other, strict=True):
            for row, one in zip(rows, others, strict=True):
                for name in ReplayRow._fields:
                    np.testing.assert_array_equal(getattr(row, name), getattr(one, name))


def test_the_first_of_several_environments_is_the_one_that_plays_alone(several, tmp_path):
    config = tiny(tmp_path / "run", *SEVERAL, "train.collect_envs=1", "train.total_steps=80")
    run_in_parts(config)
    replays = []
    for path in (config.run_dir, several):
        _, state = checkpoint.load(RunFolder(path).checkpoints)
        replays.append(Rings.open(RunFolder(path).replay, state["replay"], read_only=True))
    alone, (first, *others) = replays[0].rings[0], replays[1].rings
    rows = np.arange(14)  # random actions, 28 of 80 steps
    expected = alone.read(rows)
    for name, column in first.read(rows).items():
        np.testing.assert_array_equal(column, expected[name])
    for other in others:
        assert (other.read(rows)["observation"] != expected["observation"]).any((1, 2, 3)).all()
        assert (other.read(rows)["action"][1:] != expected["action"][1:]).all()
    for replay in replays:
        replay.close()


def test_segments_come_from_all_rings_alike(tmp_path):
    """Rings of episodes of 5, 9 and 3 rows: 2, 6 and 0 segments of 4 rows, all equally likely, none mixed."""
    replay = Rings(tmp_path, 3, 60, (2, 2, 3), 1)
    for ring, length in enumerate((5, 9, 3)):
        for row in range(length):
            image = np.full((2, 2, 3), 10 * ring + row, np.uint8)
            replay.add(ring, image, np.array([row]), 100 * ring + row, row == 0)
    assert len(replay) == 17
    batch = replay.sample(8000, 4, np.random.default_rng(0))
    first = batch["observation"][0, :, 0, 0, 0]
    np.testing.assert_array_equal(batch["observation"][:, :, 1, 1, 2], first + np.arange(4)[:, None])
    np.testing.assert_array_equal(batch["reward"], first // 10 * 100 + batch["action"][..., 0])
    starts, counts = np.unique(first, return_counts=True)
    assert starts.tolist() == [0, 1, 10, 11, 12, 13, 14, 15]
    assert ((counts - 1000) ** 2 / 1000).sum() < 24.3  # chi-square of 7 degrees of freedom, one in a thousand
    replay.close()


class Source:
    """Rows that arrive in a replay of several rings, and another way to draw batches from it."""

    def __init__(self, folder, count, source):
        self.folder, self.count, self.source, self.rng = folder, count, source, np.random.default_rng(1)
        self.streams = [np.random.default_rng(3) for _ in range(2)]
        self.replay = Rings(folder, count, 20 * count, (4, 4, 3), 2, slack=5 * count)
        self.other = source(self.replay)

    def add(self, rows, begin=True):
        for row in range(rows):
            for ring in range(self.count):
                image = self.rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                self.replay.add(ring, image, self.rng.normal(size=2), self.rng.normal(), row % 8 == 0 and begin)

    def assert_same(self, size=9, length=4, lead=0):
        one, two = self.streams
        expected, batch = self.replay.sample(size, length, one, lead), self.other.sample(size, length, two, lead)
        assert expected.keys() == batch.keys() and one.bit_generator.state == two.bit_generator.state
        for name, column in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), column)

    def open_again(self):
        state = self.replay.state()
        self.other.close()
        self.replay = Rings.open(self.folder, state, 40 * self.count, 5 * self.count)
        self.other = self.source(self.replay)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["device", "prefetch"])
def test_every_source_gives_the_same_batches(tmp_path, count, kind, monkeypatch):
    """While rows arrive, others are evicted, and after the replay was opened again with more room."""
    monkeypatch.setattr(on_device, "CHUNK", 7)
    device = torch.device("cpu")
    make = {"device": lambda rings: OnDeviceReplay(rings, device), "prefetch": lambda rings: Prefetch(rings, pin=False)}
    case = Source(tmp_path, count, make[kind])
    for rows in (8, 1, 3, 24, 40):
        case.add(rows)
        for _ in range(3):
            case.assert_same()
            if kind == "prefetch":
                case.other.begin(9, 4, case.streams[1])
    assert kind == "device" or case.other.hits == 10
    case.open_again()
    case.assert_same()
    case.add(30, begin=False)
    case.assert_same()
    case.other.close()


def test_what_was_read_ahead_counts_only_if_it_is_what_is_asked_for(tmp_path):
    case = Source(tmp_path, 1, lambda rings: Prefetch(rings, pin=False))
    case.add(8)
    for hits, change in enumerate(
        (
            lambda: case.assert_same(size=8),
            lambda: case.assert_same(length=3),
            lambda: case.assert_same(lead=2),
            lambda: case.add(1, begin=False),
            lambda: [stream.random() for stream in case.streams],
        )
    ):
        case.other.begin(9, 4, case.streams[1])
        change()
        case.assert_same()
        assert case.other.hits == hits
        case.other.begin(9, 4, case.streams[1])
        case.assert_same()
        assert case.other.hits == hits + 1
        case.assert_same()  # nothing was begun
        assert case.other.hits == hits + 1
    case.other.close()


def test_all_batches_of_a_round_but_its_first_are_prefetched(tmp_path):
    config = tiny(
        tmp_path / "run", "replay.memory=prefetch", "train.updates=3", "train.eval_every=0", "policy.horizon=4"
    )
    run = RunFolder.create(config.run_dir)
    prepare(config, run)
    session = Session(config, run)
    session.trainer.run_to_end()
    assert session.trainer.updates == 9 and session.trainer.batches.source.hits == 6
    session.close()


def test_a_short_replay_is_reported_when_it_is_asked(tmp_path):
    source = Prefetch(Rings(tmp_path, 1, 5, (4, 4, 3), 2), pin=False)
    for row in range(4):
        source.rings.add(0, np.zeros((4, 4, 3), np.uint8), np.zeros(2), 0.0, row == 0)
    rng = np.random.default_rng(0)
    assert source.sample(2, 4, rng)["reward"].shape == (4, 2)
    for ask in (source.sample, source.begin):
        with pytest.raises(UserError, match="No segment of 5 rows"):
            ask(2, 5, rng)
    source.close()


@pytest.mark.parametrize("memory", ["device", "prefetch"])
def test_a_run_from_another_source_is_the_same_run(several, tmp_path, memory):
    run_in_parts(tiny(tmp_path / "run", *SEVERAL, f"replay.memory={memory}"), 20, 2)
    assert identical(several, tmp_path / "run")


def test_a_copy_that_acts_elsewhere_plays_the_same(several, tmp_path, monkeypatch):
    """With the weights of each moment, and after a stop; on the learner's own device no bit may differ."""
    players, turn = [], Collector.turn

    def watched(self, agent):
        players.append(agent)
        return turn(self, agent)

    monkeypatch.setattr(Collector, "turn", watched)
    config = tiny(tmp_path / "run", *SEVERAL, "train.act_device=cpu")
    run_in_parts(config, 15, 7)
    assert identical(several, tmp_path / "run")
    session = Session(config, RunFolder(config.run_dir))
    session.trainer.collector.collect(session.trainer.updates)
    assert players[-1] is session.player is not session.agent and len(set(map(id, players))) == 4
    session.close()


def test_rings_share_the_disk(tmp_path, monkeypatch):
    """Each would fit, all together do not."""
    needed = Rings.bytes_needed(3, 30, (64, 64, 3), 1)
    assert needed == 3 * Replay.bytes_needed(10, (64, 64, 3), 1)
    usage = type("Usage", (), {"free": needed // 2})
    monkeypatch.setattr(rings.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match="replay of 3 environments needs"):
        Rings(tmp_path, 3, 30, (64, 64, 3), 1)
    usage.free = needed
    Rings(tmp_path, 3, 30, (64, 64, 3), 1).close()
    with pytest.raises(UserError, match="another number of environments"):
        Rings(tmp_path, 1, 30, (64, 64, 3), 1)


def test_compare_names_the_environment(several, overlap):
    differences = {verdict.part: verdict.difference for verdict in compare(several, overlap)}
    assert differences["replay"].startswith("environment 0, row ")


def test_an_environment_that_dies_ends_the_run_behind_its_last_checkpoint(tmp_path, monkeypatch, capsys):
    options = [*TINY, "train.collect_workers=1", "train.total_steps=120", f"run_dir={tmp_path / 'run'}"]
    monkeypatch.setattr(
        session_module,
        "environment_maker",
        lambda config, **how: functools.partial(Dying, environment_maker(config, **how)),
    )
    assert main(["train", *options]) == 4
    printed = capsys.readouterr().err
    assert "dot died with its worker process (exit code 3) in the episode of seed 0" in printed
    monkeypatch.undo()
    assert main(["train", *options]) == 0
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints")[-1] == 120


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["train.overlap=true"], "set train.collect_workers=1"),
        (["train.collect_envs=8"], "one segment needs at least"),  # none of the eight has played one after the prefill
        (["train.collect_envs=2", "replay.capacity=21"], "must be at least"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        tiny(tmp_path / "run", *options)
