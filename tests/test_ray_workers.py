"""Environments in actors of Ray: the journal that brings a new actor to where a lost one was, and a real cluster."""

import functools
import os
import signal
import socket
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from faulty_envs import Complaining, Faulty
from small_runs import TINY, run_in_parts, tiny
from test_vector import TOY, play

from denoised_mdp import errors
from denoised_mdp.cli.main import main
from denoised_mdp.collector import Collector
from denoised_mdp.envs import make_env, ray_workers
from denoised_mdp.envs.ray_workers import Host, Journal, RayWorker, checksum
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.run.diff import compare
from denoised_mdp.session import train


def same(one, other) -> bool:
    """Whether two replies are equal, arrays and all."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def random_commands(rng: np.random.Generator, count: int):
    """Commands for two environments, as a pool gives them: the first reset has a seed for each."""
    yield "reset", [3, 4]
    for _ in range(count):
        kind = rng.choice(["step", "step", "step", "begin", "reset", "get_state"])
        some = rng.random(2) < 0.8
        match kind:
            case "step":
                yield kind, [rng.uniform(-1, 1, 2).astype(np.float32) if one else None for one in some]
            case "begin":
                yield kind, [True if one else None for one in some]
            case "reset":
                yield kind, [int(rng.integers(99)) if one else None for one in some]
            case "get_state":
                yield kind, [True, True]


@pytest.mark.parametrize("seed", range(8))
def test_a_journal_leads_to_the_same_state(seed):
    """Random commands; after each, other environments that follow the journal answer the next one alike."""
    rng = np.random.default_rng(seed)
    make = functools.partial(TOY, episode_steps=1000)
    host, journal = Host(make, 2), Journal()
    host.do("make", [])
    for number, (command, arguments) in enumerate(random_commands(rng, 30)):
        if number % 6 == 5:
            other = Host(make, 2)
            other.do("make", [])
            for entry in journal.entries:
                assert other.do(*entry)[0] == "done"
            assert same(other.do("get_state", [True, True]), host.do("get_state", [True, True]))
            host = other
        status, replies, *_ = host.do(command, arguments)
        assert status == "done"
        journal.note(command, arguments, replies)
    assert len(journal.entries) < 30


def test_states_and_seeds_make_a_journal_short():
    journal = Journal()
    for command, arguments, replies in (
        ("reset", [1, 2], [0, 0]),
        ("step", [0, 0], [0, 0]),
        ("reset", [3, None], [0, None]),
    ):
        journal.note(command, arguments, replies)
    assert [command for command, _ in journal.entries] == ["reset", "step", "reset"]
    journal.note("get_state", [True, True], ["a", "b"])
    assert journal.entries == [("set_state", ["a", "b"])]
    journal.note("reset", [5, 6], [0, 0])
    assert journal.entries == [("reset", [5, 6])]
    journal.note("set_state", ["c", "d"], [True, True])
    assert journal.entries == [("set_state", ["c", "d"])]


class Lost(Exception):
    """What Ray raises of an actor that is gone."""


class FakeRay:
    """As much of Ray as a worker uses, in this process. `die`: the next command's actor is lost."""

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=Lost)

    def __init__(self):
        self.die = False

    def remote(self, host):
        made = SimpleNamespace(
            remote=lambda *arguments: SimpleNamespace(
                do=SimpleNamespace(remote=functools.partial(self.begin, host(*arguments)))
            )
        )
        return SimpleNamespace(options=lambda **_: made)

    def begin(self, host, command, arguments):
        lost, self.die = self.die, False
        return None if lost else host.do(command, arguments)

    def get(self, answer, timeout):
        if answer is None:
            raise Lost("the node is gone")
        return answer


@pytest.mark.parametrize(("name", "repeats"), [("Ball", True), ("Moody", False)])
def test_an_actor_is_replaced_where_the_environment_repeats_itself_and_else_not(monkeypatch, name, repeats):
    """Also before the first state is known, from which an environment of Gymnasium would refuse to continue."""
    ray, action = FakeRay(), np.zeros(1, np.float32)
    monkeypatch.setattr(ray_workers, "_connected", lambda: ray)
    worker = RayWorker(functools.partial(make_env, f"gym_envs:{name}", suite="gym"), 1)
    assert worker.reply(1)[0] == "done"
    for command, argument in (("reset", 3), ("step", action), ("step", action)):
        worker.send(command, [argument])
        assert worker.reply(1)[0] == "done"
    ray.die = True
    worker.send("step", [action])
    status, value = worker.reply(1)
    assert (status == "done") == repeats
    if repeats:
        env = make_env(f"gym_envs:{name}", suite="gym")
        env.reset(seed=3)
        assert same(value, [[env.step(action) for _ in range(3)][-1]])
    else:
        assert status == "dead" and "does not repeat an episode" in value


def test_equal_replies_have_equal_checksums():
    reply = [(np.arange(3.0), {"a": 1, "b": "x"}), None, 0.5]
    assert checksum(reply) == checksum([(np.arange(3.0), {"a": 1, "b": "x"}), None, 0.5])
    others = [[reply[0], None, 0.25], [reply[0], None], [(np.arange(1.0, 4.0), {"a": 1, "b": "x"}), None, 0.5]]
    assert checksum(reply) not in map(checksum, others)


def test_a_host_says_what_went_wrong_and_where():
    host = Host(functools.partial(Faulty, "fail"), 3)
    host.do("make", [])
    host.do("reset", [5, 7, 6])
    action = np.zeros(1, np.float32)
    host.do("step", [action] * 3)
    status, text, index, _ = host.do("step", [action] * 3)
    assert status == "error" and "the physics exploded" in text and index == 1
    assert Host(functools.partial(TOY, distractors=["fog"]), 1).do("make", [])[0] == "mistake"


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'denoised-mdp\[ray\]'"):
        train(tiny(tmp_path / "a", "train.workers=ray", "train.collect_workers=1"))
    with pytest.raises(UserError, match="train.collect_workers or train.eval_workers"):
        tiny(tmp_path / "a", "train.workers=ray")


def test_without_ray_a_run_is_refused_before_it_collects(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = [*TINY, "train.workers=ray", "train.eval_workers=1", f"run_dir={tmp_path / 'runs' / 'a'}"]
    assert main(["train", *words]) == 2 and main(["doctor", *words]) == 1
    assert all("pip install 'denoised-mdp[ray]'" in text for text in capsys.readouterr())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_signals_stay_ours_and_a_thread_may_connect(monkeypatch, in_a_thread):
    """Python allows handlers only in the main thread, where Ray sets its own."""
    ray = SimpleNamespace(is_initialized=lambda: False)

    def init(**_):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    before = signal.getsignal(signal.SIGTERM)
    try:
        if in_a_thread:
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(ray_workers._connected).result() is ray
        else:
            assert ray_workers._connected() is ray
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


class Late(Exception):
    """What Ray raises where an answer is not there in time."""


def full_cluster(waits: list[float]) -> SimpleNamespace:
    """A Ray without a free CPU: no answer ever comes. How long each call waits for one is added to `waits`."""

    def get(_, timeout):
        waits.append(timeout)
        raise Late

    return SimpleNamespace(
        get=get,
        exceptions=SimpleNamespace(GetTimeoutError=Late, RayError=ConnectionError),
        available_resources=dict,
        cluster_resources=lambda: {"CPU": 4.0},
    )


def waiting(monkeypatch, waits: list[float], *, patience: float) -> RayWorker:
    """A worker whose actor does not begin."""
    monkeypatch.setattr(ray_workers, "SLICE_SECONDS", 0.001)
    monkeypatch.setattr(ray_workers, "PATIENCE_SECONDS", patience)
    worker = RayWorker.__new__(RayWorker)
    worker._ray, worker._answer, worker._sent, worker.index = full_cluster(waits), None, ("make", []), 0
    return worker


def test_a_signal_need_not_wait_for_an_actor(monkeypatch):
    waits = []
    status, text = waiting(monkeypatch, waits, patience=1.0)._wait(0.05)
    assert status == "hung" and "Of the cluster's 4 CPUs 0 are free" in text
    assert len(waits) > 3 and max(waits) <= 0.001


def test_a_worker_that_waits_for_a_free_cpu_says_so_once(monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())
    with pytest.warns(UserWarning, match="of collecting and evaluating needs one") as warned:
        waiting(monkeypatch, [], patience=0.01)._wait(0.05)
    assert len(warned) == 1


def test_an_address_that_nobody_listens_at_is_one_line_at_once(monkeypatch):
    def init(**_):
        raise AssertionError("Ray would try for minutes")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but it does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError, match=f"no cluster at RAY_ADDRESS={address}"):
            ray_workers._connected()


@pytest.mark.parametrize("address", ["", "auto", "local", "ray://127.0.0.1:10001"])
def test_a_ray_that_does_not_start_is_one_line(monkeypatch, address):
    def init(**_):
        raise Exception("The current node timed out during startup")  # as Ray does: not of a class of its own

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setenv("RAY_ADDRESS", address)
    what = f"no cluster at RAY_ADDRESS={address}" if address else "Ray does not start on this machine"
    with pytest.raises(UserError, match=f"{what} .The current node timed out"):
        ray_workers._connected()


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of this process's own."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its processes import what lies beside this file
        ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, object_store_memory=10**8)
    yield ray
    ray.shutdown()


def kill_an_actor(ray, pool: EnvironmentPool) -> None:
    """As when its process or machine is lost; `ray.kill` would be known as a wish."""
    pid = ray.get(pool._workers[0]._actor.__ray_call__.remote(lambda host: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def test_actors_play_the_same_episodes(cluster, monkeypatch):
    monkeypatch.setattr(ray_workers, "MOST_ENTRIES", 3)
    assert same(play(2, "ray"), play(0))


@pytest.mark.parametrize("entries", [500, 2])
def test_a_killed_actor_is_replaced(cluster, monkeypatch, entries):
    monkeypatch.setattr(ray_workers, "MOST_ENTRIES", entries)
    answers = []
    for kind in ("process", "ray"):
        rng = np.random.default_rng(0)
        with EnvironmentPool(TOY, 3, workers=2 * (kind == "ray"), kind=kind) as pool:
            answers.append(pool.reset([1, 2, 3]))
            for step in range(3):
                if kind == "ray" and step != 1:
                    kill_an_actor(cluster, pool)
                answers[-1] += pool.step(list(rng.uniform(-1, 1, (3, 2)).astype(np.float32)))
            answers[-1] += pool.begin([True, False, True])
    assert same(*answers)


def test_an_environment_that_kills_every_actor_ends_the_pool(cluster):
    with EnvironmentPool(functools.partial(Faulty, "die"), 2, workers=1, kind="ray", task="toy_faulty") as pool:
        pool.reset([5, 7])
        pool.step([np.zeros(1, np.float32)] * 2)
        with pytest.raises(EnvironmentFailure, match="toy_faulty died with its worker process .an actor of Ray"):
            pool.step([np.zeros(1, np.float32)] * 2)


def test_what_actors_warn_of_is_said_once(cluster, monkeypatch):
    monkeypatch.setattr(errors, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with EnvironmentPool(Complaining, 2, workers=2, kind="ray") as pool:
                pool.reset([0, 1])
    assert [str(one.message) for one in caught] == ["a clip cannot be read"]


SEVERAL = ["train.collect_envs=2", "train.collect_workers=2", "train.eval_workers=2", "train.precision=float32"]


def test_a_run_on_actors_is_the_run_on_processes(cluster, tmp_path, monkeypatch):
    """Collected and evaluated on Ray, in parts, with an actor killed in the middle: bit-identical."""
    assert train(tiny(tmp_path / "processes", *SEVERAL))
    run_in_parts(tiny(tmp_path / "parts", *SEVERAL, "train.workers=ray"), 60, 2)
    turn, turns = Collector.turn, []

    def killing(collector, agent):
        turns.append(1)
        if len(turns) in (5, 30):
            kill_an_actor(cluster, collector.pool)
        return turn(collector, agent)

    monkeypatch.setattr(Collector, "turn", killing)
    assert train(tiny(tmp_path / "killed", *SEVERAL, "train.workers=ray"))
    assert len(turns) > 30
    for name in ("parts", "killed"):
        assert not [part for part in compare(tmp_path / "processes", tmp_path / name) if part.difference]
