"""Random cases of the whole protocol, on ranks that take turns in a drawn order; a failure prints its seed."""

from __future__ import annotations

import pytest

from tests.support.rank_simulation import draw, run


def run_cases(first: int, last: int) -> None:
    for seed in range(first, last):
        try:
            run(draw(seed), seed)
        except BaseException:
            print(f"tests.support.rank_simulation: seed {seed}: {draw(seed)}")
            raise


@pytest.mark.parametrize("lot", range(10))
def test_a_thousand_cases(lot):
    run_cases(100 * lot, 100 * (lot + 1))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_twenty_thousand_cases():
    run_cases(1000, 21_000)
