"""Rows on disk: one plain ``.npy`` file per column, which any NumPy program can memory-map.

Rows are written with ``pwrite``: a full disk then raises an error, where writing through a memory map would kill the
process with SIGBUS. Small rows are read through a map. Large rows are read with ``preadv``, many at a time, where the
system has it: a map of a file larger than memory fetches one page per fault.
"""

from __future__ import annotations

import io
import itertools
import math
import mmap
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from denoised_mdp.errors import UserError, remedy
from denoised_mdp.files import regular, still_at, sync_folder

Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""column -> dtype and shape of one row, in the order in which the columns of a row are written"""

IOV_MAX = 1024  # most buffers of one preadv, on all systems that have it
LARGE = 1024
"""least bytes of a large row: pictures are large, even small ones, and nothing else"""
HEADER = 128
"""bytes of each file's header; NumPy reserves room in it for a larger number of rows"""


def bytes_needed(layout: Layout, places: int) -> int:
    """Return the size in bytes of files of `places` rows."""
    row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
    return places * row + len(layout) * HEADER


class Columns:
    """The files of `folder`, all with the same number of places for rows.

    Args:
        folder: where the files are.
        layout: their names (without ``.npy``), dtypes and shapes.
        places: least number of rows of every file. The attribute is the number that all of them have.
        writable: False opens the files read-only.

    Raises:
        UserError: a file is missing, truncated, or of another shape.
    """

    def __init__(self, folder: Path, layout: Layout, places: int, writable: bool = True):
        _refuse_other_shapes(folder, layout)
        self.folder, self.layout = folder, layout
        self._files: dict[str, _File] = {}
        for name in layout:
            path = folder / f"{name}.npy"
            try:
                self._files[name] = _File(path, writable)
                found = len(self._files[name].rows)
                if found < places:
                    raise ValueError(f"{found:,} rows instead of {places:,}")
            except (OSError, ValueError) as error:
                self.close()  # the files opened before it
                reason = getattr(error, "strerror", None) or error  # its text would repeat the path
                raise UserError(
                    f"{path} is missing or damaged ({reason}). Restore it, or start in a new run_dir."
                ) from error
        self.places = min(len(file.rows) for file in self._files.values())

    @classmethod
    def create(cls, folder: Path, layout: Layout, places: int) -> Columns:
        """Create the files, filled with zeros; files of the same shapes are replaced.

        Raises:
            UserError: the disk is too small, or the folder holds files of other shapes.
        """
        _refuse_other_shapes(folder, layout)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_disk(folder, layout, places)
            for name in layout:
                (folder / f"{name}.npy").unlink(missing_ok=True)
            for name, (dtype, shape) in layout.items():  # sparse files, which grow as rows are written
                np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(places, *shape))
            sync_folder(folder), sync_folder(folder.parent)
        except OSError as error:
            raise _disk_error(folder, error) from error
        return cls(folder, layout, places)

    def grow(self, places: int) -> None:
        """Append zeros up to `places` rows per file. An interruption leaves all rows intact.

        Raises:
            UserError: the disk is too small.
        """
        try:
            _check_disk(self.folder, self.layout, places)
            for file in self._files.values():
                file.grow(places)
        except OSError as error:
            raise _disk_error(self.folder, error) from error
        self.places = places

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column, read-only: [places or more, ...]."""
        return self._files[name].rows

    def read(self, name: str, places: np.ndarray) -> np.ndarray:
        """Copy the rows at these places, int array [T, ...], of a column.

        Consecutive places along T are read at once.
        """
        file = self._files[name]
        if file.row_bytes >= LARGE and hasattr(os, "preadv"):
            return file.read(places)
        rows = file.rows[places]
        if file.row_bytes >= LARGE:
            file.forget()
        return rows

    def write(self, place: int, row: Mapping[str, object]) -> None:
        """Write a whole row, column by column in the order of the layout.

        Raises:
            UserError: the disk is full.
        """
        try:
            for name, (dtype, _) in self.layout.items():
                self._files[name].write(place, np.asarray(row[name], dtype))
        except OSError as error:
            raise _disk_error(self.folder, error) from error

    def forget(self, name: str) -> None:
        """Release the pages of a column read so far; the system's cache keeps them.

        Otherwise the process would appear to grow by the whole column, and memory limits could kill it.
        """
        self._files[name].forget()

    def flush(self) -> None:
        """Sync all rows to disk.

        Raises:
            UserError: the disk is full, or a file was deleted, replaced or moved and its rows are lost.
        """
        try:
            for file in self._files.values():
                file.flush()
        except OSError as error:
            raise _disk_error(self.folder, error) from error

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}


class _File:
    """One ``.npy`` file of rows, open for writing single rows and reading many."""

    def __init__(self, path: Path, writable: bool = True):
        self._path = path
        self._map()
        self._file = os.open(path, os.O_RDWR if writable else os.O_RDONLY)

    def _map(self) -> None:
        self._mapped = _mapped(self._path)
        self.rows = np.asarray(self._mapped)  # [rows, ...], read only
        self.row_bytes = self._mapped[:1].nbytes

    def grow(self, places: int) -> None:
        """Append rows of zeros, if there are fewer than `places`."""
        if len(self.rows) >= places:
            return
        begin = self._mapped.offset
        header = _header(self.rows.dtype, (places, *self.rows.shape[1:]))
        assert len(header) == begin, "the header has no room for a larger number of rows"
        os.ftruncate(self._file, begin + places * self.row_bytes)
        os.fsync(self._file)  # a header must never count rows that the file lacks
        os.pwrite(self._file, header, 0)
        os.fsync(self._file)
        self._map()

    def write(self, place: int, row: np.ndarray) -> None:
        data = row.tobytes()
        offset = self._mapped.offset + place * self.row_bytes
        while data:  # a nearly full disk takes a part, then reports why it stops
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written

    def read(self, places: np.ndarray) -> np.ndarray:
        """See `Columns.read`."""
        rows = np.empty((*places.shape, *self.rows.shape[1:]), self.rows.dtype)
        if not places.size:
            return rows
        lines = places.reshape(len(places), -1)  # [T, N]
        width = lines.shape[1] * self.row_bytes  # from one row of a column to the next
        target = memoryview(rows.reshape(-1).view(np.uint8))
        for line, column in enumerate(lines.T):
            begins = [0, *(np.flatnonzero(np.diff(column) != 1) + 1), len(column)]
            for first, end in itertools.pairwise(begins):
                parts = []
                for t in range(first, end):
                    begin = t * width + line * self.row_bytes
                    parts.append(target[begin : begin + self.row_bytes])
                self._read_into(parts, int(column[first]))
        return rows

    def _read_into(self, parts: list[memoryview], place: int) -> None:
        """Fill buffers, one row each, from `place` on."""
        for first in range(0, len(parts), IOV_MAX):
            some = parts[first : first + IOV_MAX]
            offset = self._mapped.offset + (place + first) * self.row_bytes
            while some:
                count = os.preadv(self._file, some, offset)
                if not count:
                    raise UserError(f"{self._path} is truncated. Restore it, or start in a new run_dir.")
                offset += count
                while some and count >= len(some[0]):
                    count -= len(some.pop(0))
                if count:
                    some[0] = some[0][count:]

    def forget(self) -> None:
        self._mapped.base.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        os.fsync(self._file)
        if not still_at(self._path, self._file):
            raise UserError(
                f"{self._path} was deleted, replaced or moved while it was written. Put the folder back as it was and"
                " run the same command again: it continues from the last checkpoint. Else start in a new run_dir."
            )

    def close(self) -> None:
        os.close(self._file)


def _mapped(path: Path) -> np.memmap:
    """Map a file of rows, read-only.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such a file.
    """
    try:
        mapped = np.lib.format.open_memmap(regular(path), mode="r")
    except (OSError, ValueError):
        raise
    except Exception as error:  # NumPy's header parser lets through whatever Python's parser raises
        raise ValueError("it has no header of NumPy") from error
    if not mapped.ndim or not mapped.flags.c_contiguous:
        raise ValueError("it holds no rows")
    return mapped


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of an ``.npy`` file."""
    file = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _refuse_other_shapes(folder: Path, layout: Layout) -> None:
    """Raise UserError when `folder` holds rows of another shape."""
    for name, (dtype, shape) in layout.items():
        path = folder / f"{name}.npy"
        try:
            found = _mapped(path)
        except (OSError, ValueError):
            continue  # missing or broken files have nothing to protect; opening them reports it
        if found.shape[1:] != shape or found.dtype != dtype:
            raise UserError(
                f"{path} holds rows of {found.dtype} {found.shape[1:]}, not {dtype} {shape}: it is of another"
                " environment. Choose another run_dir."
            )


def _check_disk(folder: Path, layout: Layout, places: int) -> None:
    """Raise UserError if the disk has no room for files of `places` rows that replace the existing ones."""
    paths = [folder / f"{name}.npy" for name in layout]
    needed = bytes_needed(layout, places)
    free = shutil.disk_usage(folder).free + sum(p.stat().st_blocks * 512 for p in paths if p.exists())
    if needed > free:
        raise UserError(
            f"The replay of {places:,} rows needs {needed:,} bytes but the disk of {folder} has {free:,} bytes"
            " free. Set a smaller replay.capacity or train.checkpoint_every, or use a larger disk for run_dir."
        )


def _disk_error(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"The replay in {folder} cannot be written ({error.strerror}). {remedy(error)} and run the same command"
        " again: it continues from the last checkpoint."
    )
