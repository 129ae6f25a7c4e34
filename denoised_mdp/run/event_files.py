"""Read TensorBoard's event files record by record and verify their checksums."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from denoised_mdp.files import regular

HEAD = 1024
"""bytes read of a record when pictures are skipped: enough for scalars and for the beginning of a picture's event"""
_MOMENT = re.compile(rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a", re.DOTALL)
"""beginning of a serialized event with a summary: wall time (field 1), step (field 2, omitted if it is 0)"""


def event_files(folder: Path) -> list[Path]:
    """TensorBoard's event files in `folder`, oldest first."""
    return sorted(folder.glob("events.out.tfevents.*"))


def moments(path: Path) -> Iterator[tuple[float, int]]:
    """Yield (wall time, step) of every summary in an event file.

    Pictures and their checksums are skipped: checking them would take seconds per run, and nothing here needs them.

    Raises: as `event_records`, and DecodeError for a whole record that is not an event.
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
    """Yield the data of each record in an event file. A record is its length, a checksum, the data, a checksum.

    TensorBoard's own reader mistakes a damaged record for an unfinished one and stops silently.

    head: data of at least this many bytes is cut to them, and its checksum is not verified.

    Raises:
        ValueError: a record is torn or fails its checksum; those before it have been yielded.
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
            if length > end - begin:  # never allocate more than the file can hold
                raise ValueError(f"the record at byte {begin:,} is not whole")
            if head is None or length < head:
                yield part(length)
                continue
            if file.tell() + length + 4 > end:
                raise ValueError(f"the record at byte {begin:,} is not whole")
            yield file.read(head)
            file.seek(length - head + 4, os.SEEK_CUR)
