"""Plans on disk: one Arrow IPC file, a step a record batch.

Metadata of the schema, all text under keys ``headrace.plan.*``: `version`, `window`, `steps`, `groups`, and `digest`;
for each row layout, comma separated, `capacity`, `r_rows`, `row_bytes`. Each batch has one row: `step` and, for layout
g, under ``g<g>.``:

=========================== =================== ==================================================================
`unique`                    list<uint64>        locations of the unique rows of the step: what the plan is for
`slots`, `hot`, `urgent`    lists, one a row    as in GroupPlan; `hits`, `resident` int64
`late.*`, `ahead.*`         lists               the fields of Movement, and `ids`, `tables`, `missing` of FetchKeys
=========================== =================== ==================================================================

Nothing is executed on reading. What a file says of itself (versions, sizes, types, the digest) is checked, and
:class:`PlanFileError` says what is wrong; whether the *plan* is right is the verifier's question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.formats.atomic_file import write_atomic
from headrace.ingest.plan.planner import MAX_CAPACITY, MAX_WINDOW, write_back_horizon
from headrace.ingest.plan.verifier import PlanVerifier
from headrace.ingest.plan.violations import Violation
from headrace.ingest.step_plan import U64, FetchKeys, GroupPlan, Movement, StepPlan

VERSION = 1
PREFIX = "headrace.plan."
MAX_GROUPS = 1 << 10
MAX_STEPS = 1 << 31

_UNSIGNED = {"evict_locations", "fetch_locations", "ids"}
_MOVES = ("late", "ahead")


class PlanFileError(ValueError):
    """A file is no plan, is of a version that this one does not read, or is damaged."""


@dataclass(frozen=True)
class PlanSequence:
    """The plans of steps 0 .. n - 1 of one run, and the unique rows that each was made for.

    `unique[t][g]` uint64 [U]. `capacity`, `r_rows` and `row_bytes` a row layout.
    """

    window: int
    capacity: tuple[int, ...]
    r_rows: tuple[int, ...]
    row_bytes: tuple[int, ...]
    plans: tuple[StepPlan, ...]
    unique: tuple[tuple[U64, ...], ...]

    @staticmethod
    def of(plans: Sequence[StepPlan], unique: Sequence[Sequence[U64]]) -> PlanSequence:
        """ValueError without a step, or if the two do not have the same length."""
        if not plans or len(plans) != len(unique):
            raise ValueError(f"{len(plans)} plans, {len(unique)} lists of unique rows: one of each a step is needed")
        first = plans[0]
        return PlanSequence(
            window=first.window,
            capacity=tuple(g.capacity for g in first.groups),
            r_rows=tuple(g.r_rows for g in first.groups),
            row_bytes=first.row_bytes,
            plans=tuple(plans),
            unique=tuple(tuple(rows) for rows in unique),
        )

    def digest(self) -> str:
        """Of all plans and the rows that they are for; the run's number aside."""
        state = hashlib.sha256()
        for plan, rows in zip(self.plans, self.unique, strict=True):
            state.update(plan.digest().encode())
            for unique in rows:
                state.update(f"{len(unique)};".encode())
                state.update(np.ascontiguousarray(unique).tobytes())
        return state.hexdigest()

    def verify(self) -> list[Violation]:
        """All that is wrong, by :class:`PlanVerifier`."""
        verifier = PlanVerifier(
            capacity=self.capacity,
            r_rows=self.r_rows,
            horizon=write_back_horizon(self.window),
            row_bytes=self.row_bytes,
        )
        found: list[Violation] = []
        for plan, unique in zip(self.plans, self.unique, strict=True):
            found += verifier.check(plan, unique)
        return found + verifier.finish(len(self.plans))


def save_plans(path: str | Path, plans: PlanSequence) -> None:
    """Write the file in one step: a reader sees the old one or the new one, never a part."""
    groups = len(plans.capacity)
    meta = {
        "version": VERSION, "window": plans.window, "steps": len(plans.plans), "groups": groups,
        "capacity": _joined(plans.capacity), "r_rows": _joined(plans.r_rows), "row_bytes": _joined(plans.row_bytes),
        "digest": plans.digest(),
    }  # fmt: skip
    schema = _schema(groups).with_metadata({PREFIX + key: str(value) for key, value in meta.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for plan, unique in zip(plans.plans, plans.unique, strict=True):
            values: list[Any] = [plan.step]
            for g in range(groups):
                values += _group_values(plan, g, unique[g])
            arrays = [_array(value, field.type) for value, field in zip(values, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    write_atomic(Path(path), sink.getvalue().to_pybytes())


def load_plans(path: str | Path) -> PlanSequence:
    """Read a file of :func:`save_plans`; PlanFileError for any other. The plans' run is 0."""
    if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
        raise PlanFileError(f"{path}: not a file")
    try:
        with pa.memory_map(str(path)) as source:
            return _read(pa.ipc.open_file(source), str(path))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's, not Arrow's
            raise
        raise PlanFileError(f"{path}: not a whole Arrow file: {error}") from error


def _read(reader: Any, path: str) -> PlanSequence:
    meta = {
        k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in (reader.schema.metadata or {}).items()
    }
    version = meta.get(PREFIX + "version")
    if version != str(VERSION):
        raise PlanFileError(f"{path}: version {version!r} of the plan format; this program reads {VERSION}")
    groups = _integers(meta, "groups", path, 1, MAX_GROUPS)[0]
    window = _integers(meta, "window", path, 0, MAX_WINDOW)[0]
    steps = _integers(meta, "steps", path, 1, MAX_STEPS)[0]
    capacity = _integers(meta, "capacity", path, 0, MAX_CAPACITY, groups)
    r_rows = _integers(meta, "r_rows", path, 0, MAX_CAPACITY, groups)
    row_bytes = _integers(meta, "row_bytes", path, 0, 1 << 31, groups)
    if not reader.schema.remove_metadata().equals(_schema(groups)):
        raise PlanFileError(f"{path}: the columns are not those of a plan of {groups} row layouts")
    if reader.num_record_batches != steps:
        raise PlanFileError(f"{path}: {reader.num_record_batches} steps, but it says {steps}")
    plans, unique = [], []
    for number in range(steps):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        if batch.num_rows != 1 or any(column.null_count or _inner_nulls(column) for column in batch.columns):
            raise PlanFileError(f"{path}: record batch {number} is not one whole step")
        values = [_value(column) for column in batch.columns]
        if not 0 <= values[0] < MAX_STEPS:
            raise PlanFileError(f"{path}: record batch {number} is of step {values[0]}")
        width = (len(values) - 1) // groups
        parts = [values[1 + g * width : 1 + (g + 1) * width] for g in range(groups)]
        unique.append(tuple(part[0] for part in parts))
        plans.append(_step_plan(values[0], window, parts, capacity, r_rows, row_bytes))
    found = PlanSequence(window, capacity, r_rows, row_bytes, tuple(plans), tuple(unique))
    if found.digest() != meta.get(PREFIX + "digest"):
        raise PlanFileError(f"{path}: the plans are not those of the digest: the file is damaged or was edited")
    return found


def _schema(groups: int) -> Any:
    columns = [pa.field("step", pa.int64(), nullable=False)]
    for g in range(groups):
        columns += [
            _list(f"g{g}.unique", pa.uint64()), _list(f"g{g}.slots", pa.int64()), _list(f"g{g}.hot", pa.bool_()),
            _list(f"g{g}.urgent", pa.bool_()), pa.field(f"g{g}.hits", pa.int64(), nullable=False),
            pa.field(f"g{g}.resident", pa.int64(), nullable=False),
        ]  # fmt: skip
        for move in _MOVES:
            for field in fields(Movement):
                inner = pa.uint64() if field.name in _UNSIGNED else pa.int64()
                columns.append(_list(f"g{g}.{move}.{field.name}", inner))
            for name, inner in (("ids", pa.uint64()), ("tables", pa.uint32()), ("missing", pa.bool_())):
                columns.append(_list(f"g{g}.{move}.{name}", inner))
    return pa.schema(columns)


def _list(name: str, inner: Any) -> Any:
    return pa.field(name, pa.list_(inner), nullable=False)


def _group_values(plan: StepPlan, g: int, unique: U64) -> list[Any]:
    group = plan.groups[g]
    values: list[Any] = [unique, group.slots, group.hot, group.urgent, group.hits, group.resident]
    for movement, keys in ((group.late, plan.late_keys[g]), (group.ahead, plan.ahead_keys[g])):
        values += [getattr(movement, field.name) for field in fields(Movement)]
        values += [keys.ids, keys.tables, keys.missing]
    return values


def _step_plan(
    step: int, window: int, parts: list[list[Any]], capacity: tuple[int, ...], r_rows: tuple[int, ...],
    row_bytes: tuple[int, ...],
) -> StepPlan:  # fmt: skip
    groups, keys = [], []
    moved = len(fields(Movement))
    for g, part in enumerate(parts):
        moves = [part[6 : 6 + moved], part[9 + moved : 9 + 2 * moved]]
        late, ahead = (Movement(*move) for move in moves)
        keys.append([FetchKeys(*part[6 + moved : 9 + moved]), FetchKeys(*part[9 + 2 * moved :])])
        groups.append(
            GroupPlan(
                slots=part[1], hot=part[2], urgent=part[3], late=late, ahead=ahead, hits=part[4], resident=part[5],
                capacity=capacity[g], r_rows=r_rows[g],
            )
        )  # fmt: skip
    late_keys, ahead_keys = zip(*keys, strict=True)
    return StepPlan(0, step, window, tuple(groups), row_bytes, tuple(late_keys), tuple(ahead_keys))


def _array(value: Any, kind: Any) -> Any:
    if not pa.types.is_list(kind):
        return pa.array([value], kind)
    return pa.ListArray.from_arrays(pa.array([0, len(value)], pa.int32()), pa.array(value, kind.value_type), type=kind)


def _value(column: Any) -> Any:
    if not pa.types.is_list(column.type):
        return column[0].as_py()
    return np.array(column.flatten().to_numpy(zero_copy_only=False))  # a copy: the file is closed after this


def _inner_nulls(column: Any) -> int:
    return int(column.flatten().null_count) if pa.types.is_list(column.type) else 0


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _integers(meta: dict[str, str], name: str, path: str, least: int, most: int, count: int = 1) -> tuple[int, ...]:
    text = meta.get(PREFIX + name, "")
    parts = text.split(",")
    if len(parts) != count or not all(p.isascii() and p.isdecimal() and len(p) < 20 for p in parts):
        raise PlanFileError(f"{path}: {name} is {text!r}; {count} whole numbers were expected")
    numbers = tuple(map(int, parts))
    if not all(least <= n <= most for n in numbers):
        raise PlanFileError(f"{path}: {name} {text} does not lie in [{least}, {most}]")
    return numbers
