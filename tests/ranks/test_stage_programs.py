"""Random training loops over ranks, beside the same loop in one process: saves, loads, writes, clipping, skips."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.embed.row_keys import RowKeys
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, rows_by_key

GLOBAL_BATCH = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "train.txt"
    write_lines(path, 170, seed=7, ids=40)
    return path


class Program:
    """What is done with a stage, drawn from `seed`: the same on all ranks, and in one process."""

    def __init__(self, seed, stage, index):
        self.rng, self.stage, self.index = np.random.default_rng(seed), stage, index
        self.saved = [stage.state_dict()]

    def happens(self, share):
        return self.rng.random() < share

    def loads(self):
        self.stage.load_state_dict(self.saved[self.rng.integers(len(self.saved))])

    def writes(self):
        """Some of the rows that were trained; the same by key wherever they live."""
        self.stage.flush()
        known, part = self.index.rows_of_buckets(), int(self.rng.integers(1, 4))
        group_of = {t: group.ordinal for group in self.stage.schema.groups for t in group.tables}
        uids = np.array([table.uid for table in self.stage.schema.tables], np.uint32)
        for g, store in enumerate(self.stage.stores):
            at = np.flatnonzero(np.array([group_of[t] for t in known.tables.tolist()]) == g)
            keys = RowKeys(known.locations[at], known.ids[at], uids[known.tables[at]], known.missing[at])
            keys = keys.take(store.is_written(keys.locations) & (keys.ids % np.uint64(part) == 0))
            rows = self.stage.lookup_rows(g, *keys)
            rows[:, : store.dim] = np.float32(0.1) - rows[:, : store.dim]
            self.stage.write_rows(g, keys, rows)

    def between(self):
        for share, use in ((0.15, self.loads), (0.15, self.writes), (0.1, self.stage.flush)):
            if self.happens(share):
                use()
        if self.happens(0.2):
            self.saved.append(self.stage.state_dict())

    def backward(self, batch):
        for _ in range(1 + self.happens(0.2)):
            self.stage(batch).square().sum(1).mean().backward()

    def step(self, batch):
        self.between()
        self.backward(batch)
        if self.happens(0.1):
            self.stage.optimizer().zero_grad()
            self.backward(batch)
        if self.happens(0.1):
            self.loads()
            self.backward(batch)
        if self.happens(0.3):
            headrace.clip_grad_norm_(self.stage, [], 0.05)
            if self.happens(0.3):  # what was gathered is dropped
                self.loads() if self.happens(0.5) else self.stage.optimizer().zero_grad()
                self.backward(batch)
        if self.happens(0.1):
            self.writes()
        if self.happens(0.15):
            self.stage.skip(batch)
        else:
            self.stage.step(batch)


def options_of(seed):
    """(ranks, loader options over ranks, stage options)."""
    rng = np.random.default_rng([seed, 1])
    size = int(rng.choice([2, 2, 3, 4]))
    hot = {"hot_rows": int(rng.choice([5, 60])), "hot_every": int(rng.integers(1, 5))}
    over_ranks = {
        "window": int(rng.choice([1, 2, 3, 6])),
        **(hot if rng.random() < 0.7 else {}),
        **({"node_size": 2} if size == 4 and rng.random() < 0.6 else {}),
    }
    schema = make_schema(str(rng.choice(["sgd", "rowwise_adagrad"])), two_layouts=bool(rng.random() < 0.5))
    return size, schema, over_ranks, {"frozen": ("C2",) if rng.random() < 0.3 else ()}


def train(data, communicator, seed):
    size, schema, over_ranks, stage_options = options_of(seed)
    options = {"window": 2} if communicator is None else {**over_ranks, "communicator": communicator}
    if communicator is not None:
        stage_options = {**stage_options, "communicator": communicator, "check_replicas_every": 1}
    stage = headrace.EmbeddingStage(schema, lr=0.05, eps=1e-3, num_threads=1, **stage_options)
    share = GLOBAL_BATCH // (1 if communicator is None else size)
    with headrace.DataLoader(data, share, schema=schema, capacity=4000, timeout=60, **options) as loader:
        program = Program(seed, stage, loader.index)
        for _ in range(2):
            last = int(program.rng.integers(4, 20))
            for number, batch in enumerate(loader):
                program.step(batch)
                if number == last:
                    break
        return {"rows": rows_by_key(schema, loader.index, stage), "dense": [], "steps": stage.num_steps}


def check(data, seed):
    expected = train(data, None, seed)
    parts = run_ranks(options_of(seed)[0], lambda c: train(data, c, seed), timeout_s=60)
    assert [part["steps"] for part in parts] == [expected["steps"]] * len(parts)
    # a loader that is broken off has looked further ahead, or less far
    known = set().union(*(part["rows"] for part in parts)) & expected["rows"].keys()
    for run in (expected, *parts):
        run["rows"] = {key: row for key, row in run["rows"].items() if key in known}
    assert_equal_to_reference(parts, expected)


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_one_process(data, seed):
    check(data, seed)


@pytest.mark.long
@pytest.mark.parametrize("lot", range(10))
def test_three_hundred_more(data, lot):
    for seed in range(1000 + 30 * lot, 1030 + 30 * lot):
        check(data, seed)
