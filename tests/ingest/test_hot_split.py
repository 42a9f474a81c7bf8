"""A batch split into samples whose rows are all hot and the rest: what is in the parts, and one step with both."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import DIT, EmbeddingStage
from headrace.embed.initializer import Normal
from headrace.embed.row_keys import RowKeys
from headrace.ingest.nodes.index import index_tables
from tests.support.training_cases import Case, Stream, cases

CALM = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def bags(batch):
    """[rows] of {feature: [(missing, raw id, weight, slot)]}, read from the arrays of the groups."""
    rows = [{} for _ in range(batch.num_rows)]
    for group in batch.groups:
        at = 0
        missing, ids, slots = (getattr(group, name).tolist() for name in ("missing", "unique_ids", "slots"))
        weights = [None] * group.query_ids.numel() if group.weights is None else group.weights.tolist()
        for f, feature in enumerate(group.features):
            for b in range(batch.num_rows):
                end = at + int(group.lengths[f * batch.num_rows + b])
                assert int(group.offsets[f * batch.num_rows + b]) == at
                rows[b][feature] = [
                    (missing[q], ids[q], weights[i], slots[q])
                    for i, q in enumerate(group.query_ids.tolist()[at:end], start=at)
                ]
                at = end
        assert int(group.offsets[-1]) == at
    return rows


def check_parts(batch):
    """The parts hold the rows of the batch, each once, on the right side."""
    split, whole = batch.split_hot(), bags(batch)
    hot_slots = [set(range(part.r_rows)) for part in batch.plan.groups]
    group_of = {f: g for g, group in enumerate(batch.groups) for f in group.features}
    is_hot = [all(one[3] in hot_slots[group_of[f]] for f, bag in row.items() for one in bag) for row in whole]
    order = split.permutation.tolist()
    assert order == [i for i, hot in enumerate(is_hot) if hot] + [i for i, hot in enumerate(is_hot) if not hot]
    assert bags(split.hot) + bags(split.cold) == [whole[i] for i in order]
    assert torch.equal(torch.cat([split.hot.labels, split.cold.labels]), batch.labels[split.permutation])
    places = [part.locate(i) for part in (split.hot, split.cold) for i in range(part.num_rows)]
    assert places == [batch.locate(i) for i in order]
    for part in (split.hot, split.cold):
        assert part.ticket is None
        for group, planned in zip(part.groups, part.plan.groups, strict=True):
            assert sorted(set(group.query_ids.tolist())) == list(range(group.num_unique))  # no row that is not used
            assert np.array_equal(planned.slots, group.slots.numpy())
            ends = group.position_offsets.tolist()
            again = [group.positions[a:b].tolist() for a, b in pairwise(ends)]
            assert again == [np.flatnonzero(group.query_ids == u).tolist() for u in range(group.num_unique)]
    return split


def stage_of(case, stream, mode):
    options = {"lr": 0.1, "weight_decay": case.weight_decay, "frozen": case.frozen_tables}
    return EmbeddingStage(case.schema, **options, initializer=Normal(std=0.5), mode=mode, capacity=stream.capacity)


def rows_of(stage):
    return stage.state_arrays()


@settings(max_examples=60, derandomize=True, **CALM)
@given(case=cases(), cold_first=st.booleans())
def test_a_step_of_both_parts_is_the_step_of_the_batch(case: Case, cold_first: bool):
    """Gradients are eighths, whose sums are exact in any order: then the parameters are equal to the bit, except for
    means, which divide (there allclose)."""
    exact = all(pooling != "mean" for _, _, pooling in case.features)
    optimizers = [(dim, kind if exact else "sgd") for dim, kind in case.tables]
    pooled = [(t, multi, "sum" if pooling == "none" else pooling) for t, multi, pooling in case.features]
    case = replace(case, tables=tuple(optimizers), features=tuple(pooled), hot_rows=case.hot_rows or 2, spare=9)
    stream, rng = Stream(case), np.random.default_rng([case.seed, 2])
    whole, split = stage_of(case, stream, case.mode), stage_of(case, stream, "arena")
    with DIT(index_tables(case.schema)) as index, stream.chain(index) as chain:
        for _, batch in stream.batches(chain):
            parts = check_parts(batch)
            factor = torch.from_numpy(rng.integers(-16, 17, (batch.num_rows, whole.output_dim)).astype(np.float32) / 8)
            out = whole(batch)
            out.backward(factor)
            whole.step(batch)
            outs = {}
            for part, rows in sorted(
                ((parts.hot, parts.permutation[: len(parts.hot)]), (parts.cold, parts.permutation[len(parts.hot) :])),
                key=lambda pair: pair[0] is (parts.hot if cold_first else parts.cold),
            ):
                outs[part is parts.hot] = split(part)
                outs[part is parts.hot].backward(factor[rows])
            split.optimizer().step()
            if exact:
                assert torch.equal(parts.restore(outs[True], outs[False]), out)
            else:
                torch.testing.assert_close(parts.restore(outs[True], outs[False]), out, rtol=1e-5, atol=1e-5)
            assert split.num_steps == whole.num_steps
    for name, values in rows_of(whole).items():
        if exact:
            np.testing.assert_array_equal(rows_of(split)[name], values)
        else:
            np.testing.assert_allclose(rows_of(split)[name], values, rtol=1e-5, atol=1e-5)


ONE = Case(
    seed=4, tables=((2, "sgd"),), features=((0, False, "sum"),), batch_sizes=(6, 6, 6), distinct_ids=6, window=1,
    spare=9, hot_rows=0, accumulate=1, weighted=False, frozen=False, weight_decay=0.0, mode="arena", threads=(1, 1, 1),
    prefetch=False, epochs=1,
)  # fmt: skip


def batches_of(case):
    stream = Stream(case)
    with DIT(index_tables(case.schema)) as index, stream.chain(index) as chain:
        return [batch for _, batch in stream.batches(chain)]


@pytest.mark.parametrize(("hot_rows", "sizes"), [(0, (0, 6)), (1000, (6, 0))])
def test_none_hot_and_all_hot(hot_rows, sizes):
    for batch in batches_of(replace(ONE, hot_rows=hot_rows, spare=100)):
        split = check_parts(batch)
        assert (len(split.hot), len(split.cold)) == sizes
        assert [len(part) for part in split.parts] == [6]


def test_some_are_hot_in_these_cases():  # else the property test would say nothing
    sizes = [(len(s.hot), len(s.cold)) for b in batches_of(replace(ONE, hot_rows=2)) for s in [b.split_hot()]]
    assert any(hot and cold for hot, cold in sizes)


def test_an_empty_batch():
    empty = batches_of(replace(ONE, batch_sizes=(3, 0, 3)))[1]
    split = check_parts(empty)
    assert (len(split.hot), len(split.cold), split.parts, split.permutation.tolist()) == (0, 0, (), [])
    assert split.restore(torch.zeros(0, 2), torch.zeros(0, 2)).shape == (0, 2)


def test_a_sample_without_ids_is_hot():
    case = replace(ONE, features=((0, True, "sum"),), hot_rows=0)
    for batch in batches_of(case):
        empty = [not any(row.values()) for row in bags(batch)]
        assert len(check_parts(batch).hot) == sum(empty)


def test_a_part_that_is_left_out_leaves_its_rows_alone():
    case = replace(ONE, hot_rows=2)
    stage = stage_of(case, Stream(case), "arena")
    for batch in batches_of(case):
        split = batch.split_hot()
        before = stage.read_vectors(0, keys_of(batch)).tolist()
        stage(split.hot).sum().backward()
        stage.step(split.hot)
        used = set(split.hot.groups[0].locations.tolist())
        after = stage.read_vectors(0, keys_of(batch)).tolist()
        changed = [now != then for now, then in zip(after, before, strict=True)]
        assert changed == [location in used for location in batch.groups[0].locations.tolist()]


def keys_of(batch):
    return RowKeys.of(batch.groups[0])


def test_sequences_too():
    case = replace(ONE, features=((0, True, "none"),), hot_rows=2)
    stages = [stage_of(case, Stream(case), "arena") for _ in range(2)]
    for batch in batches_of(case):
        for stage, parts in zip(stages, ((batch,), batch.split_hot().parts), strict=True):
            for part in parts:
                values, offsets = stage.forward_sequences(part)["f0"]
                assert len(offsets) == len(part) + 1
                (values * 0.5).sum().backward()
            stage.optimizer().step()
    for name, values in rows_of(stages[0]).items():
        np.testing.assert_array_equal(rows_of(stages[1])[name], values)


@pytest.mark.parametrize("mode", ["direct", "arena"])
def test_a_step_of_the_whole_batch_says_how_its_parts_are_stepped(mode):
    case = replace(ONE, hot_rows=2)
    stages = [stage_of(case, Stream(case), mode) for _ in range(2)]
    num_split = 0
    for batch in batches_of(case):
        split = batch.split_hot()
        for stage in stages:
            for part in split.parts:
                stage(part).sum().backward()
        if len(split.parts) == 2:
            num_split += 1
            for wrong in (batch, split.hot):
                with pytest.raises(RuntimeError, match=r"split_hot.*call stage\.optimizer\(\)\.step\(\)"):
                    stages[0].step(wrong)
        for stage in stages:
            stage.optimizer().step()
    assert num_split
    for name, values in rows_of(stages[0]).items():  # the refusals have changed nothing
        np.testing.assert_array_equal(rows_of(stages[1])[name], values)


def test_what_cannot_be_split_says_why():
    (batch, *_) = batches_of(ONE)
    with pytest.raises(ValueError, match="without a plan"):
        replace(batch, plan=None).split_hot()
    with pytest.raises(ValueError, match="on meta: split it before it is moved"):
        replace(batch, dense=batch.dense.to("meta")).split_hot()
