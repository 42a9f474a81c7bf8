"""Invariants 7 and 9: whatever the window, capacity, hot rows and threads, training is the in-order training, bit for
bit, after every step; and every plan is proved before its step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from headrace.ingest.plan.planner import WindowPlanner
from headrace.ingest.plan.violations import PlanViolationError
from headrace.ingest.step_plan import NEVER
from tests.support.training_cases import Case, cases
from tests.support.training_run import Run

EXAMPLES, LONG_EXAMPLES = 300, 5000
CALM = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@pytest.mark.timeout(600)
def test_every_step_equals_in_order_training():  # P41, P47, P85
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, **CALM)
    @given(case=cases())
    def check(case: Case) -> None:
        seen.update(cases=1, **Run(case).run())

    check()
    assert seen["cases"] >= EXAMPLES
    least = {"steps": 500, "steps of several batches": 100, "evicted": 300, "ahead": 1000, "late": 100, "waits": 100,
             "hot": 100, "repeated": 1000, "skipped": 30, "evaluated": 100, "dropped": 20, "twice": 30,
             "empty batches": 30,
             "skipped before a step": 15}  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}, "the cases have become too easy"


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=LONG_EXAMPLES, print_blob=True, **CALM)
@given(case=cases())
def test_five_thousand_cases(case):
    Run(case).run()


EASY = Case(
    seed=7, tables=((3, "adagrad"), (4, "sgd")), features=((0, True, "sum"), (1, False, "sum")),
    batch_sizes=(6, 5, 6, 4), distinct_ids=20, window=1, spare=0, hot_rows=0, accumulate=1, weighted=False,
    frozen=False, weight_decay=0.0, mode="arena", threads=(1, 1, 1), prefetch=False, epochs=2,
)  # fmt: skip


class TestItWouldBeSeen:
    def test_if_a_gradient_were_off_by_one_bit(self):
        run = Run(EASY)
        keep = run.tables._keep

        def off(pooled, sequences):
            keep(pooled, sequences)
            first = next(iter(run.tables.pending))
            run.tables.pending[first] = np.nextafter(run.tables.pending[first], np.float32(9))

        run.tables._keep = off
        with pytest.raises(AssertionError, match="values differ"):
            run.run()

    def test_if_a_write_back_were_lost_in_the_stage_that_is_left_to_itself(self, monkeypatch):
        run = Run(EASY)
        store = run.stages[1].stores[0]
        write, written = store.write, []

        def lossy(locations, rows, **options):
            written.append(len(locations))
            if sum(written) > 6:
                write(locations, rows, **options)

        monkeypatch.setattr(store, "write", lossy)
        with pytest.raises(AssertionError, match="values differ"):
            run.run()
        assert any(written)

    def test_if_a_plan_dropped_a_wait(self, monkeypatch):
        pop = WindowPlanner.pop

        def hasty(planner):
            plan = pop(planner)
            late = replace(plan.late, slot_wait=np.full_like(plan.late.slot_wait, NEVER))
            return replace(plan, late=late)

        monkeypatch.setattr(WindowPlanner, "pop", hasty)
        with pytest.raises(PlanViolationError, match="slot"):
            Run(EASY).run()

    def test_if_a_step_came_with_another_rate(self):
        run = Run(EASY)
        step = run.stages[1].optimizer().step
        run.stages[1].optimizer().step = lambda: (setattr(run.stages[1], "lr", 0.5), step())
        with pytest.raises(AssertionError, match="values differ"):
            run.run()
