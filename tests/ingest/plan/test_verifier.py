from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.plan.offline import plan_batches, step_plans
from headrace.ingest.plan.planner import WindowPlanner, write_back_horizon
from headrace.ingest.plan.verifier import PlanVerifier
from headrace.ingest.plan.violations import Kind, PlanViolationError, Violation
from headrace.ingest.step_plan import NEVER, FetchKeys, GroupPlan, Movement, StepPlan

WINDOW, CAPACITY, R_ROWS, STEPS, UNIVERSE = 3, 17, 3, 30, 40
HOT = np.array([101, 100, 102], np.uint64)


def batch_stream(seed: int, steps: int = STEPS) -> list[np.ndarray]:
    """Batches of 6 to 9 of 40 skewed rows: with 14 cache slots rows are late, revived and evicted all the time."""
    rng = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1, UNIVERSE + 1) ** 0.6
    locations = np.arange(100, 100 + UNIVERSE, dtype=np.uint64)
    return [rng.choice(locations, rng.integers(6, 10), replace=False, p=weight / weight.sum()) for _ in range(steps)]


def planned(batches: list[np.ndarray], *, window: int = WINDOW, native: bool = True) -> list[StepPlan]:
    planner = WindowPlanner(window=window, capacity=CAPACITY, r_rows=R_ROWS, native=native)
    planner.set_hot(HOT)
    plans = step_plans([plan_batches(batches, planner)], window=window)
    return [
        replace(
            plan,
            late_keys=(keys_of(plan.groups[0].late.fetch_locations),),
            ahead_keys=(keys_of(plan.groups[0].ahead.fetch_locations),),
        )
        for plan in plans
    ]


def keys_of(locations: np.ndarray) -> FetchKeys:
    """Keys such that two rows may differ in any one field alone."""
    place = locations - np.uint64(100)
    return FetchKeys(
        ids=place // np.uint64(8),
        tables=(place // np.uint64(2) % np.uint64(4)).astype(np.uint32),
        missing=place % 2 == 1,
    )


def verify(plans: list[StepPlan], batches: list[np.ndarray], window: int = WINDOW) -> list[Violation]:
    """Violations of `plans`, each checked against the rows of the step that it claims to be for."""
    verifier = PlanVerifier(capacity=[CAPACITY], r_rows=[R_ROWS], horizon=write_back_horizon(window))
    found = [v for plan in plans for v in verifier.check(plan, [batches[plan.step]], [keys_of(batches[plan.step])])]
    return found + verifier.finish(len(batches))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_valid_plans_have_no_violation(window: int, native: bool) -> None:
    for seed in range(10):
        batches = batch_stream(seed)
        assert verify(planned(batches, window=window, native=native), batches, window) == []


def test_empty_batches_are_valid() -> None:
    batches = [np.empty(0, np.uint64), *batch_stream(0, 3), np.empty(0, np.uint64)]
    assert verify(planned(batches), batches) == []


# A mutation plants one fault into valid plans (a list that it may change), or says that there is no place for it.

Plans = list[StepPlan]
Place = tuple[int, int]  # step, position in a movement


class NoPlaceError(Exception):
    pass


def with_group(plans: Plans, step: int, **changes: object) -> Plans:
    plans[step] = replace(plans[step], groups=(replace(plans[step].groups[0], **changes),))
    return plans


def group(plans: Plans, step: int) -> GroupPlan:
    return plans[step].groups[0]


def pick(rng: np.random.Generator, places: list) -> tuple:
    if not places:
        raise NoPlaceError
    return places[int(rng.integers(len(places)))]


def fetches(plans: Plans, name: str, wanted: Callable[[Movement], np.ndarray]) -> list[Place]:
    """(step, position) of the fetches of movement `name` for which `wanted` is true."""
    return [(s, int(i)) for s in range(len(plans)) for i in np.flatnonzero(wanted(getattr(group(plans, s), name)))]


def put(plans: Plans, step: int, name: str, field: str, position: int, value: int) -> Plans:
    movement = getattr(group(plans, step), name)
    array = getattr(movement, field).copy()
    array[position] = value
    return with_group(plans, step, **{name: replace(movement, **{field: array})})


def extra_eviction(plans: Plans, step: int, name: str, location: int, slot: int) -> Plans:
    movement = getattr(group(plans, step), name)
    changed = replace(
        movement,
        evict_locations=np.append(movement.evict_locations, np.uint64(location)),
        evict_slots=np.append(movement.evict_slots, slot),
    )
    return with_group(plans, step, **{name: changed})


def without(movement: Movement, prefix: str, position: int, fields: tuple[str, ...]) -> Movement:
    return replace(movement, **{f: np.delete(getattr(movement, f), position) for f in fields if prefix in f})


FETCH = ("fetch_locations", "fetch_slots", "fetch_unique", "fetch_wait", "slot_wait")


def drop_fetch(plans: Plans, step: int, name: str, position: int) -> Plans:
    movement = without(getattr(group(plans, step), name), "", position, FETCH)
    keys = getattr(plans[step], f"{name}_keys")[0]
    shorter = replace(keys, **{f: np.delete(getattr(keys, f), position) for f in ("ids", "tables", "missing")})
    plans[step] = replace(plans[step], **{f"{name}_keys": (shorter,)})
    return with_group(plans, step, **{name: movement})


def movement_name(rng: np.random.Generator) -> str:
    return "late" if rng.random() < 0.5 else "ahead"


def any_unique(plans: Plans, rng: np.random.Generator, wanted: Callable[[GroupPlan], np.ndarray]) -> Place:
    return pick(rng, [(s, int(u)) for s in range(len(plans)) for u in np.flatnonzero(wanted(group(plans, s)))])


def dropped_fetch_wait(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_wait != NEVER))
    return put(plans, step, name, "fetch_wait", i, NEVER)


def fetch_waits_for_an_older_move(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_wait > 0))
    return put(plans, step, name, "fetch_wait", i, getattr(group(plans, step), name).fetch_wait[i] - 1)


def fetch_waits_for_nothing(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_wait == NEVER))
    return put(plans, step, name, "fetch_wait", i, 2 * step)


def dropped_slot_wait(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.slot_wait != NEVER))
    return put(plans, step, name, "slot_wait", i, NEVER)


def slot_waits_for_the_future(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.slot_wait != NEVER))
    return put(plans, step, name, "slot_wait", i, 2 * step + 2)


def unused_slot_waits(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.slot_wait == NEVER))
    return put(plans, step, name, "slot_wait", i, 0)


def slot_reused_too_early(plans, batches, rng):
    step, i = pick(rng, fetches(plans, "ahead", lambda m: m.fetch_slots >= R_ROWS))
    return put(plans, step, "ahead", "fetch_slots", i, group(plans, step).slots[0])


def two_rows_into_one_slot(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: np.arange(len(m.fetch_slots)) > 0))
    return put(plans, step, name, "fetch_slots", i, getattr(group(plans, step), name).fetch_slots[i - 1])


def late_evicts_a_row_of_the_step(plans, batches, rng):
    step, u = any_unique(plans[1:], rng, lambda g: ~g.hot)
    step += 1
    here = group(plans, step)
    if here.slots[u] in here.late.fetch_slots:
        raise NoPlaceError
    return extra_eviction(plans, step, "late", batches[step][u], here.slots[u])


def ahead_evicts_a_row_of_the_step(plans, batches, rng):
    step, u = any_unique(plans, rng, lambda g: ~g.hot & ~g.urgent)
    return extra_eviction(plans, step, "ahead", batches[step][u], group(plans, step).slots[u])


def ahead_evicts_a_row_of_the_next_step(plans, batches, rng):
    step, u = any_unique(plans[1:], rng, lambda g: ~g.hot)
    next_step, fetched = group(plans, step + 1), group(plans, step).ahead.fetch_slots
    slot = next_step.slots[u]
    if batches[step + 1][u] in batches[step] or slot in fetched or slot in next_step.late.fetch_slots:
        raise NoPlaceError
    return extra_eviction(plans, step, "ahead", batches[step + 1][u], slot)


def hot_row_evicted(plans, batches, rng):
    step, u = any_unique(plans[:-1], rng, lambda g: g.hot & ~g.urgent)
    return extra_eviction(plans, step + 1, "late", batches[step][u], group(plans, step).slots[u])


def eviction_of_another_row(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.evict_slots >= 0))
    return put(plans, step, name, "evict_locations", i, 7)


def eviction_twice(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.evict_slots >= 0))
    m = getattr(group(plans, step), name)
    return extra_eviction(plans, step, name, m.evict_locations[i], m.evict_slots[i])


def dropped_eviction(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.evict_slots >= 0))
    m = without(getattr(group(plans, step), name), "evict", i, ("evict_locations", "evict_slots"))
    return with_group(plans, step, **{name: m})


def dropped_fetch(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
    return drop_fetch(plans, step, name, i)


def wrong_location(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
    return put(plans, step, name, "fetch_locations", i, 7)


def wrong_fetch_unique(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
    wrong = (getattr(group(plans, step), name).fetch_unique[i] + 1) % 6
    return put(plans, step, name, "fetch_unique", i, wrong)


def fetch_unique_out_of_range(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
    return put(plans, step, name, "fetch_unique", i, int(rng.choice([-1, 1000])))


def resident_row_fetched_again(plans, batches, rng):
    step, i = pick(rng, fetches(plans, "late", lambda m: m.fetch_slots >= R_ROWS))
    here = group(plans, step)
    kept = [u for u in range(len(here.slots)) if here.slots[u] not in here.late.fetch_slots]
    (u,) = pick(rng, [(u,) for u in kept])
    return put(plans, step, "late", "fetch_locations", i, batches[step][u])


def fetch_slot_out_of_range(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
    return put(plans, step, name, "fetch_slots", i, int(rng.choice([-1, CAPACITY])))


def evict_slot_out_of_range(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: m.evict_slots >= 0))
    return put(plans, step, name, "evict_slots", i, CAPACITY)


def gather_slot_out_of_range(plans, batches, rng):
    step, u = any_unique(plans, rng, lambda g: g.slots >= 0)
    slots = group(plans, step).slots.copy()
    slots[u] = int(rng.choice([-1, CAPACITY]))
    return with_group(plans, step, slots=slots)


def swapped_slots(plans, batches, rng):
    step, _ = any_unique(plans, rng, lambda g: g.slots >= 0)
    slots = group(plans, step).slots.copy()
    a, b = rng.choice(len(slots), 2, replace=False)
    slots[[a, b]] = slots[[b, a]]
    return with_group(plans, step, slots=slots)


def duplicate_slots(plans, batches, rng):
    step, _ = any_unique(plans, rng, lambda g: g.slots >= 0)
    slots = group(plans, step).slots.copy()
    a, b = rng.choice(len(slots), 2, replace=False)
    slots[a] = slots[b]
    return with_group(plans, step, slots=slots)


def flipped(field: str, wanted: Callable[[GroupPlan], np.ndarray]):
    def mutation(plans, batches, rng):
        step, u = any_unique(plans, rng, wanted)
        array = getattr(group(plans, step), field).copy()
        array[u] = not array[u]
        return with_group(plans, step, **{field: array})

    mutation.__name__ = f"flipped_{field}"
    return mutation


def off_by_one(field: str):
    def mutation(plans, batches, rng):
        step = int(rng.integers(len(plans)))
        return with_group(plans, step, **{field: getattr(group(plans, step), field) + int(rng.choice([-1, 1]))})

    mutation.__name__ = f"{field}_off_by_one"
    return mutation


def fewer_rows(plans, batches, rng):
    step = int(rng.integers(len(plans)))
    here = group(plans, step)
    return with_group(plans, step, slots=here.slots[:-1], hot=here.hot[:-1], urgent=here.urgent[:-1])


def shorter_array(plans, batches, rng):
    name, field = movement_name(rng), str(rng.choice(["evict_slots", "fetch_slots", "fetch_wait", "slot_wait"]))
    step, _ = pick(rng, fetches(plans, name, lambda m: getattr(m, field) >= NEVER))
    movement = getattr(group(plans, step), name)
    return with_group(plans, step, **{name: replace(movement, **{field: getattr(movement, field)[:-1]})})


def missing_keys(plans, batches, rng):
    step, _ = pick(rng, fetches(plans, "late", lambda m: m.fetch_slots >= 0))
    keys = plans[step].late_keys[0]
    plans[step] = replace(plans[step], late_keys=(replace(keys, ids=keys.ids[1:]),))
    return plans


def wrong_key(field: str):
    def mutation(plans, batches, rng):
        name = movement_name(rng)
        step, i = pick(rng, fetches(plans, name, lambda m: m.fetch_slots >= 0))
        keys = getattr(plans[step], f"{name}_keys")[0]
        array = getattr(keys, field).copy()
        array[i] = not array[i] if field == "missing" else array[i] + 1
        plans[step] = replace(plans[step], **{f"{name}_keys": (replace(keys, **{field: array}),)})
        return plans

    mutation.__name__ = f"wrong_key_{field}"
    return mutation


def exchanged_keys(plans, batches, rng):
    name = movement_name(rng)
    step, i = pick(rng, fetches(plans, name, lambda m: np.arange(len(m.fetch_slots)) > 0))
    keys = getattr(plans[step], f"{name}_keys")[0]
    order = np.arange(len(keys.ids))
    order[[i - 1, i]] = order[[i, i - 1]]
    exchanged = FetchKeys(keys.ids[order], keys.tables[order], keys.missing[order])
    plans[step] = replace(plans[step], **{f"{name}_keys": (exchanged,)})
    return plans


def another_row_size(plans, batches, rng):
    step = int(rng.integers(1, len(plans)))
    plans[step] = replace(plans[step], row_bytes=(65,))
    return plans


def lost_tail(plans, batches, rng):
    return plans[: -int(rng.integers(1, WINDOW + 1))]


def lost_step(plans, batches, rng):
    del plans[int(rng.integers(len(plans) - 1))]
    return plans


def replayed_step(plans, batches, rng):
    step = int(rng.integers(len(plans)))
    return [*plans[: step + 1], *plans[step:]]


def exchanged_steps(plans, batches, rng):
    step = int(rng.integers(len(plans) - 1))
    plans[step], plans[step + 1] = plans[step + 1], plans[step]
    return plans


def prepares_a_step_that_never_comes(plans, batches, rng):
    plans[-1] = replace(plans[-1], ahead_keys=plans[4].ahead_keys)
    return with_group(plans, len(plans) - 1, ahead=group(plans, 4).ahead)


def urgent_for_ever(plans, batches, rng):
    return with_group(plans, len(plans) - 1, urgent=~group(plans, len(plans) - 1).urgent)


def another(field: str):
    def mutation(plans, batches, rng):
        step = int(rng.integers(1, len(plans)))
        if field in ("capacity", "r_rows"):
            return with_group(plans, step, **{field: 5})
        changed = {"window": 9, "run": 1, "groups": plans[step].groups * 2}[field]
        plans[step] = replace(plans[step], **{field: changed})
        return plans

    mutation.__name__ = f"another_{field}"
    return mutation


MUTATIONS = [
    (dropped_fetch_wait, {Kind.MISSING_FETCH_WAIT, Kind.STALE_READ}),
    (fetch_waits_for_an_older_move, {Kind.MISSING_FETCH_WAIT, Kind.FALSE_WAIT, Kind.STALE_READ}),
    (fetch_waits_for_nothing, {Kind.FALSE_WAIT}),
    (dropped_slot_wait, {Kind.MISSING_SLOT_WAIT}),
    (slot_waits_for_the_future, {Kind.MISSING_SLOT_WAIT, Kind.FALSE_WAIT}),
    (unused_slot_waits, {Kind.FALSE_WAIT}),
    (slot_reused_too_early, {Kind.AHEAD_TOUCHES_GATHERED, Kind.SLOT_CONFLICT}),
    (two_rows_into_one_slot, {Kind.SLOT_CONFLICT}),
    (late_evicts_a_row_of_the_step, {Kind.EVICTS_NEEDED, Kind.NOT_RESIDENT}),
    (ahead_evicts_a_row_of_the_step, {Kind.EVICTS_NEEDED, Kind.AHEAD_TOUCHES_GATHERED}),
    (ahead_evicts_a_row_of_the_next_step, {Kind.EVICTS_NEEDED, Kind.NOT_RESIDENT}),
    (hot_row_evicted, {Kind.R_REGION}),
    (eviction_of_another_row, {Kind.EVICTS_ABSENT, Kind.SLOT_CONFLICT}),
    (eviction_twice, {Kind.EVICTS_ABSENT}),
    (dropped_eviction, {Kind.SLOT_CONFLICT}),
    (dropped_fetch, {Kind.NOT_RESIDENT}),
    (wrong_location, {Kind.FETCH_UNIQUE, Kind.NOT_RESIDENT}),
    (wrong_fetch_unique, {Kind.FETCH_UNIQUE}),
    (fetch_unique_out_of_range, {Kind.FETCH_UNIQUE}),
    (resident_row_fetched_again, {Kind.DOUBLE_RESIDENCY}),
    (fetch_slot_out_of_range, {Kind.SLOT_RANGE}),
    (evict_slot_out_of_range, {Kind.SLOT_RANGE}),
    (gather_slot_out_of_range, {Kind.SLOT_RANGE}),
    (swapped_slots, {Kind.WRONG_ROW}),
    (duplicate_slots, {Kind.DUPLICATE_SLOTS}),
    (flipped("urgent", lambda g: g.urgent), {Kind.URGENT}),
    (flipped("urgent", lambda g: ~g.urgent), {Kind.URGENT}),
    (flipped("hot", lambda g: g.hot), {Kind.R_REGION}),
    (flipped("hot", lambda g: ~g.hot), {Kind.R_REGION}),
    (off_by_one("hits"), {Kind.COUNT}),
    (off_by_one("resident"), {Kind.COUNT}),
    (fewer_rows, {Kind.UNIQUE_COUNT}),
    (shorter_array, {Kind.MALFORMED}),
    (missing_keys, {Kind.MALFORMED}),
    (wrong_key("ids"), {Kind.KEYS}),
    (wrong_key("tables"), {Kind.KEYS}),
    (wrong_key("missing"), {Kind.KEYS}),
    (exchanged_keys, {Kind.KEYS}),
    (another_row_size, {Kind.LAYOUT}),
    (lost_tail, {Kind.LOST_TAIL}),  # P11: each batch is planned exactly once
    (lost_step, {Kind.STEP_ORDER}),
    (replayed_step, {Kind.STEP_ORDER}),
    (exchanged_steps, {Kind.STEP_ORDER}),
    (prepares_a_step_that_never_comes, {Kind.LOST_TAIL}),  # L117: every fetch is released
    (urgent_for_ever, {Kind.URGENT}),
    (another("capacity"), {Kind.LAYOUT}),
    (another("r_rows"), {Kind.LAYOUT}),
    (another("window"), {Kind.LAYOUT}),
    (another("run"), {Kind.LAYOUT}),
    (another("groups"), {Kind.LAYOUT}),
]


@pytest.mark.parametrize(
    ("mutation", "kinds"), MUTATIONS, ids=[f"{i}-{m.__name__}" for i, (m, _) in enumerate(MUTATIONS)]
)
def test_a_planted_fault_is_found(mutation, kinds: set[Kind]) -> None:
    """L116: what is evicted while an earlier planned step needs it; P85: what is read before an update is visible."""
    planted = 0
    for seed in range(40):
        if planted == 6:
            break
        batches = batch_stream(seed)
        try:
            plans = mutation(planned(batches), batches, np.random.default_rng(seed))
        except NoPlaceError:
            continue
        planted += 1
        found = {v.kind for v in verify(plans, batches)}
        assert kinds <= found, (seed, found)
    assert planted >= 3


def test_every_kind_is_provoked() -> None:
    assert set().union(*(kinds for _, kinds in MUTATIONS)) == set(Kind)


def two_rows() -> tuple[list[StepPlan], list[np.ndarray], PlanVerifier]:
    """Rows 5 and 6 take turns in one slot."""
    batches = [np.array([row], np.uint64) for row in (5, 6, 5, 6)]
    plans = step_plans([plan_batches(batches, WindowPlanner(window=1, capacity=1))], window=1)
    return plans, batches, PlanVerifier(capacity=[1], horizon=write_back_horizon(1))


def test_a_violation_says_where_it_is() -> None:
    plans, batches, verifier = two_rows()
    put(plans, 2, "late", "fetch_wait", 0, NEVER)
    assert verifier.check(plans[0], [batches[0]]) == []
    assert verifier.check(plans[1], [batches[1]]) == []
    found = verifier.check(plans[2], [batches[2]])
    assert found == [
        Violation(Kind.MISSING_FETCH_WAIT, step=2, group=0, location=5, slot=0),
        Violation(Kind.STALE_READ, step=2, group=0, location=5, slot=0),
    ]
    assert verifier.stale_reads == 1
    assert str(found[1]) == "step 2, group 0, row 0x5, slot 0: the step gathers a row that lacks updates"
    verifier.assert_valid(plans[3], [batches[3]])  # each fault is told once
    verifier.assert_finished(4)
    assert verifier.violations == 2


def test_a_missing_slot_wait_spoils_the_row_that_left() -> None:
    plans, batches, verifier = two_rows()
    put(plans, 1, "late", "slot_wait", 0, NEVER)
    kinds = [[v.kind for v in verifier.check(p, [b])] for p, b in zip(plans, batches, strict=True)]
    assert kinds == [[], [Kind.MISSING_SLOT_WAIT], [Kind.STALE_READ], []]


def test_assert_valid_raises_with_all_violations() -> None:
    plans, batches, verifier = two_rows()
    with pytest.raises(PlanViolationError, match="lost or replayed") as error:
        verifier.assert_valid(plans[3], [batches[3]])
    assert Kind.STEP_ORDER in {v.kind for v in error.value.violations}
    with pytest.raises(PlanViolationError, match="4 of 9 steps"):
        verifier.assert_finished(9)


def test_beyond_the_horizon_no_wait_is_needed_and_within_it_one_is() -> None:
    """Row 5 comes back after its write-back in move 2: in move 2 + horizon a wait is due, a step later none."""
    window = 1
    horizon = write_back_horizon(window)  # 6 moves, 3 steps
    for gap, wait in ((horizon // 2, 2), (horizon // 2 + 1, NEVER)):
        sequence = [5, *range(10, 10 + gap), 5]
        batches = [np.array([row], np.uint64) for row in sequence]
        plans = step_plans([plan_batches(batches, WindowPlanner(window=window, capacity=1))], window=window)
        assert group(plans, len(plans) - 1).late.fetch_wait.tolist() == [wait]
        for other in (wait, NEVER if wait != NEVER else 2):
            put(plans, len(plans) - 1, "late", "fetch_wait", 0, other)
            verifier = PlanVerifier(capacity=[1], horizon=horizon)
            found = [v for p, b in zip(plans, batches, strict=True) for v in verifier.check(p, [b])]
            assert (found == []) == (other == wait)


def test_groups_are_independent() -> None:
    batches = [batch_stream(seed) for seed in (1, 2)]
    planners = [WindowPlanner(window=WINDOW, capacity=c) for c in (12, 20)]
    plans = step_plans([plan_batches(b, p) for b, p in zip(batches, planners, strict=True)], window=WINDOW)
    second = replace(plans[3].groups[1], hits=99)
    plans[3] = replace(plans[3], groups=(plans[3].groups[0], second))
    verifier = PlanVerifier(capacity=[12, 20], horizon=write_back_horizon(WINDOW))
    found = [v for plan in plans for v in verifier.check(plan, [b[plan.step] for b in batches])]
    assert [(v.kind, v.step, v.group) for v in found] == [(Kind.COUNT, 3, 1)]


def test_memory_is_bounded_by_the_arena_and_recent_write_backs() -> None:
    """Every step has ten rows never seen before."""
    batches = [np.arange(10 * t, 10 * t + 10, dtype=np.uint64) for t in range(200)]
    plans = step_plans([plan_batches(batches, WindowPlanner(window=2, capacity=25))], window=2)
    verifier = PlanVerifier(capacity=[25], horizon=write_back_horizon(2))
    for plan, batch in zip(plans, batches, strict=True):
        verifier.assert_valid(plan, [batch])
        assert verifier.tracked_rows <= 25 + 10 * (write_back_horizon(2) // 2 + 1)


def test_wrong_keys_are_reported_where_they_are_and_only_when_they_are_known() -> None:
    batches = batch_stream(4)
    for name, at in (("late", 0), ("ahead", 3)):
        plans = planned(batches)
        keys = getattr(plans[at], f"{name}_keys")[0]
        plans[at] = replace(plans[at], **{f"{name}_keys": (replace(keys, ids=keys.ids + np.uint64(1)),)})
        movement = getattr(group(plans, at), name)
        assert len(movement.fetch_slots) > 0
        rows = zip(movement.fetch_locations.tolist(), movement.fetch_slots.tolist(), strict=True)
        assert verify(plans, batches) == [Violation(Kind.KEYS, at, 0, row, slot) for row, slot in rows]
        verifier = PlanVerifier(capacity=[CAPACITY], r_rows=[R_ROWS], horizon=write_back_horizon(WINDOW))
        assert [v for plan in plans for v in verifier.check(plan, [batches[plan.step]])] == []


def test_keys_that_are_not_one_a_row_are_reported() -> None:
    batches = batch_stream(4)
    plans = planned(batches)
    verifier = PlanVerifier(capacity=[CAPACITY], r_rows=[R_ROWS], horizon=write_back_horizon(WINDOW))
    found = verifier.check(plans[0], [batches[0]], [keys_of(batches[0][1:])])
    assert [(v.kind, v.step, v.group) for v in found] == [(Kind.UNIQUE_COUNT, 0, 0)]
    found = verifier.check(plans[1], [batches[1]], [])
    assert [(v.kind, v.step, v.group) for v in found] == [(Kind.LAYOUT, 1, -1)]


def test_row_bytes_are_those_of_the_constructor_or_of_the_first_plan() -> None:
    for row_bytes, wrong_at in ((None, [1]), ([64], [1]), ([8], [0, 2, 3])):
        plans, batches, _ = two_rows()
        verifier = PlanVerifier(capacity=[1], horizon=write_back_horizon(1), row_bytes=row_bytes)
        plans[1] = replace(plans[1], row_bytes=(8,))
        found = [v for plan, batch in zip(plans, batches, strict=True) for v in verifier.check(plan, [batch])]
        assert [(v.kind, v.step) for v in found] == [(Kind.LAYOUT, step) for step in wrong_at]


def test_steps_are_counted_without_row_layouts_too() -> None:
    plans = [StepPlan(0, step, 2, (), (), (), ()) for step in range(3)]
    verifier = PlanVerifier(capacity=[], horizon=write_back_horizon(2), row_bytes=[])
    for plan in plans:
        assert verifier.check(plan, [], []) == []
    assert verifier.finish(3) == []
    assert [v.kind for v in verifier.check(plans[1], [], [])] == [Kind.STEP_ORDER]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="1 capacities, 2 row_bytes"):
        PlanVerifier(capacity=[1], horizon=1, row_bytes=[4, 4])
    with pytest.raises(ValueError, match="2 capacities, 1 r_rows"):
        PlanVerifier(capacity=[1, 2], r_rows=[0], horizon=4)
    with pytest.raises(ValueError, match="negative"):
        PlanVerifier(capacity=[1], horizon=-1)


def test_with_window_0_all_are_urgent_and_nothing_is_ahead() -> None:
    batches = batch_stream(3)
    for change, kind in (({"urgent": np.zeros(len(batches[5]), np.bool_)}, Kind.URGENT), ({}, Kind.LAYOUT)):
        plans = planned(batches, window=0)
        if change:
            with_group(plans, 5, **change)
        else:
            extra_eviction(plans, 5, "ahead", batches[5][0], group(plans, 5).slots[0])
        assert kind in {v.kind for v in verify(plans, batches, window=0)}
