"""What the tests of RoboDesk share."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

MARKS = [
    pytest.mark.skipif(importlib.util.find_spec("robodesk") is None, reason="needs the package robodesk"),
    pytest.mark.usefixtures("cache"),
]
ALL = {"tv": {"frames": 100}, "button_noise": {}, "moving_lights": {}, "camera_shake": {}}


def actions(count: int, seed: int = 0) -> np.ndarray:
    """Random actions, float32 [count, 5]."""
    return np.random.default_rng(seed).uniform(-1, 1, (count, 5)).astype(np.float32)
