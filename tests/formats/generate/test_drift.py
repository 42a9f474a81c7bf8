from __future__ import annotations

import numpy as np
import pytest

from headrace.formats.generate.drift import Drift
from headrace.formats.generate.mixing import mix32


def ranking_round_by_round(drift: Drift, day: int) -> np.ndarray:
    """int64 [C]: positions of all ranks on `day`, each round's swaps done one pair after the other."""
    c = drift.cardinality
    position = list(range(c))  # of each rank
    progress = day * drift.drift
    number = 0
    while progress > 0.0:
        number += 1
        word = np.array([number], np.uint32)
        k = int(mix32(word, np.uint32(drift.key))[0]) % c
        moment_key = mix32(word, np.uint32(drift.key ^ 0x9E3779B9))[0]
        for rank, x in enumerate(position):
            partner = (k - x) % c
            moment = int(mix32(np.array([min(x, partner)], np.uint32), moment_key)[0]) / 2**32
            if moment < progress:
                position[rank] = partner
        progress -= 1.0
    return np.array(position)


@pytest.mark.parametrize("cardinality", [1, 2, 3, 24, 257])
@pytest.mark.parametrize("share", [0.0, 0.125, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("day", [0, 1, 2, 3, 9])
def test_positions_equal_the_swaps_done_one_by_one(cardinality, share, day):
    drift = Drift(drift=share, cardinality=cardinality, key=0xC0FFEE)
    everything = np.arange(cardinality)
    positions = drift.positions(everything, day)
    np.testing.assert_array_equal(positions, ranking_round_by_round(drift, day))
    np.testing.assert_array_equal(np.sort(positions), everything)  # a bijection: the law and the ids stay


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_the_share_of_ids_with_another_rank_than_the_day_before_is_drift(share):
    drift = Drift(drift=share, cardinality=50_000, key=77)
    ranks = np.arange(50_000)
    for day in (1, 2, 5, int(1 / share) + 1, 40):
        moved = (drift.positions(ranks, day) != drift.positions(ranks, day - 1)).mean()
        assert moved == pytest.approx(share, abs=5 * np.sqrt(2 * share / 50_000) + 2e-3)


def test_no_drift_and_day_zero_leave_the_ranks_as_they_are():
    ranks = np.arange(1000)
    np.testing.assert_array_equal(Drift(drift=0.0, cardinality=1000, key=1).positions(ranks, 12), ranks)
    np.testing.assert_array_equal(Drift(drift=0.7, cardinality=1000, key=1).positions(ranks, 0), ranks)


def test_hot_ids_are_replaced_by_other_ones_round_after_round():
    drift = Drift(drift=0.5, cardinality=10_000_000, key=5)
    hot = np.arange(100)
    seen = {tuple(drift.positions(hot, day).tolist()) for day in (0, 2, 4, 6, 8)}
    everyone = [position for positions in seen for position in positions]
    assert len(set(everyone)) == 500


def test_another_key_moves_other_ids():
    ranks = np.arange(5000)
    a, b = (Drift(drift=0.2, cardinality=5000, key=key).positions(ranks, 1) for key in (1, 2))
    assert (a != b).mean() > 0.2


def test_a_late_day_costs_no_pass_over_the_days():
    drift = Drift(drift=1.0, cardinality=1_000, key=5)
    positions = drift.positions(np.arange(1_000), 100_000)
    np.testing.assert_array_equal(np.sort(positions), np.arange(1_000))
