"""Checkpoints: a tree of tensors, arrays and plain values in one folder per step, written atomically.

A checkpoint is ``step_000010000/`` with three files. ``tensors.safetensors`` holds every tensor and array
under its path in the tree (``agent/weights/world_model. ...``), ``state.json`` everything else, and ``manifest.json``
the format version and the checksums that reveal a torn checkpoint. Nothing is pickled: opening a checkpoint
runs no code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from denoised_mdp.errors import UserError, out_of_memory, remedy
from denoised_mdp.files import parse_json, read_json, regular, remove, replace_file, sync_folder
from denoised_mdp.run.codec import decode, encode

FORMAT = 4  # bump when the format on disk changes: other formats are refused
_NAME = re.compile(r"step_([0-9]+)(\.old)?")
_UNFINISHED = ".tmp-"
_FOR_NOW = {
    *(errno.EACCES, errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
}
"""read errors that say nothing about the file's content, which may be intact"""
_NONE_YET = ".none"
MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""raised when plain values have unexpected types"""


class _Damaged(Exception):
    """A checkpoint that is not whole; the message says why."""


def save(folder: Path | str, step: int, tree: dict[str, Any], keep: int | None = 2) -> Path:
    """Write `tree` as the checkpoint of `step`, then delete all but the newest `keep`.

    The new checkpoint is renamed into place only after its files are synced to disk; then the others are deleted.
    Checkpoints of later steps are deleted too, since the run was resumed from an earlier one.

    Args:
        folder: the run's checkpoint folder, created if missing. Its parent is not created: without it, the run
            is gone.
        step: environment steps so far.
        tree: nested dicts (str or int keys), lists and tuples of tensors, arrays, NumPy scalars, str, bytes,
            int of up to 300 digits, float, bool and None.
        keep: number of checkpoints to keep; None: all.

    Returns:
        The checkpoint's folder.

    Raises:
        UserError: the disk is full or not writable; earlier checkpoints are intact.
        TypeError: `tree` holds a value of another type.
    """
    folder = Path(folder)
    tensors: dict[str, torch.Tensor] = {}
    state = json.dumps(encode(tree, "", tensors), indent=1, allow_nan=False).encode()
    files = {"tensors.safetensors": safetensors.torch.save(tensors), "state.json": state}
    del tensors
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = {"format": FORMAT, "step": step, "sha256": checksums}
    files["manifest.json"] = json.dumps(manifest, indent=1).encode()

    final = folder / f"step_{step:09d}"
    replaced = final.with_name(f"{final.name}.old")
    unfinished = folder / f"{_UNFINISHED}{final.name}"
    try:
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        for leftover in folder.glob(f"{_UNFINISHED}*"):
            remove(leftover)
        unfinished.mkdir()
        for name, data in files.items():
            with open(unfinished / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(unfinished)
        if os.path.lexists(final):  # after a kill between the renames, `load` finds the old one as *.old
            _delete(replaced)
            final.rename(replaced)
        unfinished.rename(final)
        sync_folder(folder)
        _delete(replaced)
        _delete_later(folder, step)
        for _, path in _checkpoints(folder)[keep:] if keep else ():
            _delete(path)
        (folder / _NONE_YET).unlink(missing_ok=True)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        steps = list_steps(folder)
        intact = f"That of step {steps[-1]:,} is intact. " if steps else ""
        raise UserError(
            f"The checkpoint of step {step:,} cannot be saved in {folder} ({error.strerror}). {intact}{remedy(error)}"
            " and run the same command again."
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return final


def delete_after(folder: Path | str, step: int) -> None:
    """Delete the checkpoints after `step`, from which the run continues.

    Raises:
        UserError: a checkpoint cannot be deleted.
    """
    try:
        _delete_later(Path(folder), step)
    except OSError as error:
        raise UserError(
            f"{folder}: later checkpoints cannot be deleted ({error.strerror}). {remedy(error)}."
        ) from error


def expect_first(folder: Path | str) -> None:
    """Leave a marker in `folder`: the run has begun and has no checkpoint yet. `save` removes it.

    Raises:
        UserError: the marker cannot be written.
    """
    try:
        Path(folder).mkdir(exist_ok=True)
        replace_file(Path(folder) / _NONE_YET, b"")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}). {remedy(error)} and try again.") from error


def expects_first(folder: Path | str) -> bool:
    """Whether the run in `folder` has never had a checkpoint; False if its checkpoints were deleted."""
    return (Path(folder) / _NONE_YET).exists()


def plain_values(folder: Path | str, step: int) -> dict[str, Any]:
    """Return a checkpoint's state without its tensors, as unchecked JSON data; {} if it cannot be read."""
    try:
        found = read_json(Path(folder) / f"step_{step:09d}" / "state.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load(
    folder: Path | str,
    step: int | None = None,
    accept: Callable[[dict[str, Any]], str | None] | None = None,
    also: Path | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return (step, tree) of the newest whole checkpoint in `folder`, or of the checkpoint of `step`.

    If a checkpoint is torn, the one before it is used, with a warning that names both. Dicts become plain
    dicts. Everything else keeps its type and its exact bits. Tensors are on the CPU, as optimizers and generators
    require.

    Args:
        folder: as for `save`.
        step: use this checkpoint, without a fallback.
        accept: returns why a tree cannot be used, or None if it can. A refused tree counts as torn.
        also: another folder that may hold the checkpoint of `step`, and is then preferred: if a run was stopped in the
            middle of its updates, the weights in `folder` are not those that the hooks of that step saw.

    Raises:
        UserError: there is none, none is whole, it cannot be read now, or it has the format of another version.
    """
    folder = Path(folder)
    candidates, more = _checkpoints(folder), _checkpoints(also) if also else []
    steps = sorted({found for found, _ in candidates + more})
    if step is not None:
        if type(step) is not int:
            raise UserError(f"checkpoint={step!r}: must be a step, a whole number, or best.")
        candidates = [(found, path) for found, path in more + candidates if found == step]
    if not candidates:
        wanted = "" if step is None else f" of step {step:,}"
        existing = f" (steps with one: {', '.join(f'{found:,}' for found in steps)})" if steps else " yet"
        raise UserError(f"There is no checkpoint{wanted} in {folder}{existing}.")
    problems: dict[str, None] = {}  # each once: rows that are lost are missing for every checkpoint
    for found, path in candidates:
        try:
            tree = _read(path, found)
            if accept and (reason := accept(tree)):
                raise _Damaged(reason)
        except _Damaged as error:
            problems[str(error)] = None
            continue
        if problems:
            warnings.warn(f"{'; '.join(problems)}; using {path.name} instead", stacklevel=2)
        return found, tree
    others = [found for found in steps if found not in dict(candidates)] if also else []
    choose = f" choose another step (there are {', '.join(f'{found:,}' for found in others)})," if others else ""
    raise UserError(f"{'; '.join(problems)}. Restore a copy,{choose} or start in a new run_dir.")


def list_steps(folder: Path | str) -> list[int]:
    """Return the steps that have a checkpoint, whole or not, in ascending order."""
    return sorted({step for step, _ in _checkpoints(Path(folder))})


def newest_seen_whole(folder: Path | str) -> int | None:
    """Return the step of the newest checkpoint that looks whole; of its tensors, only header and length are read."""
    return next((step for step, path in _checkpoints(Path(folder)) if _seems_whole(path, step)), None)


def _seems_whole(path: Path, step: int) -> bool:
    try:
        read_json(path / "state.json")
        of_this_step = read_json(path / "manifest.json")["step"] == step
        with (tensors := regular(path / "tensors.safetensors")).open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), tensors.stat().st_size
            if length > size:  # one flipped bit can make it exceed all memory
                return False
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return of_this_step and size == 8 + length + max(ends, default=0)
    except (OSError, *MALFORMED):
        return False


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every checkpoint, newest first; a replaced one follows its successor."""
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():  # for example a link to an unmounted disk: starting anew would destroy the run
        raise UserError(f"{folder} is no folder. Put the checkpoints back where they were, or choose another run_dir.")
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (-int(pair[0][1]), pair[0][2] or ""))
    return [(int(match[1]), path) for match, path in found]


def _read(path: Path, step: int) -> dict[str, Any]:
    """Return the tree of one checkpoint. Raises _Damaged if it is not whole."""
    try:
        manifest = read_json(path / "manifest.json")
        version = manifest["format"]
        if manifest["step"] != step or type(version) is not int:
            raise ValueError("manifest.json belongs elsewhere")
        if version != FORMAT:
            raise UserError(
                f"{path} was written by another version of denoised_mdp (checkpoint format {version}, this one has"
                f" {FORMAT}). Use that version, or train anew in another run_dir."
            )
        files = {}
        for name in ("tensors.safetensors", "state.json"):
            files[name] = regular(path / name).read_bytes()
            if hashlib.sha256(files[name]).hexdigest() != manifest["sha256"][name]:
                raise ValueError(f"{name} differs from its checksum")
        tensors = safetensors.torch.load(files["tensors.safetensors"])
        return decode(parse_json(files["state.json"]), tensors)
    except FileNotFoundError as error:
        raise _Damaged(f"{path} is incomplete: no {Path(error.filename).name}") from error
    except OSError as error:
        if error.errno in _FOR_NOW:  # it may be whole: resuming from an older one would destroy what came after
            raise UserError(
                f"{error.filename or path} cannot be read ({error.strerror}). Mend that and repeat the command. Only if"
                " it is lost, move its folder away: the run then goes on from the checkpoint before."
            ) from error
        raise _Damaged(f"{error.filename or path} cannot be read ({error.strerror})") from error
    except (*MALFORMED, SafetensorError) as error:
        if out_of_memory(error):
            raise
        raise _Damaged(f"{path} is damaged: {error}") from error


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of nested dicts, lists and tuples; empty ones are leaves as well."""
    if isinstance(tree, dict | list | tuple) and tree:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            yield from leaves(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, tree


def _delete_later(folder: Path, step: int) -> None:
    for found, path in _checkpoints(folder):
        if found > step:
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a checkpoint; a partial deletion never leaves a valid one."""
    if os.path.lexists(path):
        doomed = path.with_name(f"{_UNFINISHED}{path.name}")
        path.rename(doomed)
        remove(doomed)
