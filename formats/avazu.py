"""Avazu (Kaggle CTR prediction): comma separated, with a header; 24 columns, 23 without ``click`` in the test file."""

from __future__ import annotations

from headrace.formats.checks import check_flag
from headrace.formats.date_parts import yymmddhh_hour, yymmddhh_weekday, yymmddhh_weekend
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.schema import Encoding, Label, OptimizerName, Schema, Sparse, Table

AVAZU = TextFormat(
    name="Avazu",
    header=True,
    spare_fields=True,
    fields=(
        TextField(column="hour_of_day", sources=("hour",), part=yymmddhh_hour),
        TextField(column="weekday", sources=("hour",), part=yymmddhh_weekday),
        TextField(column="is_weekend", sources=("hour",), part=yymmddhh_weekend),
        TextField(column="C20", missing=("-1",)),
    ),
)
"""Besides the columns of the file: parts of its ``hour`` (YYMMDDHH, UTC). ``id`` is a decimal of up to 20 digits:
declare it uint64, most ids are over 2^63."""

_HEX = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
_DEVICE_HEX = ("device_id", "device_ip", "device_model")
_FEATURES: tuple[tuple[str, Encoding], ...] = (
    ("hour_of_day", "uint64"),
    ("weekday", "uint64"),
    ("is_weekend", "uint64"),
    ("C1", "uint64"),
    ("banner_pos", "uint64"),
    *((name, "hex32") for name in (*_HEX, *_DEVICE_HEX)),
    ("device_type", "uint64"),
    ("device_conn_type", "uint64"),
    *((f"C{i}", "uint64") for i in range(14, 22)),
)  # type: ignore[assignment]


def avazu_schema(*, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True) -> Schema:
    """``click`` and 24 ids: the columns of the file without ``id``, its ``hour`` as hour, weekday and weekend.

    ``C20`` = -1 is the missing value. ``labels=False`` reads the test file, which has no ``click``.
    """
    return Schema(
        labels=(Label(name="click"),) if check_flag("labels", labels) else (),
        sparse=tuple(Sparse(name=name, encoding=encoding) for name, encoding in _FEATURES),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name, _ in _FEATURES),
    )
