from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.indexer import snapshot as snapshots
from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, OFFSET_BITS, IdColumn, IndexTable, pack_location
from tests.support.index_batches import assert_same_ids, column

TABLES = (IndexTable(10, 0), IndexTable(20, 1))
KEY, DIGESTS = b"headrace.index", b"headrace.digests"


def batch(seed: int, ids: int = 400) -> list[IdColumn]:
    rng = np.random.default_rng(seed)
    return [IdColumn(t, rng.integers(0, 5000, ids).astype(np.uint64), rng.random(ids) < 0.01) for t in (0, 1, 0)]


def header_of(table: pa.Table) -> dict[str, Any]:
    return json.loads(table.schema.metadata[KEY])


def test_snapshot_holds_the_committed_rows_sorted_by_location(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1, owner_rank=2, half_life=8) as dit:
        dit.index([column(1, [5, 9], [False, True]), column(0, [(1 << 64) - 1])])
        dit.index([column(0, [3])])
        dit.commit(0)
        table = dit.snapshot()
        places = [pack_location(0, 0, rank=2), pack_location(1, 0, rank=2), pack_location(1, 1, rank=2)]
        assert table.to_pydict() == {
            "table_uid": [10, 20, 20],
            "missing": [False, False, True],
            "id": [(1 << 64) - 1, 5, 0],
            "location": places,
            "uses": [None, None, None],
        }
        assert header_of(table) == {
            "version": 2,
            "num_shards": 1,
            "chunk_rows": CHUNK_ROWS,
            "owner_rank": 2,
            "tables": [[10, 0], [20, 1]],
            "counted_batches": 0,
            "half_life": 8.0,
            "rows": [3],
            "chunks": [[[0, 1], [1, 2]]],
        }
        (digest,) = json.loads(table.schema.metadata[DIGESTS])
        assert len(digest) == 64


def test_snapshot_is_ordered_by_shard_then_location(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=4) as dit:
        dit.commit(dit.index(batch(1)).ticket)
        table = dit.snapshot()
        shards = [location // CHUNK_ROWS % 4 for location in table.column("location").to_pylist()]
        order = list(zip(shards, table.column("location").to_pylist(), strict=True))
        assert order == sorted(order)
        assert header_of(table)["rows"] == [shards.count(shard) for shard in range(4)]
        assert [len(chunk) for chunk in table.column("id").chunks] == header_of(table)["rows"]


def test_holes_and_uses_are_kept(index_class: type[DIT], tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_shards": 1, "half_life": 4}
    with index_class(TABLES, **options) as dit, index_class(TABLES, **options) as copy:
        first = dit.index([column(0, [1, 2, 3, 4]), column(1, [1])])
        dit.commit(first.ticket, first)
        again = dit.index([column(0, [3])])
        dit.commit(again.ticket, again)
        dit.remove([column(0, [2, 4])])  # a hole in the middle, and one at the very end
        table = dit.snapshot()
        assert table.column("location").to_pylist() == [0, 2, CHUNK_ROWS]
        one, two = (np.float32(2.0 ** (t / 4)) for t in (1, 2))  # what a use weighs in batches 1 and 2
        assert table.column("uses").to_pylist() == [one, one + two, one]
        assert (header_of(table)["counted_batches"], header_of(table)["chunks"]) == (2, [[[0, 4], [1, 1]]])
        dit.write_snapshot(tmp_path / "index.arrow")
        copy.read_snapshot(tmp_path / "index.arrow")
        assert copy.snapshot().equals(table, check_metadata=True)
        assert copy.stats().free_places == dit.stats().free_places == 2
        places = first.groups[0].locations
        expected = [one / two, 0, (one + two) / two, 0]
        np.testing.assert_array_equal(dit.uses(places), np.array(expected, np.float32))
        np.testing.assert_array_equal(copy.uses(places), dit.uses(places))
        for index in (dit, copy):
            assert index.index([column(0, [7, 8, 9])]).groups[0].locations.tolist() == [1, 3, 4]


def test_removing_everything_leaves_chunks_of_holes(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=2) as dit, index_class(TABLES, num_shards=2) as copy:
        dit.commit(dit.index(batch(1)).ticket)
        freed = dit.remove(batch(1))
        table = dit.snapshot()
        assert table.num_rows == 0
        copy.restore(table)
        assert copy.stats().free_places == sum(len(group.locations) for group in freed.groups)
        for index in (dit, copy):
            index.index(batch(2))
            index.commit(index.index(batch(3)).ticket)
        assert copy.snapshot().equals(dit.snapshot(), check_metadata=True)


@pytest.mark.parametrize("num_shards", [1, 4, 64])
def test_restored_index_goes_on_as_the_original(index_class: type[DIT], num_shards: int, tmp_path: Path) -> None:
    with index_class(TABLES, num_shards=num_shards) as original, index_class(TABLES, num_shards=num_shards) as copy:
        for seed in range(6):
            original.index(batch(seed))
        original.commit(3)
        original.write_snapshot(tmp_path / "index.arrow")
        copy.read_snapshot(tmp_path / "index.arrow")
        assert [p.name for p in tmp_path.iterdir()] == ["index.arrow"]
        assert len(copy) == len(original)
        assert copy.num_provisional == 0
        for a, b in zip(original.lookup(batch(2)).groups, copy.lookup(batch(2)).groups, strict=True):
            np.testing.assert_array_equal(a.locations, b.locations)
        original.undo_after(3)  # the copy never saw them
        for seed in range(4, 9):
            ours, theirs = copy.index(batch(seed)), original.index(batch(seed))
            copy.commit(ours.ticket)
            original.commit(theirs.ticket)
            for a, b in zip(ours.groups, theirs.groups, strict=True):
                np.testing.assert_array_equal(a.locations, b.locations)
                np.testing.assert_array_equal(a.is_new, b.is_new)
        assert copy.snapshot().equals(original.snapshot(), check_metadata=True)


def test_full_chunks_and_growth_survive_a_restore() -> None:
    with DIT(TABLES, num_shards=2) as original, DIT(TABLES, num_shards=2) as copy:
        ids = np.arange(80_000, dtype=np.uint64)
        original.commit(original.index([IdColumn(0, ids), IdColumn(1, ids[:1000])]).ticket)
        copy.restore(original.snapshot())
        assert copy.stats().capacity == original.stats().capacity
        more = [IdColumn(0, ids + np.uint64(50_000)), IdColumn(1, ids)]
        assert_same_ids(copy.lookup(more), original.lookup(more))
        for a, b in zip(copy.index(more).groups, original.index(more).groups, strict=True):
            np.testing.assert_array_equal(a.locations, b.locations)


def test_tables_may_be_added_and_reordered(index_class: type[DIT]) -> None:
    with index_class(TABLES) as original:
        out = original.index([column(0, [1, 2]), column(1, [1])])
        original.commit(0)
        tables = (IndexTable(20, 1), IndexTable(99, 0), IndexTable(10, 0))
        with index_class(tables) as copy:
            copy.restore(original.snapshot())
            found = copy.lookup([column(2, [1, 2]), column(0, [1])])
            assert found.groups[0].locations.tolist() == out.groups[0].locations.tolist()
            assert found.groups[1].locations.tolist() == out.groups[1].locations.tolist()


def test_empty_index_round_trips(index_class: type[DIT], tmp_path: Path) -> None:
    with index_class(TABLES) as dit, index_class(TABLES) as copy:
        dit.index([column(0, [1])])
        dit.write_snapshot(tmp_path / "x")
        copy.read_snapshot(tmp_path / "x")
        assert len(copy) == 0


def test_restore_needs_an_empty_index(index_class: type[DIT]) -> None:
    with index_class(TABLES) as dit, index_class(TABLES) as other:
        dit.index([column(0, [1])])
        dit.commit(0)
        table = dit.snapshot()
        with pytest.raises(RuntimeError, match="empty index, new or of a loader that has given no batch yet"):
            dit.restore(table)
        other.index([column(0, [4])])
        with pytest.raises(RuntimeError, match="empty index"):
            other.restore(table)
        other.undo_after(None)
        other.restore(table)
        assert len(other) == 1


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        (TABLES, {"num_shards": 32}, "num_shards 64, the index 32"),
        (TABLES, {"owner_rank": 1}, "owner_rank 0, the index 1"),
        (TABLES, {"half_life": 3}, "half_life None, the index 3.0"),
        (TABLES[:1], {}, "table uid 20 in group 1, the index has no such table"),
        ((IndexTable(10, 0), IndexTable(20, 0)), {}, "table uid 20 in group 1, the index in group 0"),
    ],
)
def test_another_index_is_refused(index_class: type[DIT], tables: Any, options: Any, message: str) -> None:
    with index_class(TABLES) as dit, index_class(tables, **options) as other:
        dit.commit(dit.index(batch(1)).ticket)
        with pytest.raises(ValueError, match=message):
            other.restore(dit.snapshot())
        assert len(other) == 0


# --- damaged snapshots, with a digest that matches, so that the checks behind it are reached


def forged(table: pa.Table, columns: dict[str, Any] | None = None, **header: Any) -> pa.Table:
    raw = json.dumps({**header_of(table), **header}).encode()
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    arrays |= {name: pa.array(values, arrays[name].type) for name, values in (columns or {}).items()}
    whole = pa.record_batch(list(arrays.values()), schema=table.schema.with_metadata({KEY: raw}))
    digests, start = [], 0
    for number, rows in enumerate(header_of(table)["rows"]):
        digests.append(snapshots._digest(raw, number, whole.slice(start, rows)))
        start += rows
    return pa.Table.from_batches([whole]).replace_schema_metadata({KEY: raw, DIGESTS: json.dumps(digests)})


def write_as_file(table: pa.Table, path: Path) -> None:
    """As `write_snapshot` would have written it, without an index."""
    start = 0
    with pa.ipc.new_file(path, table.schema.with_metadata({KEY: table.schema.metadata[KEY]})) as writer:
        digests = json.loads(table.schema.metadata[DIGESTS])
        for rows, digest in zip(header_of(table)["rows"], digests, strict=True):
            part = table.slice(start, rows).combine_chunks().to_batches()
            batch = part[0] if part else snapshots._empty(table.schema)
            writer.write_batch(batch.replace_schema_metadata({}), custom_metadata={b"headrace.digest": digest})
            start += rows


def small_index() -> DIT:
    """Shard 0: chunk 0 (group 0) with ids 4, 5, 6; chunk 1 (group 1) with 7."""
    dit = DIT(TABLES, num_shards=1)
    dit.commit(dit.index([column(0, [4, 5, 6]), column(1, [7])]).ticket)
    return dit


def small_snapshot() -> pa.Table:
    with small_index() as dit:
        return dit.snapshot()


AT = [pack_location(0, 0), pack_location(0, 1), pack_location(0, 2), pack_location(1, 0)]

DAMAGED = {
    "version": ({"version": 1}, "snapshot version 1; this code reads version 2"),
    "no version": ({"version": None}, "snapshot version None"),
    "chunk size": ({"chunk_rows": 1024}, "chunk_rows 1024"),
    "shard missing": ({"chunks": []}, "one entry a shard"),
    "chunks no list": ({"chunks": 7}, "one entry a shard"),
    "chunk of three": ({"chunks": [[[0, 3, 1], [1, 1]]]}, "not a list of pairs"),
    "chunk of floats": ({"chunks": [[[0, 3.0], [1, 1]]]}, "must be an integer"),
    "overfull chunk": ({"chunks": [[[0, CHUNK_ROWS + 1], [1, 1]]]}, r"must lie in \[0, 16384\]"),
    "unknown group": ({"chunks": [[[0, 3], [2, 1]]]}, r"must lie in \[0, 1\]"),
    "empty chunk": ({"chunks": [[[0, 3], [1, 1], [0, 0]]]}, "not filled in order"),
    "two unfilled": ({"chunks": [[[0, 3], [1, 1], [0, 1]]]}, "not filled in order"),
    "fewer places": ({"chunks": [[[0, 2], [1, 1]]]}, "row 2 of shard 0 has location 0x2"),
    "wrong group": ({"chunks": [[[1, 3], [0, 1]]]}, "snapshot row 0 of shard 0 lies in a chunk of another group"),
    "fewer rows": ({"rows": [3]}, "rows or digests are not those of its shards"),
    "rows of another shard": ({"rows": [4, 0]}, "rows do not have one entry a shard"),
    "rows no list": ({"rows": 4}, "rows do not have one entry a shard"),
    "rows of text": ({"rows": ["4"]}, "must be an integer"),
    "counted below 0": ({"counted_batches": -1}, "counted_batches"),
    "counted of text": ({"counted_batches": "1"}, "counted_batches"),
    "counted of null": ({"counted_batches": None}, "counted_batches"),
    "counted too often": ({"counted_batches": 1 << 53}, r"counted_batches is 9007199254740992; it must lie in"),
    "counted once more than may be": ({"counted_batches": (1 << 40) + 1}, "counted_batches is"),
    "counted of a float": ({"counted_batches": 1.0}, "counted_batches must be an integer, not float"),
    "counted of a bool": ({"counted_batches": True}, "counted_batches must be an integer, not bool"),
    "version of a float": ({"version": 2.0}, "snapshot version 2.0"),
    "version of text": ({"version": "2"}, "snapshot version '2'"),
    "shards of a bool": ({"num_shards": True}, "num_shards True, the index 1"),
    "shards of a float": ({"num_shards": 1.0}, "num_shards 1.0, the index 1"),
    "shards of text": ({"num_shards": "1"}, "num_shards '1', the index 1"),
    "chunk size of a float": ({"chunk_rows": float(CHUNK_ROWS)}, "chunk_rows 16384.0"),
    "rank of a bool": ({"owner_rank": False}, "owner_rank False, the index 0"),
    "rank of nothing": ({"owner_rank": None}, "owner_rank None, the index 0"),
    "half life of a bool": ({"half_life": False}, "half_life False, the index None"),
    "half life of text": ({"half_life": ""}, "half_life '', the index None"),
    "half life of a list": ({"half_life": []}, r"half_life \[\], the index None"),
    "rows of a bool": ({"rows": [True]}, "rows must be an integer, not bool"),
    "rows of a float": ({"rows": [4.0]}, "rows must be an integer, not float"),
    "uid of a float": ({"tables": [[10.0, 0], [20, 1]]}, "tables must be an integer, not float"),
    "group of a bool": ({"tables": [[10, False], [20, 1]]}, "tables must be an integer, not bool"),
    "a table twice": ({"tables": [[10, 0], [20, 1], [10, 0]]}, "has a table uid twice"),
    "chunk of a bool": ({"chunks": [[[False, 3], [1, 1]]]}, "must be an integer, not bool"),
    "a table too few": ({"tables": [[10, 0]]}, "row 3 of shard 0 is of table uid 20, which is none of its tables"),
    "no tables": ({"tables": []}, "row 0 of shard 0 is of table uid 10, which is none of its tables"),
    "a field too many": ({"extra": 1}, "does not have the fields of version 2: extra"),
    "uses, and none counted": ({"columns": {"uses": [1.0, 0.0, 0.0, 0.0]}}, "has uses, of no counted batches"),
    "tables no list": ({"tables": {"10": 0}}, "tables are not a list of pairs"),
    "duplicate place": ({"columns": {"location": [AT[0], AT[1], AT[1], AT[3]]}}, "row 2 of shard 0 has location 0x1"),
    "out of range": ({"columns": {"location": [AT[0], AT[1], AT[2], 1 << 50]}}, "row 3 of shard 0 has location"),
    "tier bits": (
        {"columns": {"location": [AT[0] | 1 << 62, *AT[1:]]}},
        "row 0 of shard 0 has location 0x4000000000000000",
    ),
    "unsorted": ({"columns": {"location": [AT[1], AT[0], *AT[2:]]}}, "row 1 of shard 0 has location 0x0"),
    "duplicate key": ({"columns": {"id": [4, 5, 4, 7]}}, "row 2 of shard 0 repeats the key"),
    "missing with id": ({"columns": {"missing": [True, False, False, False]}}, "row 0 .* is missing and has an id"),
    "unknown table": ({"columns": {"table_uid": [10, 10, 11, 20]}}, "row 2 of shard 0 is of table uid 11"),
    "uses of nothing": ({"columns": {"uses": [1.0, float("nan"), 1.0, 1.0]}, "counted_batches": 1}, "no numbers"),
    "uses without end": ({"columns": {"uses": [1.0, float("inf"), 1.0, 1.0]}, "counted_batches": 1}, "no numbers"),
    "uses below none": ({"columns": {"uses": [1.0, -1.0, 1.0, 1.0]}, "counted_batches": 1}, "no numbers"),
    "uses of some": ({"columns": {"uses": [1.0, None, 1.0, 1.0]}, "counted_batches": 1}, "uses has nulls"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_snapshot_is_refused_and_nothing_changes(index_class: type[DIT], kind: str) -> None:
    change, message = DAMAGED[kind]
    table = small_snapshot()
    with index_class(TABLES, num_shards=1) as dit:
        with pytest.raises(ValueError, match=message):
            dit.restore(forged(table, **change))
        assert (len(dit), dit.num_provisional) == (0, 0)
        dit.restore(forged(table))  # and the undamaged one still goes in
        assert len(dit) == 4


def test_as_many_batches_as_may_be_counted_are_restored_and_one_more_is_counted(index_class: type[DIT]) -> None:
    table = forged(small_snapshot(), columns={"uses": [1.0, 0.0, 0.0, 0.0]}, counted_batches=(1 << 40) - 1)
    with index_class(TABLES, num_shards=1) as dit, index_class(TABLES, num_shards=1) as copy:
        dit.restore(table)
        out = dit.index([column(0, [4])])
        dit.commit(out.ticket, out)
        assert dit.uses(out.groups[0].locations).tolist() == [2]
        copy.restore(dit.snapshot())
        assert copy.snapshot().equals(dit.snapshot(), check_metadata=True)


def test_a_half_life_may_be_written_as_an_integer(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1, half_life=4) as dit, index_class(TABLES, num_shards=1, half_life=4) as copy:
        dit.restore(forged(small_snapshot(), half_life=4.0))
        copy.restore(forged(small_snapshot(), half_life=4))
        assert len(dit) == len(copy) == 4


def test_key_in_a_shard_where_it_does_not_belong_is_refused(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=2) as dit, index_class(TABLES, num_shards=2) as copy:
        dit.commit(dit.index([column(0, range(10))]).ticket)
        table = dit.snapshot()
        ids = table.column("id").to_pylist()
        with pytest.raises(ValueError, match="row 0 of shard 0 has a key that does not belong there"):
            copy.restore(forged(table, columns={"id": ids[::-1]}))
        assert len(copy) == 0


def test_content_that_does_not_match_its_digest_is_refused(index_class: type[DIT]) -> None:
    table = small_snapshot()
    changed = table.set_column(2, table.schema.field("id"), pa.array([4, 5, 6, 8], pa.uint64()))
    stripped = table.replace_schema_metadata({})
    not_json = table.replace_schema_metadata({KEY: b"{"})
    twice = table.replace_schema_metadata({KEY: b'{"version": 2, "version": 2}'})
    no_number = table.replace_schema_metadata({KEY: b'{"version": NaN}'})
    whole = json.loads(table.schema.metadata[KEY])
    short = table.replace_schema_metadata({KEY: json.dumps({k: v for k, v in whole.items() if k != "half_life"})})
    nested = table.replace_schema_metadata({KEY: b"[" * 100_000})
    retyped = table.set_column(2, "id", table.column("id").cast(pa.int64()))
    no_digests = table.replace_schema_metadata({KEY: table.schema.metadata[KEY]})
    fewer_rows = table.slice(0, 3)
    with index_class(TABLES, num_shards=1) as dit:
        for bad, message in (
            (changed, "shard 0 does not match its digest"),
            (no_digests, "rows or digests are not those of its shards"),
            (fewer_rows, "rows or digests are not those of its shards"),
            (stripped, "not a snapshot of an index"),
            (not_json, "not JSON"),
            (nested, "not JSON"),
            (twice, "has a name twice"),
            (no_number, "NaN is no number of JSON"),
            (short, "does not have the fields of version 2: half_life"),
            (retyped, "the snapshot has columns"),
            (None, "not a snapshot"),
        ):
            with pytest.raises(ValueError, match=message):
                dit.restore(bad)
        assert len(dit) == 0


def holed_index() -> DIT:
    """Two shards with a hole in each, used rows and rows that were not."""
    dit = DIT(TABLES, num_shards=2)
    dit.commit(dit.index([column(0, range(10)), column(1, range(4))]).ticket)
    again = dit.index([column(0, range(5))])
    dit.commit(again.ticket, again)
    dit.remove([column(0, [0, 1, 2])])
    return dit


def test_damaged_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    with holed_index() as dit:
        dit.write_snapshot(path)
        expected = dit.snapshot()
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    damaged = [whole[:cut] for cut in (0, 10, len(whole) // 2, len(whole) - 1)]
    for at in rng.integers(0, len(whole), 300):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        with DIT(TABLES, num_shards=2) as dit:
            error = read_error(dit, path)
            if error is None:  # the flipped bit was padding: what was read is what was written
                assert dit.snapshot().equals(expected, check_metadata=True)
            else:
                assert str(path) in error
                assert (len(dit), dit.num_provisional, dit.stats().free_places) == (0, 0, 0)
                refused += 1
    assert refused > 100
    with DIT(TABLES, num_shards=2) as dit, pytest.raises(FileNotFoundError):
        dit.read_snapshot(tmp_path / "absent")


@pytest.mark.parametrize("cut", [0, 7, 8, 100, 0.3, 0.5, 0.9, -8, -1])
def test_file_that_ends_early_is_refused(index_class: type[DIT], cut: float, tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    with holed_index() as dit:
        dit.write_snapshot(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole)) if isinstance(cut, float) else cut])
    with index_class(TABLES, num_shards=2) as dit:
        with pytest.raises(ValueError, match=r"index\.arrow: not a whole snapshot file"):
            dit.read_snapshot(path)
        path.write_bytes(whole)
        dit.read_snapshot(path)
        assert len(dit) == 11


def test_file_with_its_shards_in_another_order_or_number_is_refused(index_class: type[DIT], tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    with holed_index() as dit:
        dit.write_snapshot(path)
    with pa.ipc.open_file(path) as reader:
        shards = [reader.get_batch_with_custom_metadata(n) for n in range(2)]
        schema = reader.schema
    for order, message in (
        ((0, 1), None),
        ((1, 0), "shard 0 does not match its digest"),
        ((0, 0), "shard 1 does not match its digest"),
        ((0,), "1 record batches for 2 shards"),
        ((0, 1, 1), "3 record batches for 2 shards"),
    ):
        with pa.ipc.new_file(path, schema) as writer:
            for n in order:
                writer.write_batch(shards[n][0], custom_metadata=shards[n][1])
        with index_class(TABLES, num_shards=2) as dit:
            if message is None:
                dit.read_snapshot(path)
                assert len(dit) == 11
                continue
            with pytest.raises(ValueError, match=message):
                dit.read_snapshot(path)
            assert (len(dit), dit.stats().free_places) == (0, 0)


def test_file_without_digests_is_refused(index_class: type[DIT], tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    table = small_snapshot()
    with pa.ipc.new_file(path, table.schema.with_metadata({KEY: table.schema.metadata[KEY]})) as writer:
        writer.write_table(table)
    with (
        index_class(TABLES, num_shards=1) as dit,
        pytest.raises(ValueError, match="shard 0 does not match its digest"),
    ):
        dit.read_snapshot(path)


def read_error(dit: DIT, path: Path) -> str | None:
    try:
        dit.read_snapshot(path)
    except ValueError as error:
        return str(error)
    return None


def test_what_is_no_file_is_refused(index_class: type[DIT], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with index_class(TABLES) as dit:
        for call in (dit.write_snapshot, dit.read_snapshot):
            with pytest.raises(ValueError, match="path of the snapshot is empty; name a file"):
                call("")
            with pytest.raises(IsADirectoryError, match="a folder"):
                call(tmp_path)
            with pytest.raises((OSError, ValueError), match="a pipe, socket or device"):
                call(tmp_path / "pipe")
            with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{tmp_path / 'no' / 'x'}'"):
                call(tmp_path / "no" / "x")
        assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.arrow"
    with small_index() as dit, DIT(TABLES, num_shards=1) as empty:
        dit.write_snapshot(path)
        old = path.read_bytes()

        def fail(fd: int) -> None:
            raise OSError("disk full")

        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            empty.write_snapshot(path)
        assert path.read_bytes() == old
        assert [p.name for p in tmp_path.iterdir()] == ["index.arrow"]
        dit.remove([column(0, [4])])  # the cut of the failed write is closed: this would wait for it


# --- sizes from outside


def test_chunks_without_a_row_cost_next_to_nothing(index_class: type[DIT]) -> None:
    chunks = [[[0, CHUNK_ROWS]] * 20_000 + [[0, 3], [1, 1]]]
    places = [pack_location(20_000, 0), pack_location(20_000, 1), pack_location(20_000, 2), pack_location(20_001, 0)]
    changed = {"location": places, "uses": [0.0, 0.0, 0.0, 0.0]}
    table = forged(small_snapshot(), columns=changed, chunks=chunks, counted_batches=9)
    with DIT(TABLES, num_shards=1) as dit:
        dit.restore(table)
        stats = dit.stats()
        assert stats.free_places == 20_000 * CHUNK_ROWS
        assert stats.nbytes < 2 << 20  # 4 KiB a chunk would be 78 MiB
        assert stats.counts_nbytes == 0  # 64 KiB a chunk would be 1.2 GiB
        assert dit.snapshot().equals(forged_again(dit, table), check_metadata=True)
        assert dit.index([column(0, [70, 71]), column(1, [70])]).groups[0].locations.tolist() == [0, 1]
        assert dit.stats().nbytes < 2 << 20


def forged_again(dit: DIT, table: pa.Table) -> pa.Table:
    """`table` with the digests of a real snapshot."""
    return table.replace_schema_metadata(
        {KEY: table.schema.metadata[KEY], DIGESTS: dit.snapshot().schema.metadata[DIGESTS]}
    )


READ = """
import resource, sys
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IndexTable
with DIT([IndexTable(10, 0), IndexTable(20, 1)], num_shards=1) as dit:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dit.read_snapshot(sys.argv[1])
    dit.write_snapshot(sys.argv[1] + ".again")
    print(len(dit), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_small_file_of_many_chunks_takes_little_memory(tmp_path: Path) -> None:
    chunks = [[[0, CHUNK_ROWS]] * 30_000 + [[0, 3], [1, 1]]]
    places = [pack_location(30_000, 0), pack_location(30_000, 1), pack_location(30_000, 2), pack_location(30_001, 0)]
    changed = {"location": places, "uses": [1.0, 1.0, 1.0, 1.0]}
    table = forged(small_snapshot(), columns=changed, chunks=chunks, counted_batches=9)
    path = tmp_path / "index.arrow"
    write_as_file(table, path)
    assert path.stat().st_size < 1 << 20
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows, kib = map(int, done.stdout.split())
    assert rows == 4
    assert kib < 120 << 10  # most of it the header as Python's integers; 2 GB when each chunk had bits and counts


COUNT = """
import sys
import numpy as np
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable

def mapped_bytes():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmSize:")).split()[1]) << 10

with DIT([IndexTable(10, 0), IndexTable(20, 1)], num_shards=64) as dit:
    before = mapped_bytes()
    dit.read_snapshot(sys.argv[1])
    out = dit.index([IdColumn(1, np.array([7], np.uint64))])
    dit.commit(out.ticket, out)
    print(dit.uses(out.groups[1].locations)[0], dit.stats().counts_nbytes, mapped_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_counting_beside_many_chunks_of_one_shard_takes_room_for_these_alone(tmp_path: Path) -> None:
    with DIT(TABLES, num_shards=64) as dit:
        out = dit.index([column(1, [7])])
        dit.commit(out.ticket, out)
        snapshot = dit.snapshot()
    shard = out.groups[1].locations.tolist()[0] >> OFFSET_BITS
    chunks: list[list[list[int]]] = [[] for _ in range(64)]
    chunks[shard] = [[0, CHUNK_ROWS]] * 20_000 + [[1, 1]]
    table = forged(snapshot, columns={"location": [pack_location(20_000 * 64 + shard, 0)]}, chunks=chunks)
    path = tmp_path / "index.arrow"
    write_as_file(table, path)
    done = subprocess.run([sys.executable, "-c", COUNT, path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    uses, counts_nbytes, mapped = done.stdout.split()
    assert float(uses) == 2
    assert int(counts_nbytes) < 1.4e9  # 64 KiB of addresses for each of 20,000 chunks; 84 GB when for each number
    assert int(mapped) < 3e9


def test_a_chunk_restored_without_a_row_is_taken_undone_and_cut_as_the_original(index_class: type[DIT]) -> None:
    with index_class(TABLES, num_shards=1) as original, index_class(TABLES, num_shards=1) as copy:
        ids = np.arange(CHUNK_ROWS + 5, dtype=np.uint64)
        original.commit(original.index([IdColumn(0, ids), column(1, [1])]).ticket)
        original.remove([IdColumn(0, ids[:CHUNK_ROWS])])  # all of chunk 0
        copy.restore(original.snapshot())
        assert copy.stats().free_places == CHUNK_ROWS
        for index in (original, copy):
            assert index.index([column(0, [1 << 40, 1 << 41])]).groups[0].locations.tolist() == [0, 1]
            with closing(index._core.open_cut()) as cut:  # the two are provisional, and not of it
                assert cut.shard_rows(0).locations.tolist()[:2] == [CHUNK_ROWS, CHUNK_ROWS + 1]
            index.undo_after(None)
            assert index.stats().free_places == CHUNK_ROWS
            ahead = index.index([column(0, [1 << 42, 1 << 43, 1 << 44])])
            assert ahead.groups[0].locations.tolist() == [0, 1, 2]
            with closing(index._core.open_cut()) as cut:
                index.commit(ahead.ticket)
                assert len(cut.shard_rows(0).ids) == cut.num_rows(0) == 6
            index.remove([column(0, [1 << 43])])
            assert index.index([column(0, [7, 8])]).groups[0].locations.tolist() == [1, 3]
        assert copy.snapshot().equals(original.snapshot(), check_metadata=True)


def test_rows_spread_over_more_chunks_than_memory_holds_are_refused(
    index_class: type[DIT], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.arrow"
    with index_class(TABLES, num_shards=1) as dit:
        out = dit.index([column(0, [4, 5, 6]), column(1, [7])])
        dit.commit(out.ticket, out)
        dit.remove([column(0, [5])])
        dit.write_snapshot(path)
        table = dit.snapshot()
    needed = 3 * 19 + 2 * 4096 + 2 * 1024 * 1024  # entries, holes, counts
    for available, refused in ((needed - 1, True), (needed, False)):
        monkeypatch.setattr("headrace.indexer.memory.available_bytes", lambda size=available: size)
        for read in (lambda dit: dit.restore(table), lambda dit: dit.read_snapshot(path)):
            with index_class(TABLES, num_shards=1) as dit:
                if refused:
                    message = r"\(3 rows\) needs at least 2.0 MiB of memory, and 2.0 MiB are available"
                    with pytest.raises(MemoryError, match=message):
                        read(dit)
                else:
                    read(dit)
                assert len(dit) == (0 if refused else 3)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_batches_are_refused_before_they_are_expanded(
    index_class: type[DIT], compression: str, tmp_path: Path
) -> None:
    path = tmp_path / "index.arrow"
    with small_index() as dit:
        dit.write_snapshot(path)
    with pa.ipc.open_file(path) as reader:
        shard, metadata = reader.get_batch_with_custom_metadata(0)
        schema = reader.schema
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, schema, options=options) as writer:
        writer.write_batch(shard, custom_metadata=metadata)
    with index_class(TABLES, num_shards=1) as dit:
        before = pa.total_allocated_bytes()
        with pytest.raises(ValueError, match=r"index\.arrow: shard 0 is not a plain record batch"):
            dit.read_snapshot(path)
        assert pa.total_allocated_bytes() <= before
        assert len(dit) == 0


def test_a_header_of_more_rows_than_the_file_can_hold_is_refused(index_class: type[DIT], tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    table = small_snapshot()
    header = json.dumps({**header_of(table), "rows": [(1 << 62) + 4]}).encode()
    with pa.ipc.new_file(path, table.schema.with_metadata({KEY: header})) as writer:
        writer.write_table(table.replace_schema_metadata({KEY: header}))
    message = r"index\.arrow: it is too short for the 4,611,686,018,427,387,908 rows of its header"
    with index_class(TABLES, num_shards=1) as dit, pytest.raises(ValueError, match=message):
        dit.read_snapshot(path)


def test_a_file_whose_footer_and_stream_have_other_schemas_is_refused(index_class: type[DIT], tmp_path: Path) -> None:
    path = tmp_path / "index.arrow"
    with small_index() as dit:
        dit.write_snapshot(path)
    whole = path.read_bytes()
    assert whole.count(b'"owner_rank": 0') == 2  # in the first message and in the footer
    path.write_bytes(whole.replace(b'"owner_rank": 0', b'"owner_rank": 1', 1))
    with index_class(TABLES, num_shards=1) as dit:
        with pytest.raises(ValueError, match="schema is not that of its footer"):
            dit.read_snapshot(path)
        assert len(dit) == 0


# --- two at a time


def test_a_second_restore_beside_the_first_is_refused_and_spoils_nothing(
    index_class: type[DIT], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = small_snapshot(), tmp_path / "index.arrow"
    with small_index() as dit:
        dit.write_snapshot(path)
    inside, go_on = threading.Event(), threading.Event()
    digest = snapshots._digest

    def slow(*arguments: Any) -> str:
        inside.set()
        assert go_on.wait(60)
        return digest(*arguments)

    with index_class(TABLES, num_shards=1) as dit:
        monkeypatch.setattr(snapshots, "_digest", slow)
        first = threading.Thread(target=dit.restore, args=(table,))
        first.start()
        assert inside.wait(60)
        for second in (lambda: dit.restore(table), lambda: dit.read_snapshot(path)):
            with pytest.raises(RuntimeError, match="another restore into this index is going on"):
                second()
        go_on.set()
        first.join(60)
        assert len(dit) == 4
        with pytest.raises(RuntimeError, match="empty index"):  # and the way is free again
            dit.restore(table)


def rows_in(path: Path) -> int:
    with DIT(TABLES, num_shards=1) as dit:
        dit.read_snapshot(path)
        return len(dit)


def test_two_writers_of_one_process_do_not_share_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.arrow"
    fsync, calls = os.fsync, []
    with small_index() as first, DIT(TABLES, num_shards=1) as second:

        def write_another_first(fd: int) -> None:
            calls.append(fd)
            if len(calls) == 1:
                second.write_snapshot(path)
                assert rows_in(path) == 0
            fsync(fd)

        monkeypatch.setattr("os.fsync", write_another_first)
        first.write_snapshot(path)
    assert rows_in(path) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["index.arrow"]
    assert len(calls) == 4  # file and folder, of each
    assert path.stat().st_mode & 0o777 == 0o644


def test_snapshot_is_a_consistent_cut_while_another_thread_inserts_and_commits() -> None:  # P48
    batches = [batch(seed) for seed in range(120)]
    sizes = [0]
    with DIT(TABLES) as whole:  # committed rows after each batch, and where each key lives
        for columns in batches:
            whole.commit(whole.index(columns).ticket)
            sizes.append(len(whole))
        places = set(whole.snapshot().column("location").to_pylist())
    with DIT(TABLES) as dit:

        def insert() -> None:
            for i, columns in enumerate(batches):
                ticket = dit.index(columns).ticket
                if i >= 3:
                    dit.commit(ticket - 3)

        writer = threading.Thread(target=insert)
        writer.start()
        seen = []
        while writer.is_alive():
            seen.append(dit.snapshot())
        writer.join()
    assert len(seen) > 1
    for table in seen:
        assert table.num_rows in sizes  # a whole number of batches
        assert set(table.column("location").to_pylist()) <= places
        with DIT(TABLES) as copy:
            copy.restore(table)  # verifies: no hole, no place twice, every key in its shard
            done = sizes.index(table.num_rows)
            for columns in batches[max(0, done - 2) : done]:
                assert not any(g.is_new.any() for g in copy.index(columns).groups)


def in_another_thread(call: Callable[[], None]) -> None:
    """Runs to its end within a bound, or the test fails."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert not errors, errors[0]


def test_an_open_cut_keeps_its_rows_while_everything_but_removal_goes_on() -> None:
    with DIT(TABLES, num_shards=4, half_life=16) as dit:
        for seed in range(3):
            out = dit.index(batch(seed))
            dit.commit(out.ticket, out)
        dit.remove(batch(1))
        reused = dit.index(batch(7))  # takes some of the holes, not committed at the cut
        last = dit.index(batch(8))
        with closing(dit._core.open_cut()) as cut:
            expected = dit.snapshot()

            def go_on() -> None:
                dit.undo_after(reused.ticket)
                for seed in range(20, 30):  # into holes, behind the cut's rows, and through growths
                    out = dit.index(batch(seed, 2000))
                    dit.commit(out.ticket, out)
                dit.index(batch(31))
                dit.undo_after(None)
                dit.lookup(batch(32))

            removed = threading.Thread(target=lambda: dit.remove(batch(2)), daemon=True)
            first_shard = cut.shard_rows(0)
            in_another_thread(go_on)
            removed.start()
            removed.join(timeout=0.2)
            assert removed.is_alive()  # waits for the cut
            assert len(dit) > 2 * expected.num_rows
            packed = snapshots.pack(cut, dit._identity())
            for again, before in zip(cut.shard_rows(0), first_shard, strict=True):
                np.testing.assert_array_equal(again, before)
            assert packed.equals(expected, check_metadata=True)
        removed.join(timeout=20)
        assert not removed.is_alive()
        assert dit.lookup(batch(2)).groups[1].locations.tolist() == [ABSENT] * len(
            dit.lookup(batch(2)).groups[1].locations
        )
        assert last.ticket is not None
        with DIT(TABLES, num_shards=4, half_life=16) as copy:
            copy.restore(expected)
            assert copy.snapshot().equals(expected, check_metadata=True)


def test_native_and_twin_read_each_others_snapshots() -> None:
    with DIT(TABLES) as native, PyDIT(TABLES) as twin:
        native.commit(native.index(batch(1)).ticket)
        twin.restore(native.snapshot())
        assert twin.snapshot().equals(native.snapshot(), check_metadata=True)
        assert_same_ids(twin.lookup(batch(1)), native.lookup(batch(1)))
