"""Taobao UserBehavior with what each user did before: samples and histories from the same file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.formats.files import PathLike
from headrace.formats.history_store import HistoryStore
from headrace.formats.joined_reader import HistoryJoin, JoinedFiles
from headrace.formats.schema import OptimizerName, Schema, Sparse
from headrace.formats.taobao import TAOBAO_USER_BEHAVIOR, taobao_schema

HISTORY_COLUMNS = {"history_item": "item", "history_category": "category", "history_behavior": "behavior"}


def taobao_history_schema(
    *, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True, max_length: int = 50
) -> Schema:
    """``label``, ``user``, ``item``, ``category``, ``hour``, ``weekday``, ``history_item``, ``history_category``: the
    user's last `max_length` actions, in the tables of ``item`` and ``category``."""
    base = taobao_schema(dim=dim, optimizer=optimizer, labels=labels, context=True)
    histories = tuple(
        Sparse(
            name=f"history_{table}",
            table=table,
            encoding="uint64",
            multi_hot=True,
            pooling="mean",
            missing="drop",
            max_length=max_length,
        )
        for table in ("item", "category")
    )
    return replace(base, sparse=(*base.sparse, *histories))


def taobao_history(
    paths: PathLike | Iterable[PathLike],
    schema: Schema,
    *,
    history: PathLike | HistoryStore | None = None,
    **options: Any,
) -> JoinedFiles:
    """A reader of ``UserBehavior.csv`` with the columns ``history_item``, ``history_category``, ``history_behavior``.

    `history` is the folder that `headrace convert --history` made of the same file (``history`` beside it when not
    given). A row's history is what its user did before its second; the row itself, and others of that second, are not
    in it.
    """
    if not isinstance(history, HistoryStore):
        paths = paths if isinstance(paths, (str, os.PathLike)) else list(paths)
        log = shlex.join(os.fspath(path) for path in _listed(paths))
        folder = _beside(_listed(paths)[0]) if history is None else history
        history = HistoryStore(folder, made_from=f"{log} --dataset taobao-userbehavior")
    join = HistoryJoin("history", history, "user", "timestamp", HISTORY_COLUMNS)
    return JoinedFiles(paths, schema, TAOBAO_USER_BEHAVIOR, histories=(join,), **options)


def _listed(paths: PathLike | Iterable[PathLike]) -> list[PathLike]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _beside(path: PathLike) -> str:
    return os.path.join(path if os.path.isdir(path) else os.path.dirname(path), "history")
