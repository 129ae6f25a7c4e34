"""Convert a tree of tensors, arrays and plain values to JSON data and named tensors, and back: exact, no pickle."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON data, and move its tensors and arrays to `tensors` under their paths.

    JSON lacks tensors, arrays, tuples, bytes, nan, infinity and integer keys: these become objects with one ``$`` key.
    """
    if isinstance(value, torch.Tensor):
        # Strides matter: an optimizer resumes bit-exactly, and as fast, only in the same memory format.
        nhwc = not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
        copy = value.detach().cpu().clone(memory_format=torch.contiguous_format)  # never a view of another tensor
        return {"$channels_last" if nhwc else "$tensor": _put(tensors, path, copy)}
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            tensor = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise TypeError(f"a checkpoint cannot hold the {value.dtype} array at {path}") from error
        return {"$array" if isinstance(value, np.ndarray) else "$scalar": _put(tensors, path, tensor)}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        items = {key: encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in items):
            return items
        if all(isinstance(key, (str, int)) for key in items):
            return {"$dict": [[key, item] for key, item in items.items()]}
        raise TypeError(f"a checkpoint cannot hold the keys of {path}: {list(items)}")
    raise TypeError(f"a checkpoint cannot hold the {type(value).__name__} at {path}")


def _put(tensors: dict[str, torch.Tensor], path: str, tensor: torch.Tensor) -> str:
    """Store `tensor` under its path, made unique if that is taken, and return the name."""
    name = path.removeprefix("/")
    while name in tensors:  # {"a/b": ...} beside {"a": {"b": ...}}
        name += "'"
    tensors[name] = tensor
    return name


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Invert `encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), ("", None))
    match kind:
        case "$tensor":
            return tensors[content]
        case "$channels_last":
            return tensors[content].to(memory_format=torch.channels_last)
        case "$array":
            return tensors[content].numpy()
        case "$scalar":
            return tensors[content].numpy()[()]
        case "$float":
            return float(content)
        case "$bytes":
            return base64.b64decode(content)
        case "$tuple":
            return tuple(decode(content, tensors))
        case "$dict":
            return {key: decode(item, tensors) for key, item in content}
        case _:
            return {key: decode(item, tensors) for key, item in value.items()}
