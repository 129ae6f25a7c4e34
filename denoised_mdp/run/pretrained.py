"""Small trained agents that come with the package, and how to make one: a run folder with only the weights."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from denoised_mdp.config import as_tree, read_config, save_config
from denoised_mdp.config.schema import Config
from denoised_mdp.errors import UserError
from denoised_mdp.run import checkpoint as checkpoints
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import fitting
from denoised_mdp.run.state import AGENT_PARTS, evaluated_episodes, load_state, refuse_nonfinite


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """A weight in half precision (11 significant bits); unchanged if it is not a float, is a scalar or overflows."""
    half = tensor.half() if tensor.is_floating_point() and tensor.ndim else tensor  # a scalar may count updates
    return tensor if bool(half.isinf().any()) else half


def export(run: Path | str, output: Path | str, checkpoint: int | str | None = None) -> Path:
    """Write the weights of a run's checkpoint (default: the newest) and its configuration, and nothing else.

    `load_run` and all commands that only read treat the folder as a run; training cannot continue in it. An earlier
    export is replaced, and its videos and probe results are deleted. An error leaves what was there. After a kill, the
    same command repairs the folder. Returns the folder.

    Raises:
        UserError: there is no such run or checkpoint, or its configuration was replaced; or `output` holds a training
            run or anything else.
    """
    source = RunFolder.existing(run)
    step, state = load_state(source, checkpoint, parts=AGENT_PARTS)
    refuse_nonfinite(source, step, state["agent"]["weights"])
    config = read_config(source.config)
    with fitting(source, config, state):  # else nobody could load what is written
        used = evaluated_episodes(source, config.train.eval_episodes)  # these may have chosen it: others must judge it
        train = dataclasses.replace(config.train, eval_episodes=used)
        config = dataclasses.replace(config, run_dir=Path(output).resolve().name, train=train)
    target = RunFolder.create(output, "--output")
    if target.trained or target.in_use() or checkpoints.expects_first(target.checkpoints):
        raise UserError(f"{output} holds a training. Choose another --output.")
    weights = {name: compact(weight) for name, weight in state["agent"]["weights"].items()}
    tree = {name: state[name] for name in AGENT_PARTS}
    tree |= {"config": as_tree(config), "agent": {"weights": weights, "optimizers": {}, "random": None}}
    with _whole(target, config):
        checkpoints.save(target.checkpoints, step, tree, keep=1)  # if the disk is full, the earlier export stays
    for results in (target.probes, target.videos):  # of the earlier export
        shutil.rmtree(results, ignore_errors=True)
    return target.path


@contextlib.contextmanager
def _whole(target: RunFolder, config: Config) -> Iterator[None]:
    """Write the configuration of an export around the block that writes its weights.

    In a new folder it comes first: weights alone would look like a run that has lost its configuration, where nothing
    may be written. An error then removes both. Over an earlier export it comes last, once the new weights are whole.
    """
    if target.config.exists():
        yield
        save_config(config, target.config)
        return
    try:
        save_config(config, target.config)
        yield
    except BaseException:
        shutil.rmtree(target.checkpoints, ignore_errors=True)
        with contextlib.suppress(OSError):
            target.config.unlink(missing_ok=True)
        raise
