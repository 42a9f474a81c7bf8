"""Native index and twin side by side through random histories, and both against a few lines of what must hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dit import DIT
from headrace.indexer.hashing import ROUTE_BUCKETS, mix64
from headrace.indexer.indexed import ABSENT, IdColumn, IndexedIds, IndexTable
from tests.support.index_batches import assert_same_ids

TABLES = (IndexTable(7, 0), IndexTable(8, 1), IndexTable(9, 0), IndexTable(0xFFFF_FFFF, 2))
SPECIAL = [0, 1, 1 << 63, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 2, 1 << 32]

raw_ids = st.one_of(st.integers(0, 60), st.sampled_from(SPECIAL), st.integers(0, 2**64 - 1))


@st.composite
def id_columns(draw: st.DrawFn) -> IdColumn:
    wide = draw(st.booleans())
    ids = draw(st.lists(raw_ids if wide else st.integers(0, 2**32 - 1) | st.integers(0, 60), max_size=25))
    mask = None
    if draw(st.booleans()):
        mask = np.array(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), np.bool_)
    return IdColumn(draw(st.integers(0, len(TABLES) - 1)), np.array(ids, np.uint64 if wide else np.uint32), mask)


batches = st.lists(id_columns(), max_size=5)


Key = tuple[int, bool, int]


def hash_of(key: Key) -> int:
    return int(mix64(TABLES[key[0]].uid, key[1], np.array([key[2]], np.uint64))[0])


def keys_of(indexed: IndexedIds) -> list[tuple[Key, int, bool]]:
    """(key, location, is_new) of every unique row."""
    found = []
    for group in indexed.groups:
        for j, table in enumerate(group.tables):
            for row in range(group.table_offsets[j], group.table_offsets[j + 1]):
                key = (table, bool(group.missing[row]), int(group.unique_ids[row]))
                found.append((key, int(group.locations[row]), bool(group.is_new[row])))
    return found


class IndexMachine(RuleBasedStateMachine):
    """`half_life` is short enough that a history passes the 32 half-lives after which weights are divided."""

    @initialize(
        num_shards=st.sampled_from([1, 2, 16]),
        num_threads=st.sampled_from([1, 3]),
        half_life=st.sampled_from([None, 1, 2.5]),
    )
    def make(self, num_shards: int, num_threads: int, half_life: float | None) -> None:
        self.options: dict[str, Any] = {"num_shards": num_shards, "owner_rank": 3, "half_life": half_life}
        self.threads = num_threads
        self.native = DIT(TABLES, num_threads=num_threads, **self.options)
        self.twin = PyDIT(TABLES, **self.options)
        self.committed: dict[Key, int] = {}
        self.open: dict[int, dict[Key, int]] = {}
        self.results: list[tuple[list[Key], IndexedIds]] = []  # whose rows all exist still
        self.batches_of_row: dict[Key, list[int]] = {}  # the counted batches that used it
        self.counted_batches = 0

    @rule(batch=batches)
    def index(self, batch: list[IdColumn]) -> None:
        out = self.native.index(batch)
        assert_same_ids(out, self.twin.index(batch))
        known = self.known()
        brought = {}
        for key, location, is_new in keys_of(out):
            assert is_new == (key not in known)
            assert known.get(key, location) == location
            if is_new:
                brought[key] = location
        taken = [*known.values(), *brought.values()]
        assert len(set(taken)) == len(taken)
        for column, query in self.queries(batch, out):
            for i, raw in enumerate(column.values.tolist()):
                missing = column.missing is not None and bool(column.missing[i])
                group = out.groups[TABLES[column.table].group]
                assert group.missing[query[i]] == missing
                assert group.unique_ids[query[i]] == (0 if missing else raw)
        assert out.ticket is not None
        self.open[out.ticket] = brought
        self.results.append(([key for key, _, _ in keys_of(out)], out))

    @rule(batch=batches)
    def look_up(self, batch: list[IdColumn]) -> None:
        out = self.native.lookup(batch)
        assert_same_ids(out, self.twin.lookup(batch))
        for key, location, is_new in keys_of(out):
            assert location == self.committed.get(key, int(ABSENT))
            assert not is_new

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.open)))
        keys, used = data.draw(st.sampled_from([([], None), *self.results[-4:]]))  # of later tickets too
        self.native.commit(ticket, used)
        self.twin.commit(ticket, used)
        if used is not None:
            self.count(keys)
        for done in [t for t in self.open if t <= ticket]:
            self.committed |= self.open.pop(done)

    @precondition(lambda self: self.results)
    @rule(data=st.data(), batches=st.integers(1, 70))
    def commit_many(self, data: st.DataObject, batches: int) -> None:
        """Empty batches, each with the same rows delivered: time passes."""
        keys, used = data.draw(st.sampled_from(self.results))
        for _ in range(batches):
            for dit in (self.native, self.twin):
                ticket = dit.index([]).ticket
                assert ticket is not None
                dit.commit(ticket, used)
            self.count(keys)
        for rows in self.open.values():
            self.committed |= rows
        self.open = {}

    def count(self, keys: list[Key]) -> None:
        self.counted_batches += 1
        for key in keys:
            self.batches_of_row.setdefault(key, []).append(self.counted_batches)

    @precondition(lambda self: not self.open)
    @rule(batch=batches, data=st.data())
    def remove(self, batch: list[IdColumn], data: st.DataObject) -> None:
        if self.committed:  # some that are there
            for table, missing, raw in data.draw(st.lists(st.sampled_from(sorted(self.committed)), max_size=10)):
                batch = [*batch, IdColumn(table, np.array([raw], np.uint64), np.array([missing]))]
        out = self.native.remove(batch)
        assert_same_ids(out, self.twin.remove(batch))
        for key, location, is_new in keys_of(out):
            assert location == self.committed.pop(key, int(ABSENT))
            assert not is_new
            self.batches_of_row.pop(key, None)
        self.forget_results()

    @precondition(lambda self: self.open)
    @rule(batch=batches)
    def remove_is_refused_while_tickets_are_open(self, batch: list[IdColumn]) -> None:
        for dit in (self.native, self.twin):
            with pytest.raises(RuntimeError, match=f"{len(self.open)} tickets are open"):
                dit.remove(batch)

    @rule()
    def uses(self) -> None:
        known = self.known()
        locations = np.array([*known.values(), int(ABSENT)], np.uint64)
        native = self.native.uses(locations)
        np.testing.assert_array_equal(native, self.twin.uses(locations))
        half_life = self.options["half_life"] or float("inf")
        expected = [
            sum(2.0 ** ((batch - self.counted_batches) / half_life) for batch in self.batches_of_row.get(key, ()))
            for key in known
        ]
        if half_life == float("inf"):
            assert native.tolist() == [*expected, 0]
        np.testing.assert_allclose(native, [*expected, 0], rtol=1e-5, atol=1e-9)

    @rule(ends=st.tuples(st.integers(0, ROUTE_BUCKETS), st.integers(0, ROUTE_BUCKETS)), all_of_them=st.booleans())
    def rows_of_buckets(self, ends: tuple[int, int], all_of_them: bool) -> None:
        first, last = (0, ROUTE_BUCKETS) if all_of_them else sorted(ends)
        native, twin = self.native.rows_of_buckets(first, last), self.twin.rows_of_buckets(first, last)
        for name, ours, theirs in zip(native._fields, native, twin, strict=True):
            assert ours.dtype == theirs.dtype, name
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        keys = list(zip(native.tables.tolist(), native.missing.tolist(), native.ids.tolist(), strict=True))
        inside = {key: place for key, place in self.committed.items() if first <= hash_of(key) >> 48 < last}
        assert dict(zip(keys, native.locations.tolist(), strict=True)) == inside
        assert len(keys) == len(inside)
        assert keys == sorted(keys, key=lambda key: (hash_of(key), key))
        assert native.buckets.tolist() == [hash_of(key) >> 48 for key in keys]

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        ticket = data.draw(st.none() | st.sampled_from(sorted(self.open))) if self.open else None
        self.native.undo_after(ticket)
        self.twin.undo_after(ticket)
        for undone in [t for t in self.open if ticket is None or t > ticket]:
            self.drop(self.open.pop(undone))
        self.forget_results()

    def drop(self, rows: dict[Key, int]) -> None:
        for key in rows:
            self.batches_of_row.pop(key, None)

    def forget_results(self) -> None:
        known = self.known()
        self.results = [(keys, out) for keys, out in self.results if all(key in known for key in keys)]

    @rule(ticket=st.integers(0, 10))
    def commit_anything(self, ticket: int) -> None:
        if ticket not in self.open:
            errors = []
            for dit in (self.native, self.twin):
                with pytest.raises(ValueError, match=f"ticket {ticket}") as error:
                    dit.commit(ticket)
                errors.append(str(error.value))
            assert errors[0] == errors[1]

    @rule()
    def snapshot_and_restore(self) -> None:
        native, twin = self.native.snapshot(), self.twin.snapshot()
        assert native.equals(twin, check_metadata=True)
        assert sorted(native.column("location").to_pylist()) == sorted(self.committed.values())
        # go on with restored indexes, each from the other's snapshot, as after a crash: open tickets are lost
        self.native.close()
        self.native = DIT(TABLES, num_threads=self.threads, **self.options)
        self.twin = PyDIT(TABLES, **self.options)
        self.native.restore(twin)
        self.twin.restore(native)
        for rows in self.open.values():
            self.drop(rows)
        self.open = {}
        self.forget_results()

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "native"):
            for dit in (self.native, self.twin):
                assert len(dit) == len(self.committed)
                assert dit.num_provisional == sum(len(rows) for rows in self.open.values())
            assert self.native.stats().free_places == self.twin.stats().free_places

    def known(self) -> dict[Key, int]:
        known = dict(self.committed)
        for rows in self.open.values():
            known |= rows
        return known

    def queries(self, batch: list[IdColumn], out: IndexedIds) -> list[tuple[IdColumn, np.ndarray]]:
        starts = [0] * len(out.groups)
        found = []
        for column in batch:
            group = TABLES[column.table].group
            end = starts[group] + len(column.values)
            found.append((column, out.groups[group].query_ids[starts[group] : end]))
            starts[group] = end
        assert starts == [len(g.query_ids) for g in out.groups]
        return found

    def teardown(self) -> None:
        if hasattr(self, "native"):
            self.native.close()


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_long_histories() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        IndexMachine, settings=settings(max_examples=400, stateful_step_count=60, deadline=None)
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.lists(batches, max_size=3), undone=st.lists(batches, max_size=3), after=st.lists(batches, max_size=3))
def test_index_after_undo_is_as_if_never_read(
    before: list[list[IdColumn]], undone: list[list[IdColumn]], after: list[list[IdColumn]]
) -> None:
    with DIT(TABLES, num_shards=2) as dit, PyDIT(TABLES, num_shards=2) as fresh:
        for batch in before:
            dit.index(batch)
            fresh.index(batch)
        for batch in undone:
            dit.index(batch)
        dit.undo_after(len(before) - 1 if before else None)
        for batch in after:
            ours, theirs = dit.index(batch), fresh.index(batch)
            assert keys_of(ours) == keys_of(theirs)
