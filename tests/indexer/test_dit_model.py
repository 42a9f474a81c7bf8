"""Native index and twin side by side through random histories, and both against a few lines of what must hold."""

from __future__ import annotations

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


def keys_of(indexed: IndexedIds) -> list[tuple[tuple[int, bool, int], int, bool]]:
    """(key, location, is_new) of every unique row."""
    found = []
    for group in indexed.groups:
        for j, table in enumerate(group.tables):
            for row in range(group.table_offsets[j], group.table_offsets[j + 1]):
                key = (table, bool(group.missing[row]), int(group.unique_ids[row]))
                found.append((key, int(group.locations[row]), bool(group.is_new[row])))
    return found


class IndexMachine(RuleBasedStateMachine):
    @initialize(num_shards=st.sampled_from([1, 2, 64]), num_threads=st.sampled_from([1, 3]))
    def make(self, num_shards: int, num_threads: int) -> None:
        self.options = {"num_shards": num_shards, "owner_rank": 3}
        self.threads = num_threads
        self.native = DIT(TABLES, num_threads=num_threads, **self.options)
        self.twin = PyDIT(TABLES, **self.options)
        self.committed: dict[tuple[int, bool, int], int] = {}
        self.open: dict[int, dict[tuple[int, bool, int], int]] = {}

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
        self.native.commit(ticket)
        self.twin.commit(ticket)
        for done in [t for t in self.open if t <= ticket]:
            self.committed |= self.open.pop(done)

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        ticket = data.draw(st.none() | st.sampled_from(sorted(self.open))) if self.open else None
        self.native.undo_after(ticket)
        self.twin.undo_after(ticket)
        for undone in [t for t in self.open if ticket is None or t > ticket]:
            del self.open[undone]

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
        assert native.column("location").to_pylist() == sorted(self.committed.values())
        # go on with restored indexes, each from the other's snapshot, as after a crash: open tickets are lost
        self.native.close()
        self.native = DIT(TABLES, num_threads=self.threads, **self.options)
        self.twin = PyDIT(TABLES, **self.options)
        self.native.restore(twin)
        self.twin.restore(native)
        self.open = {}

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "native"):
            for dit in (self.native, self.twin):
                assert len(dit) == len(self.committed)
                assert dit.num_provisional == sum(len(rows) for rows in self.open.values())

    def known(self) -> dict[tuple[int, bool, int], int]:
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
TestIndexMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.long
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
