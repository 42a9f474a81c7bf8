"""Where two sequences of plans part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np

from headrace.ingest.plan.plan_file import PlanSequence
from headrace.ingest.step_plan import FetchKeys, GroupPlan, Movement, StepPlan

OF_ALL_STEPS = ("window", "capacity", "r_rows", "row_bytes")


@dataclass(frozen=True)
class Difference:
    """A difference: `step` (-1: of all of them), the field's dotted name, and what is there, in words."""

    step: int
    field: str
    words: str

    def __str__(self) -> str:
        where = f"step {self.step}" if self.step >= 0 else "all steps"
        return f"{where}: {self.field}: {self.words}"


def header_differences(left: PlanSequence, right: PlanSequence) -> list[Difference]:
    """What differs of all steps: window, and capacity, rows of R and bytes of a row of each row layout."""
    pairs = {name: (getattr(left, name), getattr(right, name)) for name in OF_ALL_STEPS}
    return [Difference(-1, name, f"{a} and {b}") for name, (a, b) in pairs.items() if a != b]


def first_difference(left: PlanSequence, right: PlanSequence) -> Difference | None:
    """The first step at which the plans differ, and the first field there, the batch first; None: no step does.

    What is of all steps is left to :func:`header_differences`: plans for other windows may agree for many steps.
    """
    for plans, unique in zip(zip_longest(left.plans, right.plans), zip_longest(left.unique, right.unique), strict=True):
        first, second = plans
        if first is None or second is None:
            step, missing = (second.step, "first") if first is None else (first.step, "second")
            return Difference(step, "step", f"the {missing} ends before it")
        if len(first.groups) != len(second.groups):
            return Difference(first.step, "row layouts", f"{len(first.groups)} and {len(second.groups)}")
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
            if field.name not in ("late", "ahead", *OF_ALL_STEPS):
                yield f"group {g}, {field.name}", getattr(a, field.name), getattr(b, field.name)


def _differ(a: Any, b: Any) -> str:
    if not isinstance(a, np.ndarray):
        return "" if a == b else f"{a} and {b}"
    if len(a) != len(b):
        same = int(np.argmin(np.append(a[: min(len(a), len(b))] == b[: min(len(a), len(b))], False)))
        return f"{len(a)} and {len(b)} entries, the first {same} are the same"
    at = np.flatnonzero(a != b)
    return f"entry {at[0]} is {a[at[0]]} and {b[at[0]]}; {len(at)} of {len(a)} differ" if len(at) else ""
