"""Progress bars of probes that take long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def progress_bar(what: str, total: int, unit: str, **look: Any) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal: call what this yields with how much of `total` is done. look: options of `tqdm`."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit=unit, **look) as bar:
        yield lambda done: bar.update(done - bar.n)
