"""What the movements of a plan must be so that an arena can do them; what they say of it is `slot_table.py`'s."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.embed.slot_table import PlanError
from headrace.indexer.indexed import TIER_SHIFT
from headrace.ingest.step_plan import FetchKeys, Movement, StepPlan

_EVICTED = {"evict_locations": np.uint64, "evict_slots": np.int64}
_FETCHED = {
    "fetch_locations": np.uint64,
    "fetch_slots": np.int64,
    "fetch_unique": np.int64,
    "fetch_wait": np.int64,
    "slot_wait": np.int64,
}
_KEYS = {"ids": np.uint64, "tables": np.uint32, "missing": np.bool_}


def check_movements(plan: StepPlan) -> None:
    """PlanError that names group and field, unless all arrays of both movements, and the keys of what they fetch, have
    the dtypes and lengths of :class:`headrace.ingest.step_plan.Movement`; and for a place that is in no host memory."""
    for name, keys in (("late", plan.late_keys), ("ahead", plan.ahead_keys)):
        if len(keys) != len(plan.groups):
            raise PlanError(f"{name}_keys of {len(keys)} groups in a plan of {len(plan.groups)}")
        for g, (group, own) in enumerate(zip(plan.groups, keys, strict=True)):
            _check_movement(getattr(group, name), own, f"group {g}: {name}")


def _check_movement(movement: Movement, keys: FetchKeys, where: str) -> None:
    evicted, fetched = np.size(movement.evict_slots), np.size(movement.fetch_slots)
    for wanted, size, owner, kind in (
        (_EVICTED, evicted, movement, ""),
        (_FETCHED, fetched, movement, ""),
        (_KEYS, fetched, keys, "_keys"),
    ):
        for name, dtype in wanted.items():
            array = getattr(owner, name)
            if not (isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == (size,)):
                raise PlanError(f"{where}{kind}.{name} is {_named(array)}, not {np.dtype(dtype)} [{size}]")
    if fetched and movement.fetch_locations.max() >> np.uint64(TIER_SHIFT):
        at = int(movement.fetch_locations.argmax())
        raise PlanError(f"{where} fetches a row that has no location, {int(movement.fetch_locations[at]):#x}")


def _named(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    return f"{array.dtype} {list(array.shape)}"
