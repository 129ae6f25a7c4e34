"""TensorBoard's files, read record by record with their checksums checked."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from denoised_mdp.files import regular

HEAD = 1024
"""bytes of a record that are read where pictures are not wanted: scalars fit in, and what pictures begin with"""
_MOMENT = re.compile(rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a", re.DOTALL)
"""of an event that holds a summary, as it is written: wall time (field 1), step (2; not written where it is 0)"""


def event_files(folder: Path) -> list[Path]:
    """TensorBoard's files in a run's folder of them, the oldest first."""
    return sorted(folder.glob("events.out.tfevents.*"))


def moments(path: Path) -> Iterator[tuple[float, int]]:
    """Yield (wall time, step) of all summaries in one of TensorBoard's files.

    Pictures are skipped, and their checksums: those of one run would take seconds, and nothing here depends on them.

    Raises: as `event_records`, and DecodeError for a record that is whole but no event.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    for record in event_records(path, HEAD):
        if len(record) < HEAD:
            event = Event.FromString(record)
            if event.HasField("summary"):
                yield event.wall_time, event.step
        elif found := _MOMENT.match(record):
            step = sum((byte & 127) << 7 * place for place, byte in enumerate(found[2] or b""))
            yield *struct.unpack("<d", found[1]), step


def event_records(path: Path, head: int | None = None) -> Iterator[bytes]:
    """Yield the records of one of TensorBoard's files: length, its checksum, data, its checksum.

    TensorBoard's own reader takes a damaged record for an unfinished one, and stops silently.

    head: of data that is not shorter, only so many bytes are yielded, and its checksum is not checked.

    Raises:
        ValueError: a record is torn, or differs from its checksum; those before it were yielded.
        OSError: the file cannot be read.
    """
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    def part(size: int) -> bytes:
        data = file.read(size)
        if len(data) < size or file.read(4) != struct.pack("<I", masked_crc32c(data)):
            raise ValueError(f"the record at byte {begin:,} is not whole")
        return data

    with open(regular(path), "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while (begin := file.tell()) < end:
            (length,) = struct.unpack("<Q", part(8))
            if length > end - begin:  # allocate no memory that no record here can fill
                raise ValueError(f"the record at byte {begin:,} is not whole")
            if head is None or length < head:
                yield part(length)
                continue
            if file.tell() + length + 4 > end:
                raise ValueError(f"the record at byte {begin:,} is not whole")
            yield file.read(head)
            file.seek(length - head + 4, os.SEEK_CUR)
