"""How this process of a multi-process run was started, if not by the run itself, and which GPU it uses."""

from __future__ import annotations

import os
import re

import torch

from denoised_mdp.errors import UserError

VARIABLES = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def launched(processes: int) -> int | None:
    """Return this process's rank if an external launcher started the processes; None if the run starts them.

    It is ``torchrun`` or whatever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as for ``srun`` on several nodes.

    Raises:
        UserError: it has started another number than `processes`, or a variable is missing or not a whole number.
    """
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not by_torchrun and (processes == 1 or not os.environ.keys() >= VARIABLES):
        return None
    started, by = _number("WORLD_SIZE"), "torchrun has started" if by_torchrun else "WORLD_SIZE tells of"
    if started != processes:
        raise UserError(f"{by} {started} processes: set train.processes={started}.")
    return _number("RANK")


def _number(variable: str) -> int:
    """Return the whole number in an environment variable."""
    text = os.environ.get(variable)
    if text is None:
        raise UserError(f"{variable} is not set, though TORCHELASTIC_RUN_ID is: start with torchrun, or unset that.")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(f"{variable}={text}: must be a whole number.")
    return int(text)


def check_gpus(processes: int, here: int) -> None:
    """Refuse more processes on this machine (`here`) than GPUs: NCCL cannot exchange gradients within one GPU."""
    if here > (found := torch.cuda.device_count()):
        raise UserError(
            f"train.processes={processes}: each process needs a GPU of its own, and PyTorch finds {found} for {here} of"
            f" them. Start {found} on this machine, or set train.device=cpu."
        )


def own_gpu(number: int, processes: int) -> str:
    """Return the GPU of an externally launched follower: the one of its local rank.

    torchrun tells the local rank. Otherwise, SLURM may show each process only its own GPU or all of the machine's;
    started by hand, each machine has as many processes as GPUs.
    """
    if "LOCAL_RANK" in os.environ:
        place = _number("LOCAL_RANK")
        check_gpus(processes, place + 1)
        return f"cuda:{place}"
    place = _number("SLURM_LOCALID") if "SLURM_LOCALID" in os.environ else number
    return f"cuda:{place % max(1, torch.cuda.device_count())}"
