"""Finished finetunings of `probe joints` on disk, from which the same command resumes.

A folder ``joints_curves`` beside the results holds ``command.json``, which says what is compared and how, and a file
for each finished curve. Both are written atomically; numbers are restored bit-exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from denoised_mdp.analysis.joints.regression import Curve
from denoised_mdp.analysis.results import first_difference, make_folder, write_whole
from denoised_mdp.errors import UserError
from denoised_mdp.files import read_json
from denoised_mdp.models.vision import Encoder

FORMAT = 1
Key = tuple[str, str, int, int, int]
"""encoder, path of its run, frames, training pairs, seed"""


def fingerprint(encoder: Encoder) -> str:
    """A checksum of all weights of an encoder."""
    checksum = 0
    for name, tensor in encoder.state_dict().items():
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), checksum)
    return f"{checksum:08x}"


class FinishedCurves:
    """The finished finetunings of one command, in its results folder.

    about: everything that determines the curves, as a JSON tree. Error messages show its keys.

    Raises:
        UserError: the folder holds curves of another command, or cannot be written.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]):
        self.folder = folder / "joints_curves"
        self.about = json.loads(json.dumps({"format": FORMAT, **about}))
        begun = self._read(self.folder / "command.json")
        if begun is None:
            make_folder(self.folder)
            for stale in self.folder.glob("*.json"):  # curves of unknown origin
                stale.unlink()
            write_whole(self.folder / "command.json", json.dumps(self.about, indent=1))
        elif begun != self.about:
            raise UserError(
                f"{folder} holds curves of another command ({first_difference(begun, self.about)}). Choose another"
                " --output, or repeat that command to continue it."
            )

    def get(self, key: Key) -> Curve | None:
        """The curve of a finished finetuning; None if it is unfinished or damaged."""
        tree = self._read(self._path(key))
        with contextlib.suppress(TypeError, KeyError, ValueError):
            if tree is not None and tuple(tree["key"]) == key:
                arrays = (tree["updates"], tree["mse"], tree["baseline"])
                return Curve(*(np.array(one, kind) for one, kind in zip(arrays, (int, float, float), strict=True)))
        return None

    def put(self, key: Key, curve: Curve) -> None:
        """Save a finished finetuning.

        Raises:
            UserError: it cannot be written.
        """
        arrays = {"updates": curve.updates, "mse": curve.mse, "baseline": curve.baseline}
        tree = {"key": key} | {name: array.tolist() for name, array in arrays.items()}
        write_whole(self._path(key), json.dumps(tree))

    def _path(self, key: Key) -> Path:
        return self.folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        """Read a JSON object; None if the file is missing or holds none."""
        try:
            tree = read_json(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}). Choose another --output.") from error
        except ValueError:
            return None
        return tree if isinstance(tree, dict) else None
