"""What runs out of memory in the second of several row layouts leaves the first as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.embed import pending
from headrace.embed.checkpoint import load_run, save_run
from headrace.embed.chunk_store import ChunkStore
from headrace.embed.initializer import Constant
from headrace.embed.row_database import RowDatabase
from headrace.embed.row_keys import RowKeys
from headrace.embed.stage import EmbeddingStage
from headrace.embed.table_file import import_rows
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.ingest.nodes.index import index_tables
from tests.support.limited_memory import address_space_left

DIM = 16_384
SMALL, LARGE = Table(name="small", dim=2, optimizer="sgd"), Table(name="large", dim=DIM, optimizer="adagrad")
FEATURES = (Sparse(name="small"), Sparse(name="large"))
SCHEMA = Schema(sparse=FEATURES, tables=(SMALL, LARGE))
LESS_THAN_A_CHUNK = 1 << 30
"""A chunk of `large` takes 2 GiB of addresses."""

MODES = pytest.mark.parametrize("mode", ["direct", "arena"])
ORDERS = pytest.mark.parametrize("schema", [SCHEMA, Schema(sparse=FEATURES[::-1], tables=(LARGE, SMALL))])


def stage_of(schema=SCHEMA, mode="direct"):
    return EmbeddingStage(schema, lr=1.0, initializer=Constant(value=0.0), mode=mode, num_threads=1)


def bits(stage):
    return {name: array.tobytes() for name, array in stage.state_arrays().items()}


def batches_of(kit, schema):
    """Ids 1 and 2; 2 and 3; 4 and 5, of both tables."""
    index = kit.ToyIndex()
    ids = ([[1], [2]], [[2], [3]], [[4], [5]])
    return kit.plan_batches([kit.make_batch(schema, {"small": i, "large": i}, index) for i in ids])


class TestStep:
    @ORDERS
    def test_one_that_is_out_of_memory_is_made_again_later(self, kit, schema):
        stages = [stage_of(schema) for _ in range(2)]
        batch = batches_of(kit, schema)[0]
        for stage in stages:
            stage(batch).sum().backward()
        with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
            stages[0].step(batch)
        assert stages[0].num_steps == 0
        assert bits(stages[0]) == bits(stage_of(schema))
        for stage in stages:
            stage.step(batch)
        assert bits(stages[0]) == bits(stages[1])
        assert stages[0].num_steps == 1

    @ORDERS
    def test_rows_that_have_left_the_arena_too(self, kit, schema):
        stages = [stage_of(schema, "arena") for _ in range(2)]
        batches = batches_of(kit, schema)
        for stage in stages:
            stage(batches[0]).sum().backward()
            stage(batches[1])  # 1 has left, and was never written
        with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
            stages[0].optimizer().step()
        for stage in stages:
            stage.optimizer().step()
        assert bits(stages[0]) == bits(stages[1])
        assert stages[0].num_steps == 1

    @MODES
    def test_sums_of_gradients(self, kit, mode, monkeypatch):
        stages = [stage_of(mode=mode) for _ in range(2)]
        batches = batches_of(kit, SCHEMA)
        for stage in stages:
            for batch in batches[:2]:
                (stage(batch) * 2).sum().backward()
        added = pending.added

        def failing(first, second, sum_rows):
            if first.leaf.shape[1] == DIM:
                raise MemoryError
            return added(first, second, sum_rows)

        monkeypatch.setattr(pending, "added", failing)
        for use in (lambda s: s(batches[2]), lambda s: s.optimizer().step(), lambda s: s.pending_leaves()):
            with pytest.raises(MemoryError):
                use(stages[0])
        monkeypatch.undo()
        for stage in stages:
            stage(batches[2]).sum().backward()
            stage.step(batches[2])
        assert bits(stages[0]) == bits(stages[1])


class TestDatabase:
    @pytest.fixture
    def index(self):
        with DIT(index_tables(SCHEMA)) as index:
            yield index

    def test_an_update(self, index):
        stage = stage_of()
        database = RowDatabase(stage, index)
        with database.prefetch({"small": [1], "large": [1]}) as ticket:
            grads = {name: np.ones_like(rows) for name, rows in database.pull(ticket).items()}
            database.push(ticket, grads)
            with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
                database.update()
            assert (stage.num_steps, database.pull(ticket)["small"].tolist()) == (0, [[0, 0]])
            database.update()
            assert database.pull(ticket)["small"].tolist() == [[-1, -1]]

    def test_a_push_of_several_tables(self, index, monkeypatch):
        stage = stage_of()
        database = RowDatabase(stage, index)
        ticket = database.prefetch({"small": [1], "large": [1]})
        grads = {name: np.ones_like(rows) for name, rows in database.pull(ticket).items()}
        database.push(ticket, grads)
        added, sums = pending.added, []

        def failing(*args):
            if sums:
                raise MemoryError
            sums.append(added(*args))
            return sums[0]

        monkeypatch.setattr(pending, "added", failing)
        with pytest.raises(MemoryError):
            database.push(ticket, grads)
        assert len(sums) == 1  # the first table had been added
        database.update()
        assert database.pull(ticket)["small"].tolist() == [[-1, -1]]  # once

    def test_a_prefetch_inserts_nothing(self, index, monkeypatch):
        database = RowDatabase(stage_of(), index)

        def failing(self, ticket, used=None):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(DIT, "commit", failing)
            with pytest.raises(MemoryError):
                database.prefetch({"small": [1, 2], "large": [1]})
        assert (len(index), index.num_provisional, database.in_flight) == (0, 0, 0)
        database.prefetch({"small": [1, 2], "large": [1]})
        assert len(index) == 3

    def test_imported_rows(self, index):
        stage = stage_of()
        with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
            import_rows(stage, index, "large", [1, 2], np.ones((2, DIM), np.float32))
        assert [store.num_written for store in stage.stores] == [0, 0]
        import_rows(stage, index, "large", [1, 2], np.ones((2, DIM), np.float32))
        assert [store.num_written for store in stage.stores] == [0, 2]


class FakeIndex:
    def write_snapshot(self, path):
        Path(path).write_text("keys")

    def read_snapshot(self, path):
        pass


class TestLoading:
    def test_a_store_keeps_its_rows(self):
        store = ChunkStore(DIM, DIM)
        row = np.ones((1, 2 * DIM), np.float32)
        store.write(np.array([5], np.uint64), row)
        before = store.nbytes
        with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
            store.load(np.array([7], np.uint64), row * 2)
        assert (store.export()[0].tolist(), store.nbytes) == ([5], before)
        store.load(np.array([7], np.uint64), row * 2)
        locations, rows = store.export()
        assert (locations.tolist(), rows.tolist(), store.nbytes) == ([7], (row * 2).tolist(), before)

    @MODES
    @ORDERS
    def test_a_stage_keeps_all(self, kit, schema, mode, tmp_path):
        stage, other = stage_of(schema, mode), stage_of(schema)
        batches = batches_of(kit, schema)
        for one in (stage, other):
            one(batches[0]).sum().backward()
            one.step(batches[0])
        other(batches[1]).sum().backward()
        other.step(batches[1])
        state, model = other.state_dict(), torch.nn.Linear(1, 1)
        stage.flush()
        stage(batches[1]).sum().backward()  # which waits
        before, steps, weight = bits(stage), stage.optimizer().state_dict(), model.weight.tolist()
        folder = tmp_path / "run"
        parts = {"index": FakeIndex(), "model": torch.nn.Linear(1, 1)}
        save_run(folder, loader_state={}, stage=other, optimizer=None, step=2, **parts)
        saved = load_run(folder)
        for load in (
            lambda: stage.load_state_dict(state),
            lambda: saved.restore(index=FakeIndex(), stage=stage, model=model),
        ):
            with address_space_left(LESS_THAN_A_CHUNK), pytest.raises(MemoryError):
                load()
            assert (bits(stage), stage.optimizer().state_dict(), model.weight.tolist()) == (before, steps, weight)
        stage.step(batches[1])
        assert bits(stage) == bits(other)

    def test_one_that_was_interrupted_says_that_the_rows_are_void(self, kit, monkeypatch):
        stage, batches = stage_of(), batches_of(kit, SCHEMA)
        stage(batches[0]).sum().backward()
        stage.step(batches[0])
        state, before = stage.state_dict(), bits(stage)

        def interrupt():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stage.stores[1], "prepare", lambda locations, rows: interrupt)
            with pytest.raises(KeyboardInterrupt):
                stage.load_state_dict(state)
        keys = RowKeys.of(batches[0].groups[0])
        for use in (
            lambda: stage(batches[0]),
            lambda: stage.eval()(batches[0]),
            stage.state_dict,
            stage.flush,
            stage.optimizer().step,
            lambda: stage.read_vectors(0, keys),
            lambda: stage.write_rows(0, keys, np.zeros((2, 2), np.float32)),
            lambda: stage.forget_rows(0, keys.locations),
            lambda: stage.skip(batches[1]),
        ):
            with pytest.raises(RuntimeError, match=r"interrupted half-way.*load one again"):
                use()
        stage.load_state_dict(state)
        assert bits(stage) == before

    def test_a_state_is_loaded_once_within_its_block(self, kit):
        stage = stage_of()
        batch = batches_of(kit, SCHEMA)[0]
        stage(batch).sum().backward()
        stage.step(batch)
        before = stage.state_arrays()
        with stage.state_to_load(before) as load:
            load()
            with pytest.raises(RuntimeError, match="once, within the block"):
                load()
        with pytest.raises(RuntimeError, match="once, within the block"):
            load()
        assert bits(stage) == {name: array.tobytes() for name, array in before.items()}
