"""The pool of environments: the same episodes with any number of workers; failures are reported, never waited for."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from faulty_envs import Complaining, Faulty, SlowToBegin
from small_runs import TINY

from denoised_mdp import UserError, errors
from denoised_mdp.envs import make_env, vector
from denoised_mdp.envs import workers as worker_module
from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.vector import EnvironmentPool
from denoised_mdp.errors import EnvironmentFailure

TOY = functools.partial(make_env, "dot", suite="toy", episode_steps=8, action_repeat=2)


def play(workers, kind="process"):
    """Three episodes of different lengths in five environments: every number that they return."""
    log = []
    with EnvironmentPool(TOY, 5, workers=workers, kind=kind) as pool:
        assert pool.actions == Actions(2)
        for seeds in ([3, 1, 4, 1, 5], [9, 2, 6]):
            rows = pool.reset(seeds)
            rng = np.random.default_rng(0)
            for step in range(3):
                log += [(row[0], *row[1].values()) for row in rows if row is not None and len(row) == 2]
                log += [(row[0], row[1]) for row in rows if row is not None and len(row) == 5]
                actions = [rng.uniform(-1, 1, 2).astype(np.float32) for _ in seeds]
                rows = pool.step([None if i == step else action for i, action in enumerate(actions)])
                assert [row is None for row in rows] == [i == step for i in range(len(seeds))]
    return log


def test_results_do_not_depend_on_the_number_of_workers():
    expected = play(0)
    for workers in (1, 3):
        for ours, theirs in zip(play(workers), expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("fail", ("raised an error", "Traceback", "the physics exploded", "in fail")),
        ("lose", ("raised an error", "Traceback", "the simulator has gone", "in lose")),
        ("die", ("died", "exit code 3")),
        ("hang", ("no answer within 6 s", "in hang")),
    ],
)
def test_a_worker_that_fails_is_reported_at_once(what, parts):
    action = [np.zeros(1, np.float32)] * 4
    with EnvironmentPool(functools.partial(Faulty, what), 4, workers=2, task="toy_faulty") as pool:
        pool.reset([5, 6, 8, 7])  # the second worker plays the second and the fourth
        pool.step(action)
        pool.timeout = 6.0 if what == "hang" else 120.0
        with pytest.raises(EnvironmentFailure) as failure:
            pool.step(action)
        assert all(part in str(failure.value) for part in ("toy_faulty", "seed 7", *parts))
    assert not multiprocessing.active_children()


def test_the_first_episode_may_prepare_what_it_shows():
    """As clips that are decoded; a later reset has the time of any reply."""
    with EnvironmentPool(functools.partial(SlowToBegin, "fail"), 1, workers=1, timeout=1.0) as pool:
        pool.reset([1])
        with pytest.raises(EnvironmentFailure, match="no answer within 1 s"):
            pool.reset([1])


def test_a_worker_that_was_asked_before_shows_where_it_hangs_now():
    """Some schedulers send SIGUSR1 to all processes of a job."""
    with EnvironmentPool(functools.partial(Faulty, "hang"), 1, workers=1) as pool:
        pool.reset([7])
        (worker,) = pool._workers
        os.kill(worker.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while "in _serve" not in worker._traceback():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pool.step([np.zeros(1, np.float32)])
        pool.timeout = 2.0
        with pytest.raises(EnvironmentFailure, match="in hang") as failure:
            pool.step([np.zeros(1, np.float32)])
        assert str(failure.value).count("in _serve") == 1


def test_a_traceback_that_is_written_slowly_is_awaited(monkeypatch):
    """Line by line, as on a busy machine."""
    action = [np.zeros(1, np.float32)]
    with EnvironmentPool(functools.partial(Faulty, "hang"), 1, workers=1) as pool:
        pool.reset([7])
        pool.step(action)
        (worker,) = pool._workers
        whole, looks = worker._traceback, iter(range(100))
        monkeypatch.setattr(worker, "_traceback", lambda: "".join(whole().splitlines(True)[: next(looks)]))
        pool.timeout = 1.0
        with pytest.raises(EnvironmentFailure, match="(?s)in hang.*in _serve.*in <module>") as failure:
            pool.step(action)
        assert whole().strip() in str(failure.value)


def test_an_error_in_this_process_is_reported_like_a_workers():
    action = [np.zeros(1, np.float32)] * 2
    with EnvironmentPool(functools.partial(Faulty, "fail"), 2, task="toy_faulty") as pool:
        pool.reset([5, 7])
        pool.step(action)
        with pytest.raises(EnvironmentFailure, match="(?s)toy_faulty raised an error .* of seed 7.*exploded"):
            pool.step(action)


def test_what_workers_warn_of_is_said_once(monkeypatch):
    """Every evaluation starts new ones, all of which open the same clips."""
    monkeypatch.setattr(errors, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with EnvironmentPool(Complaining, 2, workers=2) as pool:
                pool.reset([0, 1])
    assert [str(one.message) for one in caught] == ["a clip cannot be read"]


def test_a_mistake_in_the_options_is_the_same_mistake_in_a_worker():
    make = functools.partial(make_env, "dott", suite="toy")
    messages = []
    for workers in (0, 1):
        with pytest.raises(UserError) as error:
            EnvironmentPool(make, 2, workers=workers)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert not multiprocessing.active_children()


class _StoppedAtTheSecond(worker_module.ProcessWorker):
    """The request to stop comes while the second worker's process is started."""

    started = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.started.append(self.process.pid)
        if len(self.started) == 2:
            self.end()  # as after an error in `start`
            raise KeyboardInterrupt


def test_a_stop_while_workers_start_leaves_none(monkeypatch):
    monkeypatch.setitem(vector.WORKERS, "process", _StoppedAtTheSecond)
    with pytest.raises(KeyboardInterrupt):
        EnvironmentPool(TOY, 3, workers=3)
    assert len(_StoppedAtTheSecond.started) == 2
    for process in _StoppedAtTheSecond.started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_that_cannot_start_leaves_no_file(monkeypatch, tmp_path):
    def fail(self):
        raise OSError("no more processes")

    monkeypatch.setattr(worker_module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", fail)
    with pytest.raises(OSError, match="no more processes"):
        EnvironmentPool(TOY, 1, workers=1)
    assert not list(tmp_path.iterdir())


FIRST = """
import functools, os
from denoised_mdp.envs import make_env, workers
worker = workers.ProcessWorker(functools.partial(make_env, "dot", suite="toy"), 1)
for send in (lambda: None, lambda: worker.send("reset", [3])):
    for stop in workers.STOPS:
        os.kill(worker.process.pid, stop)
    send()
    print(worker.reply(120.0)[0])
"""


def test_what_stops_a_run_does_not_stop_its_first_worker():
    """Nor does a worker that nobody has closed keep its process from ending."""
    assert {signal.SIGINT, signal.SIGTERM} <= worker_module.STOPS
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\ndone\n", "")


def test_a_pause_of_the_whole_process_counts_as_a_second(monkeypatch):
    """However long one wait takes by the clock."""
    worker, waits = worker_module.ProcessWorker(TOY, 1), []
    real = worker_module.wait
    monkeypatch.setattr(worker_module, "wait", lambda what, t: waits.append(t) or (len(waits) == 3 and real(what, 120)))
    try:
        assert worker.reply(3.0)[0] == "done"
    finally:
        monkeypatch.undo()
        worker.end()
    assert waits == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), TimeoutError(), FileNotFoundError("scene")])
def test_a_connection_that_an_environment_lost_is_its_failure(monkeypatch, error):
    def lose(self):
        raise error

    monkeypatch.setattr(Faulty, "fail", lose)
    with EnvironmentPool(functools.partial(Faulty, "fail"), 1, task="mine") as pool:
        pool.reset([7])
        pool.step([np.zeros(1)])
        with pytest.raises(EnvironmentFailure, match="mine raised an error in the episode of seed 7"):
            pool.step([np.zeros(1)])


@pytest.mark.parametrize(
    "work",
    [
        "from denoised_mdp.session import train; train(load_config([*TINY, 'run_dir=run', 'train.eval_workers=1']))",
        "from denoised_mdp.session import train; train(load_config([*TINY, 'run_dir=run', 'train.processes=2']))",
        "from denoised_mdp.envs.vector import EnvironmentPool; EnvironmentPool(dict, 1, workers=1)",
        "from denoised_mdp.envs.vector import EnvironmentPool\n"
        "try: EnvironmentPool(dict, 1, workers=1)\n"
        "except SystemExit: print('goes on')\n",
    ],
    ids=["workers", "followers", "pool", "careless"],
)
def test_a_script_that_its_workers_would_begin_anew_says_what_to_do(tmp_path, work):
    """Each worker imports it; the worker says so in a line, and so does the script that waits for it."""
    (tmp_path / "script.py").write_text(
        f"from denoised_mdp.config import load_config\nTINY = {TINY + ['train.device=cpu']}\n{work}\n"
    )
    script = [sys.executable, str(tmp_path / "script.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(worker_module.__file__).parents[2])}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and worker_module.GUARD in lines, done.stderr
    assert lines[-1] == f"denoised_mdp.errors.UserError: {worker_module.GUARD}", done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr  # the script's own
    assert "goes on" not in done.stdout


def test_an_interrupt_while_workers_import_is_not_theirs(capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker = worker_module.ProcessWorker(TOY, 1)
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        os.kill(worker.process.pid, signal.SIGINT)
        assert worker.reply(120.0) == ("done", ((64, 64, 3), Actions(2), False))
        os.kill(worker.process.pid, signal.SIGINT)
        worker.send("reset", [3])
        assert worker.reply(120.0)[0] == "done"
    finally:
        worker.end()
    assert "Interrupt" not in capfd.readouterr().err
