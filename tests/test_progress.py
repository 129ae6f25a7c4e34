"""Progress: true speeds, one line on a terminal, plain lines elsewhere, nothing where nobody asked."""

import contextlib
import functools
import io
import math
import os
import select
import sys
import warnings
from types import SimpleNamespace

import pytest
from conftest import small_agent
from small_runs import tiny

from denoised_mdp import progress
from denoised_mdp.analysis.data import record
from denoised_mdp.cli.main import main
from denoised_mdp.envs import make_env
from denoised_mdp.evaluation import evaluate
from denoised_mdp.progress import Phase, Training, duration, shown, track
from denoised_mdp.session import train as train_run

TOY = functools.partial(make_env, "dot", suite="toy", distractors={"camera_jitter": {}}, episode_steps=8)


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


@pytest.mark.parametrize("make", [io.StringIO, broken_pipe, lambda: None])
def test_a_line_that_nobody_can_read_ends_nothing(make, clock, monkeypatch):
    """Of a stream that is closed, of a pipe without a reader, and of a process that has no standard error."""
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(), Training(1000) as training:
        if isinstance(stream, io.StringIO):
            stream.close()
        assert train(clock, training, 3) == (110, 30)
    with contextlib.suppress(AttributeError, OSError):
        stream.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr("denoised_mdp.progress.time.monotonic", lambda: now.time)
    return now


def train(clock, training, rounds, seconds_per_step=0.01, seconds_per_update=1.0, **returns):
    """Prefill of 50 steps, then rounds of 10 updates and 20 steps."""
    step = updates = 0
    for _ in range(25):
        step, clock.time = step + 2, clock.time + seconds_per_step
        training.update(step, updates)
    for _ in range(rounds):
        for _ in range(10):
            updates, clock.time = updates + 1, clock.time + seconds_per_update
            training.update(step, updates, **returns)
        for _ in range(10):
            step, clock.time = step + 2, clock.time + seconds_per_step
            training.update(step, updates, **returns)
    return step, updates


@pytest.mark.parametrize("rounds", [2, 3, 50])
def test_speeds_are_of_whole_rounds(clock, rounds):
    """Neither prefill nor the part of a round that runs now distorts the speeds."""
    stream = io.StringIO()
    with shown(stream), Training(1000) as training:
        step, _ = train(clock, training, rounds)
        seconds = 10 * 1.0 + 10 * 0.01
        for waited in (0, 5):
            steps_speed, updates_speed = training.speeds(clock.time + waited)
            assert steps_speed == pytest.approx(20 / seconds)
            assert updates_speed == pytest.approx(10 / seconds)
    left = (1000 - step) / (20 / seconds)
    assert stream.getvalue().endswith(f"{duration(left)} left\n")


def test_speeds_are_recent(clock):
    training = Training(10**6)
    train(clock, training, 10)
    step, updates = 250, 100
    for _ in range(400):  # ten times as fast from here on
        updates, clock.time = updates + 10, clock.time + 1
        training.update(step, updates)
        step, clock.time = step + 20, clock.time + 0.01
        training.update(step, updates)
    assert training.speeds(clock.time)[1] == pytest.approx(10 / 1.01)
    assert len(training._rounds) < 200


def test_no_time_left_is_claimed_before_a_round_was_measured(clock):
    stream = io.StringIO()
    with shown(stream), Training(1000) as training:
        train(clock, training, 1)
    assert "left" not in stream.getvalue() and "20.2 steps/s" not in stream.getvalue()


def test_what_is_left_of_a_round_is_not_taken_for_a_round(clock):
    """Continued after 8 of 10 updates: two more, then whole rounds of 20 steps."""
    training = Training(1000, step=50, updates=8)
    step, updates = 50, 8
    for count in (2, 10, 10):
        for _ in range(count):
            updates, clock.time = updates + 1, clock.time + 1
            training.update(step, updates)
        if count == 2:
            assert "left" not in training.text(clock.time)
        step, clock.time = step + 20, clock.time + 0.2
        training.update(step, updates)
    clock.time += 1
    training.update(step, updates + 1)
    assert training.speeds(clock.time) == pytest.approx((20 / 10.2, 10 / 10.2))


def test_plain_lines_at_an_interval(clock):
    stream = io.StringIO()
    evaluation = SimpleNamespace(mean=512.34, standard_error=7.89)
    with shown(stream, interval=20), Training(1000) as training:
        train(clock, training, 10, train_return=431.0, evaluation=evaluation)
    text = stream.getvalue()
    assert text.count("\n") == 7 and "\r" not in text
    assert text.splitlines()[-1] == (
        "step 250/1,000 (25.0%) | eval 512.3 ± 7.9 | train 431.0 | 1.98 steps/s, 0.99 updates/s | 6 min 18 s left"
    )


def test_a_terminal_has_one_line(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with shown(stream), Training(1000) as training:
        train(clock, training, 3, evaluation=SimpleNamespace(mean=1.0, standard_error=math.nan))
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") > 10
    assert all(len(line.removeprefix("\x1b[K")) < 60 for line in text.strip().split("\r"))
    assert "eval 1.0 |" in text


@pytest.mark.parametrize(
    "seconds, text",
    [(-1, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (11_520, "3 h 12 min"), (190_000, "2 d 4 h")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


class PseudoTerminal:
    """A pseudo-terminal of 80 columns as standard error, within its context."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def __enter__(self):
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", buffering=1)
        self.monkeypatch.setenv("COLUMNS", "80")
        self.monkeypatch.setattr(sys, "stderr", self.stream)
        return self

    def __exit__(self, *_):
        self.monkeypatch.undo()
        self.stream.close()
        os.close(self.master)

    def written(self):
        text = b""
        poll = select.poll()  # not select: a long test process may have more than 1,024 files
        poll.register(self.master, select.POLLIN)
        while poll.poll(100):  # the kernel hands it over in pieces
            text += os.read(self.master, 10**6)
        return text.decode()


def count_to_ten(clock, seconds):
    for _ in track(range(10), "counting", "numbers"):
        clock.time += seconds


def test_a_phase_in_a_pipe_is_a_line_at_its_beginning_and_at_intervals(clock):
    stream = io.StringIO()
    with shown(stream, interval=30):
        count_to_ten(clock, 12)
    assert stream.getvalue().splitlines() == [
        "counting: 10 numbers",
        "counting: 3/10 numbers, 1 min 24 s left",
        "counting: 6/10 numbers, 48 s left",
        "counting: 9/10 numbers, 12 s left",
    ]


def test_a_phase_on_a_terminal_is_one_line_that_disappears(clock, monkeypatch):
    with PseudoTerminal(monkeypatch) as terminal, shown():
        count_to_ten(clock, 12)
        progress.clear()
        text = terminal.written()
    assert "\n" not in text and text.endswith("\r\x1b[K")
    shown_lines = [f"counting: {n}/10 numbers, {duration(12 * (10 - n))} left" for n in range(1, 11)]
    assert text.split("\r\x1b[K") == ["", *shown_lines, ""]


def test_phases_lie_within_each_other_and_the_innermost_comes_first(clock):
    stream = io.StringIO()
    with shown(stream), Phase("outer", 2, "parts") as outer:
        outer.update(1)
        with Phase("short", 5, "things", delay=1):
            pass
        with Phase("inner", 5, "things"), Phase("deepest", 3, "bits") as deepest:
            clock.time += 40
            deepest.update(1)
    assert stream.getvalue().splitlines() == [
        "outer: 2 parts",
        "inner: 5 things | outer: 1/2 parts",
        "deepest: 1/3 bits, 1 min 20 s left | inner: 5 things | outer: 1/2 parts, 40 s left",
    ]


def test_a_failing_phase_leaves_nothing_behind(clock):
    stream = io.StringIO()
    with shown(stream), contextlib.suppress(ZeroDivisionError):
        for _ in track(range(3), "failing", "times"):
            1 / 0  # noqa: B018
    assert progress._display is None
    with shown(stream), Phase("next", 1, "thing"):
        pass
    assert stream.getvalue().splitlines() == ["failing: 3 times", "next: 1 thing"]


def test_a_library_is_silent(tmp_path, capfd, monkeypatch):
    """Phases are shown by the command line, or by whoever asks for them; not to callers of functions."""
    config = tiny(tmp_path / "run", "train.total_steps=80", "train.checkpoint_every=0")
    with PseudoTerminal(monkeypatch) as terminal:
        evaluate(small_agent(), TOY, [1, 2])
        record(TOY, [1, 2], 4, behaviour="random")
        assert train_run(config) and train_run(config)  # the second time, there is nothing to do
        assert terminal.written() == ""
    assert capfd.readouterr() == ("", "")


def test_a_warning_gets_a_line_of_its_own(clock, monkeypatch):
    def load(_):
        with shown(), Phase("loading", 2, "things") as phase:
            phase.update(1)
            warnings.warn("careful", stacklevel=2)
        raise KeyboardInterrupt

    with PseudoTerminal(monkeypatch) as terminal:
        monkeypatch.setattr("denoised_mdp.config.load_config", load)
        assert main(["train"]) == 130
        told = terminal.written()
    assert told == "\r\x1b[Kloading: 1/2 things\r\x1b[Kdenoised-mdp: warning: careful\r\ndenoised-mdp: stopped.\r\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tiny finished run."""
    path = tmp_path_factory.mktemp("run") / "a run"
    assert train_run(tiny(path, "distractors=camera_jitter", "train.eval_every=200"))
    return path


COMMANDS = {
    "evaluate": (["--episodes", "2"], ["evaluating: 2 episodes"]),
    "render": ([], ["playing: 2 episodes"]),
    "probe factors": (["--episodes", "3", "--steps", "12"], ["recording: 3 episodes", "filtering", "fitting probes"]),
    "probe invariance": (
        ["--episodes", "2", "--steps", "8", "--worlds", "2", "--returns", "1"],
        ["recording: 2 episodes", "other distractors", "filtering", "returns: 3 conditions", "evaluating: 1 episode"],
    ),
    "probe health": (["--episodes", "3", "--steps", "12"], ["recording", "filtering", "fitting probes", "decoding"]),
    "report": (["-o", "page.html"], ["drawing: ", "drawing probes"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_long_commands_tell_their_phases(command, finished, tmp_path, monkeypatch, capsys):
    """In a pipe: a line for each phase, in order, and no control characters."""
    monkeypatch.chdir(tmp_path)
    options, phases = COMMANDS[command]
    assert main([*command.split(), str(finished), *options]) == 0
    told = capsys.readouterr().err
    places = [told.find(phase) for phase in phases]
    assert -1 not in places and places == sorted(places), told
    assert "\r" not in told and "\x1b" not in told


def test_a_command_on_a_terminal_leaves_only_its_results(finished, monkeypatch, capsys):
    with PseudoTerminal(monkeypatch) as terminal:
        assert main(["evaluate", str(finished), "--episodes", "2"]) == 0
        text = terminal.written()
    assert text.startswith("\r\x1b[Kevaluating: 2 episodes, action 0") and text.endswith("\r\x1b[K")
    assert "\n" not in text and "evaluating" not in capsys.readouterr().out


def test_training_tells_of_its_prefill_its_evaluation_and_its_film(tmp_path, capsys):
    with shown():
        assert train_run(
            tiny(tmp_path / "run", "train.render_every=200", "train.probe_every=200", "env.episode_steps=20")
        )
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "step 0/200 (0.0%) | random actions until step 80"
    assert told[1].startswith("evaluating: 2 episodes | step 80/200 (40.0%) | ")
    assert any(line.startswith("playing: 2 episodes | step 200/200") for line in told)
    assert any(line.startswith("probing: 1 agent | step 200/200") for line in told)
    assert told[-1].startswith("step 200/200 (100.0%) | eval ") and "left" in told[-1]
