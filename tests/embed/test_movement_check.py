"""Plans whose movements are damaged: refused with group and field, before anything moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.embed.arena import PlanError
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.indexed import ABSENT

TWO = Schema(
    sparse=(Sparse(name="a"), Sparse(name="b", multi_hot=True)),
    tables=(Table(name="a", dim=2), Table(name="b", dim=3, optimizer="adam")),
)


@pytest.fixture(params=["late", "ahead"])
def half(request):
    return request.param


@pytest.fixture
def batches(kit, half):
    """Their rows come and leave in this half of their plans."""
    rng, index = np.random.default_rng(0), kit.ToyIndex()
    ids = [kit.random_ids(TWO, 8, rng, distinct=60) for _ in range(6)]
    window = 0 if half == "late" else 1
    return kit.plan_batches([kit.make_batch(TWO, one, index) for one in ids], window=window, spare=0)


def with_movement(batch, half, **changes):
    """`changes` of the first group in which something is fetched, and evicted, in this half of its plan."""
    groups = list(batch.plan.groups)
    movements = [getattr(part, half) for part in groups]
    g = next(g for g, one in enumerate(movements) if len(one.fetch_slots) > 1 and len(one.evict_slots) > 1)
    movement = movements[g]
    changed = {name: change(getattr(movement, name)) for name, change in changes.items()}
    groups[g] = replace(groups[g], **{half: replace(movement, **changed)})
    return g, replace(batch, plan=replace(batch.plan, groups=tuple(groups)))


def train(stage, batches):
    for batch in batches:
        stage(batch).sum().backward()
        stage.step(batch)


def refused_whole(batches, damage, message, *, overlap):
    """The batch at 3 is refused after `damage`; as it was it is trained on, and all is as if nothing had been."""
    results = []
    for damaged in (False, True):
        stage = EmbeddingStage(TWO, lr=0.1, mode="arena", overlap=overlap)
        train(stage, batches[:3])
        if damaged:
            g, bad = damage(batches[3])
            for use in (stage, stage.skip):
                if use == stage.skip and "gathers" in message:
                    continue  # nothing is
                with pytest.raises(PlanError, match=message.format(g=g)):
                    use(bad)
        train(stage, batches[3:])
        results.append({name: array.tobytes() for name, array in stage.state_arrays().items()})
        stage.close(60)
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "field",
    ["evict_locations", "evict_slots", "fetch_locations", "fetch_slots", "fetch_unique", "fetch_wait", "slot_wait"],
)
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda array: array[:-1], r"\w+ \[\d+\]"),
        (lambda array: array.astype(np.float64), r"float64 \[\d+\]"),
        (lambda array: array[:, None], r"\w+ \[\d+, 1\]"),
        (lambda array: array.tolist(), "a list"),
    ],
)
def test_fields_of_other_types_and_lengths(batches, field, change, found, half):
    def damage(batch):
        return with_movement(batch, half, **{field: change})

    other = r"\w+" if field in ("fetch_slots", "evict_slots") else field  # all are as long as these
    refused_whole(batches, damage, rf"group {{g}}: {half}\.{other} is {found}, not \w+ \[\d+\]", overlap=False)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["ids", "tables", "missing"])
def test_keys_of_another_length(batches, half, name, overlap):
    def damage(batch):
        g, _ = with_movement(batch, half)
        keys = list(getattr(batch.plan, f"{half}_keys"))
        keys[g] = replace(keys[g], **{name: getattr(keys[g], name)[1:]})
        return g, replace(batch, plan=replace(batch.plan, **{f"{half}_keys": tuple(keys)}))

    refused_whole(batches, damage, rf"group {{g}}: {half}_keys\.{name} is \w+ \[\d+\], not", overlap=overlap)


@pytest.mark.parametrize("location", [1 << 62, int(ABSENT)])
def test_a_row_that_has_no_place(batches, half, location):
    def to(array):
        return np.concatenate([array[:-1], np.array([location], np.uint64)])

    message = rf"group {{g}}: {half} fetches a row that has no location, {location:#x}"
    refused_whole(batches, lambda batch: with_movement(batch, half, fetch_locations=to), message, overlap=False)


@pytest.mark.parametrize("half", ["late"], indirect=True)
@pytest.mark.parametrize("overlap", [False, True])
def test_another_row_than_is_gathered(batches, half, overlap):
    def damage(batch):
        return with_movement(batch, half, fetch_locations=lambda array: array + np.uint64(977))

    refused_whole(batches, damage, "gathers row 0x", overlap=overlap)


def test_a_plan_of_keys_of_other_groups(batches):
    def damage(batch):
        return 0, replace(batch, plan=replace(batch.plan, late_keys=batch.plan.late_keys[:1]))

    refused_whole(batches, damage, "late_keys of 1 groups in a plan of 2", overlap=False)


@pytest.mark.parametrize("half", ["late"], indirect=True)
def test_without_an_arena_nobody_goes_by_movements(batches):
    stage = EmbeddingStage(TWO, lr=0.1)
    _, bad = with_movement(batches[3], "late", fetch_wait=lambda array: array[1:])
    assert torch.isfinite(stage(bad)).all()
