"""Random programs of a stage and its database: every row, after every call, is that of a model made of dicts.

Gradients are small integers, so that no order of adding them up is another sum; each row of the model is updated by
itself, by the same rule.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from headrace.embed.initializer import initial_vectors
from headrace.embed.optimizers import update_rows
from headrace.embed.row_database import RowDatabase
from headrace.embed.stage import EmbeddingStage
from headrace.formats.schema import Schema, Sparse, Table
from headrace.indexer.dit import DIT
from headrace.indexer.indexed import IdColumn
from headrace.ingest.nodes.index import index_tables
from tests.embed import kit

SCHEMA = Schema(
    sparse=(
        Sparse(name="item", table="items"),
        Sparse(name="seen", table="items", multi_hot=True, pooling="sum"),
        Sparse(name="shop", table="shops"),
        Sparse(name="user", table="users"),
    ),
    tables=(
        Table(name="items", dim=2, optimizer="sgd"),
        Table(name="shops", dim=2, optimizer="sgd"),
        Table(name="users", dim=3, optimizer="rowwise_adagrad"),
    ),
)
TABLES = {table.name: table for table in SCHEMA.tables}
NAME_OF = {table.uid: table.name for table in SCHEMA.tables}
MISSING_RAW = 0
ANY_TIME = (
    *("prefetch", "pull", "push", "push", "release", "step", "step", "drop_gradients", "replace", "evaluate"),
    "chunks_have_them_too_with_their_states",
)


class Places:
    """What `kit.make_batch` asks for places: the index itself."""

    def __init__(self, database):
        self.database = database

    def locate(self, group, uid, missing, raw, *, insert):
        name = NAME_OF[uid]
        with self.database.prefetch({name: [raw]}, missing={name: [missing]}, insert=insert) as ticket:
            return int(ticket.rows[name].keys.locations[0])


class Model:
    """Keys are (table, missing, raw id); `rows` has those that were ever updated, `waiting` the gradients, `known`
    those that have places."""

    def __init__(self, stage):
        self.stage = stage
        self.rows, self.waiting, self.known = {}, {}, set()

    def initial(self, key):
        name, missing, raw = key
        one = np.array([raw], np.uint64), np.array([TABLES[name].uid], np.uint32), np.array([missing])
        row = np.zeros(TABLES[name].dim + (TABLES[name].optimizer != "sgd"), np.float32)
        row[: TABLES[name].dim] = initial_vectors(self.stage.initializer, self.stage.seed, *one, TABLES[name].dim)[0]
        return row

    def row(self, key):
        return self.rows[key] if key in self.rows else self.initial(key)

    def vector(self, key):
        return self.row(key)[: TABLES[key[0]].dim]

    def step(self):
        rules = {g.dim: rule for g, rule in zip(SCHEMA.groups, self.stage.optimizer().rules(), strict=True)}
        for key, grad in self.waiting.items():
            row = self.row(key).copy()
            update_rows(rules[TABLES[key[0]].dim], row[None], grad[None])
            self.rows[key] = row
        self.waiting = {}

    def add(self, key, grad):
        self.waiting[key] = self.waiting.get(key, np.zeros(TABLES[key[0]].dim, np.float32)) + grad


class Program:
    """Calls drawn by `rng`; `did` counts them. `generation` counts what ends all tickets."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        mode, threads = self.rng.choice(["direct", "arena"]), int(self.rng.integers(1, 4))
        self.index = DIT(index_tables(SCHEMA))
        self.stage = EmbeddingStage(SCHEMA, lr=0.5, mode=mode, num_threads=threads, seed=7)
        self.database = RowDatabase(self.stage, self.index)
        self.model = Model(self.stage)
        self.tickets, self.run, self.runs, self.saved, self.generation = [], [], 0, None, 0
        self.buffer = np.zeros(7, np.uint64)
        self.did = Counter()

    def close(self):
        self.stage.close()
        self.index.close()

    def go_on(self, calls):
        for _ in range(calls):
            name = self.next_call()
            self.did[name, bool(self.model.waiting)] += 1
            getattr(self, name)()
            self.vectors_are_those_of_the_model()

    def next_call(self):
        seldom = self.rng.random()
        if seldom < 0.04:
            return "remove"
        if seldom < 0.08:
            return "save"
        if seldom < 0.12 and self.saved is not None:
            return "load"
        batches = ["train"] * 6 + ["train_and_skip", "skip"] if self.run else ["begin_run"] * 2
        return str(self.rng.choice([*ANY_TIME, *batches]))

    def key_values(self):
        return [None if value == 0 else int(value) for value in self.rng.integers(0, 10, self.rng.integers(0, 8))]

    def table(self):
        return str(self.rng.choice(sorted(TABLES)))

    def integers(self, *shape):
        return self.rng.integers(-2, 3, shape).astype(np.float32)

    # The database.

    def prefetch(self):
        name, values, insert = self.table(), self.key_values(), self.rng.random() < 0.7
        ids = self.buffer[: len(values)]  # used again and again
        ids[:] = [MISSING_RAW if value is None else value for value in values]
        missing = np.array([value is None for value in values], bool)
        ticket = self.database.prefetch({name: ids}, missing={name: missing}, insert=insert)
        keys = [(name, bool(m), int(raw)) for m, raw in zip(ticket.missing[name], ticket.unique_ids[name], strict=True)]
        assert [keys[i] for i in ticket.query_ids[name]] == [(name, value is None, value or 0) for value in values]
        absent = set() if insert else set(keys) - self.model.known  # they stay so for this ticket
        if insert:
            self.model.known |= set(keys)
        ids[:] = 77
        missing[:] = True
        self.tickets.append((ticket, name, keys, absent, self.generation))

    def open_ticket(self):
        """Any of those that were not released; a new one where there is none."""
        if not self.tickets:
            self.prefetch()
        return self.tickets[int(self.rng.integers(len(self.tickets)))]

    def pull(self):
        ticket, name, keys, absent, generation = self.open_ticket()
        if generation != self.generation:
            with pytest.raises(RuntimeError, match="prefetch the ids again"):
                self.database.pull(ticket)
            return
        pulled = self.database.pull(ticket)[name]
        wanted = [self.model.initial(key) if key in absent else self.model.row(key) for key in keys]
        assert pulled.tolist() == [row[: TABLES[name].dim].tolist() for row in wanted]
        pulled[:] = 99.0  # a copy

    def push(self):
        ticket, name, keys, absent, generation = self.open_ticket()
        grads = self.integers(len(keys), TABLES[name].dim)
        if generation != self.generation or absent:
            with pytest.raises((RuntimeError, ValueError), match=r"prefetch the ids again|has no row"):
                self.database.push(ticket, {name: grads})
            return
        self.database.push(ticket, {name: grads})
        for key, grad in zip(keys, grads.copy(), strict=True):
            self.model.add(key, grad)
        grads[:] = 1e9

    def release(self):
        one = self.open_ticket()
        self.tickets.remove(one)
        self.database.release(one[0])
        with pytest.raises(RuntimeError, match="was released"):
            self.database.pull(one[0])

    def step(self):
        self.rng.choice([self.database.update, self.stage.optimizer().step])()
        self.model.step()

    def replace(self):
        """Whatever waits for a step comes on top of it."""
        name = self.table()
        keys, ticket = self.all_known(name)
        some = np.flatnonzero(self.rng.random(len(keys)) < 0.3)
        rows = self.integers(len(some), len(self.model.initial((name, False, 1))))
        rows[:, TABLES[name].dim :] **= 2
        at = ticket.query_ids[name][some]
        self.stage.write_rows(ticket.rows[name].group, ticket.rows[name].keys.take(at), rows)
        self.model.rows.update({keys[i]: row.copy() for i, row in zip(some, rows, strict=True)})
        self.database.release(ticket)

    def drop_gradients(self):
        self.stage.optimizer().zero_grad()
        self.model.waiting = {}

    # Training and evaluation.

    def make_batch(self, insert):
        count = int(self.rng.integers(0, 4))
        bags = {s.name: [self.rng.integers(0, 4) if s.multi_hot else 1 for _ in range(count)] for s in SCHEMA.sparse}
        ids = {
            name: [[int(value) or kit.MISSING for value in self.rng.integers(0, 10, size)] for size in sizes]
            for name, sizes in bags.items()
        }
        batch = kit.make_batch(SCHEMA, ids, Places(self.database), num_rows=count, insert=insert)
        tables = {sparse.name: sparse.table for sparse in SCHEMA.sparse}
        keys = {
            name: [[(tables[name], raw is kit.MISSING, raw or 0) for raw in bag] for bag in bags]
            for name, bags in ids.items()
        }
        if insert:
            self.model.known |= {key for bags in keys.values() for bag in bags for key in bag}
        return batch, keys

    def check_pooled(self, pooled, keys):
        for name, got in self.stage.split(pooled.detach()).items():
            width = got.shape[1]
            wanted = [sum((self.model.vector(key) for key in bag), np.zeros(width, np.float32)) for bag in keys[name]]
            assert np.allclose(got.numpy(), np.array(wanted).reshape(-1, width), rtol=1e-6, atol=1e-6)

    def begin_run(self):
        made = [self.make_batch(insert=True) for _ in range(self.rng.integers(1, 7))]
        self.runs += 1
        options = {"window": int(self.rng.integers(0, 3)), "spare": self.rng.choice([None, 0, 4]), "rng": self.rng}
        planned = kit.plan_batches([batch for batch, _ in made], run=self.runs, **options)
        self.run = list(zip(planned, [keys for _, keys in made], strict=True))

    def train(self):
        batch, keys = self.run.pop(0)
        backward = self.rng.random() < 0.75
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            pooled = self.stage(batch)
            self.check_pooled(pooled, keys)
            if not backward or not batch.num_rows:
                continue
            grad = torch.from_numpy(self.integers(*pooled.shape))
            (pooled * grad).sum().backward()
            for name, part in self.stage.split(grad).items():
                for bag, row in zip(keys[name], part.numpy(), strict=True):
                    for key in bag:
                        self.model.add(key, row)
        if self.rng.random() < 0.3 and backward and batch.num_rows:
            self.stage.step(batch)
            self.model.step()

    def train_and_skip(self):
        """What waited before goes on waiting."""
        batch, keys = self.run.pop(0)
        pooled = self.stage(batch)
        self.check_pooled(pooled, keys)
        if batch.num_rows:
            pooled.sum().backward()
        self.stage.skip(batch)

    def skip(self):
        batch, _ = self.run.pop(0)
        self.stage.skip(batch)

    def evaluate(self):
        batch, keys = self.make_batch(insert=False)
        self.stage.train(self.rng.random() < 0.5)
        with torch.no_grad():
            self.check_pooled(self.stage(batch), keys)
        self.stage.train()

    # Rows that go, and states.

    def remove(self):
        name = self.table()
        keys = [key for key in sorted(self.model.known) if key[0] == name and self.rng.random() < 0.3]
        ids, missing = np.array([key[2] for key in keys], np.uint64), np.array([key[1] for key in keys], bool)
        ordinal = [table.uid for table in self.index.tables].index(TABLES[name].uid)
        gone = self.index.remove([IdColumn(ordinal, ids, missing)])
        for g, group in enumerate(gone.groups):
            self.stage.forget_rows(g, group.locations)
        for key in keys:
            self.model.known.discard(key)
            self.model.rows.pop(key, None)
            self.model.waiting.pop(key, None)
        self.run, self.saved = [], None
        self.generation += 1

    def save(self):
        self.drop_gradients()
        self.saved = self.stage.state_dict(), dict(self.model.rows)

    def load(self):
        self.drop_gradients()
        self.stage.load_state_dict(self.saved[0])
        self.model.rows, self.run = dict(self.saved[1]), []
        self.generation += 1

    # What all of them are compared by.

    def vectors_are_those_of_the_model(self):
        """Wherever they are: nothing is written back for it."""
        for name, table in TABLES.items():
            keys, ticket = self.all_known(name)
            got = self.database.pull(ticket)[name][ticket.query_ids[name]]
            assert got.tolist() == [self.model.vector(key).tolist() for key in keys], (name, table.dim)
            self.database.release(ticket)

    def chunks_have_them_too_with_their_states(self):
        for name in TABLES:
            keys, ticket = self.all_known(name)
            rows = ticket.rows[name]
            got = self.stage.lookup_rows(rows.group, *rows.keys)[ticket.query_ids[name]]
            assert got.tolist() == [self.model.row(key).tolist() for key in keys]
            self.database.release(ticket)

    def all_known(self, name):
        keys = sorted(key for key in self.model.known if key[0] == name)
        ids, missing = np.array([key[2] for key in keys], np.uint64), np.array([key[1] for key in keys], bool)
        return keys, self.database.prefetch({name: ids}, missing={name: missing}, insert=False)


def run(seeds, calls=120):
    did = Counter()
    for seed in seeds:
        program = Program(seed)
        try:
            program.go_on(calls)
        except Exception as error:
            error.add_note(f"program {seed}, after {sum(program.did.values())} calls")
            raise
        finally:
            program.close()
        did += program.did
    return did


def test_rows_are_those_of_the_model_whatever_is_called():
    did = run(range(40))
    assert min(did[name, False] + did[name, True] for name, _ in did) > 30
    assert min(did[name, True] for name in ("step", "remove", "load", "skip", "evaluate")) > 10


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 3000, 100))
def test_many_programs(first):
    run(range(1000 + first, 1100 + first))
