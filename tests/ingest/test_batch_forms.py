"""A batch in the forms that other embedding modules take."""

from __future__ import annotations

import dataclasses
import sys
import types

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace import DIT, Index, PlanWindow, RowBlock, Schema, Source, SourceRange, Sparse, Table, ToBatch
from headrace.ingest.nodes.index import index_tables

SCHEMA = Schema(
    sparse=(Sparse(name="a", encoding="uint64"), Sparse(name="w", table="wide"), Sparse(name="m", multi_hot=True)),
    tables=(Table(name="wide", dim=3),),
)
ROWS = {"a": [2**64 - 1, None, 7], "w": [5, 5, 6], "m": [[1, 2], [], [2]]}


def batch(*, plan: bool, missing: bool = True):
    columns = {**ROWS, "a": ROWS["a"] if missing else [2**64 - 1, 8, 7]}
    data = pa.record_batch([pa.array(columns[f.name], f.type) for f in SCHEMA.arrow_schema()], SCHEMA.arrow_schema())
    blocks = [RowBlock(data, Source(("f",), (SourceRange(0, 0, 3),)))]
    index = DIT(index_tables(SCHEMA))
    chain = (
        PlanWindow(Index(blocks, SCHEMA, index), SCHEMA, window=0, capacity=20)
        if plan
        else ToBatch(Index(blocks, SCHEMA, index, insert=False))
    )
    with chain:
        return next(chain)


def test_raw_ids_by_feature():
    inputs = batch(plan=False).to_embedding_bag_inputs(ids="raw", missing_id=-9)
    assert {k: (v.tolist(), o.tolist()) for k, (v, o) in inputs.items()} == {
        "a": ([-1, -9, 7], [0, 1, 2]),
        "m": ([1, 2, 2], [0, 2, 2]),
        "w": ([5, 5, 6], [0, 1, 2]),
    }


@pytest.mark.parametrize("missing_id", [-9, np.int32(-9), 2**64 - 9])
def test_the_missing_value_is_an_id_with_its_bits(missing_id):
    for values, _ in batch(plan=False).to_embedding_bag_inputs(ids="raw", missing_id=missing_id).values():
        assert values.dtype == torch.int64
    assert batch(plan=False).to_embedding_bag_inputs(ids="raw", missing_id=missing_id)["a"][0].tolist() == [-1, -9, 7]


@pytest.mark.parametrize(
    ("missing_id", "error"),
    [(0.5, TypeError), (2.0, TypeError), ("0", TypeError), (True, TypeError), (2**64, ValueError)],
)
@pytest.mark.parametrize("missing", [True, False])
def test_what_is_no_id_is_refused_before_it_turns_all_ids_into_floats(missing_id, error, missing):
    with pytest.raises(error, match="missing_id="):
        batch(plan=False, missing=missing).to_embedding_bag_inputs(ids="raw", missing_id=missing_id)


def test_slots_feed_an_embedding_bag():
    planned = batch(plan=True)
    weight = torch.arange(40.0).view(20, 2)
    values, offsets = planned.to_embedding_bag_inputs(ids="slot")["m"]
    pooled = torch.nn.functional.embedding_bag(values, weight, offsets, mode="sum")
    group = planned.groups[0]
    slot_of = dict(zip(zip(group.unique_tables.tolist(), group.unique_ids.tolist(), strict=True), group.slots.tolist(),
                       strict=True))  # fmt: skip
    uid = SCHEMA.tables[2].uid
    expected = [weight[slot_of[uid, 1]] + weight[slot_of[uid, 2]], torch.zeros(2), weight[slot_of[uid, 2]]]
    torch.testing.assert_close(pooled, torch.stack(expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ids": "raw"}, "missing_id"), ({"ids": "slot"}, "no plan"), ({"ids": "query"}, "neither 'slot' nor 'raw'")],
)
def test_what_cannot_be_said_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        batch(plan=False).to_embedding_bag_inputs(**options)


def test_kjt_gets_keys_values_and_lengths(monkeypatch):
    fake = types.ModuleType("torchrec")
    fake.KeyedJaggedTensor = lambda **given: given
    monkeypatch.setitem(sys.modules, "torchrec", fake)
    given = batch(plan=False, missing=False).to_kjt(ids="raw")
    assert given["keys"] == ["a", "m", "w"]
    assert given["values"].tolist() == [-1, 8, 7, 1, 2, 2, 5, 5, 6]
    assert given["lengths"].tolist() == [1, 1, 1, 2, 0, 1, 1, 1, 1]
    assert (given["values"].dtype, given["lengths"].dtype, given["weights"]) == (torch.int64, torch.int32, None)


def test_kjt_keeps_the_weights_of_the_layouts_that_have_them(monkeypatch):
    fake = types.ModuleType("torchrec")
    fake.KeyedJaggedTensor = lambda **given: given
    monkeypatch.setitem(sys.modules, "torchrec", fake)
    plain = batch(plan=False, missing=False)
    weighed = dataclasses.replace(plain.groups[0], weights=torch.arange(6.0))
    given = dataclasses.replace(plain, groups=(weighed, *plain.groups[1:])).to_kjt(ids="raw")
    assert given["weights"].tolist() == [0, 1, 2, 3, 4, 5, 1, 1, 1]
    assert given["weights"].dtype == torch.float32


def test_an_embedding_bag_gets_the_weights_of_the_layouts_that_have_them():
    plain = batch(plan=True, missing=False)
    weighed = dataclasses.replace(plain.groups[0], weights=torch.arange(1.0, 7.0))
    inputs = dataclasses.replace(plain, groups=(weighed, *plain.groups[1:])).to_embedding_bag_inputs(ids="slot")
    assert {name: len(one) for name, one in inputs.items()} == {"a": 3, "m": 3, "w": 2}
    assert inputs["a"][2].tolist() == [1, 2, 3]
    assert inputs["m"][2].tolist() == [4, 5, 6]
    bag = torch.nn.EmbeddingBag(20, 2, mode="sum")
    rows = bag.weight[inputs["m"][0]]
    expected = torch.stack([4 * rows[0] + 5 * rows[1], torch.zeros(2), 6 * rows[2]])
    torch.testing.assert_close(bag(inputs["m"][0], inputs["m"][1], per_sample_weights=inputs["m"][2]), expected)


@pytest.mark.parametrize(
    "weights", [torch.ones(5), torch.ones(7), torch.ones(6, dtype=torch.float64), torch.ones(6, 1)]
)
def test_weights_that_are_not_one_an_id_are_refused(monkeypatch, weights):
    monkeypatch.setitem(sys.modules, "torchrec", types.SimpleNamespace(KeyedJaggedTensor=dict))
    plain = batch(plan=True, missing=False)
    weighed = dataclasses.replace(
        plain, groups=(dataclasses.replace(plain.groups[0], weights=weights), *plain.groups[1:])
    )
    for form in (weighed.to_embedding_bag_inputs, weighed.to_kjt):
        with pytest.raises(ValueError, match=r"^group 0: weights are float\d\d \[.*\], not float32 \[6\], one an id$"):
            form(ids="slot")


def test_kjt_without_torchrec_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec", None)
    with pytest.raises(ImportError, match="pip install torchrec"):
        batch(plan=True).to_kjt(ids="slot")


def test_query_ids_index_the_unique_rows():
    group = batch(plan=True).groups[0]
    raw = group.unique_ids.numpy()[group.query_ids.numpy()]
    assert raw[[0, 2]].tolist() == [2**64 - 1, 7]
    assert np.array_equal(group.offsets.numpy(), np.concatenate([[0], np.cumsum(group.lengths.numpy())]))
