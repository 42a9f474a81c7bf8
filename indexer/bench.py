"""Throughput of the index, beside the physical limit, the published design and what users have at hand.

Everything is measured in the same run, on the same batches, turn by turn: machines are noisy, and figures of different
runs do not compare. Only when the tables are too large to stand beside each other do they come one after the other.
A *sample* is one row of a batch, 26 ids for Criteo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from headrace.indexer.bench_contenders import (
    Batch,
    Contender,
    FilledMaps,
    IndexContender,
    LimitContender,
    LockedMapsContender,
    Residents,
)
from headrace.indexer.bench_inserts import FreshIds, with_fresh_ids
from headrace.indexer.bench_peers import PEERS, installed_peers
from headrace.indexer.checks import check_integer
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IndexTable

ONE_AT_A_TIME_ROWS = 60_000_000
"""Above so many resident rows the contenders are made, measured and closed one after the other."""

Seconds = dict[str, list[float]]
"""By contender, the seconds of each round."""


@dataclass(frozen=True)
class Spread:
    """Samples a second over the rounds of a run."""

    median: float
    minimum: float
    maximum: float

    @staticmethod
    def of(samples: int, seconds: Sequence[float]) -> Spread:
        rates = [samples / s for s in seconds]
        return Spread(median(rates), min(rates), max(rates))


@dataclass(frozen=True)
class Work:
    """What every contender does: each of `rounds`, and `warm` before it; all have the same samples and unique ids."""

    warm: Sequence[Batch]
    rounds: Sequence[Sequence[Batch]]


def measure(
    tables: Sequence[IndexTable],
    residents: Residents,
    batches: Sequence[Batch],
    *,
    threads: Sequence[int],
    rounds: int = 5,
    peers: bool = True,
    insert_share: float = 0.0,
    one_at_a_time: bool | None = None,
) -> dict[str, Any]:
    """Measure all, `rounds` times in turn; keys as `headrace bench index` writes them (see benchmarks/README.md).

    `residents[t]` are the ids that table t holds before; `batches`, of NumPy columns, are indexed and committed one by
    one. `insert_share` of each batch's unique ids are replaced by ids never seen, others in every round.
    `one_at_a_time` None: when there are more than `ONE_AT_A_TIME_ROWS` residents.
    """
    threads = [check_integer("a number of threads", n, 1, 256) for n in threads]
    if len(set(threads)) < max(len(threads), 1):
        raise ValueError(f"threads are {threads}; give at least one number, each once")
    if not batches:
        raise ValueError("there is no batch to measure: ask for more samples, or for smaller batches")
    if not 0.0 <= insert_share <= 1.0:
        raise ValueError(f"insert_share is {insert_share}; it must lie in [0, 1]")
    if one_at_a_time is None:
        one_at_a_time = sum(map(len, residents)) > ONE_AT_A_TIME_ROWS
    with ExitStack() as stack:
        first = stack.enter_context(closing(IndexContender(tables, residents, num_threads=threads[0])))
        first.prepare(batches)()
        unique = [_num_unique(first.index, batch) for batch in batches]
        work = Work(batches, _rounds(first.index, batches, rounds, insert_share))
        limit = partial(LimitContender, unique, first.index.stats().capacity)
        report = _head(first, batches, unique, insert_share, one_at_a_time)
        seconds: Seconds = {}
        if one_at_a_time:
            seconds |= timed(work, {f"index_{threads[0]}": first})
            stack.close()
            for n in threads[1:]:
                with closing(IndexContender(tables, residents, num_threads=n)) as index:
                    seconds |= timed(work, {f"index_{n}": index})
            with closing(limit()) as limited:
                seconds |= timed(work, {"limit": limited})
            for baselines in _baselines(tables, residents, threads) if peers else ():
                with ExitStack() as one:
                    seconds |= timed(work, baselines(one))
        else:
            contenders: dict[str, Contender] = {f"index_{threads[0]}": first}
            for n in threads[1:]:
                index = IndexContender(tables, residents, num_threads=n)
                contenders[f"index_{n}"] = stack.enter_context(closing(index))
            limited = stack.enter_context(closing(limit()))
            contenders["limit"] = limited
            for baselines in _baselines(tables, residents, threads) if peers else ():
                contenders |= baselines(stack)
            seconds = timed(work, contenders)
    report |= _rates(seconds, report["samples"], report["ids_per_sample"], threads)
    report["limit_parts"] = {
        "stream_ms_per_batch": median(limited.stream_s[1:]) / len(batches) * 1e3,
        "reads_ms_per_batch": median(limited.reads_s[1:]) / len(batches) * 1e3,
    }
    return report


def _head(
    first: IndexContender, batches: Sequence[Batch], unique: Sequence[int], insert_share: float, one_at_a_time: bool
) -> dict[str, Any]:
    samples = sum(len(batch[0].values) for batch in batches)
    ids = sum(len(c.values) for batch in batches for c in batch)
    return {
        "rows": len(first.index),
        "samples": samples,
        "ids_per_sample": ids / samples,
        "unique_share": sum(unique) / ids,
        "insert_share": insert_share,
        "order": "one after the other" if one_at_a_time else "interleaved",
        **first.filling,
    }


def _rounds(index: DIT, batches: Sequence[Batch], rounds: int, insert_share: float) -> list[Sequence[Batch]]:
    """The batches of each round; `index` holds the ids of `batches`."""
    if insert_share == 0.0:
        return [batches] * rounds
    fresh, rng = FreshIds(index), np.random.default_rng(0)
    return [[with_fresh_ids(batch, insert_share, index, fresh, rng) for batch in batches] for _ in range(rounds)]


def _num_unique(index: DIT, batch: Batch) -> int:
    return sum(group.num_unique for group in index.lookup(batch).groups)


def _baselines(
    tables: Sequence[IndexTable], residents: Residents, threads: Sequence[int]
) -> list[Callable[[ExitStack], dict[str, Contender]]]:
    """Contenders that can be made apart from each other; the stack closes them."""

    def locked_maps(stack: ExitStack) -> dict[str, Contender]:
        filled = stack.enter_context(closing(FilledMaps(tables, residents)))
        return {
            f"{name}_{n}": LockedMapsContender(filled, each=each, num_threads=n)
            for n in sorted({1, *threads})
            for name, each in (("sharded_map", False), ("lock_per_id", True))
        }

    def peer(name: str, stack: ExitStack) -> dict[str, Contender]:
        return {name: stack.enter_context(closing(PEERS[name][1](tables, residents)))}

    return [locked_maps, *(partial(peer, name) for name in installed_peers())]


def timed(work: Work, contenders: dict[str, Contender]) -> Seconds:
    """Seconds of each contender in each round, taken in turn; each as in the middle of a stream, not after a pause.

    (A second core that idled while others worked on one takes some 10 ms to come back on a virtual machine.)
    """
    seconds: Seconds = {name: [] for name in contenders}
    for batches in work.rounds:
        for name, contender in contenders.items():
            warm, run = contender.prepare(work.warm), contender.prepare(batches)
            warm()  # memory is mapped, the ids of the batches are there
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def _rates(seconds: Seconds, samples: int, ids_per_sample: float, threads: Sequence[int]) -> dict[str, Any]:
    rates = {name: Spread.of(samples, s) for name, s in seconds.items()}
    first = f"index_{threads[0]}"

    def ratio(fast: str, slow: str) -> float:
        """How many times as fast, by rounds."""
        return median(b / a for a, b in zip(seconds[fast], seconds[slow], strict=True))

    locked = [n for n in sorted({1, *threads}) if f"sharded_map_{n}" in rates]
    return {
        "samples_per_s": {str(n): rates[f"index_{n}"].median for n in threads},
        "ids_per_s": {str(n): rates[f"index_{n}"].median * ids_per_sample for n in threads},
        **{f"scaling_{n}_over_{threads[0]}": ratio(f"index_{n}", first) for n in threads[1:]},
        "limit_samples_per_s": rates["limit"].median,
        "ratio_to_limit": ratio(first, "limit"),
        "baseline_sharded_map": rates["sharded_map_1"].median if locked else None,
        "baseline_lock_per_id": rates["lock_per_id_1"].median if locked else None,
        "baselines_by_threads": {
            str(n): {
                "sharded_map": rates[f"sharded_map_{n}"].median,
                "lock_per_id": rates[f"lock_per_id_{n}"].median,
            }
            for n in locked
        },
        "ratio_to_sharded_map": {str(n): ratio(f"index_{n}", f"sharded_map_{n}") for n in threads if locked},
        "peers": {name: rates[name].median for name in PEERS if name in rates},
        "spread": {name: [r.minimum, r.maximum] for name, r in rates.items()},
        "rounds": len(seconds[first]),
    }
