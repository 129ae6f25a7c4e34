"""Find the runs in folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from denoised_mdp.errors import UserError
from denoised_mdp.plugins import load_plugins
from denoised_mdp.run.folder import RunFolder, is_pretrained

UNREAL = ("dev", "proc", "sys")
"""top-level folders of Linux that hold no real files"""


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The runs among these folders and, at any depth, inside the others, each once. Some may be `RunFolder.lost`.

    Raises:
        UserError: a folder is not a run and holds none, or a plug-in cannot be imported.
    """
    load_plugins()  # first: a failing plug-in must not look like a damaged run
    found: dict[Path, Path] = {}
    for folder in map(Path, map(os.path.expanduser, folders)):
        inside = [folder] if is_pretrained(folder) else []
        seen: set[Path] = set()  # links can lead in circles
        for path, names, files in os.walk(folder, followlinks=True) if not inside else ():
            if (real := Path(path).resolve()) in seen:
                names.clear()
                continue
            seen.add(real)
            run = RunFolder(path)
            if run.is_run if "config.yaml" in files else "checkpoints" in names and run.lost:
                inside.append(Path(path))
                if run.begun:
                    names.clear()  # a run holds no other runs
            hidden = UNREAL if path == os.sep else ()
            names[:] = sorted(name for name in names if not name.startswith(".") and name not in hidden)
        around = {above for path in inside for above in path.parents}  # drops a printed configuration above runs
        inside = [path for path in inside if path not in around or RunFolder(path).begun]
        if not inside:
            _refuse(RunFolder(folder))
        found |= {path.resolve(): path for path in inside}
    return list(found.values())


def _refuse(folder: RunFolder) -> None:
    """Raise UserError that says why there is no run."""
    lost = set(folder.held) - {folder.probes}  # probe results may be those of a packaged agent
    if lost and not folder.config.is_file():  # with another program's config.yaml, nothing of ours was lost
        raise UserError(f"{folder.path} has lost its config.yaml: restore that file from a copy.")
    if folder.path.is_dir() and not folder.part_of:
        command = f"'denoised-mdp train {shlex.quote(f'run_dir={folder.path}/NAME')}'"
        raise UserError(f"{folder.path} holds no run yet: {command} begins one.")
    RunFolder.existing(folder.path)  # raises with the reason
