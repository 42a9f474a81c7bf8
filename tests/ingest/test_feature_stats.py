"""Statistics of columns against plain Python, on real rows and on lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Dense, Label, Schema, Sparse
from headrace.ingest.feature_stats import feature_stats


def blocks_of(reader: Any) -> Any:
    return (reader.settle(reader.decode(block)) for block in reader.raw_blocks())


@pytest.mark.parametrize("max_entries", [1 << 20, 5000])
def test_real_rows(shared_data: Path, max_entries: int) -> None:
    path = shared_data / "criteo_kaggle" / "wideresdnn_train.tsv"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    reader = headrace.open_dataset("criteo-kaggle", path)
    report = feature_stats(blocks_of(reader), reader.schema, max_entries=max_entries)
    assert report["rows"] == 7200
    for position, feature in enumerate(report["sparse"], start=14):
        ids = [int(line[position], 16) for line in lines if line[position]]
        ranked = sorted(Counter(ids).items(), key=lambda item: (-item[1], item[0]))
        assert feature["name"] == f"C{position - 13}"
        assert (feature["ids"], feature["cardinality"], feature["missing"]) == (len(ids), len(ranked), 7200 - len(ids))
        assert feature["missing_share"] == (7200 - len(ids)) / 7200
        assert feature["top_ids"] == [list(item) for item in ranked[:20]]
        counts = [count for _, count in ranked]
        assert feature["seen_once"] == counts.count(1)
        assert feature["top_share"] == {
            str(k): pytest.approx(sum(counts[:k]) / len(ids)) for k in (1, 10, 100, 1000) if k <= len(counts)
        }
        assert feature["coverage"][-1] == [len(ranked), 1.0]
        assert all(share == pytest.approx(sum(counts[:k]) / len(ids)) for k, share in feature["coverage"])
    for position, dense in enumerate(report["dense"], start=1):
        values = [int(line[position]) for line in lines if line[position]]
        assert (dense["min"], dense["max"], dense["missing"]) == (min(values), max(values), 7200 - len(values))
        assert (dense["mean"], dense["std"]) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values)))
    assert report["labels"][0]["mean"] == pytest.approx(np.mean([line[0] == "1" for line in lines]))


def test_lists_and_derived_features_and_a_limit_of_rows() -> None:
    schema = Schema(
        labels=(Label(name="y"),),
        dense=(Dense(name="age"),),
        sparse=(
            Sparse(name="h", encoding="int64", multi_hot=True),
            Sparse(name="u", encoding="uint64"),
            Sparse(name="old", bucket_of="age", boundaries=(30,)),
            Sparse(name="x", cross=("u", "old")),
        ),
    )
    data = pa.RecordBatch.from_pydict(
        {
            "y": [0.0, 1.0, 1.0, 0.0],
            "age": pa.array([20, None, 30, 40], pa.int64()),
            "h": pa.array([[-1, 3, -1], None, [], [None, 3]], pa.list_(pa.int64())),
            "u": pa.array([1, 2, None, 9], pa.uint64()),
        },
        schema.arrow_schema(),
    )
    block = RowBlock(data, Source(("a",), (SourceRange(0, 0, 4),)))
    report = feature_stats([block, block], schema, rows=7)
    h, u, old, cross = report["sparse"]
    assert report["rows"] == 7
    assert (h["ids"], h["missing"], h["missing_elements"], h["cardinality"]) == (7, 4, 1, 2)
    assert h["top_ids"] == [[2**64 - 1, 4], [3, 3]]  # the larger count first, then the smaller id
    assert (u["missing"], u["cardinality"], u["seen_once"]) == (2, 3, 1)
    assert (old["missing"], old["top_ids"]) == (2, [[1, 3], [0, 2]])
    assert (cross["missing"], cross["cardinality"]) == (0, 4)
    assert report["dense"][0]["mean"] == pytest.approx((20 + 30 + 40 + 20 + 30) / 5)


def test_no_rows() -> None:
    report = feature_stats([], Schema(dense=(Dense(name="d"),), sparse=(Sparse(name="a"),)))
    assert report["sparse"][0]["cardinality"] == 0
    assert report["sparse"][0]["coverage"] == []
    assert report["dense"][0]["mean"] is None
