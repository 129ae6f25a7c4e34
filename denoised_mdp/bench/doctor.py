"""``denoised-mdp doctor``: measure what a configuration needs on this machine, before a long run."""

from __future__ import annotations

import contextlib
import functools
import platform
import shutil
import statistics
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import gymnasium as gym
import torch

from denoised_mdp.agents.base import Agent
from denoised_mdp.agents.registry import build_agent
from denoised_mdp.bench.estimate import (
    acting_seconds,
    median_seconds,
    project,
    random_actions,
    update_on_cpu,
    update_seconds,
)
from denoised_mdp.bench.repeatable import unrepeatable
from denoised_mdp.config import read_config
from denoised_mdp.config.compare import obstacles
from denoised_mdp.config.schema import Config
from denoised_mdp.device import configure, configure_acting, precision_name, resolve_device
from denoised_mdp.envs.actions import Actions
from denoised_mdp.envs.options import DISTRACTORS
from denoised_mdp.envs.video import open_clips
from denoised_mdp.envs.video_files import SPLITS
from denoised_mdp.envs.workers import about
from denoised_mdp.errors import EnvironmentFailure, UserError, blamed
from denoised_mdp.progress import data_size, duration
from denoised_mdp.replay.rings import Rings
from denoised_mdp.run.environments import environment_maker
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.machine import GIB, crowded, peak_memory, random_batch, refuse_large_batches, total_memory
from denoised_mdp.run.packages import refuse_missing

FRAMES = 1000  # frames that clips should fill if a distractor does not say how many
SLOW_ACTION = 0.02  # seconds; a paper-sized run would spend three hours in the environment
LONG_RUN = 48 * 3600  # seconds
MANY_ROWS = 20_000_000  # rows learned from in a run; no CPU needs days for fewer
MANY_UPDATES = 1000  # with fewer, other programs are not worth a warning
Place = tuple[torch.device, torch.dtype | None]
"""device and compute type of an agent (None: float32)"""


def doctor(config: Config, notes: Sequence[str] = ()) -> int:
    """Print all measurements, then `notes` and one line per problem; return 1 if there are problems, else 0."""
    return Doctor(config, notes).examine()


def days_on_a_cpu(config: Config) -> str | None:
    """Return a warning if a new run would learn for days without a GPU, else None.

    Small updates are timed and scaled by rows and threads. This takes about ten seconds, and happens only if a run
    learns from enough rows to matter.
    """
    train = config.train
    spec, updates = config.batch_spec, config.updates_due(train.total_steps)
    rows = spec.batch_size * spec.segment_length
    if not _learns_on_a_cpu(config) or updates * rows < MANY_ROWS or Path(config.run_dir).exists():
        return None
    update, part = update_on_cpu(config, rows=100)
    seconds, threads = updates * update, torch.get_num_threads()
    if seconds < LONG_RUN:
        return None
    return (
        f"without a GPU this run will learn for about {duration(seconds)}: {updates:,} updates of {update:.2g}"
        f" seconds on {threads} thread{'s' * (threads > 1)}, estimated from updates of at most 1/{part}"
        " of the batch, plus environments and evaluations. Use a GPU, or try preset=quickstart;"
        " 'denoised-mdp doctor' measures it."
    )


def waiting_threads(config: Config) -> str | None:
    """Return a warning if a run would learn on several threads of a busy CPU; None otherwise and for short runs."""
    train, busy = config.train, crowded()
    short = config.updates_due(train.total_steps) < MANY_UPDATES
    if short or not busy or train.threads == 1 or not _learns_on_a_cpu(config):
        return None
    return (
        f"Other programs are busy ({busy}). Train beside them with train.threads=1: threads"
        " that wait for one another can take ten times longer."
    )


def _learns_on_a_cpu(config: Config) -> bool:
    return resolve_device(config.train.device, "train.device").type == "cpu"


class Doctor:
    """Examines one configuration on this machine; `problems` stop a run, `notes` are worth knowing."""

    def __init__(self, config: Config, notes: Sequence[str] = ()):
        self.config = config
        self.problems: list[str] = []
        self.notes = [*notes]

    def examine(self) -> int:
        """Run all checks; a failed check becomes a problem, and the others continue."""
        config = self.config
        distractors = "".join(f" + {name}" for name in config.distractors)
        model, policy = config.method
        print(f"{config.env.task}{distractors}, {f'model {model}, policy {policy}' if policy else f'agent {model}'}\n")
        self.check_machine()
        acting, learning = None, self.attempt(lambda: configure(config.train))
        if learning:
            _row("device", f"{learning[0]}, {precision_name(*learning)}, {torch.get_num_threads()} CPU threads")
            acting = self.attempt(lambda: configure_acting(config.train, learning[0])) or learning
        self.attempt(self.check_run_folder)
        self.attempt(lambda: refuse_missing(config))
        for name, options in config.distractors.items():
            kind = DISTRACTORS[name]
            if kind.shows_clips:
                self.attempt(functools.partial(self.check_clips, options, kind.clip_size or config.env.size))
        environment = self.attempt(environment_maker(config, foreground=config.foreground), "while it was made")
        if environment is not None:
            action_seconds = self.attempt(lambda: self.check_environment(environment), "while it was timed")
            self.attempt(lambda: self.check_repeats(environment), "while it was to repeat itself")
            shape, actions, can_terminate = about(environment)
            self.attempt(lambda: self.check_replay(shape, actions, can_terminate))
            self.attempt(environment.close, "while it was closed")
            build = functools.partial(build_agent, config, actions, can_terminate=can_terminate)
            if learning:
                self.attempt(lambda: self.check_agent(build, learning, acting, action_seconds))
        return self.verdict()

    def attempt(self, check: Callable, playing: str | None = None):
        """Return `check()`; None if it finds that the run could not start.

        playing: for a check that runs the environment: what the environment was doing. Its errors are problems too.
        """
        task = self.config.env.task
        try:
            with blamed(f"{task} raised an error {playing}") if playing else contextlib.nullcontext():
                return check()
        except (UserError, EnvironmentFailure) as error:
            text = error.in_a_line() if isinstance(error, EnvironmentFailure) else str(error)
            if text not in self.problems:
                self.problems.append(text)
            return None

    def check_machine(self) -> None:
        """Print versions; report other programs that distort the timings, and a PyTorch that cannot use the GPU."""
        versions = [f"Python {platform.python_version()}"]
        versions += [f"{name} {version(name)}" for name in ("torch", "mujoco", "dm_control", "gymnasium", "numpy")]
        _row("versions", ", ".join(versions))
        if text := waiting_threads(self.config):
            self.notes.append(f"{text} All times here are too long.")
        if Path("/dev/nvidia0").exists() and not torch.cuda.is_available():
            self.problems.append("PyTorch cannot use the GPU of this machine: install a CUDA build of PyTorch.")

    def check_run_folder(self) -> None:
        """Check that the run folder is free or holds a run that can resume with this configuration."""
        run = RunFolder.checked(self.config.run_dir)
        if not run.config.exists():
            _row("run folder", f"{run.path} (new)")
            return
        _row("run folder", f"{run.path} (holds a run)")
        run.refuse_changes(obstacles(read_config(run.path), self.config))

    def check_clips(self, options: dict, size: int) -> None:
        """Count the clips of both splits and decode the first ten of each; note those that fail."""
        env, color = self.config.env, options.get("color", True)  # a television is always in colour
        for split in SPLITS:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                resize = options.get("resize", "nearest")
                clips = open_clips(env.clips, split, size, color, options.get("frames", FRAMES), resize)
                frames = [clip.frames() for clip in clips[:10]]
            lengths = [len(clip) for clip in frames if clip is not None]
            _row(f"clips, {split}", f"{len(clips):,} found; {sum(lengths):,} frames in the first {len(lengths)}")
            self.notes += [str(warning.message) for warning in caught]
            if not lengths:
                self.problems.append(f"None of the first {len(frames)} clips for {split} can be read: check env.clips.")

    def check_environment(self, environment: gym.Env) -> float:
        """Time frames and actions; return the seconds per action, including repeats and frame."""
        environment.reset(seed=self.config.seed)
        environment.action_space.seed(self.config.seed)
        drawn_alone = self.config.env.suite != "gym"  # there a frame is drawn once per action
        frame = f"; {1000 * median_seconds(environment.render, 20):.1f} ms per frame" if drawn_alone else ""
        action = median_seconds(random_actions(environment), min(50, self.config.episode_rows - 1))
        renderer, drawn_by = "none needed", environment.unwrapped.world.unwrapped.renderer()
        if drawn_by is not None:
            from denoised_mdp.envs.gl import BACKEND

            renderer = BACKEND or "the display's"
            if device := drawn_by.device():
                renderer = f"{renderer} on {device}"
        repeat = self.config.env.action_repeat
        _row("renderer", f"{renderer}{frame}")
        _row("environment", f"{1000 * action:.1f} ms per action ({repeat} steps and a frame)")
        if action > SLOW_ACTION:
            hint = " env.quality=fast is several times faster." if self.config.env.quality != "fast" else ""
            self.notes.append(f"An action takes {1000 * action:.0f} ms: rendering will be the bottleneck.{hint}")
        return action

    def check_repeats(self, environment: gym.Env) -> None:
        """Check that the environment repeats itself from a seed and from a state; a world may say that it cannot."""
        found = unrepeatable(environment, self.config.seed)
        _row("", "repeats itself from a seed and from a state" if not found else "does not repeat itself")
        self.notes += found

    def check_replay(self, observation_shape: tuple[int, ...], actions: Actions, can_terminate: bool) -> None:
        """Compare the replay's size with the free disk space."""
        rows, slack = self.config.replay_capacity, self.config.replay_slack(can_terminate)
        needed = Rings.bytes_needed(self.config.train.collect_envs, rows, observation_shape, actions.size, slack)
        folder = Path(self.config.run_dir).absolute()
        place = next(path for path in [folder, *folder.parents] if path.exists())
        free = shutil.disk_usage(place).free
        used = sum(path.stat().st_blocks * 512 for path in folder.glob("replay/**/*.npy"))
        more = f" and {slack:,} more between checkpoints" if slack else ""
        _row("replay", f"{rows:,} rows{more}: {data_size(needed)} when full")
        _row("", f"{data_size(free)} free in {place}")
        if needed > free + used:
            self.problems.append(
                f"The replay needs {data_size(needed)} but {place} has {data_size(free)} free: set a smaller"
                " replay.capacity, or a run_dir on a larger disk."
            )

    def check_agent(
        self, build: Callable[..., Agent], learning: Place, acting: Place, action_seconds: float | None
    ) -> None:
        """Build the learning agent, and the acting one if it is on another device; show what they cost."""
        agent = build(device=learning[0], dtype=learning[1])
        self.show_parameters(agent)
        player = agent if acting[0] == learning[0] else build(device=acting[0], dtype=acting[1])
        self.check_speed(agent, player, action_seconds)

    def show_parameters(self, agent: Agent) -> None:
        """Print the parameters per module and their total."""
        counts = agent.parameter_counts()
        for title, (name, count) in zip(["parameters"] + [""] * len(counts), counts.items(), strict=False):
            _row(title, f"{name:12} {count:>11,}")
        _row("", f"{'total':12} {sum(counts.values()):>11,}")

    def check_speed(self, agent: Agent, player: Agent, action_seconds: float | None) -> None:
        """Time updates of `agent` on random data and acting with `player`; project the run's time, show memory."""
        config, train, spec = self.config, self.config.train, self.config.batch_spec
        refuse_large_batches(config)
        batch = random_batch(config, agent.actions.size)
        update = statistics.median(update_seconds(agent, batch, config, 3))
        acting = acting_seconds(player, batch, config, 10)
        _row("update", f"{update:.3g} s ({spec.batch_size} segments of {spec.segment_length} rows)")
        self.show_memory(agent.device)

        parts = project(config, update, action_seconds or 0.0, acting)
        total, shares = sum(parts.values()), ", ".join(f"{name} {duration(part)}" for name, part in parts.items())
        _row("whole run", f"about {duration(total)} ({total / 3600:.1f} h): {shares}")
        _row("", f"{train.total_steps:,} steps, {config.updates_due(train.total_steps):,} updates")
        if train.collect_workers or train.eval_workers:
            _row("", "worker processes and overlap are not counted: with them it takes less")
        if total > LONG_RUN:
            self.notes.append("This run takes days here: use a GPU, or try preset=quickstart on a CPU first.")

    def show_memory(self, device: torch.device) -> None:
        """Print the peak memory of this process, which has made updates, chosen actions and played one environment.

        Training needs more for the environments of an evaluation (up to `EVALUATED_AT_ONCE` at once), rendering and
        checkpoints. The replay on disk needs none.
        """
        peak = peak_memory()
        total = total_memory()
        text = f"{peak / GIB:.1f} of {total / GIB:.1f} GiB"
        if device.type == "cuda":
            size = torch.cuda.get_device_properties(device).total_memory
            text += f"; GPU {torch.cuda.max_memory_allocated(device) / GIB:.1f} of {size / GIB:.1f} GiB"
        _row("memory", f"{text} at the peak of updates; evaluations, videos and checkpoints need more")
        if peak > 0.8 * total:
            self.problems.append("Memory is nearly full: set a smaller train.batch_size or train.segment_length.")

    def verdict(self) -> int:
        """Print the notes and the problems; return 1 if there are problems, else 0."""
        print()
        for note in self.notes:
            print(f"note: {note}")
        for problem in self.problems:
            print(f"PROBLEM: {problem}")
        if not self.problems:
            print("No problems found." + " See the notes." * bool(self.notes))
        return 1 if self.problems else 0


def _row(title: str, text: str) -> None:
    print(f"{title:14}{text}", flush=True)
