"""Schema of the Criteo click logs.

The Kaggle files (``train.txt``, ``test.txt``) and the Terabyte ones (``day_0`` .. ``day_23``) have the same columns, so
there is one constructor. Their ids are hashed differently: the two cannot be joined, and must not share a model.
"""

from __future__ import annotations

from headrace.formats.checks import check_flag
from headrace.formats.delimited_format import TextField, TextFormat
from headrace.formats.schema import (
    Dense,
    DenseTransform,
    DenseType,
    Label,
    MissingId,
    OptimizerName,
    Schema,
    Sparse,
    Table,
)

NUM_DENSE = 13
NUM_SPARSE = 26


def criteo_schema(
    *,
    dim: int = 16,
    optimizer: OptimizerName = "rowwise_adagrad",
    dense_transform: DenseTransform = "log1p",
    missing: MissingId = "key",
    labels: bool = True,
    dense_dtype: DenseType = "int64",
    multi_hot: bool = False,
) -> Schema:
    """``label``, ``I1`` .. ``I13`` (int64), ``C1`` .. ``C26`` (hex32), a table of `dim` values a row for each ``C``.

    ``labels=False`` describes files without the label column, such as Kaggle's ``test.txt``: 39 columns, not 40.
    ``dense_dtype="float32"`` and `multi_hot` are for binary derivatives (see `criteo_arrays.py`); where their dense
    values are already transformed, give ``dense_transform="identity"``.
    """
    ids = [f"C{i}" for i in range(1, NUM_SPARSE + 1)]
    return Schema(
        labels=(Label(name="label"),) if check_flag("labels", labels) else (),
        dense=tuple(Dense(name=f"I{i}", dtype=dense_dtype, transform=dense_transform) for i in range(1, NUM_DENSE + 1)),
        sparse=tuple(Sparse(name=name, missing=missing, multi_hot=multi_hot) for name in ids),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in ids),
    )


def other_name(name: str) -> str | None:
    """The other published name of a Criteo column: ``I1`` .. ``I13``, ``C1`` .. ``C26`` are also called ``int_0`` ..
    ``int_12``, ``cat_0`` .. ``cat_25`` (NVTabular, TorchRec). None for a name that is neither.
    """
    for prefix, other, count in (("I", "int_", NUM_DENSE), ("C", "cat_", NUM_SPARSE)):
        for number in range(count):
            if name == f"{prefix}{number + 1}":
                return f"{other}{number}"
            if name == f"{other}{number}":
                return f"{prefix}{number + 1}"
    return None


CRITEO_CSV = TextFormat(
    name="Criteo CSV",
    header=True,
    spare_fields=True,
    fields=(
        TextField(column="label", sources=("label", "Label"), whole_floats=True),
        *(TextField(column=f"I{i}", sources=(f"I{i}", f"int_{i - 1}"), whole_floats=True) for i in range(1, 14)),
        *(TextField(column=f"C{i}", sources=(f"C{i}", f"cat_{i - 1}")) for i in range(1, 27)),
    ),
)
"""Comma separated derivatives with a header: LF or CRLF, an id column or none, columns in any order, integers also as
``260.0`` (DeepCTR, ycjuan's samples, RecZoo's Criteo_x1 and x4)."""
