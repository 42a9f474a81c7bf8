"""Memory that runs out in the planner of one of several row layouts: nothing is handed out, nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import DIT, Index, PlanWindow, RowsFrom, Schema, Sparse, Table, WindowPlanner, index_tables

SCHEMA = Schema(
    sparse=(Sparse(name="a", encoding="uint64"), Sparse(name="b", encoding="uint64")),
    tables=(Table(name="a", dim=2), Table(name="b", dim=4)),
)
BATCHES = 12


def batches() -> list[pa.RecordBatch]:
    rng = np.random.default_rng(3)
    return [pa.record_batch({name: rng.integers(0, 40, 8).astype(np.uint64) for name in "ab"}) for _ in range(BATCHES)]


def plans_of(node: PlanWindow, count: int) -> list[str]:
    return [next(node).plan.digest() for _ in range(count)]


def window(index: DIT) -> PlanWindow:
    return PlanWindow(Index(RowsFrom(batches(), SCHEMA), SCHEMA, index), SCHEMA, window=3, capacity=40, hot_rows=0)


@pytest.mark.parametrize("method", ["push", "pop"])
@pytest.mark.parametrize("call", [1, 7, 10])
def test_an_error_between_two_layouts(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    expected = plans_of(window(DIT(index_tables(SCHEMA))), BATCHES)
    right = getattr(WindowPlanner, method)
    calls = 0

    def failing(self: WindowPlanner, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 * call:  # of the second layout
            raise MemoryError("no more")
        return right(self, *args)

    with DIT(index_tables(SCHEMA)) as index, window(index) as node:
        with monkeypatch.context() as patch:
            patch.setattr(WindowPlanner, method, failing)
            got: list[str] = []
            with pytest.raises(MemoryError, match="no more"):
                got.extend(plans_of(node, 1)[0] for _ in range(BATCHES))
        assert got == expected[: len(got)]
        with pytest.raises(MemoryError, match="no more"):  # not the next step, of which one layout is ahead
            next(node)
        left = index.num_provisional
        node.reset()
        assert index.num_provisional <= left
        assert plans_of(node, BATCHES) == expected
        with pytest.raises(StopIteration):
            next(node)
