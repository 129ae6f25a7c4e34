"""What has started this process of a run of several, if something else than the run itself has, and its GPU."""

from __future__ import annotations

import os
import re

import torch

from denoised_mdp.errors import UserError

VARIABLES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def launched(processes: int) -> int | None:
    """The number of this process among those that something else has started; None where we start them.

    ``torchrun`` has, or whoever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as ``srun`` on several nodes.

    Raises:
        UserError: it has started another number than `processes`.
    """
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not by_torchrun and (processes == 1 or not os.environ.keys() >= VARIABLES):
        return None
    started, by = _number("WORLD_SIZE"), "torchrun has started" if by_torchrun else "WORLD_SIZE tells of"
    if started != processes:
        raise UserError(f"{by} {started} processes: set train.processes={started}.")
    return _number("RANK")


def _number(variable: str) -> int:
    """The whole number that an environment variable holds."""
    text = os.environ.get(variable)
    if text is None:
        raise UserError(f"{variable} is not set, though TORCHELASTIC_RUN_ID is: start with torchrun, or unset that.")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(f"{variable}={text}: must be a whole number.")
    return int(text)


def check_gpus(processes: int, here: int) -> None:
    """Refuse more processes of one machine, `here`, than it has GPUs: NCCL cannot exchange gradients within one."""
    if here > (found := torch.cuda.device_count()):
        raise UserError(
            f"train.processes={processes}: each process needs a GPU of its own, and PyTorch finds {found} for {here} of"
            f" them. Start {found} on this machine, or set train.device=cpu."
        )


def own_gpu(number: int, processes: int) -> str:
    """The GPU of a follower that something else has started: that of its place on its machine.

    torchrun tells the place. Without it, SLURM may show each process a GPU of its own alone, or all of its machine;
    by hand, each machine has as many processes as GPUs.
    """
    if "LOCAL_RANK" in os.environ:
        place = _number("LOCAL_RANK")
        check_gpus(processes, place + 1)
        return f"cuda:{place}"
    place = _number("SLURM_LOCALID") if "SLURM_LOCALID" in os.environ else number
    return f"cuda:{place % max(1, torch.cuda.device_count())}"
