"""The stage by torch's operators, on each device, against the stage on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed import torch_segments
from headrace.embed.clipping import clip_grad_norm_
from headrace.embed.initializer import Constant, Normal
from headrace.embed.row_database import RowDatabase
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.ingest.nodes.index import index_tables

ALL = Schema(  # every optimizer and pooling, shared tables, features of two layouts in turn
    sparse=(
        Sparse(name="a", table="sgd"),
        Sparse(name="b", table="wide", multi_hot=True, pooling="mean"),
        Sparse(name="c", table="sgd", multi_hot=True),
        Sparse(name="d", table="adam", multi_hot=True),
        Sparse(name="e", table="wide"),
        Sparse(name="f", table="wide", multi_hot=True, pooling="none"),
        Sparse(name="g", table="rowwise", multi_hot=True, pooling="mean"),
    ),
    tables=(
        Table(name="sgd", dim=4, optimizer="sgd"),
        Table(name="wide", dim=6, optimizer="adagrad"),
        Table(name="adam", dim=3, optimizer="adam"),
        Table(name="rowwise", dim=5),
    ),
)
ONE_HOT = Schema(sparse=tuple(Sparse(name=n) for n in "ab"), tables=tuple(Table(name=n, dim=4) for n in "ab"))
WEIGHTED = Schema(
    sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b")), tables=(Table(name="a", dim=4, optimizer="sgd"),)
)
ONE = Schema(sparse=(Sparse(name="a"),), tables=(Table(name="a", dim=2, optimizer="sgd"),))


def train(stage, batches, *, seed=0, move=lambda batch: batch):
    """A step for each batch on a random linear loss of the pooled features and the sequences; the outputs."""
    generator = torch.Generator().manual_seed(seed)
    outputs = []
    for batch in map(move, batches):
        parts = [stage(batch), *(values for values, _ in stage.forward_sequences(batch).values())]
        assert all(part.device.type == stage.device.type for part in parts)
        factors = [torch.randn(part.shape, generator=generator).to(part.device) for part in parts]
        sum((part * factor).sum() for part, factor in zip(parts, factors, strict=True)).backward()
        stage.step(batch)
        outputs += [part.detach().cpu() for part in parts]
    return outputs


def on(device, schema=ALL, **options):
    return EmbeddingStage(schema, mode="arena", device=device, kernels="torch", lr=0.1, **options)


def on_host(schema=ALL, **options):
    return EmbeddingStage(schema, lr=0.1, **options)


def check_close(found, expected):
    for name, rows in expected.state_arrays().items():
        np.testing.assert_allclose(found.state_arrays()[name], rows, rtol=1e-5, atol=1e-6)


@pytest.fixture
def stream(kit, rng):
    index = kit.ToyIndex()
    sizes = [9, 0, 1, *rng.integers(1, 10, 13).tolist()]
    return [kit.make_batch(ALL, kit.random_ids(ALL, n, rng), index, num_rows=n) for n in sizes]


VARIANTS = [{"window": 0}, {"window": 1}, {"window": 1, "spare": 0}, {"window": 0, "spare": 3, "hot": 3}]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_rows_are_those_of_the_host(kit, stream, variant, weight_decay, overlap, device):
    planned = kit.plan_batches(stream[:8], **variant), kit.plan_batches(stream[8:], run=2, **variant)
    options = {"weight_decay": weight_decay, "initializer": Normal(std=0.5)}
    host, other = on_host(**options), on(device, overlap=overlap, **options)
    results = [train(stage, planned[0]) + train(stage, planned[1], seed=3) for stage in (host, other)]
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    check_close(other, host)
    assert max(np.abs(rows).max() for name, rows in host.state_arrays().items() if name.startswith("rows")) > 0.5


def test_on_the_cpu_outputs_and_sgd_have_the_same_bits(kit, stream):
    schema = Schema(sparse=ALL.sparse, tables=tuple(Table(name=t.name, dim=t.dim, optimizer="sgd") for t in ALL.tables))
    index = kit.ToyIndex()
    rng = np.random.default_rng(3)
    batches = [kit.make_batch(schema, kit.random_ids(schema, 8, rng), index) for _ in range(10)]
    planned = kit.plan_batches(batches, window=1, spare=0)
    host, other = on_host(schema), on("cpu", schema)
    for expected, found in zip(train(host, planned), train(other, planned), strict=True):
        assert torch.equal(expected, found)
    for name, rows in host.state_arrays().items():
        assert np.array_equal(other.state_arrays()[name], rows)  # -0 is 0 here


@pytest.mark.parametrize("schema", [ONE_HOT, WEIGHTED])
def test_one_hot_features_and_weights(kit, rng, schema, device):
    index = kit.ToyIndex()
    batches = []
    for _ in range(6):
        ids = kit.random_ids(schema, 7, rng)
        drawn = {name: [[float(rng.normal()) for _ in bag] for bag in bags] for name, bags in ids.items()}
        batches.append(kit.make_batch(schema, ids, index, weights=drawn if schema is WEIGHTED else None))
    planned = kit.plan_batches(batches, window=1, spare=0)
    host, other = on_host(schema), on(device, schema)
    for expected, found in zip(train(host, planned), train(other, planned), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    check_close(other, host)


def test_sums_of_many_ids_are_cut_into_pieces(kit, stream, monkeypatch, device):
    monkeypatch.setattr(torch_segments, "PIECE", 2)
    host, other = on_host(), on(device)
    planned = kit.plan_batches(stream, window=1)
    for expected, found in zip(train(host, planned), train(other, planned), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    check_close(other, host)


def test_frozen_tables_stay(kit, stream, device):
    host, other = on_host(frozen=["sgd", "rowwise"]), on(device, frozen=["sgd", "rowwise"])
    planned = kit.plan_batches(stream, window=1, spare=0)
    train(host, planned)
    train(other, planned)
    check_close(other, host)


def test_batches_may_be_on_the_device(kit, stream, device):
    stages = [on(device), on(device)]
    planned = kit.plan_batches(stream, window=1, spare=0)
    moves = (lambda batch: batch.to(device), lambda batch: batch if device.type == "cpu" else batch.pin_memory())
    outputs = [train(stage, planned, move=move) for stage, move in zip(stages, moves, strict=True)]
    assert [x.tolist() for x in outputs[0]] == [x.tolist() for x in outputs[1]]


def test_overlap_changes_no_bit(kit, stream, device):
    states = []
    for overlap in (False, True, True):
        stage = on(device, overlap=overlap)
        train(stage, kit.plan_batches(stream, window=1, spare=0))
        states.append({name: array.tobytes() for name, array in stage.state_arrays().items()})
    assert states[0] == states[1] == states[2]


def test_several_batches_before_a_step_and_clipping(kit, stream, device):
    planned = kit.plan_batches(stream, window=1, spare=0)
    host, other = on_host(), on(device)
    for stage in (host, other):
        for t, batch in enumerate(planned):
            if t % 5 == 4:
                stage.skip(batch)
                continue
            stage(batch).sum().backward()
            if t % 3 == 2:
                assert clip_grad_norm_(stage, max_norm=0.5).device.type == stage.device.type
                stage.optimizer().step()
                stage.optimizer().zero_grad()
    check_close(other, host)


def test_gradients_pushed_by_raw_id(device):
    results = []
    for stage in (on_host(ONE), on(device, ONE)):
        database = RowDatabase(stage, DIT(index_tables(ONE)))
        ticket = database.prefetch({"a": [7, 8, 7]})
        database.push(ticket, {"a": np.ones((2, 2), np.float32)})
        database.push(ticket, {"a": np.full((2, 2), 0.5, np.float32)})
        database.update()
        results.append(database.pull(ticket)["a"].tolist())
    assert results[0] == results[1]


def test_evaluation_reads_the_newest_rows_and_changes_none(kit, device):
    index = kit.ToyIndex()
    batch = kit.make_batch(ONE, {"a": [[1], [2]]}, index)
    (planned,) = kit.plan_batches([batch])
    stage = on(device, ONE, initializer=Constant(value=0))
    stage(planned).sum().backward()
    stage.step(planned)
    found = stage(batch)
    assert (found.device.type, found.tolist()) == (device.type, [[np.float32(-0.1)] * 2] * 2)
    unseen = kit.make_batch(ONE, {"a": [[9]]}, index, insert=False)
    assert stage.eval()(unseen).tolist() == [[0, 0]]
    assert stage.state_arrays()["locations_0"].size == 2


def test_a_state_goes_from_device_to_host_and_back(kit, stream, device):
    planned = kit.plan_batches(stream, window=1)
    first = on(device)
    train(first, planned[:6])
    saved = first.state_dict()
    host, again = on_host(), on(device)
    rest = kit.plan_batches(stream[6:], run=5, window=1)
    for stage in (host, again):
        stage.load_state_dict(saved)
        train(stage, rest, seed=2)
    check_close(again, host)
    keys = RowKeys.of(rest[-1].groups[0])
    again.write_rows(0, keys, np.full((len(keys.ids), again.stores[0].width), 3, np.float32))
    assert (again.read_vectors(0, keys) == 3).all()


def test_values_that_are_not_finite_name_id_and_row(kit, device):
    stage = on(device, ONE, check_finite=True)
    (batch,) = kit.plan_batches([kit.make_batch(ONE, {"a": [[5], [6]]}, kit.ToyIndex(), first_row=70)])
    (stage(batch) * torch.tensor([[1.0], [float("nan")]], device=device)).sum().backward()
    with pytest.raises(FloatingPointError, match=r"gradient of id 6 .* row 71 of part-0\.tsv"):
        stage.step(batch)
    assert stage.state_arrays()["locations_0"].tolist() == []


def test_an_infinite_gradient_under_a_scaler_changes_nothing(kit, device):
    stage = on(device, ONE, initializer=Constant(value=0))
    batches = kit.plan_batches([kit.make_batch(ONE, {"a": [[5]]}, kit.ToyIndex())] * 2)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    for batch, factor in zip(batches, (float("inf"), 1.0), strict=True):
        stage.optimizer().zero_grad()
        scaler.scale((stage(batch) * factor).sum()).backward()
        scaler.step(stage.optimizer())
        scaler.update()
    assert stage.num_steps == 1
    assert stage.state_arrays()["rows_0"].tolist() == [[np.float32(-0.1)] * 2]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kernels": "torch"}, "mode='direct' with rows on cpu .*mode='arena'"),
            ({"device": "cuda"}, "device='cuda' takes mode='arena'"),
            ({"kernels": "triton"}, "kernels='triton' is neither"),
            ({"device": "meta"}, "device='meta'"),
            ({"device": "cuda", "kernels": "native"}, "native kernels work on the host"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            EmbeddingStage(ONE, **options)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_a_gpu_that_is_not_there_is_refused(self):
        with pytest.raises(ValueError, match="finds no CUDA device"):
            EmbeddingStage(ONE, mode="arena", device="cuda")

    @pytest.mark.parametrize("kernels", ["native", "torch"])
    def test_batches_on_another_device_are_refused(self, kit, kernels):
        (batch,) = kit.plan_batches([kit.make_batch(ONE, {"a": [[5]]}, kit.ToyIndex())])
        stage = EmbeddingStage(ONE, mode="arena", kernels=kernels)
        with pytest.raises(ValueError, match="ids of the batch are on meta"):
            stage(batch.to("meta"))
