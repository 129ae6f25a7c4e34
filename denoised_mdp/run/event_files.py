"""TensorBoard's files, read record by record with all checksums checked."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from denoised_mdp.files import regular


def event_records(path: Path) -> Iterator[bytes]:
    """Yield the records of one of TensorBoard's files: length, its checksum, data, its checksum.

    TensorBoard's own reader takes a damaged record for an unfinished one, and stops silently.

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
            yield part(length)
