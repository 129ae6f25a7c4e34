"""Several processes that learn one run: equal in value to one process, to each other, and after a stop."""

import errno
import functools
import os
import shutil
import signal
import socket
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_runs import TINY, finish, forked, lines, run_in_parts, tiny
from torch.distributed import run as torchrun

from denoised_mdp.agents import followers
from denoised_mdp.agents.followers import Leader
from denoised_mdp.agents.launch import launched, own_gpu
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.optim import parallel
from denoised_mdp.run.diff import compare
from denoised_mdp.session import train

COLUMNS = 4
TWO = ["train.processes=2", "train.batch_size=4", "train.threads=1", "train.precision=float32", "train.device=cpu"]
TWO += ["train.total_steps=160", "train.eval_every=160", "train.eval_episodes=1"]
CASES = [
    "model=2c",
    "policy=sac",
    "model=repo model.initial_beta=0.1",
    "model=tia model.kl.free_nats=0.2215",  # free in one half of the batch, not in the other and the whole
    "policy.return_scale=percentile policy.slow_value=0.1 policy.imagine_rows=3 policy.replay_value=0.5",
    "policy.replay_value=0.5 policy.late_lr=0.2 policy.late_after=1",
]


def batch_of(length: int = 5) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(0), (length, COLUMNS)
    return {
        "observation": rng.integers(0, 256, (*shape, 64, 64, 3), dtype=np.uint8),
        "action": rng.uniform(-1, 1, (*shape, 2)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
        "is_first": rng.random(shape) < np.array([0.1, 0.1, 0.5, 0.5]),  # halves of different numbers of steps
        "is_terminal": rng.random(shape) < 0.2,
    }


def one_rank(number: int, store, answers) -> None:
    """Of each case, two updates on this process's half of the batch, in float64."""
    followers.join(store=dist.FileStore(store, 2), rank=number, world_size=2)
    group = weakref.ref(dist.group.WORLD)
    half = {name: value[:, 2 * number : 2 * number + 2] for name, value in batch_of().items()}
    for case in CASES:
        agent = agent_of(case)
        with parallel.sharing():
            norms = [gradient_norms(agent.update(half)) for _ in range(2)]
        weights = {name: value.numpy() for name, value in agent.state_dict().items()}
        answers.put((case, number, weights, norms[-1]))
    dist.barrier()
    followers.leave()
    answers.put(("group", number, group() is None))


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """What two processes end with: {(case, number): (weights, norms of gradients), ("group", number): (it is gone,)}

    One of them has imported nothing before, as most have not; the other is forked, which needs no imports.
    """
    spawn, fork = (torch.multiprocessing.get_context(how) for how in ("spawn", "fork"))
    answers, store = spawn.SimpleQueue(), str(tmp_path_factory.mktemp("halves") / "store")
    ranks = [how.Process(target=one_rank, args=(number, store, answers)) for number, how in enumerate((spawn, fork))]
    for rank in ranks:
        rank.start()
    found = [answers.get() for _ in ranks for _ in [*CASES, "group"]]
    for rank in ranks:
        rank.join()
    return {(case, number): rest for case, number, *rest in found}


def test_nothing_keeps_a_group_that_was_left(halves):
    """Else its threads run on, and may abort the interpreter as it ends."""
    assert halves["group", 0] == halves["group", 1] == [True]


def gradient_norms(metrics) -> dict[str, float]:
    """Of all groups of the world model's weights; and metrics that are no means over rows."""
    wanted = ("model/gradient", "model/error_under_mask")
    return {name: value.item() for name, value in metrics.items() if name.startswith(wanted)}


def agent_of(case: str):
    torch.set_num_threads(1)
    small = ["preset=debug", "env=toy", "env.task=dot", "model.continuation=true"]
    horizon = [] if "policy=sac" in case else ["policy.horizon=4"]
    config = load_config([*small, *horizon, *case.split()])
    return build_agent(config, 2).double()


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one_with_the_whole_batch(halves, case):
    """Weights after two updates, to the rounding of sums in another order; the two copies to the last bit."""
    single = agent_of(case)
    before = {name: value.clone() for name, value in single.state_dict().items()}
    for _ in range(2):
        metrics = single.update(batch_of())
    (first, norm), (second, _) = halves[case, 0], halves[case, 1]
    moved = 0.0
    for name, value in single.state_dict().items():
        assert np.array_equal(first[name], second[name]), name
        # Adam divides by the root of a square: where gradients nearly cancel, rounding is magnified by 1 / eps.
        np.testing.assert_allclose(first[name], value.numpy(), rtol=1e-7, atol=1e-10, err_msg=name)
        moved = max(moved, (value - before[name]).abs().max().item())
    assert moved > 1e-5 and norm == pytest.approx(gradient_norms(metrics), rel=1e-10)


def test_metrics_may_be_numbers_or_none_at_all(monkeypatch):
    """As with one process. Integers have means, and a device has them all."""
    monkeypatch.setattr(followers.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(followers.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(parallel.dist, "all_reduce", lambda tensor: tensor.add_(tensor + 1))  # the other has one more

    def update(metrics):
        return followers._update(lambda batch, policy: metrics, torch.device("cpu"), {}, True)

    found = update({"a": 0.5, "b": torch.tensor(3), "c": torch.tensor([2.0, 4.0])})
    assert {name: value.tolist() for name, value in found.items()} == {"a": 1.0, "b": 3.5, "c": [2.5, 4.5]}
    assert update({}) == {}


def test_noise_is_the_right_part_of_one_processs_noise(monkeypatch):
    like = torch.zeros((), dtype=torch.float64)
    whole = parallel.normal(3, 5, 4, 2, like=like, generator=torch.Generator().manual_seed(1))
    assert whole.equal(
        torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).view(3, 5, 4, 2)
    )
    parts = []
    for number in (0, 1):
        token = parallel._share.set((number, 2))
        parts.append(parallel.normal(3, 5, 2, 2, like=like, generator=torch.Generator().manual_seed(1)))
        parallel._share.reset(token)
    assert torch.cat(parts, 2).equal(whole)


@pytest.fixture
def forked_followers(monkeypatch):
    """Followers that need no imports, where how they are started is not what is looked at."""
    fork = torch.multiprocessing.get_context("fork")
    monkeypatch.setattr(followers.multiprocessing, "get_context", {"spawn": fork}.__getitem__)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run of two processes that this one started, and nothing stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(tiny(folder, *TWO))
    return folder


@pytest.mark.usefixtures("forked_followers")
def test_a_run_of_two_processes_resumes_bit_for_bit(whole, tmp_path):
    run_in_parts(tiny(tmp_path / "parts", *TWO), 60, 3)
    assert not [part for part in compare(whole, tmp_path / "parts") if part.difference]
    assert train(tiny(tmp_path / "one", *TWO[1:]))
    values = [[row["model/loss"] for row in lines(run) if "model/loss" in row] for run in (whole, tmp_path / "one")]
    assert values[0] == pytest.approx(values[1], rel=1e-3) and len(values[0]) > 1


def variables(number: int, port: int) -> dict[str, str]:
    """What a launcher of another kind sets."""
    return {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def nodes(kind: str, port: int) -> list[tuple[list[str] | None, dict[str, str]]]:
    """For each node, torchrun's words where it starts its part of a run of two processes, and environment variables."""
    if kind == "one":
        return [(["--standalone", "--nproc-per-node=2"], {})]
    if kind == "torchrun":
        place = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
        return [([*place, f"--node-rank={number}"], {}) for number in (0, 1)]
    return [(None, variables(number, port)) for number in (0, 1)]


def train_on_nodes(folder, kind: str, *more: str) -> list[tuple[int, str]]:
    """Train in the nodes' own folders, 0 and 1: (exit code, output) of each.

    What torchrun starts are new processes; itself, and what needs no launcher, is forked.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["train", *TINY, *TWO, "run_dir=run", *more]

    def node(number: int, launcher: list[str] | None, environment: dict[str, str]) -> int:
        os.chdir(folder / str(number))
        os.environ |= environment
        try:
            return main(words) if launcher is None else torchrun.main([*launcher, "-m", "denoised_mdp", *words]) or 0
        except SystemExit as end:
            return end.code

    processes = []
    for number, (launcher, environment) in enumerate(nodes(kind, port)):
        (folder / str(number)).mkdir(exist_ok=True)
        processes.append(forked(functools.partial(node, number, launcher, environment)))
    return [finish(*process) for process in processes]


@pytest.mark.parametrize("kind", ["one", "torchrun", "variables"])
def test_what_others_start_is_the_same_run(whole, tmp_path, kind):
    """On one node, and on two that share nothing but a port: the first has the run's folder, the second writes none."""
    for code, said in train_on_nodes(tmp_path, kind):
        assert code == 0, said
    assert not [part for part in compare(whole, tmp_path / "0" / "run") if part.difference]
    assert kind == "one" or not list((tmp_path / "1").iterdir())


@pytest.mark.parametrize("kind", ["one", "variables"])
def test_followers_end_with_a_leader_that_does_not_begin(whole, tmp_path, kind):
    """It finds nothing to do, or is refused, before it has built anything."""
    run, error = tmp_path / "0" / "run", "it holds strange but no config.yaml" if kind == "variables" else ""
    if error:
        run.mkdir(parents=True)
        (run / "strange").touch()
    else:
        shutil.copytree(whole, run)
    ended = train_on_nodes(tmp_path, kind, "train.total_steps=100")
    assert [code for code, _ in ended] == ([2, 0] if error else [0]) and error in ended[0][1], ended


def test_what_cannot_be_shared_is_refused(monkeypatch):
    with pytest.raises(UserError, match="multiple of it"):
        load_config(["preset=debug", "train.processes=3"])
    with pytest.raises(UserError, match="cuda_graph=false"):
        load_config(["preset=debug", "train.processes=2", "train.cuda_graph=true"])
    assert launched(1) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match="set train.processes=4"):
        launched(2)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert launched(2) is None, "a variable alone, which others set as well, tells nothing"
    for name, value in variables(1, 29500).items():
        monkeypatch.setenv(name, value)
    assert (launched(1), launched(2)) == (None, 1)
    with pytest.raises(UserError, match="WORLD_SIZE tells of 2 processes: set train.processes=2"):
        launched(3)


def test_every_process_needs_a_gpu(tmp_path, monkeypatch):
    config = tiny(tmp_path / "a", *TWO)
    agent = build_agent(config, 2)
    monkeypatch.setattr(type(agent), "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="PyTorch finds 1 for 2 of them. Start 1 on this machine, or set train.device"):
        Leader(agent, config, actions=2)
    with pytest.raises(
        UserError, match="train.device=cuda:1: each of train.processes=2 takes a GPU of its own: set tr"
    ):
        load_config(["preset=debug", "train.processes=2", "train.device=cuda:1"])


def test_a_followers_gpu_is_the_one_of_its_place_on_its_machine(monkeypatch):
    """Two machines of one GPU each have ranks 0 and 1, and the same GPU 0."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for gpus, number, told, expected in (
        (1, 1, {}, "cuda:0"),
        (2, 1, {}, "cuda:1"),
        (4, 6, {}, "cuda:2"),
        (4, 6, {"SLURM_LOCALID": "3"}, "cuda:3"),
        (1, 1, {"SLURM_LOCALID": "1"}, "cuda:0"),  # it sees its own alone
        (8, 1, {"LOCAL_RANK": "3", "SLURM_LOCALID": "0"}, "cuda:3"),
    ):
        with monkeypatch.context() as here:
            here.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
            for name, value in told.items():
                here.setenv(name, value)
            assert own_gpu(number, 8) == expected
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="train.processes=2: each process needs a GPU of its own, and PyTorch finds 1"):
        own_gpu(1, 2)


def meeting(by=followers._meet, **environment):
    """What a process of its own says that tries to meet others: a failed attempt spoils all later ones of a process."""

    def attempt():
        os.environ |= environment
        followers.MEETING = timedelta(seconds=2)
        by()
        return 0

    return finish(*forked(attempt))[1]


def meet_in_a_thread():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(followers._meet).result()


@pytest.mark.parametrize(("rank", "how"), [(0, {}), (1, {}), (0, {"by": meet_in_a_thread})])
def test_processes_that_do_not_meet_say_where(rank, how):
    """The port of the first one is taken; the other finds nobody there. A thread, too, may try."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if rank == 0:
            taken.listen()
        port = taken.getsockname()[1]
        assert f"UserError: The run's processes do not meet at MASTER_ADDR:MASTER_PORT, 127.0.0.1:{port} (" in meeting(
            **how, **variables(rank, port)
        )


def test_a_follower_in_a_thread_leaves_signals_as_they_are():
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(followers._leave_signals_to_the_leader).result()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("more", [{"MASTER_PORT": "abc"}, {"MASTER_PORT": "99999"}, {"GLOO_SOCKET_IFNAME": "nope0"}])
def test_variables_that_cannot_be_are_one_line(monkeypatch, more):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = meeting(**variables(0, port) | {"WORLD_SIZE": "1"} | more)
    assert "UserError: The run's processes do not meet at MASTER_ADDR:MASTER_PORT" in said
    for name, value in variables(0, port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE=two: must be a whole number"):
        launched(2)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as a shell has it that a process of torchrun has started
    for processes in (1, 2):
        with pytest.raises(UserError, match="WORLD_SIZE is not set, though TORCHELASTIC_RUN_ID is: start"):
            launched(processes)


def test_a_leader_ends_its_followers(tmp_path):
    config = tiny(tmp_path / "a", *TWO)
    leader = Leader(build_agent(config, 2), config, actions=2)
    metrics = leader.update(batch_of())
    assert all(torch.isfinite(value) for value in metrics.values())
    leader.close()
    assert not any(process.is_alive() for process in leader._started) and not dist.is_initialized()


@pytest.mark.usefixtures("forked_followers")
def test_a_leader_that_cannot_begin_ends_its_followers(tmp_path, monkeypatch):
    """Out of memory, or stopped, while the state is copied: else each side would wait for the other's end."""
    started, kind = [], followers.multiprocessing.process.BaseProcess
    start = kind.start
    monkeypatch.setattr(kind, "start", lambda self: started.append(self) or start(self))
    config = tiny(tmp_path / "a", *TWO)
    agent = build_agent(config, 2)

    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    agent.state = full
    with pytest.raises(torch.OutOfMemoryError):
        Leader(agent, config, actions=2)
    (follower,) = started
    follower.join(10)
    assert not follower.is_alive() and not dist.is_initialized()


def test_a_stop_while_a_follower_is_started_ends_it(tmp_path, monkeypatch):
    """It is delivered as soon as the follower is there, which does not listen to it."""
    started, start = [], followers.multiprocessing.context.SpawnProcess.start

    def stopped(self):
        start(self)
        started.append(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(followers.multiprocessing.context.SpawnProcess, "start", stopped)
    config = tiny(tmp_path / "a", *TWO)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            Leader(build_agent(config, 2), config, actions=2)
    finally:
        signal.signal(signal.SIGINT, before)
    (follower,) = started
    follower.join(10)
    assert not follower.is_alive()


def test_a_process_that_the_machine_refuses_says_why(tmp_path, monkeypatch):
    def refused(self):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(followers.multiprocessing.context.SpawnProcess, "start", refused)
    config = tiny(tmp_path / "a", *TWO)
    with pytest.raises(OSError, match="Too many open files"):
        Leader(build_agent(config, 2), config, actions=2)


@pytest.mark.usefixtures("forked_followers")
def test_a_process_that_dies_ends_the_run_with_one_error(tmp_path):
    config = tiny(tmp_path / "a", *TWO)
    leader = Leader(build_agent(config, 2), config, actions=2)
    try:
        leader.update(batch_of())
        leader._started[0].kill()
        leader._started[0].join()
        with pytest.raises(EnvironmentFailure, match="continues from the last checkpoint"):
            leader.update(batch_of())
    finally:
        leader.close()


@pytest.mark.usefixtures("forked_followers")
def test_an_update_that_is_broken_off_leaves_nobody_waiting(tmp_path):
    """As by a second Ctrl-C: the follower waits for the leader's gradients."""
    config = tiny(tmp_path / "a", *TWO)
    leader = Leader(build_agent(config, 2), config, actions=2)

    def broken(batch, **how):
        raise KeyboardInterrupt

    leader._update = broken
    with pytest.raises(KeyboardInterrupt):
        leader.update(batch_of())
    leader.close()
    assert not any(process.is_alive() for process in leader._started) and not dist.is_initialized()


def dead_at_once(number: int, processes: int, port: int) -> None:
    """A follower whose imports fail, for example."""
    sys.exit(7)


@pytest.mark.usefixtures("forked_followers")
def test_a_process_that_cannot_start_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(followers, "run_follower", dead_at_once)
    config = tiny(tmp_path / "a", *TWO)
    with pytest.raises(EnvironmentFailure, match="exit code 7"):
        Leader(build_agent(config, 2), config, actions=2)


def unbuildable(number: int, processes: int, port: int) -> None:
    """A follower that lacks a part of the agent, for example."""

    def lacking(*arguments, **options):
        raise KeyError("mine")

    followers.build_agent = lacking
    followers.run_follower(number, processes, port)


def test_a_process_that_cannot_build_the_agent_ends_the_run_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(followers, "run_follower", unbuildable)
    config = tiny(tmp_path / "a", *TWO)
    with pytest.raises(EnvironmentFailure, match="train.processes could not build the agent"):
        Leader(build_agent(config, 2), config, actions=2).close()
    assert not dist.is_initialized()


def test_followers_get_the_state_by_way_of_the_host(tmp_path, monkeypatch):
    """Tensors of the leader's GPU would come to lie there once more for every follower."""

    class OnGPU(torch.Tensor):
        def cpu(self):
            return self.as_subclass(torch.Tensor)

    config, sent = tiny(tmp_path / "a", *TWO), []
    agent = build_agent(config, 2)
    state = agent.state()
    agent.state = lambda: {**state, "weights": {name: w.as_subclass(OnGPU) for name, w in state["weights"].items()}}
    monkeypatch.setattr(followers, "launched", lambda processes: 0)
    monkeypatch.setattr(followers, "_hand_out", sent.extend)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    Leader(agent, config, actions=2)
    assert len(sent) == 2
    for _, _, given in sent:
        assert {type(weight) for weight in given["weights"].values()} == {torch.Tensor}
        assert given["optimizers"].keys() == state["optimizers"].keys()
