"""Record a data set of labelled pictures: five policies of different quality play, and every frame is stored."""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from denoised_mdp.analysis.joints.data import FORMAT, JointData, Plan, layout_of, read_manifest
from denoised_mdp.analysis.joints.sac import STAGES, StateActor, import_sac, stage_path, state_features, train_stages
from denoised_mdp.analysis.joints.targets import JointTargets, columns_of
from denoised_mdp.analysis.results import first_difference, make_folder
from denoised_mdp.config import load_config, read_config
from denoised_mdp.envs import make_env
from denoised_mdp.envs.joints import Joint
from denoised_mdp.errors import UserError
from denoised_mdp.files import replace_file, unfinished_name
from denoised_mdp.progress import Phase
from denoised_mdp.replay.storage import Columns, Layout, bytes_needed
from denoised_mdp.rollout import rows
from denoised_mdp.run.environments import environment_options
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.seeding import generator

if TYPE_CHECKING:
    from denoised_mdp.analysis.probes.joints_data import Options

Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""(state features [F], the episode's generator) -> action [A]"""
RANDOM = "random"
"""the worst policy: uniformly random actions"""


def make_data(source: Sequence[str], options: Options) -> list[str]:
    """Make or resume the data set of an environment: policies first, then their episodes. Return lines to print.

    source: the folder of a run, or ``key=value`` as for training.

    Raises:
        UserError: a missing run, an invalid option, another data set in the folder, or no Stable-Baselines3.
    """
    steps, frames, seed = options.sac_steps, options.frames, options.seed
    is_run = len(source) == 1 and (Path(source[0]) / "config.yaml").is_file()  # also one named seed=1
    overrides = not is_run and any("=" in word for word in source)
    if not overrides and len(source) > 1:
        raise UserError("Give one run, or key=value as for train.")
    config = load_config(list(source)) if overrides else read_config(RunFolder.existing(source[0]).config)
    made = environment_options(config) | {"episode_steps": (frames - 1) * config.env.action_repeat}
    names = [f"sac_{stage}" for stage in range(1, len(STAGES) + 1)]
    plan = Plan(made, (*names, RANDOM), options.episodes, frames, options.test_share, seed, {"sac_steps": steps})
    folder = options.output or Path("data") / "-".join(["joints", config.env.task, *config.distractors])
    with locked(folder):
        plan.schedule()
        with contextlib.closing(plan.make()) as environment:  # report all errors before a policy is trained
            begin(folder, describe(plan, JointTargets.of(joints_of(environment))))
            actions = environment.action_space.shape
        if not stage_path(folder, len(STAGES)).exists():
            import_sac()
            with Phase("state-space SAC", steps, "actions") as phase:
                train_stages(folder, lambda: make_env(**made | {"distractors": {}}), steps, seed, phase.update)
        actors: dict[str, Act] = {
            name: StateActor.load(stage_path(folder, stage)).act for stage, name in enumerate(names, 1)
        }
        actors[RANDOM] = lambda _, rng: rng.uniform(-1.0, 1.0, actions).astype(np.float32)
        with Phase("recording", options.episodes * len(plan.policies) * frames, "frames") as phase:
            data = collect(folder, plan, actors, phase.update)
    data.check(range(len(data.episodes)))
    lines = [f"{folder}: {len(data.episodes):,} episodes of {frames:,} frames, all checksums right"]
    for name in plan.policies:
        earned = [one["return"] for one in data.episodes if one["policy"] == name]
        lines.append(f"  {name:10s} mean return {np.mean(earned):9.2f}")
    joints = ", ".join(f"{joint.name} ({joint.unit})" for joint in data.targets.joints)
    data.close()
    return [*lines, f"  joints: {joints}"]


def describe(plan: Plan, targets: JointTargets) -> dict[str, Any]:
    """The manifest of a data set without its episodes, as read back from JSON."""
    about = {"format": FORMAT, **asdict(plan), "joints": [asdict(joint) for joint in targets.joints]}
    return json.loads(json.dumps(about))


def collect(
    folder: Path, plan: Plan, policies: Mapping[str, Act], progress: Callable[[int], None] = lambda done: None
) -> JointData:
    """Record all missing episodes, and return the complete data set.

    progress: called after every row with the number of rows so far. After an interruption, the same call resumes; the
    result is bit-identical.

    Raises:
        UserError: the folder holds another data set, the disk is too small, or the task ended an episode too early.
    """
    with contextlib.closing(plan.make()) as environment:
        joints = joints_of(environment)
        targets = JointTargets.of(joints)
        columns, layout = columns_of(joints), layout_of(plan.environment["size"], targets)
        about = describe(plan, targets)
        schedule, done = plan.schedule(), begin(folder, about)
        total, pixels = len(schedule) * plan.frames, environment.unwrapped
        if not done and not (folder / "position.npy").exists():
            _create(folder, layout, total)
        store = Columns(folder, layout, total)
        try:
            for number in range(len(done), len(schedule)):
                one = schedule[number]
                rng, policy = generator(one["seed"], "joints actions"), policies[one["policy"]]
                act = partial(_act, policy, rng, pixels.signal_names, pixels.world.unwrapped.signal_kinds)
                checksum, earned = 0, 0.0
                for t, played in enumerate(rows(environment, one["seed"], act, plan.frames)):
                    row = {"observation": played.observation, "position": played.info["signal"][columns]}
                    for value in row.values():
                        checksum = zlib.crc32(value.tobytes(), checksum)
                    store.write(number * plan.frames + t, row)
                    earned += played.reward
                    progress(number * plan.frames + t + 1)
                    if played.last and t + 1 < plan.frames:  # else frames of two episodes would be stacked
                        raise UserError(
                            f"The task ended an episode itself, after {t} actions: episodes of a data set have"
                            f" {plan.frames} frames. Give fewer --frames and another --output, to which the policies/"
                            " of this one may be copied, or choose another task."
                        )
                store.flush()
                done.append({**one, "return": earned, "crc32": checksum})
                _write_manifest(folder, about | {"finished": done})
        finally:
            store.close()
    return JointData(folder)


def _act(policy: Act, rng: np.random.Generator, names: tuple, kinds: tuple, _, info: Mapping[str, Any]) -> np.ndarray:
    """The action of a policy that reads the true state."""
    return policy(state_features(info["signal"], names, kinds), rng)


def joints_of(environment: gym.Env) -> tuple[Joint, ...]:
    """The joint positions that the camera of an environment sees.

    Raises:
        UserError: there are none.
    """
    joints = getattr(environment.unwrapped.world.unwrapped, "joints", ())
    if not joints:
        raise UserError("This environment has no joints that its camera sees: choose a task of suite dmc or robodesk.")
    return joints


def begin(folder: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Begin or resume a data set: write the manifest if there is none, and return the finished episodes.

    Raises:
        UserError: the folder cannot be created, or holds another data set or other files.
    """
    make_folder(folder)
    if not (folder / "manifest.json").exists():
        own = (".lock", "policies", unfinished_name(folder / "manifest.json").name)  # a killed command leaves the last
        strangers = sorted(path.name for path in folder.iterdir() if path.name not in own)
        if strangers:
            raise UserError(f"{folder} holds {strangers[0]} but no data set. Choose an empty or new folder.")
        _write_manifest(folder, {**about, "finished": []})
    manifest = read_manifest(folder)
    begun = {key: manifest.get(key) for key in about}
    if begun != dict(about):
        raise UserError(
            f"{folder} holds the data set of another command ({first_difference(begun, about)}). Choose another"
            " folder, or repeat the command that began it to continue."
        )
    return list(manifest["finished"])


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    replace_file(folder / "manifest.json", json.dumps(manifest, indent=1).encode())


def _create(folder: Path, layout: Layout, rows: int) -> None:
    needed, free = bytes_needed(layout, rows), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"The data set of {rows:,} rows needs {needed:,} bytes but the disk of {folder} has {free:,} bytes free."
            " Ask for fewer --episodes or --frames, or use a larger disk."
        )
    Columns.create(folder, layout, rows).close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is created if missing."""
    with RunFolder(make_folder(folder)).lock("--output"):
        yield
