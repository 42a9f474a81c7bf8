"""A small schema and rows of it, for the adapters."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace import Dense, Label, Schema, Sparse, Table


@pytest.fixture(scope="session")
def schema() -> Schema:
    return Schema(
        labels=(Label(name="y"),),
        dense=(Dense(name="d", dtype="float32"),),
        sparse=(
            Sparse(name="a", encoding="uint64"),
            Sparse(name="h", encoding="hex32"),
            Sparse(name="m", encoding="int64", multi_hot=True),
        ),
        tables=(Table(name="m", dim=3),),
    )


@pytest.fixture(scope="session")
def rows() -> list[dict]:
    """Ten rows; the ids of row i are 2^64 - 1 - i, hexadecimal i, and [-i] * (i % 3)."""
    return [
        {"y": i % 2, "d": i / 4, "a": 2**64 - 1 - i, "h": f"{i:x}" if i != 4 else None, "m": [-i] * (i % 3), "x": "?"}
        for i in range(10)
    ]


@pytest.fixture(scope="session")
def table(rows) -> pa.Table:
    """The same rows in other types than the schema's, and in another order of columns."""
    types = {"x": pa.string(), "m": pa.large_list(pa.int32()), "y": pa.int8(), "a": pa.uint64(), "h": pa.uint16()}
    numbers = [{**r, "h": None if r["h"] is None else int(r["h"], 16)} for r in rows]
    return pa.Table.from_pylist(numbers, schema=pa.schema({**types, "d": pa.float64()}))
