"""Plans on disk: what was saved is read, and what is wrong is found, by the file's checks or by the verifier."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.plan.offline import plan_batches, step_plans
from headrace.ingest.plan.plan_diff import first_difference, header_differences
from headrace.ingest.plan.plan_file import PlanFileError, PlanSequence, load_plans, save_plans
from headrace.ingest.plan.planner import MAX_CAPACITY, WindowPlanner
from headrace.ingest.plan.violations import Kind
from headrace.ingest.step_plan import NEVER, Movement


def sequence(seed: int = 0, *, window: int = 3, steps: int = 30, groups: int = 1, capacity: int = 12) -> PlanSequence:
    streams = []
    for g in range(groups):
        rng = np.random.default_rng([seed, g])
        streams.append([rng.permutation(30)[: rng.integers(0, 8)].astype(np.uint64) for _ in range(steps)])
    planners = [WindowPlanner(window=window, capacity=capacity, r_rows=2) for _ in range(groups)]
    for planner in planners:
        planner.set_hot(np.array([3, 5], np.uint64))
    plans = step_plans([plan_batches(s, p) for s, p in zip(streams, planners, strict=True)], window=window)
    return PlanSequence.of(plans, [[s[t] for s in streams] for t in range(steps)])


def with_group(plans: PlanSequence, step: int, **changes: object) -> PlanSequence:
    group = replace(plans.plans[step].groups[0], **changes)  # type: ignore[arg-type]
    plan = replace(plans.plans[step], groups=(group, *plans.plans[step].groups[1:]))
    return replace(plans, plans=(*plans.plans[:step], plan, *plans.plans[step + 1 :]))


def with_move(plans: PlanSequence, step: int, move: str, field: str, at: int, value: int) -> PlanSequence:
    movement: Movement = getattr(plans.plans[step].groups[0], move)
    array = getattr(movement, field).copy()
    array[at] = value
    return with_group(plans, step, **{move: replace(movement, **{field: array})})


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_what_was_saved_is_read_and_proved(tmp_path: Path, groups: int, window: int) -> None:
    plans = sequence(window=window, groups=groups)
    save_plans(tmp_path / "p.arrow", plans)
    found = load_plans(tmp_path / "p.arrow")
    assert found.digest() == plans.digest()
    assert first_difference(plans, found) is None
    assert header_differences(plans, found) == []
    assert found.verify() == []
    assert [p.digest() for p in found.plans] == [p.digest() for p in plans.plans]
    assert found.plans[1].groups[0].slots.dtype == np.int64
    assert found.plans[1].groups[0].late.fetch_locations.dtype == np.uint64
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p.arrow"]


def first(plans: PlanSequence, move: str, what: str, wanted) -> tuple[int, int]:
    """(step, entry) of the first movement's entry for which `wanted`."""
    for step, plan in enumerate(plans.plans):
        hits = np.flatnonzero(wanted(getattr(getattr(plan.groups[0], move), what)))
        if len(hits):
            return step, int(hits[0])
    raise AssertionError("no such entry")


def dropped_wait(plans: PlanSequence) -> PlanSequence:
    return with_move(plans, *_at(plans, "ahead", "fetch_wait", lambda w: w != NEVER), NEVER)


def wrong_slot(plans: PlanSequence) -> PlanSequence:
    return with_move(plans, *_at(plans, "ahead", "fetch_slots", lambda s: s >= 2), 99)


def wrong_row(plans: PlanSequence) -> PlanSequence:
    return with_move(plans, *_at(plans, "ahead", "fetch_locations", lambda s: s >= 0), 1_000)


def _at(plans: PlanSequence, move: str, what: str, wanted) -> tuple[int, str, str, int]:
    step, entry = first(plans, move, what, wanted)
    return step, move, what, entry


def lost_step(plans: PlanSequence) -> PlanSequence:
    return replace(plans, plans=plans.plans[:4] + plans.plans[5:], unique=plans.unique[:4] + plans.unique[5:])


def swapped(plans: PlanSequence) -> PlanSequence:
    step = next(t for t, p in enumerate(plans.plans) if p.groups[0].requested > 3)
    return with_group(plans, step, slots=plans.plans[step].groups[0].slots[::-1].copy())


def short(plans: PlanSequence) -> PlanSequence:
    step = next(t for t, p in enumerate(plans.plans) if len(p.groups[0].ahead.fetch_slots))
    ahead = plans.plans[step].groups[0].ahead
    return with_group(plans, step, ahead=replace(ahead, fetch_slots=ahead.fetch_slots[:-1]))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (dropped_wait, Kind.MISSING_FETCH_WAIT),
        (wrong_slot, Kind.SLOT_RANGE),
        (wrong_row, Kind.NOT_RESIDENT),
        (lost_step, Kind.STEP_ORDER),
        (swapped, Kind.WRONG_ROW),
        (short, Kind.MALFORMED),
        (lambda p: with_group(p, 3, hits=99), Kind.COUNT),
        (lambda p: with_group(p, 3, urgent=~p.plans[3].groups[0].urgent), Kind.URGENT),
    ],
)
def test_a_fault_in_a_saved_plan_is_found_by_the_verifier(tmp_path: Path, fault, kind: Kind) -> None:
    """L116, in the file form: the file is whole, its digest right; the plan is wrong."""
    wrong = fault(sequence())
    save_plans(tmp_path / "p.arrow", wrong)
    assert kind in {v.kind for v in load_plans(tmp_path / "p.arrow").verify()}


def rewritten(path: Path, change) -> None:
    with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as reader:
        schema, batches = reader.schema, [reader.get_batch(i) for i in range(reader.num_record_batches)]
    schema, batches = change(schema, batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    path.write_bytes(sink.getvalue().to_pybytes())


def said(**values: object):
    def change(schema, batches):
        meta = dict(schema.metadata) | {f"headrace.plan.{k}".encode(): str(v).encode() for k, v in values.items()}
        return schema.with_metadata(meta), batches

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (said(version=2), "version '2'"),
        (said(window=-1), "window is '-1'"),
        (said(window=2**40), "does not lie"),
        (said(window=4), "digest"),
        (said(groups=0), "does not lie"),
        (said(groups=10**18), "does not lie"),
        (said(groups=2), "2 whole numbers"),
        (said(capacity="many"), "capacity is 'many'"),
        (said(steps=7), "30 steps, but it says 7"),
        (said(digest="0"), "digest"),
        (lambda schema, batches: (schema, batches[1:]), "29 steps"),
        (lambda schema, batches: (schema, [batches[1], batches[0], *batches[2:]]), "digest"),
        (lambda schema, batches: (schema.with_metadata({}), batches), "version None"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "p.arrow"
    save_plans(path, sequence())
    rewritten(path, change)
    with pytest.raises(PlanFileError, match=message):
        load_plans(path)


def test_a_claim_of_a_huge_arena_takes_no_memory(tmp_path: Path) -> None:
    plans = sequence(steps=6)
    claimed = tuple(
        replace(plan, groups=tuple(replace(g, capacity=MAX_CAPACITY) for g in plan.groups)) for plan in plans.plans
    )
    save_plans(tmp_path / "p.arrow", replace(plans, capacity=(MAX_CAPACITY,), plans=claimed))
    found = load_plans(tmp_path / "p.arrow")
    tracemalloc.start()
    try:
        assert found.verify() == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("step", [-1, 1 << 31, (1 << 63) - 1])
def test_steps_that_no_run_has_are_refused(tmp_path: Path, step: int) -> None:
    plans = sequence(steps=3)
    save_plans(tmp_path / "p.arrow", replace(plans, plans=(*plans.plans[:2], replace(plans.plans[2], step=step))))
    with pytest.raises(PlanFileError, match=f"is of step {step}"):
        load_plans(tmp_path / "p.arrow")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PlanFileError, match="not a file"):
            load_plans(path)
    with pytest.raises(FileNotFoundError):
        load_plans(tmp_path / "none")


def test_a_torn_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.arrow"
    save_plans(path, sequence())
    whole = path.read_bytes()
    for part in (whole[: len(whole) // 2], b"not an arrow file at all", b""):
        path.write_bytes(part)
        with pytest.raises(PlanFileError):
            load_plans(path)
    with pytest.raises(FileNotFoundError):
        load_plans(tmp_path / "none.arrow")


def test_a_flipped_byte_never_gives_another_plan(tmp_path: Path) -> None:
    path = tmp_path / "p.arrow"
    plans = sequence(steps=4)
    save_plans(path, plans)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(0, len(whole), 150).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            found = load_plans(path)
        except PlanFileError:
            refused += 1
        else:
            assert found.digest() == plans.digest()  # padding
    assert refused > 20


def test_the_first_difference_is_named() -> None:
    plans = sequence()
    assert first_difference(plans, plans) is None
    other = with_group(with_group(plans, 9, hits=-1), 4, hits=-2)
    found = first_difference(plans, other)
    assert found is not None
    assert (found.step, found.field, found.words) == (4, "group 0, hits", f"{plans.plans[4].groups[0].hits} and -2")
    step, move, field, at = _at(plans, "ahead", "fetch_slots", lambda s: s >= 2)
    slot = int(getattr(getattr(plans.plans[step].groups[0], move), field)[at])
    count = len(plans.plans[step].groups[0].ahead.fetch_slots)
    found = first_difference(plans, with_move(plans, step, move, field, at, 99))
    assert str(found) == (f"step {step}: group 0, ahead.fetch_slots: entry {at} is {slot} and 99; 1 of {count} differ")
    shorter = replace(plans, plans=plans.plans[:-1], unique=plans.unique[:-1])
    assert str(first_difference(plans, shorter)) == "step 29: step: the second ends before it"
    two = first_difference(plans, sequence(groups=2))
    assert str(two) == "step 0: row layouts: 1 and 2"


def test_plans_of_other_windows_and_capacities_part_at_a_step() -> None:
    plans, other = sequence(), sequence(window=1, capacity=13)
    assert [str(found) for found in header_differences(plans, other)] == [
        "all steps: window: 3 and 1",
        "all steps: capacity: (12,) and (13,)",
    ]
    found = first_difference(plans, other)
    assert found is not None
    assert found.step > 0
    assert found.field.startswith("group 0, ahead.")
    for step in range(found.step):  # the same rows move until then
        moved = [(p.plans[step].groups[0].ahead, p.plans[step].groups[0].late) for p in (plans, other)]
        assert all(
            np.array_equal(getattr(a, field.name), getattr(b, field.name))
            for a, b in zip(*moved, strict=True)
            for field in fields(Movement)
        )
    assert first_difference(plans, sequence(steps=30, capacity=12)) is None


def test_other_rows_are_named_before_what_follows_from_them() -> None:
    found = first_difference(sequence(0), sequence(1))
    assert found is not None
    assert found.field == "group 0, unique rows"


def test_there_is_no_plan_of_nothing() -> None:
    with pytest.raises(ValueError, match="0 plans"):
        PlanSequence.of([], [])
