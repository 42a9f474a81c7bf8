"""YAML files as plain data, whoever wrote them: bounded in size and time, and with nothing in them passed over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from headrace.formats.checks import check_type

MAX_BYTES = 8 << 20
_MAX_NODES = 1_000_000  # with what aliases stand for: nine lines can stand for a billion
_MAX_SCALAR_CHARS = 1024


def read_yaml(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """The one document of a file: dicts, lists and scalars; None for an empty file.

    ValueError, which names the file, for anything else: objects, a key given twice (YAML would drop one of them), an
    alias inside what it stands for, more than `max_bytes`, a million nodes, or 1024 characters in one scalar. A file of
    8 MB takes a minute: `max_bytes` is what a file of its kind can need.
    """
    check_type("path", path, (str, os.PathLike), "the path of a file")  # a number would be a file that is open
    with open(path, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path}: longer than {max_bytes} bytes")
    try:
        return _plain(data)
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: not plain YAML: {error}") from error


def _plain(data: bytes) -> Any:
    loader = yaml.SafeLoader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Nodes that `node` stands for; `counts` has those that were counted, 0 for those that it is inside of."""
    known = counts.get(id(node))
    if known == 0:
        raise ValueError(f"an alias stands for what it is inside of, {_place(node)}")
    if known is not None:
        return known
    counts[id(node)] = 0
    total = 1
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > _MAX_SCALAR_CHARS:
            raise ValueError(f"a scalar of {len(node.value)} characters, {_place(node)}")
    elif isinstance(node, yaml.MappingNode):
        _refuse_repeated(node)
        total += sum(_count(key, counts) + _count(value, counts) for key, value in node.value)
    else:
        total += sum(_count(item, counts) for item in node.value)
    if total > _MAX_NODES:
        raise ValueError(f"more than {_MAX_NODES} values, {_place(node)}")
    counts[id(node)] = total
    return total


def _refuse_repeated(node: yaml.MappingNode) -> None:
    keys = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in keys:
            raise ValueError(f"the key {key.value[:80]!r} is there twice, {_place(key)}")
        keys.add((key.tag, key.value))


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
