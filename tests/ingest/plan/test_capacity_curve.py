"""The curve of a recorded stream, by literal streams and by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ingest.plan.capacity_curve import capacity_curve


def stream(*batches):
    return [[np.array(batch, np.uint64)] for batch in batches]


def test_an_unbounded_arena_by_hand():
    # step:          0          1          2 (measured)  3
    found = capacity_curve(stream([1, 2, 3], [2, 3, 4], [1, 4, 5], [1, 2, 6]), window=2, shares=(0.5, 1.0))
    assert (found["window"], found["steps"], found["window_distinct_rows"]) == (2, 2, 4)
    # hits: 1, 4 of step 2 and 1, 2 of step 3; early: all but 4 (used by step 1), and all but 1 (used by step 2)
    assert found["unbounded"] == {"capacity": 6, "hit_rate": 4 / 6, "early_share": 4 / 6, "rows_needed": None}
    assert found["points"][0] == {
        "share": 0.5, "capacity": 2, "hit_rate": None, "early_share": None, "rows_needed": 3
    }  # fmt: skip


def test_a_small_arena_by_hand():
    # 3 slots: step 2 needs all of them and has 3 from step 1; 1 and 5 find no room while step 1 runs, and are late
    (point,) = capacity_curve(stream([1, 2, 3], [2, 3, 4], [1, 3, 5]), window=1, shares=(1.0,))["points"]
    assert point["capacity"] == 3
    (later,) = capacity_curve(stream([1, 2, 3], [2, 3, 4], [1, 3, 5]), window=2, shares=(0.75,))["points"]
    assert later == {"share": 0.75, "capacity": 3, "hit_rate": 1 / 3, "early_share": 0.0, "rows_needed": None}


@pytest.mark.parametrize("seed", range(5))
def test_an_unbounded_arena_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    batches = [[np.unique(rng.integers(0, size, 12)).astype(np.uint64) for size in (30, 60)] for _ in range(12)]
    found = capacity_curve(batches, window=4, shares=())["unbounded"]
    requested = hits = early = 0
    for t in range(4, 12):
        for g in range(2):
            before = set(np.concatenate([batch[g] for batch in batches[:t]]).tolist())
            now, last = set(batches[t][g].tolist()), set(batches[t - 1][g].tolist())
            requested, hits, early = requested + len(now), hits + len(now & before), early + len(now - last)
    assert (found["hit_rate"], found["early_share"]) == (hits / requested, early / requested)


def test_more_room_never_hits_less():
    rng = np.random.default_rng(1)
    batches = [[np.unique(rng.zipf(1.3, 40) % 500).astype(np.uint64)] for _ in range(60)]
    points = capacity_curve(batches, window=10, shares=(0.3, 0.5, 0.8, 1.0))["points"]
    rates = [p["hit_rate"] for p in points if p["hit_rate"] is not None]
    assert len(rates) > 2
    assert rates == sorted(rates)


def test_without_a_window_nothing_is_early():
    assert capacity_curve(stream([1], [1, 2], [2]), window=0, shares=())["unbounded"]["early_share"] == 0


def test_a_stream_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="2 batches; more than the window's 2 are needed"):
        capacity_curve(stream([1], [2]), window=2)
