"""The frequency threshold against TorchRec's rule in plain Python, and through the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Schema, Sparse
from headrace.ingest.frequency import FrequencyThreshold


def torchrec_rule(columns: list[list[int]], threshold: int) -> list[list[int]]:
    """`sparse_to_contiguous` of torchrec.datasets.criteo as it is described: below the threshold 1, others from 2."""
    result = []
    for column in columns:
        frequency: dict[int, int] = {}
        for i in column:
            frequency[i] = frequency.get(i, 0) + 1
        contiguous: dict[int, int] = {}
        mapped = []
        for i in column:
            if frequency[i] < threshold:
                mapped.append(1)
            else:
                mapped.append(contiguous.setdefault(i, 2 + len(contiguous)))
        result.append(mapped)
    return result


def blocks_of(values: list[Any], kind: pa.DataType, sizes: list[int]) -> list[RowBlock]:
    blocks, at = [], 0
    for size in [*sizes, len(values)]:
        part = values[at : at + size]
        source = Source(("a",), (SourceRange(0, at, len(part)),))
        blocks.append(RowBlock(pa.RecordBatch.from_pydict({"c": pa.array(part, kind)}), source))
        at += len(part)
    return blocks


@settings(deadline=None)
@given(
    st.lists(st.none() | st.integers(0, 8) | st.integers(0, 2**64 - 1), max_size=60),
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 5),
)
def test_contiguous_ids_are_those_of_torchrec(ids: list[int | None], sizes: list[int], threshold: int) -> None:
    schema = Schema(sparse=(Sparse(name="c", encoding="uint64", missing="zero"),))
    blocks = blocks_of(ids, pa.uint64(), sizes)
    mapping = FrequencyThreshold.count(blocks, schema, threshold, contiguous=True, max_entries=20)
    found = [i for block in blocks for i in mapping(block).data.column("c").to_pylist()]
    assert found == torchrec_rule([[0 if i is None else i for i in ids]], threshold)[0]


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.none() | st.integers(-3, 3), max_size=4), max_size=20), st.integers(1, 4))
def test_lists_and_missing_values_keep_their_shape(rows: list[Any], threshold: int) -> None:
    schema = Schema(sparse=(Sparse(name="c", encoding="int64", multi_hot=True),))
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64())):
        blocks = blocks_of(rows, kind, [3])
        mapping = FrequencyThreshold.count(blocks, schema, {"c": threshold})
        flat = [i for row in rows for i in row or () if i is not None]
        found = [row for block in blocks for row in mapping(block).data.column("c").to_pylist()]
        assert found == [
            None if row is None else [i if i is None or flat.count(i) >= threshold else 1 for i in row] for row in rows
        ]


def test_ids_that_were_never_counted_are_rare() -> None:
    schema = Schema(sparse=(Sparse(name="c"),))
    mapping = FrequencyThreshold.count(blocks_of([7, 7, 8], pa.uint32(), []), schema, 2)
    assert mapping(blocks_of([7, 8, 9], pa.uint32(), [])[0]).data.column("c").to_pylist() == [7, 1, 1]
    assert mapping.kept_ids("c") == 1
    empty = FrequencyThreshold.count([], schema, 2)
    assert empty(blocks_of([7, None], pa.uint32(), [])[0]).data.column("c").to_pylist() == [1, None]


def test_faults_are_named() -> None:
    schema = Schema(sparse=(Sparse(name="c"),))
    with pytest.raises(ValueError, match="threshold of 'd', which is no sparse column"):
        FrequencyThreshold.count([], schema, {"d": 2})
    with pytest.raises(ValueError, match="threshold of 'c'=0"):
        FrequencyThreshold.count([], schema, 0)


def test_real_rows_through_the_loader(shared_data: Path) -> None:
    path = shared_data / "criteo_kaggle" / "wideresdnn_dev.tsv"
    base = headrace.criteo_schema()
    sparse = tuple(Sparse(name=s.name, missing="zero") for s in base.sparse)
    schema = Schema(labels=base.labels, dense=base.dense, sparse=sparse, tables=base.tables)
    reader = headrace.open_dataset("criteo-kaggle", path, schema=schema)
    blocks = (reader.settle(reader.decode(block)) for block in reader.raw_blocks())
    mapping = FrequencyThreshold.count(blocks, schema, 3, contiguous=True)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    columns = [[int(line[c] or "0", 16) for line in lines] for c in range(14, 40)]
    expected = np.array(torchrec_rule(columns, 3))
    with headrace.DataLoader(str(path), 100, schema=schema, transform=mapping, timeout=120) as loader:
        at = 0
        for batch in loader:
            (group,) = batch.groups
            ids = group.unique_ids[group.query_ids].numpy().reshape(26, -1)
            assert ids.tolist() == expected[:, at : at + batch.num_rows].tolist()
            at += batch.num_rows
    assert at == 409


def test_the_published_example() -> None:
    # sparse_to_contiguous's own docstring, threshold 2: abc iop | iop lkj and xyz xyz | tuv xyz
    abc, iop, lkj, xyz, tuv = range(10, 15)
    schema = Schema(sparse=(Sparse(name="c", encoding="uint64"),))
    for column, expected in (([abc, iop, iop, lkj], [1, 2, 2, 1]), ([xyz, xyz, tuv, xyz], [2, 2, 1, 2])):
        blocks = blocks_of(column, pa.uint64(), [2])
        mapping = FrequencyThreshold.count(blocks, schema, 2, contiguous=True)
        assert [i for b in blocks for i in mapping(b).data.column("c").to_pylist()] == expected


def test_the_loader_of_a_reader_is_counted(shared_data: Path) -> None:
    """As docs/transforms.md has it."""
    path = shared_data / "criteo_kaggle" / "wideresdnn_dev.tsv"
    reader = headrace.open_dataset("criteo-kaggle", path)
    counted = FrequencyThreshold.count(headrace.ReadRows(reader), reader.schema, 3)
    assert counted.kept_ids("C9") <= 3
    assert counted.kept_ids("C1") > 5
