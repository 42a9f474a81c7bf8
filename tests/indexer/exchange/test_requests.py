"""Requests: what arrives is what was asked, by owner and table, and nothing damaged is believed."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.indexer import packed_columns
from headrace.indexer.dedup import deduplicate
from headrace.indexer.exchange import requests
from headrace.indexer.exchange.errors import RankFailedError
from headrace.indexer.exchange.requests import FAILED, RUNNING, RequestRound, key_hashes, wanted_rows
from headrace.indexer.exchange.routing import owners_of
from headrace.indexer.exchange.simulated import run_ranks
from headrace.indexer.hashing import mix64
from headrace.indexer.indexed import IdColumn, IndexTable

TABLES = (IndexTable(11, 0), IndexTable(22, 1), IndexTable(33, 0))
ORDER = np.array([0, 2, 1])


def batch_of(rank: int, rows: int = 50):
    rng = np.random.default_rng(rank)
    return [IdColumn(t, rng.integers(0, 60, rows).astype(np.uint64), rng.random(rows) < 0.1) for t in (0, 1, 2, 0)]


def a_round(communicator, number: int = 0):
    run = 1 + number
    channels = [communicator.channel(purpose, run) for purpose in ("requests", "replies")]
    return RequestRound(*channels, TABLES, ORDER)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_owner_is_asked_for_the_keys_it_owns(size):  # P2, P44, P46
    def work(communicator):
        found = deduplicate(batch_of(communicator.rank, 0 if communicator.rank == 1 else 50), TABLES)
        wanted = [wanted_rows(key_hashes(group, TABLES), size) for group in found.groups]
        one = a_round(communicator)
        asked = one.ask(0, 50, found.groups, wanted, status=RUNNING, text="")
        return [
            (c.table, bool(c.missing[i]) if c.missing is not None else False, int(c.values[i]))
            for c in packed_columns.checked(one.columns(asked), TABLES).columns()
            for i in range(len(c.values))
        ], one.counts_by_group(asked)

    results = run_ranks(size, work)
    expected = {r: [] for r in range(size)}
    for rank in range(size):
        for group in deduplicate(batch_of(rank, 0 if rank == 1 else 50), TABLES).groups:
            starts = group.table_offsets
            for table, start, end in zip(group.tables, starts, starts[1:], strict=False):
                for i in range(start, end):
                    lost, word = bool(group.missing[i]), group.unique_ids[i : i + 1]
                    owner = int(owners_of(mix64(TABLES[table].uid, lost, word), size)[0])
                    expected[owner].append((table, lost, 0 if lost else int(word[0])))
    for owner, (keys, counts) in enumerate(results):
        got = [(t, lost, 0 if lost else i) for t, lost, i in keys]
        assert got == expected[owner]  # rank after rank, table after table, in order
        assert counts.sum() == len(keys)


def test_ids_that_do_not_fit_into_the_first_message_come_in_a_second():
    sizes = (0, 50, 400, 3, 0, 80, 81)  # rows: more than there is room for, fewer, none

    def work(communicator):
        one, asked_for, bytes_sent = a_round(communicator), [], [0]
        for step, rows in enumerate(sizes):
            found = deduplicate(batch_of(communicator.rank, rows), TABLES)
            wanted = [wanted_rows(key_hashes(group, TABLES), 2) for group in found.groups]
            asked = one.ask(step, rows, found.groups, wanted, status=RUNNING, text="")
            columns = packed_columns.checked(one.columns(asked), TABLES).columns()
            asked_for.append([(c.table, c.values.tolist()) for c in columns if len(c.values)])
            bytes_sent.append(sum(communicator.bytes_sent()["requests"]))
        return asked_for, np.diff(bytes_sent).tolist()

    results = run_ranks(2, work)
    ids_before = [0, 0]
    for step, rows in enumerate(sizes):
        sent, expected = [0, 0], ([], [])
        for rank in range(2):
            for owner in range(2):
                groups = deduplicate(batch_of(rank, rows), TABLES).groups
                parts = [(group, wanted_rows(key_hashes(group, TABLES), 2)) for group in groups]
                for group, want in parts:
                    first = int(want.counts[:owner].sum())
                    mine = want.order[first : first + int(want.counts[owner])]
                    table_of = np.repeat(group.tables, np.diff(group.table_offsets))[mine]
                    for table in group.tables:
                        if (table_of == table).any():
                            expected[owner].append((table, group.unique_ids[mine[table_of == table]].tolist()))
                    sent[rank] += len(mine) * (owner != rank)
        for rank, (asked_for, bytes_sent) in enumerate(results):
            assert sorted(asked_for[step]) == sorted(expected[rank])
            room = ids_before[rank] + ids_before[rank] // 32
            assert bytes_sent[step] == 8 * (7 + 2 * 3 + 40 + max(room, sent[rank]))
        ids_before = sent


def test_answers_come_back_in_order():
    size = 3

    def work(communicator):
        one = a_round(communicator)
        bits = [np.arange(5 + rank) % (2 + communicator.rank) == 0 for rank in range(size)]
        got = one.answer(0, bits, [5 + communicator.rank] * size)
        for owner, answer in enumerate(got):
            assert answer.tolist() == (np.arange(5 + communicator.rank) % (2 + owner) == 0).tolist()

    run_ranks(size, work)


def test_a_failure_is_told_to_all():
    def work(communicator):
        one = a_round(communicator)
        found = deduplicate(batch_of(0), TABLES)
        wanted = [wanted_rows(key_hashes(group, TABLES), 2) for group in found.groups]
        failed = communicator.rank == 1
        with pytest.raises(RankFailedError, match="rank 1 failed: Kaputt"):
            one.ask(0, 5, found.groups, wanted, status=FAILED if failed else RUNNING, text="Kaputt" if failed else "")
        another = a_round(communicator, 1)
        if failed:
            another.answer(0, [np.zeros(1, bool)] * 2, [1, 1], error="full")
        else:
            with pytest.raises(RankFailedError, match="rank 1 failed: full"):
                another.answer(0, [np.zeros(1, bool)] * 2, [1, 1])

    run_ranks(2, work)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 7, "damaged"),
        (1, 9, "rank 1 is at step 9, this rank at step 0"),
        (2, -5, "rank 1 asks for"),
        (3, 17, "rank 1 asks for"),
        (4, 1 << 60, "rank 1 asks for"),
        (6, 3, "rank 1 classified step 0 by epoch 3 of R, this rank by 0"),
        (7, -1, "rank 1 asks for"),
        (7, 1 << 40, "rank 1 asks for"),
        (10, 1 << 40, "rank 1 asks for"),
    ],
)
@pytest.mark.parametrize("checksum", [True, False])
def test_a_damaged_header_is_refused_before_memory_is_taken(monkeypatch, word, value, message, checksum):  # P28
    real = requests._header

    def damaged(*arguments):
        head = real(*arguments)
        if head[2] == 1:  # rank 1's
            head[word] = value
            if checksum:
                head[5] = requests._checksum(head)
        return head

    monkeypatch.setattr(requests, "_header", damaged)

    def work(communicator):
        one = a_round(communicator)
        found = deduplicate(batch_of(0), TABLES)
        wanted = [wanted_rows(key_hashes(group, TABLES), 2) for group in found.groups]
        with pytest.raises(ValueError, match=message if checksum else "rank 1 sent a damaged request for step 0"):
            one.ask(0, communicator.rank, found.groups, wanted, status=RUNNING, text="")

    run_ranks(2, work)


def test_ids_in_any_pattern_are_spread_over_owners():  # P46
    for ids in (np.arange(8000) * 8, np.arange(8000) << 20, np.arange(8000) + 1_600_000_000_000):
        for size in (2, 3, 7):
            owners = owners_of(mix64(5, False, ids.astype(np.uint64)), size)
            assert np.bincount(owners, minlength=size).max() < 1.1 * len(ids) / size
