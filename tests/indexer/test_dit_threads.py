"""Closing, forking, and several threads at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import ABSENT, IdColumn, IndexTable
from tests.support.index_batches import column

TABLES = tuple(IndexTable(10 + i, i % 2) for i in range(6))


def batch(seed: int, ids: int = 500) -> list[IdColumn]:
    rng = np.random.default_rng(seed)
    return [IdColumn(t, rng.integers(0, 20_000, ids).astype(np.uint64)) for t in range(len(TABLES))]


@pytest.mark.parametrize("num_threads", [1, 4])
def test_closed_index_raises_and_closes_again(num_threads: int) -> None:
    dit = DIT(TABLES, num_threads=num_threads)
    dit.index(batch(1))
    dit.close()
    dit.close()
    for use in _uses(dit):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    dit.close()


def test_closed_twin_raises_too() -> None:
    with PyDIT(TABLES) as twin:
        pass
    for use in _uses(twin):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_closed_deduplicator_raises() -> None:
    deduplicator = Deduplicator(TABLES, num_threads=3)
    deduplicator.close()
    deduplicator.close()
    with pytest.raises(RuntimeError, match="closed"):
        deduplicator.deduplicate(batch(1))


def _uses(dit: DIT) -> list:
    with DIT(TABLES) as empty:
        table = empty.snapshot()
    return [
        lambda: dit.index(batch(1)),
        lambda: dit.index([]),
        lambda: dit.lookup(batch(1)),
        lambda: dit.remove(batch(1)),
        lambda: dit.commit(0),
        lambda: dit.uses(np.empty(1, np.uint64)),
        dit.rows_of_buckets,
        lambda: dit.undo_after(None),
        lambda: len(dit),
        lambda: dit.num_provisional,
        lambda: dit.nbytes,
        lambda: dit.chunk_group(0),
        dit.stats,
        lambda: dit.claim_writer(dit),
        dit.snapshot,
        lambda: dit.restore(table),
    ]


def test_close_while_other_threads_call_is_bounded() -> None:
    dit = DIT(TABLES, num_threads=3)
    ended = []
    columns = [batch(1), batch(2)]
    for ids in columns:
        dit.index(ids)

    def work(call, under_way: threading.Event) -> None:
        try:
            while True:
                call()
                under_way.set()
        except RuntimeError as error:
            ended.append(str(error))

    calls = [lambda: dit.index(columns[0]), lambda: dit.lookup(columns[1]), dit.snapshot, dit.stats, lambda: len(dit)]
    events = [threading.Event() for _ in calls]
    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, events, strict=True)]
    for thread in threads:
        thread.start()
    for event in events:
        assert event.wait(timeout=20)
    started = time.monotonic()
    dit.close()
    assert time.monotonic() - started < 5
    for thread in threads:
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert ended == ["the index is closed"] * len(calls)


EXIT = """
import threading, numpy as np
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable
dit = DIT([IndexTable(1, 0), IndexTable(2, 0)], num_threads=4)
columns = [IdColumn(t, np.arange(1000, dtype=np.uint64)) for t in (0, 1)]
dit.index(columns)
def spin():
    while True:
        dit.lookup(columns)
threading.Thread(target=spin, daemon=True).start()
keep = [dit, dit.index]  # reachable to the very end
print("ready", flush=True)
"""

FORK = """
import os, numpy as np
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IndexTable
dit = DIT([IndexTable(1, 0)], num_threads=4)
dedup = Deduplicator([IndexTable(1, 0)], num_threads=4)
child = os.fork()
if child == 0:
    refused = 0
    for use in (lambda: dit.index([]), lambda: len(dit), dit.snapshot, lambda: dedup.deduplicate([])):
        try:
            use()
        except RuntimeError:
            refused += 1
    dit.close()
    dedup.close()
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(dit.index([]).groups))
"""


FORK_AND_DROP = """
import gc, os, signal
import numpy as np
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn, IndexTable
tables = [IndexTable(1, 0), IndexTable(2, 0)]
kept = [DIT(tables, num_threads=4), Deduplicator(tables, num_threads=4)]
columns = [IdColumn(t, np.arange(1000, dtype=np.uint64)) for t in (0, 1)]
kept += [kept[0].index(columns), kept[1].deduplicate(columns), kept[0]._core.open_cut()]
child = os.fork()
if child == 0:
    signal.alarm(20)
    kept.clear()
    gc.collect()
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
kept.pop().close()
print(len(kept[0].index(columns).groups))
"""


def test_interpreter_exits_with_the_pool_alive() -> None:
    # the limit is for imports on a busy machine: a pool that is waited for would never end
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


def test_forked_child_is_refused_and_does_not_hang() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "4 1\n"), done.stderr


def test_a_forked_child_may_drop_what_it_got() -> None:
    """Without the threads that would be joined, and with locks and waits as the fork found them: it hung for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORK_AND_DROP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3\n1\n"), done.stderr


def test_index_lookup_commit_and_snapshot_from_four_threads() -> None:
    """What a look-up finds never moves, and snapshots only ever grow."""
    batches = [batch(seed, 300) for seed in range(150)]
    with DIT(TABLES) as plain:
        for columns in batches:
            plain.commit(plain.index(columns).ticket)
        expected = plain.snapshot()
        final = {i: [g.locations for g in plain.lookup(batches[i]).groups] for i in range(0, 150, 10)}
    stop = threading.Event()
    errors: list[BaseException] = []
    counts = {"lookups": 0, "snapshots": 0, "stats": 0}

    def look_up() -> None:
        for i in np.resize(list(final), 100_000):
            if stop.is_set():
                return
            for group, places in zip(dit.lookup(batches[i]).groups, final[int(i)], strict=True):
                known = group.locations != ABSENT
                np.testing.assert_array_equal(group.locations[known], places[known])
            counts["lookups"] += 1

    def snapshot() -> None:
        rows = 0
        while not stop.is_set():
            table = dit.snapshot()
            assert table.num_rows >= rows
            rows = table.num_rows
            counts["snapshots"] += 1

    def read_stats() -> None:
        while not stop.is_set():
            stats = dit.stats()
            assert stats.capacity > stats.rows + stats.provisional
            counts["stats"] += 1

    def guarded(run) -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    with DIT(TABLES, num_threads=2) as dit:
        threads = [threading.Thread(target=guarded, args=(run,)) for run in (look_up, snapshot, read_stats)]
        for thread in threads:
            thread.start()
        try:
            for i, columns in enumerate(batches):
                ticket = dit.index(columns).ticket
                if i % 10 == 9:  # look ahead, go back, read again
                    dit.undo_after(ticket - 2)
                    dit.index(batches[i - 1])
                    ticket = dit.index(columns).ticket
                if i % 10 in (2, 5, 7):
                    dit.commit(ticket)
            dit.commit(ticket)
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=20)
        assert not errors, errors[0]
        assert not any(thread.is_alive() for thread in threads)
        assert dit.snapshot().equals(expected, check_metadata=True)
        assert all(counts.values()), counts


def test_batches_of_two_threads_are_taken_one_after_the_other() -> None:
    with DIT(TABLES, num_threads=2) as dit:
        outs: list = []

        def insert(first: int) -> None:
            for start in range(first, first + 20):
                outs.append(dit.index([column(0, range(start * 10, start * 10 + 40))]))

        threads = [threading.Thread(target=insert, args=(first,)) for first in (0, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert sorted(o.ticket for o in outs) == list(range(40))
        place_of: dict[int, int] = {}
        known = 0
        for out in sorted(outs, key=lambda o: o.ticket):
            group = out.groups[0]
            for raw, place, is_new in zip(
                group.unique_ids.tolist(), group.locations.tolist(), group.is_new.tolist(), strict=True
            ):
                assert is_new == (raw not in place_of)
                assert place_of.setdefault(raw, place) == place
                known += is_new
        assert known == dit.num_provisional == len(set(place_of.values()))
