"""Scripts of scripts/reproduce as modules: they import each other from their folder, and nothing else finds them."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "scripts" / "reproduce"


def forget() -> None:
    """Drop all modules of the folder, so that each test file has its own."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


@contextlib.contextmanager
def script(name: str) -> Iterator[ModuleType]:
    """One script; what it imports can be imported as well until the context ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        forget()
        try:
            yield importlib.import_module(name)
        finally:
            forget()
