"""Where two sequences of plans part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np

from headrace.ingest.plan.plan_file import PlanSequence
from headrace.ingest.step_plan import FetchKeys, GroupPlan, Movement, StepPlan


@dataclass(frozen=True)
class Difference:
    """The first difference: `step` (-1: of all of them), the field's dotted name, and what is there, in words."""

    step: int
    field: str
    words: str

    def __str__(self) -> str:
        where = f"step {self.step}" if self.step >= 0 else "all steps"
        return f"{where}: {self.field}: {self.words}"


def first_difference(left: PlanSequence, right: PlanSequence) -> Difference | None:
    """The first step at which the plans differ, and the first field there, the batch first; None: equal."""
    for name in ("window", "capacity", "r_rows", "row_bytes"):
        a, b = getattr(left, name), getattr(right, name)
        if a != b:
            return Difference(-1, name, f"{a} and {b}")
    for plans, unique in zip(zip_longest(left.plans, right.plans), zip_longest(left.unique, right.unique), strict=True):
        first, second = plans
        if first is None or second is None:
            step, missing = (second.step, "first") if first is None else (first.step, "second")
            return Difference(step, "step", f"the {missing} ends before it")
        for name, a, b in _named(first, second, unique[0], unique[1]):
            words = _differ(a, b)
            if words:
                return Difference(first.step, name, words)
    return None


def _named(first: StepPlan, second: StepPlan, unique: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every field of both, the rows that the step uses first, since all else follows from them."""
    yield "step", first.step, second.step
    for g, (a, b) in enumerate(zip(first.groups, second.groups, strict=True)):
        yield f"group {g}, unique rows", unique[g], other[g]
        for move in ("late", "ahead"):
            for field in fields(Movement):
                yield f"group {g}, {move}.{field.name}", *(getattr(getattr(x, move), field.name) for x in (a, b))
            keys = (getattr(first, f"{move}_keys")[g], getattr(second, f"{move}_keys")[g])
            for field in fields(FetchKeys):
                yield f"group {g}, {move}_keys.{field.name}", *(getattr(k, field.name) for k in keys)
        for field in fields(GroupPlan):
            if field.name not in ("late", "ahead"):
                yield f"group {g}, {field.name}", getattr(a, field.name), getattr(b, field.name)


def _differ(a: Any, b: Any) -> str:
    if not isinstance(a, np.ndarray):
        return "" if a == b else f"{a} and {b}"
    if len(a) != len(b):
        same = int(np.argmin(np.append(a[: min(len(a), len(b))] == b[: min(len(a), len(b))], False)))
        return f"{len(a)} and {len(b)} entries, the first {same} are the same"
    at = np.flatnonzero(a != b)
    return f"entry {at[0]} is {a[at[0]]} and {b[at[0]]}; {len(at)} of {len(a)} differ" if len(at) else ""
