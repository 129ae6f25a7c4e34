"""The run folder: the files of one training run, and who may write to them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from denoised_mdp.errors import UserError, nearest, refusing
from denoised_mdp.files import (
    exists_at,
    read_json,
    read_yaml,
    refuse_unwritable,
    regular,
    replacing,
    sync_folder,
    unfinished_name,
)
from denoised_mdp.run.lock import LOCK, locked, locked_by_another

_GROUPS = {"seed", "env", "train"}
"""options in every run's configuration; another program's config.yaml lacks some"""
_OTHERS = {"run_dir", "preset", "distractors", "model", "policy", "agent", "replay"}
"""further options; a file with none of either set is not ours, not even a truncated one"""
MOST_NAMED = 5  # differences between configurations that one message lists
PRETRAINED = "pretrained:"
"""prefix of the name of an agent that comes with the package: a read-only run folder"""
_PACKAGED = Path(__file__).parents[1] / "pretrained"


class RunFolder:
    """The folder of one run and the paths in it.

    ``config.yaml`` marks a folder as a run, see `is_run`. `RunFolder.create` opens a folder for training,
    `RunFolder.existing` for reading. Videos and probe results lie in the run folder too; those of an agent that comes
    with the package (``pretrained:NAME``) lie in a folder NAME of the working directory.

    Raises:
        UserError: there is no pretrained agent with this name.
    """

    def __init__(self, path: Path | str):
        self.path = results = Path(os.path.expanduser(path))
        if is_pretrained(path):
            name = str(path).removeprefix(PRETRAINED)
            known = sorted(one.parent.name for one in _PACKAGED.glob("*/config.yaml"))
            if name not in known:
                raise UserError(f"There is no pretrained agent {name!r}. There are: {', '.join(known)}.")
            self.path, results = _PACKAGED / name, Path(name)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.machine = self.path / "machine.jsonl"
        self.error = self.path / "error.json"
        self.service = self.path / "service.json"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.replay = self.path / "replay"
        self.videos = results / "videos"
        self.probes = results / "probes"
        self.diagnostics = self.path / "diagnostics"

    @classmethod
    def create(cls, path: Path | str, option: str = "run_dir") -> RunFolder:
        """Open or create `path` to begin or resume a run; option: the option that sets it, for messages.

        Raises:
            UserError: the folder cannot be created, holds something else, or lies in another run, where no command
                would find it. (A run that already exists there may continue.)
        """
        run = cls.checked(path, option)
        with refusing(f"The folder {path} cannot be used", option):
            made = [folder for folder in (run.path, *run.path.parents) if not folder.exists()]
            run.path.mkdir(parents=True, exist_ok=True)
            for folder in made:  # else a power failure could lose the folder, and the run with it
                with contextlib.suppress(PermissionError):  # the parent may be unreadable
                    sync_folder(folder.parent)
        return run

    @classmethod
    def checked(cls, path: Path | str, option: str = "run_dir") -> RunFolder:
        """The folder that `create` would open; nothing is created. Raises as `create` does."""
        if is_pretrained(path):
            raise UserError(f"{path} is only read. Choose a folder.")
        run = cls(path)
        with refusing(f"The folder {path} cannot be used", option):
            refuse_unwritable(run.path)
            if not run.is_run and run.part_of:
                raise UserError(f"{path} lies in the run {run.part_of}. Choose a {option} beside it.")
            ours = {LOCK, unfinished_name(run.config).name}  # a start that was killed at once may leave these
            entries = run.path.iterdir() if run.path.is_dir() else ()
            strangers = sorted(entry.name for entry in entries if entry.name not in ours)
        if strangers and os.path.lexists(run.config) and not is_ours(run.config):
            raise UserError(
                f"{path} is not a run folder: its config.yaml is not a run's configuration. Choose an empty or new"
                f" {option}, or, if it is a run, restore that file from a copy."
            )
        if strangers and not os.path.lexists(run.config):
            remedy = "Restore that file from a copy, or choose" if run.checkpoints.is_dir() else "Choose"
            raise UserError(
                f"{path} is not a run folder: it holds {strangers[0]} but no config.yaml. {remedy} an empty or new"
                f" {option}."
            )
        return run

    def refuse_changes(self, changed: Sequence[str]) -> None:
        """Refuse a configuration that differs from that of its run; `changed`: see `config.compare.differences`.

        Raises:
            UserError: `changed` is not empty.
        """
        if changed:
            more = f"; and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
            path = str(self.path) if "/" in str(self.path) else f"./{self.path}"  # else seed=1 would be an option
            raise UserError(
                f"{self.path} holds a run of another configuration ({'; '.join(changed[:MOST_NAMED])}{more}). Choose"
                f" another run_dir for a new run, or continue that one: denoised-mdp train {shlex.quote(path)}"
            )

    @property
    def is_run(self) -> bool:
        """Whether there is a run to read: a configuration of ours, or a damaged one beside a log or a checkpoint.

        Other programs have a ``config.yaml`` too. Code that writes asks `is_ours`, which refuses damaged ones.
        """
        if not os.path.isfile(self.config):
            return False
        options = _options(self.config)
        if options >= _GROUPS or (options and not options & (_GROUPS | _OTHERS)):  # ours, or another program's
            return options >= _GROUPS
        return os.path.lexists(self.metrics) or any(self.checkpoints.glob("step_*"))

    @property
    def begun(self) -> bool:
        """Whether a run began here. A lone configuration may be a printed one; results may come from other commands."""
        return any(map(os.path.lexists, set(self.own) - {self.config}))

    @property
    def lost(self) -> bool:
        """Whether the folder holds checkpoints of ours but no configuration any more."""
        return not os.path.lexists(self.config) and any(self.checkpoints.glob("step_*/manifest.json"))

    @property
    def trained(self) -> bool:
        """Whether there is a training run here: a file that only training writes, or a checkpoint to continue from."""
        others = set(self.own) - {self.config, self.checkpoints, self.path / LOCK}
        return any(map(os.path.lexists, others)) or not all(map(_weights_alone, self.checkpoints.glob("step_*")))

    @property
    def held(self) -> tuple[Path, ...]:
        """Non-empty paths, checkpoints apart, that a new training run would overwrite or mix with its own."""

        def filled(path: Path) -> bool:
            try:
                return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError:  # unreadable: something may be there
                return True

        return tuple(filter(filled, (self.metrics, self.replay, self.snapshots, self.tensorboard, self.probes)))

    @property
    def exported(self) -> bool:
        """Whether the folder holds an exported agent: weights, and nothing else of a training run."""
        return any(self.checkpoints.glob("step_*")) and not self.trained

    def was_at(self, written: str) -> bool:
        """Whether a path recorded in a result means this folder; if nothing is there now, the name decides."""
        if is_pretrained(written):
            return self.path == _PACKAGED / written.removeprefix(PRETRAINED)
        before, now = Path(written), self.path.resolve()
        return before.resolve() == now or (before.name == now.name and not before.exists())

    @property
    def own(self) -> tuple[Path, ...]:
        """Paths that only training may write: all except videos and probe results."""
        files = (self.config, self.metrics, self.machine, self.error, self.service, self.path / LOCK)
        return (*files, self.tensorboard, self.checkpoints, self.snapshots, self.replay, self.diagnostics)

    @classmethod
    def existing(cls, path: Path | str) -> RunFolder:
        """Open the run at `path` for reading.

        Raises:
            UserError: there is none. The message names the run that `path` is part of, or a similar name beside it.
        """
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"A run is given as the path of its folder, not as {path!r}.")
        run = cls(path)
        if run.lost:
            raise UserError(f"{path} has lost its config.yaml: restore that file from a copy.")
        if run.is_run:
            return run
        beside = (config.parent for config in sorted(run.path.parent.glob("*/config.yaml")))
        runs = {folder.name: folder for folder in beside if RunFolder(folder).is_run}
        problem = "has no config.yaml" + " of a run" * os.path.lexists(run.config)
        if not run.path.exists():
            problem = "does not exist"
        elif run.path.is_file():
            problem = "is a file"
        near = nearest(run.path.name, runs)
        if near:
            hint = f"Did you mean '{runs[near]}'?"
        elif (_PACKAGED / run.path.name / "config.yaml").is_file():  # its results lie here
            hint = f"Did you mean '{PRETRAINED}{run.path.name}'?"
        elif (above := run.path if run.path.is_dir() else run.path.parent).is_dir():
            hint = f"'denoised-mdp status {shlex.quote(str(above))}' lists the runs there."
        else:
            hint = f"Nor is there a folder {above}."
        if run.path.exists() and run.part_of:
            step = re.search(r"step_0*(\d+)$", run.path.name)
            name = f"name that{f', with --checkpoint {step[1]}' if step else ''}"
            hint = f"It is a part of the run {run.part_of}: {name}."
        raise UserError(f"There is no run at {path}: it {problem}. {hint}")

    @property
    def part_of(self) -> Path | None:
        """The run folder that contains this folder, or None."""
        real = Path(os.path.realpath(self.path))  # no error for a circle of links
        above = real.parents if ".." in self.path.parts else (*self.path.absolute().parents, *real.parents)
        return next((one for one in above if is_ours(one / "config.yaml") and RunFolder(one).begun), None)

    def lock(self, option: str = "run_dir") -> contextlib.AbstractContextManager[None]:
        """Keep other processes from training in this folder within the context, see `lock.locked`."""
        return locked(self.path, option)

    def in_use(self) -> bool:
        """Whether a training holds the lock, see `lock.locked_by_another`."""
        return locked_by_another(self.path)


def is_pretrained(path: Path | str) -> bool:
    """Whether a run's path stands for an agent that comes with the package."""
    return str(path).startswith(PRETRAINED)


@contextlib.contextmanager
def output_file(path: Path | str) -> Iterator[Path]:
    """Yield the temporary path of a result, which replaces `path` once complete; missing parent folders are created.

    Raises:
        UserError: `path` cannot be written, is a device, or may only be written by a training run.
    """
    refuse_own(path, "--output")
    with refusing(f"{path} cannot be written", "--output"), replacing(Path(path)) as unfinished:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        yield unfinished


def check_output(path: Path | str, option: str = "--output") -> None:
    """Raise UserError if `output_file` could not write `path`. Call it before the work, not after."""
    refuse_own(path, option)
    target = Path(os.path.realpath(path))
    with refusing(f"{path} cannot be written", option):
        if exists_at(target):
            regular(target)
        elif os.path.islink(path):  # missing folders are created above the link, not above its target
            os.stat(target.parent)
        exists_at(unfinished_name(target))
        refuse_unwritable(Path(path).parent)
        refuse_unwritable(target.parent)


def refuse_own(path: Path | str, option: str = "--output") -> None:
    """Raise UserError if only the training of some run may write to `path`."""
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        own = [Path(os.path.realpath(one)) for one in RunFolder(folder).own]
        if any(one in (real, *real.parents) for one in own) and RunFolder(folder).is_run:
            raise UserError(f"{path} belongs to the run in {folder}. Choose another {option}.")


def _weights_alone(checkpoint: Path) -> bool:
    """Whether a checkpoint is an exported agent's, from which no training can continue; False if it cannot be read."""
    try:
        state = read_json(checkpoint / "state.json")
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and "counters" not in state


def is_ours(config: Path) -> bool:
    """Whether a file is a run's configuration, of any version."""
    return _options(config) >= _GROUPS


def _options(config: Path) -> set[object]:
    """The top-level keys of a configuration; empty if the file holds none."""
    try:
        tree = read_yaml(config)
    except (OSError, ValueError):
        return set()
    return set(tree) if isinstance(tree, dict) else set()
