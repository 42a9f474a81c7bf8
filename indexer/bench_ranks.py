"""Throughput of the index spread over ranks: every unique key of a batch is asked of its owner, by MPI messages.

A rank deduplicates its own batches, sends each owner the keys that are its own (owner: the key's route bucket), indexes
what it is asked, and gets locations back in the order of its keys. Several *request streams* of a rank do so side by
side, each in a thread with a message tag of its own; stream s of a rank meets stream s of the others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer._dit import mix64
from headrace.indexer.bench_contenders import Batch, CommittingIndex, Residents, prefill
from headrace.indexer.bench_exchange import KEY, Keys, check_count, swap_keys
from headrace.indexer.columns import NNZ_LIMIT, check_columns
from headrace.indexer.dedup import Deduplicator
from headrace.indexer.dit import DIT
from headrace.indexer.exchange.channel import Channel, turns
from headrace.indexer.exchange.communicator import Communicator
from headrace.indexer.exchange.routing import owners_of
from headrace.indexer.hashing import ROUTE_BUCKETS
from headrace.indexer.indexed import PLACE_BITS, TIER_SHIFT, U64, IdColumn, IndexTable

I64 = npt.NDArray[np.int64]

ORDERS = {"ring": True, "no_ring": False}


class Owner:
    """This rank's part of the index, filled with those of `residents` that it owns. All tables are of one group."""

    def __init__(
        self, tables: Sequence[IndexTable], residents: Residents, *, rank: int, size: int, num_threads: int
    ) -> None:
        if any(table.group for table in tables) or not 1 <= size <= ROUTE_BUCKETS:
            raise ValueError("the ranks measure tables of group 0, on 65,536 ranks at most")
        self.index = DIT(tables, num_threads=num_threads, owner_rank=rank)
        self._indexed = CommittingIndex(self.index)
        for column in prefill(residents):
            hashes = mix64(tables[column.table].uid, False, np.asarray(column.values).astype(np.uint64))
            mine = owners_of(hashes, size) == rank
            self._indexed([IdColumn(column.table, np.asarray(column.values)[mine])])

    def locations(self, asked: Sequence[Keys]) -> list[U64]:
        """Locations of the keys that each rank asks for, in order; unknown ones are inserted, in the order of ranks."""
        columns = []
        for keys in asked:
            tables = keys["table_missing"] >> 1
            starts = np.flatnonzero(np.diff(tables, prepend=-1))
            for run in np.split(keys, starts[1:]) if len(keys) else ():
                missing = (run["table_missing"] & 1).astype(np.bool_)
                columns.append(IdColumn(int(run["table_missing"][0]) >> 1, run["id"], missing))
        (group,) = self._indexed(columns).groups
        return np.split(group.locations[group.query_ids], np.cumsum([len(keys) for keys in asked])[:-1])


class RequestStream:
    """One local stream of batches: deduplicated here, located at the owners; counts its keys."""

    def __init__(self, tables: Sequence[IndexTable], owner: Owner, channel: Channel, max_keys: int) -> None:
        self.channel, self.keys, self.keys_here = channel, 0, 0
        self._tables, self._owner, self._max_keys = tables, owner, max_keys
        self._dedup = Deduplicator(tables)

    def locate(self, batch: Batch, *, ring: bool) -> tuple[Keys, U64]:
        """The unique keys of `batch`, by owner, and where each lives. All ranks call it for their batch at once."""
        channel = self.channel
        keys, owners = self._unique_keys(batch)
        order = np.argsort(owners.astype(np.uint16), kind="stable")
        keys, counts = keys[order], np.bincount(owners, minlength=channel.size)
        wanted = np.split(keys, np.cumsum(counts)[:-1])
        asked = list(wanted)
        for to, sender in turns(channel.rank, channel.size, ring=ring):
            asked[sender] = swap_keys(channel, wanted[to], to, sender, self._max_keys)
        answers = self._owner.locations(asked)
        found = [np.empty(len(part), np.uint64) for part in wanted]
        found[channel.rank] = answers[channel.rank]
        for to, sender in turns(channel.rank, channel.size, ring=ring):
            channel.swap(answers[to], to, found[sender], sender)
        locations = np.concatenate(found)
        ranks = (locations >> np.uint64(PLACE_BITS)) & np.uint64((1 << (TIER_SHIFT - PLACE_BITS)) - 1)
        if (ranks != owners[order].astype(np.uint64)).any():
            raise RuntimeError("a location names another rank than its key's owner")
        self.keys += len(keys)
        self.keys_here += len(wanted[channel.rank])
        return keys, locations

    def _unique_keys(self, batch: Batch) -> tuple[Keys, I64]:
        (group,) = self._dedup.deduplicate(batch).groups
        keys: Keys = np.empty(group.num_unique, KEY)
        keys["id"], hashes = group.unique_ids, np.empty(group.num_unique, np.uint64)
        for table, start, end in zip(group.tables, group.table_offsets, group.table_offsets[1:], strict=False):
            keys["table_missing"][start:end] = table << 1
            hashes[start:end] = mix64(self._tables[table].uid, False, group.unique_ids[start:end])
            at = start + np.flatnonzero(group.missing[start:end])  # one at most
            hashes[at] = mix64(self._tables[table].uid, True, group.unique_ids[at])
        keys["table_missing"] |= group.missing
        return keys, owners_of(hashes, self.channel.size)

    def close(self) -> None:
        self._dedup.close()


def measure_ranks(
    tables: Sequence[IndexTable],
    residents: Residents,
    streams: Sequence[Sequence[Batch]],
    *,
    communicator: Communicator,
    orders: Sequence[str] = tuple(ORDERS),
    rounds: int = 3,
    num_threads: int = 1,
    beside: Callable[[], int] | None = None,
) -> dict[str, Any]:
    """Measure `streams` (batches of each request stream) in each of `orders`, `rounds` times in turn; by all ranks.

    `residents[t]` are the ids that table t holds before, on all ranks together; `num_threads` those of an owner's
    index. `beside` is called over and over in a thread of its own, and gives the rows that it has done. The report is
    the same on all ranks. After an error the other ranks wait for this one until their timeout: end them.
    """
    control = communicator.channel("control")
    max_keys = _agree(control, tables, streams, [rounds, num_threads, *(ORDERS[order] for order in orders)])
    owner = Owner(tables, residents, rank=control.rank, size=control.size, num_threads=num_threads)
    requests = [
        RequestStream(tables, owner, communicator.channel(f"stream {s}"), max_keys) for s in range(len(streams))
    ]
    for order in orders:
        _run(requests, streams, ring=ORDERS[order])  # warm: the ids of the batches are there
    before = _counts(requests)
    seconds: dict[str, list[float]] = {order: [] for order in orders}
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        parsing = None if beside is None else pool.submit(_rate, beside, stop)
        try:
            for turn in range(rounds):
                for order in orders[:: -1 if turn % 2 else 1]:
                    control.all_gather(np.zeros(1))  # all begin together
                    start = time.perf_counter()
                    _run(requests, streams, ring=ORDERS[order])
                    seconds[order].append(time.perf_counter() - start)
        finally:
            stop.set()
        beside_rate = 0.0 if parsing is None else parsing.result(communicator.timeout_s)
    samples = sum(len(batch[0].values) for stream in streams for batch in stream)
    work = (_counts(requests) - before) / (rounds * len(orders))
    mine = [samples, len(owner.index), beside_rate, *work, *(s for order in orders for s in seconds[order])]
    figures = control.all_gather(np.array(mine, np.float64))
    for request in requests:
        request.close()
    owner.index.close()
    return _report(figures, orders, rounds, request_threads=len(streams), num_threads=num_threads)


def _agree(
    control: Channel, tables: Sequence[IndexTable], streams: Sequence[Sequence[Batch]], options: list[int]
) -> int:
    """Most ids of any rank's batch. ValueError where ranks differ in what would make one wait for another."""
    sizes = [sum(len(c.values) for c in check_columns(b, tables)) for stream in streams for b in stream]
    if not sizes or not options:
        raise ValueError("there is no batch to measure")
    shape = [len(streams), len(sizes), len(streams[0]), *options]
    rows = control.all_gather(np.array([len(shape), 0], np.int64))
    if (rows[:, 0] != len(shape)).any():
        raise ValueError("the ranks were started with different options")
    rows = control.all_gather(np.array([*shape, max(sizes)], np.int64))
    if (rows[:, :-1] != np.array(shape)).any():
        raise ValueError(f"the ranks were started with different options: {rows[:, :-1].tolist()}")
    return check_count(int(rows[:, -1].max()), NNZ_LIMIT, int(rows[:, -1].argmax()))


def _run(requests: Sequence[RequestStream], streams: Sequence[Sequence[Batch]], *, ring: bool) -> None:
    """All streams, each in a thread; the first error is raised at once."""
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work(request: RequestStream, batches: Sequence[Batch]) -> None:
        try:
            for batch in batches:
                request.locate(batch, ring=ring)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    for request, batches in zip(requests, streams, strict=True):
        threading.Thread(target=work, args=(request, batches), daemon=True).start()
    for _ in requests:
        error = ended.get()  # bounded: every wait of a stream is
        if error is not None:
            raise error


def _rate(beside: Callable[[], int], stop: threading.Event) -> float:
    """Rows a second until `stop`."""
    rows, begin = 0, time.perf_counter()
    while not stop.is_set():
        rows += beside()
    return rows / (time.perf_counter() - begin)


def _counts(requests: Sequence[RequestStream]) -> npt.NDArray[np.float64]:
    """Keys, keys that are this rank's own, bytes sent."""
    counts = np.array([[r.keys, r.keys_here, int(r.channel.traffic.sent.sum())] for r in requests], np.float64)
    return np.asarray(counts.sum(0))


def _report(
    figures: npt.NDArray[np.float64], orders: Sequence[str], rounds: int, *, request_threads: int, num_threads: int
) -> dict[str, Any]:
    samples, rows, beside, keys, keys_here, bytes_sent = figures[:, :6].T
    seconds = dict(zip(orders, np.split(figures[:, 6:], len(orders), 1), strict=True))
    totals = {order: (samples.sum() / part.max(0)).tolist() for order, part in seconds.items()}
    report: dict[str, Any] = {
        "ranks": len(figures),
        "request_threads": request_threads,
        "threads": num_threads,
        "rows": int(rows.sum()),
        "rows_by_rank": rows.astype(int).tolist(),
        "samples": int(samples.sum()),
        "samples_per_s": {order: median(rates) for order, rates in totals.items()},
        "samples_per_s_by_rank": {o: np.median(samples[:, None] / part, 1).tolist() for o, part in seconds.items()},
        "spread": {order: [min(rates), max(rates)] for order, rates in totals.items()},
        "keys_here_share": float(keys_here.sum() / keys.sum()),
        "keys_elsewhere_share": float(1 - keys_here.sum() / keys.sum()),
        "bytes_sent": int(bytes_sent.sum()),
        "bytes_sent_per_sample": float(bytes_sent.sum() / samples.sum()),
        "rows_parsed_per_s_by_rank": beside.tolist() if beside.any() else None,
        "rounds": rounds,
    }
    if len(orders) == 2:
        report["ring_over_no_ring"] = median(np.divide(totals["ring"], totals["no_ring"]).tolist())
    return report
