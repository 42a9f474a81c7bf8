"""Rows, record batches and blocks of other pipelines as row blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torchdata.nodes import Batcher, IterableWrapper, Mapper

from headrace import (
    BadRecordError,
    ColumnMismatchError,
    DataLoader,
    Dense,
    Label,
    RowBlock,
    RowsFrom,
    Schema,
    Source,
    SourceRange,
)
from headrace.ingest.engine.conformance import check_node, check_node_over, equal_blocks


def taken(node):
    """(file, row, values) of every row, as plain data."""
    found = []
    for block in node:
        file, row = block.source.arrays()
        for f, r, values in zip(file.tolist(), row.tolist(), block.data.to_pylist(), strict=True):
            found.append((block.source.files[f], r, values))
    return found


def expected_of(rows, file="stream"):
    """Read again by the rules of the schema, without the package."""
    numbers = [None if r["h"] is None else int(r["h"], 16) for r in rows]
    return [
        (file, i, {"y": float(r["y"]), "d": r["d"], "a": r["a"], "h": h, "m": r["m"]})
        for i, (r, h) in enumerate(zip(rows, numbers, strict=True))
    ]


@pytest.mark.parametrize("block_rows", [1, 3, 10, 1000])
def test_rows_are_cast_and_numbered(schema, rows, block_rows):
    node = RowsFrom(rows, schema, block_rows=block_rows)
    blocks = list(node)
    assert [b.num_rows for b in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    assert blocks[0].data.schema.equals(schema.arrow_schema())
    node.reset()
    assert taken(node) == expected_of(rows)


def test_record_batches_tables_and_blocks(schema, rows, table):
    for items in (
        table.to_batches(max_chunksize=4),
        [table[:3], table[3:3], table[3:]],
        [pa.concat_tables([table[:5], table[5:]])],
    ):
        assert taken(RowsFrom(items, schema)) == expected_of(rows)
    block = next(iter(RowsFrom([table], schema)))
    own = RowBlock(block.data, Source(("mine",), (SourceRange(0, 70, 10),)))
    assert next(iter(RowsFrom([own], schema))) is own


def test_values_of_numpy_and_torch(schema):
    ids = {"a": np.uint64(2**64 - 1), "h": np.int64(255), "m": torch.tensor([-1, 2])}
    row = {"y": np.float32(1), "d": torch.tensor(0.5), **ids}
    same = {"y": 1.0, "d": 0.5, "a": 2**64 - 1, "h": 255, "m": [-1, 2]}
    other = {**row, "y": True, "m": [np.int64(-1), torch.tensor(2)], "h": b"ff", "a": "18446744073709551615"}
    found = taken(RowsFrom([row], schema)) + taken(RowsFrom([other], schema))
    assert found == [("stream", 0, same)] * 2


def test_it_is_a_node(schema, rows, table):
    for items in (rows, [rows[0], table[1:3], *rows[3:]]):
        check_node(lambda items=items: RowsFrom(items, schema, block_rows=2), equal=equal_blocks)
    check_node_over(lambda source: RowsFrom(source, schema, block_rows=1), items=rows[:4], equal=equal_blocks)


def test_a_resume_within_rows_of_a_block(schema, rows):
    node = RowsFrom(rows, schema, block_rows=3)
    first = next(node)
    state = node.get_state()
    assert (state["rows"], state["source"]["yielded"]) == (3, 3)
    other = RowsFrom(rows, schema, block_rows=5)  # another size continues it
    other.reset(state)
    assert first.num_rows == 3
    assert taken(other) == expected_of(rows)[3:]


class Broken:
    def __init__(self, rows, error):
        self.rows, self.error = rows, error

    def __iter__(self):
        yield from self.rows
        raise self.error


def test_rows_before_an_error_come_before_it(schema, rows):  # errors keep their type
    node = RowsFrom(Broken(rows[:4], PermissionError(13, "no", "s3://x")), schema, block_rows=3)
    assert [next(node).num_rows, next(node).num_rows] == [3, 1]
    for _ in range(2):
        with pytest.raises(PermissionError, match="no") as info:
            next(node)
        assert info.value.filename == "s3://x"


BAD = [
    ("a", -1, BadRecordError, r"stream, line 3, column a: b'-1': does not fit into uint64"),
    ("h", "g1", BadRecordError, r"line 3, column h: b'g1': not 1 to 8 hexadecimal digits"),
    ("h", 2**32, BadRecordError, r"does not fit into hex32"),
    ("y", None, BadRecordError, r"line 3, column y"),
    ("y", 2, BadRecordError, r"line 3, column y: b'2': a label is 0 or 1; declare it with binary=False"),
    ("y", 0.5, BadRecordError, r"line 3, column y: b'0\.5': a label is 0 or 1"),
    ("y", 2**64, BadRecordError, r"line 3, column y: b'18446744073709551616': a label is 0 or 1"),
    ("d", float("nan"), BadRecordError, r"line 3, column d"),
    ("d", 2**24 + 1, BadRecordError, r"line 3, column d: b'16777217': an integer that float32 would round; declare"),
    ("a", 1.0, ColumnMismatchError, r"row 2: float 1\.0 is not an integer"),
    ("a", 2**64, BadRecordError, r"line 3, column a: b'18446744073709551616': does not fit into uint64"),
    ("m", [1, 2**63], BadRecordError, r"line 3, column m: b'\[1, 9223372036854775808\]': does not fit into int64"),
    ("a", True, ColumnMismatchError, r"row 2: bool True is not an integer"),
    ("a", [1], ColumnMismatchError, r"row 2: list \[1\] is not an integer"),
    ("m", 1, ColumnMismatchError, r"row 2: int 1 is not a list"),
    ("m", [1.5], ColumnMismatchError, r"row 2: float 1\.5"),
]


@pytest.mark.parametrize(("column", "value", "kind", "message"), BAD)
def test_what_does_not_fit_is_named(schema, rows, column, value, kind, message):
    changed = [
        dict(r, h=int(r["h"] or "0", 16)) if column == "h" and not isinstance(value, str) else dict(r) for r in rows
    ]
    changed[2][column] = value
    with pytest.raises(kind, match=message):
        list(RowsFrom(changed, schema))


@pytest.mark.parametrize("block_rows", [1, 2, 9])
@pytest.mark.parametrize(
    ("column", "values", "good", "first_reason"),
    [
        (Dense(name="d", dtype="float32"), [0.1, 2**24 + 1, 3, None, 2**64], [np.float32(0.1), 3, None], "would round"),
        (Dense(name="d"), [1.0, 0.5, 2**53 + 1, None, 2**63], [1, 2**53 + 1, None], "not a whole number"),
        (Label(name="d"), [1.0, 2**60, 0, True], [1, 0, 1], "a label is 0 or 1"),
        (Label(name="d", binary=False), [0.5, None, 2**24 + 1, -7], [0.5, -7], "the label is missing"),
    ],
)
def test_integers_among_floats_are_taken_as_by_themselves(column, values, good, first_reason, block_rows):
    kind = {"labels": (column,)} if isinstance(column, Label) else {"dense": (column,)}
    rows = [{"d": value} for value in values]
    node = RowsFrom(rows, Schema(**kind), block_rows=block_rows, bad_records="skip")
    assert [row["d"] for _, _, row in taken(node)] == good
    assert node.stats().skipped == len(values) - len(good)
    with pytest.raises(BadRecordError, match=first_reason):
        list(RowsFrom(rows, Schema(**kind), block_rows=block_rows))


def test_targets_are_any_finite_numbers(schema):
    targets = Schema(labels=(Label(name="y", binary=False),))
    rows = [{"y": 2}, {"y": -0.5}, {"y": np.float32(7)}, {"y": True}]
    assert [row["y"] for _, _, row in taken(RowsFrom(rows, targets))] == [2, -0.5, 7, 1]
    with pytest.raises(BadRecordError, match="a label is 0 or 1"):
        list(RowsFrom([pa.table({"y": [1.0, 0.5]})], Schema(labels=(Label(name="y"),))))


def test_a_column_that_is_not_there(schema, rows):
    without = [{k: v for k, v in r.items() if k != "a"} for r in rows]
    with pytest.raises(ColumnMismatchError, match="column 'a': is declared by the schema, row 0 has y, d, h, m, x"):
        list(RowsFrom(without, schema))
    with pytest.raises(ColumnMismatchError, match="column 'y': is declared by the schema, the batch has z"):
        list(RowsFrom([pa.table({"z": [1]})], schema))
    with pytest.raises(TypeError, match=r"an item is a row .* got tuple: map the pipeline's items"):
        list(RowsFrom([(1, 2)], schema))


def test_frames_are_refused_with_the_way_to_a_table(schema, rows):
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(TypeError, match=r"got DataFrame: pyarrow\.Table\.from_pandas\(frame, preserve_index=False\)"):
        list(RowsFrom([frame], schema))
    with pytest.raises(TypeError, match=r"got a DataFrame: pyarrow\.Table\.from_pandas.*, and \[table\] is a source"):
        RowsFrom(frame, schema)
    block = next(RowsFrom(rows, schema))
    for one in (block, block.data, pa.Table.from_batches([block.data]), rows[0]):  # would be iterated over by columns
        with pytest.raises(TypeError, match=rf"a {type(one).__name__} is one item: give \[it\]"):
            RowsFrom(one, schema)
        assert len(list(RowsFrom([one], schema))) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_a_bad_record(schema, rows, value):
    changed = [dict(rows[0], d=value), rows[1]]
    with pytest.raises(BadRecordError, match="not finite"):
        list(RowsFrom(changed, schema))
    node = RowsFrom(changed, schema, bad_records="skip")
    assert sum(block.num_rows for block in node) == 1


def test_bad_rows_may_be_left_out_and_are_counted(schema, rows):
    changed = [dict(r, a=-1) if i in (0, 3, 4) else r for i, r in enumerate(rows)]
    node = RowsFrom(changed, schema, block_rows=4, bad_records="skip")
    kept = [one for i, one in enumerate(expected_of(rows)) if i not in (0, 3, 4)]
    assert taken(node) == kept
    assert node.stats().skipped == 3
    with pytest.raises(ValueError, match="neither 'raise' nor 'skip'"):
        RowsFrom(rows, schema, bad_records="ignore")


def rows_handed_out(loader):
    return [row for batch in loader for row in batch.source.arrays()[1].tolist()]


class TestTorchdataNodes:
    """Nodes of torchdata as the source of the loader."""

    def test_rows_and_batches_of_rows(self, schema, rows, table):
        offsets = Batcher(IterableWrapper(range(10)), 4, drop_last=False)
        node = Mapper(offsets, lambda some: table[some[0] : some[-1] + 1])
        for source in (IterableWrapper(rows), node):
            with DataLoader(
                RowsFrom(source, schema), 3, schema=schema, window=2, timeout=60, verify_plan=True
            ) as loader:
                assert [len(b) for b in loader] == [3, 3, 3, 1]
                assert rows_handed_out(loader) == list(range(10))

    @pytest.mark.parametrize("taken_batches", range(5))
    def test_state_and_resume(self, schema, rows, taken_batches):
        def make():
            source = RowsFrom(IterableWrapper(rows), schema, block_rows=4)
            return DataLoader(source, 3, schema=schema, window=2, timeout=60)

        with make() as loader:
            for _, _batch in zip(range(taken_batches), loader, strict=False):
                pass
            state = loader.state_dict()
        with make() as loader:
            loader.load_state_dict(state)
            assert rows_handed_out(loader) == (list(range(3 * taken_batches, 10)) or list(range(10)))
