"""UserBehavior with histories: every real row against plain Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.formats.errors import ManifestError
from headrace.formats.histories import LOGS
from headrace.formats.history_build import build_history
from headrace.formats.schema import Dense, SchemaError, Sparse
from headrace.formats.taobao_history import taobao_history_schema
from tests.support.criteo_text import read_all


def test_each_real_row_has_what_its_user_did_before(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "taobao_userbehavior" / "fattydelivery_UserBehavior.csv"
    log = LOGS["taobao-userbehavior"]
    build_history(log.open(path), tmp_path / "history", key=log.key, time_column=log.time, run_rows=700)
    schema = replace(taobao_history_schema(max_length=7), dense=(Dense(name="timestamp"),))
    reader = headrace.open_dataset(
        "taobao-userbehavior-history", path, schema=schema, history=tmp_path / "history", block_bytes=3000
    )
    rows = pa.Table.from_batches([block.data for block in read_all(reader)]).to_pylist()
    texts = [line.split(",") for line in path.read_text().splitlines()]
    by_user: dict[str, list[tuple[int, int, int]]] = {}
    for user, item, category, _, time in texts:
        by_user.setdefault(user, []).append((int(time), int(item), int(category)))
    lonely = 0
    for row, (user, item, _, behaviour, time) in zip(rows, texts, strict=True):
        before = [r for r in sorted(by_user[user], key=lambda r: r[0]) if r[0] < int(time)][-7:]
        lonely += not before
        assert (row["item"], row["timestamp"], row["label"]) == (int(item), int(time), float(behaviour != "pv"))
        assert row["history_item"] == [r[1] for r in before]
        assert row["history_category"] == [r[2] for r in before]
    assert reader.rows_unmatched == {"history": lonely}
    assert lonely >= len(by_user)


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "UserBehavior.csv").write_text("1,2,3,pv,4\n")
    with pytest.raises(ManifestError, match="make one with headrace convert "):
        headrace.open_dataset("taobao-userbehavior-history", tmp_path / "UserBehavior.csv")
    log = LOGS["taobao-userbehavior"]
    build_history(log.open(tmp_path / "UserBehavior.csv"), tmp_path / "history", key=log.key, time_column=log.time)
    schema = taobao_history_schema()
    faulty = replace(schema, sparse=(*schema.sparse, Sparse(name="history_behavior", encoding="uint64")))
    with pytest.raises(SchemaError, match="'history_behavior': a history is a multi_hot column"):
        headrace.open_dataset("taobao-userbehavior-history", tmp_path / "UserBehavior.csv", schema=faulty)
    reader = headrace.open_dataset("taobao-userbehavior-history", tmp_path / "UserBehavior.csv")
    assert read_all(reader)[0].data.column("history_item").to_pylist() == [[]]
