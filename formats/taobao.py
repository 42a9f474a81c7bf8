"""Taobao UserBehavior (Tianchi 649): ``user,item,category,behavior,timestamp``, no header."""

from __future__ import annotations

from headrace.formats.checks import check_flag
from headrace.formats.date_parts import china_hour, china_weekday
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.schema import Label, OptimizerName, Schema, Sparse, Table

_BEHAVIOURS = {"pv": 0, "buy": 1, "cart": 2, "fav": 3}

TAOBAO_USER_BEHAVIOR = TextFormat(
    name="Taobao UserBehavior",
    columns=("user", "item", "category", "behavior", "timestamp"),
    fields=(
        TextField(column="label", sources=("behavior",), words={word: int(n > 0) for word, n in _BEHAVIOURS.items()}),
        TextField(column="behavior", words=_BEHAVIOURS),
        TextField(column="hour", sources=("timestamp",), part=china_hour),
        TextField(column="weekday", sources=("timestamp",), part=china_weekday),
    ),
)
"""Besides the columns of the file: ``label`` (0 for ``pv``, else 1), ``hour`` and ``weekday`` (in China, as the days of
the dataset are meant). A schema may take any of them. Timestamps are UTC seconds; those outside the nine days of the
dataset, which the full file has, too, are legal."""


def taobao_schema(
    *, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True, context: bool = False
) -> Schema:
    """``label`` and the ids ``user``, ``item``, ``category``; with `context` also ``hour`` and ``weekday``."""
    names = ("user", "item", "category", *(("hour", "weekday") if check_flag("context", context) else ()))
    return Schema(
        labels=(Label(name="label"),) if check_flag("labels", labels) else (),
        sparse=tuple(Sparse(name=name, encoding="uint64") for name in names),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in names),
    )
