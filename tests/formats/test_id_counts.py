"""Counts of ids against a Counter, in memory and on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats import id_counts
from headrace.formats.id_counts import TOP, IdCounters, Run, merge_runs

IDS = st.integers(0, 6) | st.integers(0, 2**64 - 1)


def model_of(ids: list[int]) -> tuple[int, int, list[tuple[int, int]]]:
    counts = Counter(ids)
    return len(counts), len(ids), sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def check(counters: IdCounters, name: str, ids: list[int]) -> None:
    cardinality, total, ranked = model_of(ids)
    found = counters.summary(name)
    assert (found.cardinality, found.total) == (cardinality, total)
    assert list(found.top) == ranked[:TOP]
    cumulative = np.cumsum([0] + [count for _, count in ranked])
    assert found.covered(np.arange(cardinality + 1)).tolist() == cumulative.tolist()
    assert found.covered(np.array([cardinality + 5])).tolist() == [total]
    for share in (0.0, 0.3, 0.5, 0.9, 1.0):
        assert found.needed(share) == next(k for k, c in enumerate(cumulative) if c >= np.ceil(share * total))


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("ab"), st.lists(st.lists(IDS, max_size=30), max_size=12)),
    st.sampled_from([1, 7, 50, 10**6]),
    st.sampled_from([1, 3, 1 << 17]),
)
def test_counts_are_exact_whatever_fits(blocks: dict[str, list[list[int]]], entries: int, buffer: int) -> None:
    with pytest.MonkeyPatch.context() as patch, IdCounters("ab", max_entries=entries) as counters:
        patch.setattr(id_counts, "_BUFFER_IDS", buffer)
        for name, parts in blocks.items():
            for part in parts:
                counters.add(name, np.array(part, np.uint64))
        for name in "ab":
            check(counters, name, [i for part in blocks.get(name, []) for i in part])


@settings(deadline=None)
@given(st.lists(st.dictionaries(IDS, st.integers(1, 9), max_size=20), max_size=5), st.integers(1, 4))
def test_runs_are_merged_block_by_block(runs: list[dict[int, int]], rows: int) -> None:
    arrays = [Run(np.array(sorted(r), np.uint64), np.array([r[k] for k in sorted(r)], np.int64)) for r in runs]
    merged = list(merge_runs(arrays, rows=rows))
    found = [pair for block in merged for pair in zip(block.ids.tolist(), block.counts.tolist(), strict=True)]
    total: Counter[int] = Counter()
    for run in runs:
        total.update(run)
    assert found == sorted(total.items())
    assert all(len(block.ids) <= rows * len(runs) for block in merged)


def test_memory_is_bounded_and_the_disk_is_left_clean(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    total: Counter[int] = Counter()
    with IdCounters(["a"], max_entries=200_000, folder=tmp_path) as counters:
        for _ in range(10):
            ids = rng.integers(0, 10**9, 100_000, dtype=np.uint64)
            total.update(ids.tolist())
            counters.add("a", ids)
            assert counters._entries <= 200_000
        assert counters.runs_on_disk >= 3
        assert counters.summary("a").cardinality == len(total)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
