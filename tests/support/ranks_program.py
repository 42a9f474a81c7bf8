"""Run by `mpirun -n N python ranks_program.py WHAT`: checks of the index over ranks, from inside; exit code 0 if right.

`locations`: every key has one location on all ranks and streams, at its owner. `absent`: one rank never comes.
`other_options`: ranks that would wait for each other. `too_many`: a rank announces more keys than a batch has.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from headrace.indexer.bench_contenders import Batch
from headrace.indexer.bench_exchange import KEY, swap_keys
from headrace.indexer.bench_ranks import Owner, RequestStream, measure_ranks
from headrace.indexer.exchange.communicator import connect
from headrace.indexer.indexed import IdColumn, IndexTable

TABLES = (IndexTable(1, 0), IndexTable(2, 0))
RESIDENTS = [np.arange(10, dtype=np.uint32), np.arange(5, dtype=np.uint64)]


def batches(rank: int, stream: int, rows: int = 300) -> list[Batch]:
    rng = np.random.default_rng([rank, stream])
    sizes = (rows, 0, rows // 3)
    return [
        [IdColumn(t, rng.integers(0, 400, n).astype(np.uint32), rng.random(n) < 0.1) for t in range(2)] for n in sizes
    ]


def locations(world) -> None:
    """Two streams a rank, side by side, one by the ring; all pairs of all ranks together are one to one."""
    rank, size = world.rank, world.world_size
    owner = Owner(TABLES, RESIDENTS, rank=rank, size=size, num_threads=1)
    pairs: list[tuple[tuple[int, int], int]] = []

    def work(stream: int) -> None:
        requests = RequestStream(TABLES, owner, world.channel(f"stream {stream}"), 600)
        for batch in batches(rank, stream):
            keys, found = requests.locate(batch, ring=bool(stream))
            expected = {(int(v), c.table << 1) for c in batch for v in c.values[~c.missing]}
            expected |= {(0, c.table << 1 | 1) for c in batch if c.missing.any()}
            assert len(keys) == len(expected)
            assert set(keys.tolist()) == expected
            pairs.extend(zip(keys.tolist(), found.tolist(), strict=True))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    control = world.channel("control")
    counts = control.all_gather(np.array([len(pairs), len(owner.index)], np.int64))
    assert len(pairs) > 1000
    flat = np.zeros((int(counts[:, 0].max()), 3), np.uint64)
    flat[: len(pairs)] = [[i, t, location] for (i, t), location in pairs]
    known: dict[tuple[int, int], int] = {}
    for rows, count in zip(control.all_gather(flat.ravel()), counts[:, 0].tolist(), strict=True):
        for i, t, location in rows.reshape(-1, 3)[:count].tolist():
            assert known.setdefault((i, t), location) == location
    assert len(set(known.values())) == len(known)
    others = sum(1 for table, ids in enumerate(RESIDENTS) for i in ids.tolist() if (i, table << 1) not in known)
    assert int(counts[:, 1].sum()) == len(known) + others  # nothing is at two owners


def absent(world) -> None:
    if world.rank == 1:
        time.sleep(8)
        return
    measure_ranks(TABLES, RESIDENTS, [batches(0, 0)], communicator=world)


def other_options(world) -> None:
    rounds = 2 + world.rank
    measure_ranks(TABLES, RESIDENTS, [batches(world.rank, 0)], communicator=world, rounds=rounds)


def too_many(world) -> None:
    other = 1 - world.rank
    swap_keys(world.channel("stream 3"), np.zeros(11 if world.rank else 10, KEY), other, other, 10)


CHECKS = {"locations": locations, "absent": absent, "other_options": other_options, "too_many": too_many}

if __name__ == "__main__":
    with connect("mpi", timeout_s=0.5 if sys.argv[1] == "absent" else 20.0) as ranks:
        CHECKS[sys.argv[1]](ranks)
