from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rank_costs(monkeypatch):
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import rank_costs

    return rank_costs


def test_costs_are_medians_of_differences_within_a_step(rank_costs):
    steps = [
        {"without": base, "late": base + 4.0, "early": base + 1.0, "reduced": base + 2.0} for base in (1.0, 10.0, 3.0)
    ]
    steps[1]["late"] = 100.0
    costs = rank_costs.row_costs(steps, c_step=0.5)
    assert costs.c_late * rank_costs.ROWS == pytest.approx(4.0)
    assert (costs.c_early * rank_costs.ROWS, costs.c_ar * rank_costs.ROWS, costs.c_step) == pytest.approx(
        (1.0, 2.0, 0.5)
    )


def test_noise_makes_no_negative_cost(rank_costs):
    costs = rank_costs.row_costs([{"without": 2.0, "late": 1.0, "early": 3.0, "reduced": 1.5}], c_step=0.0)
    assert costs.c_ar == 0.0
    assert costs.c_late == costs.c_early > 0.0
