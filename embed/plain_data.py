"""Nested plain data as JSON, its arrays apart, and back; no pickle.

Taken are None, bool, int, float (every value), str, bytes, list, tuple, dict with str or int keys, NumPy arrays and CPU
or device tensors. JSON holds what it can; the rest stands in one-entry mappings whose key begins with ``$``:
``{"$tensor": 3}`` and ``{"$array": 3}`` (array number 3), ``{"$tuple": [..]}``, ``{"$bytes": hex}``,
``{"$items": [[key, value], ..]}`` for a mapping with other keys than plain strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace.embed.arrays import Array


def encode(value: Any, arrays: list[Array], where: str) -> Any:
    """JSON tree of `value`; arrays and tensors are appended to `arrays`.

    TypeError names the place (`where` is the name of the whole) of what is not plain data.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), arrays, where)
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _encode_array(value, arrays, where)
    if isinstance(value, (list, tuple)):
        items = [encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        return _encode_mapping(value, arrays, where)
    raise TypeError(f"{where} is a {type(value).__name__}, which is not plain data and cannot be saved")


def _encode_array(value: torch.Tensor | Array, arrays: list[Array], where: str) -> Any:
    kind = "$array"
    if isinstance(value, torch.Tensor):
        kind = "$tensor"
        try:
            value = value.detach().cpu().numpy()
        except TypeError:
            raise TypeError(f"{where} is a tensor of {value.dtype}, which NumPy cannot hold") from None
    if value.dtype.hasobject:
        raise TypeError(f"{where} is an array of Python objects, which cannot be saved")
    arrays.append(np.array(value))
    return {kind: len(arrays) - 1}


def _encode_mapping(value: Mapping[Any, Any], arrays: list[Array], where: str) -> Any:
    for key in value:
        if not isinstance(key, str) and type(key) is not int:
            raise TypeError(f"{where} has the key {key!r}; keys are strings and integers")
    items = {key: encode(item, arrays, f"{where}[{key!r}]") for key, item in value.items()}
    if all(isinstance(key, str) and not key.startswith("$") for key in items):
        return items
    return {"$items": [[key, item] for key, item in items.items()]}


def decode(tree: Any, arrays: Sequence[Array]) -> Any:
    """What :func:`encode` took; ValueError for a tree that it cannot have given."""
    if isinstance(tree, list):
        return [decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if not any(key.startswith("$") for key in tree):
        return {key: decode(item, arrays) for key, item in tree.items()}
    if len(tree) != 1:
        raise ValueError(f"not plain data: a mapping with the keys {sorted(tree)}")
    ((kind, content),) = tree.items()
    if kind == "$tuple":
        return tuple(decode(item, arrays) for item in content)
    if kind == "$items":
        return {key: decode(item, arrays) for key, item in content}
    if kind == "$bytes":
        return bytes.fromhex(content)
    if kind in ("$tensor", "$array"):
        return _decode_array(kind, content, arrays)
    raise ValueError(f"not plain data: a mapping with the key {kind!r}")


def _decode_array(kind: str, number: Any, arrays: Sequence[Array]) -> Any:
    if type(number) is not int or not 0 <= number < len(arrays):
        raise ValueError(f"array {number!r} of {len(arrays)}")
    return torch.from_numpy(arrays[number].copy()) if kind == "$tensor" else arrays[number]
