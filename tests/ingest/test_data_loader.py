"""The DataLoader as a user sees it: rows, order, threads, arguments, evaluation, counts."""

from __future__ import annotations

import gzip
import warnings

import numpy as np
import pytest

import headrace
from tests.support.batches import digest, raw_ids
from tests.support.criteo_text import parse_line, write_lines
from tests.support.loaders import BATCH, PLACES, ROWS, index_of, loader_of, row_order


def test_batches_hold_the_files_rows_in_order(data, schema):
    parsed = [parse_line(line) for line in data.read_text().splitlines()]
    with loader_of(data, schema) as loader:
        batches = list(loader)
    assert [b.num_rows for b in batches] == [10] * 15 + [7]
    assert np.concatenate([b.labels for b in batches]).tolist() == [label for label, _, _ in parsed]
    expected = np.log1p(np.maximum([[0 if v is None else v for v in dense] for _, dense, _ in parsed], 0))
    np.testing.assert_allclose(np.concatenate([b.dense for b in batches]), expected, rtol=1e-6)
    per_batch = [raw_ids(b) for b in batches]
    ids = [[i for part in per_batch for i in part[f]] for f in range(26)]
    assert ids == [[row[f] for _, _, row in parsed] for f in range(26)]
    assert [b.locate(0) for b in batches] == [(str(data), 10 * i) for i in range(16)]


def test_a_key_has_one_location_and_a_location_one_key(data, schema):
    seen = {}
    with loader_of(data, schema) as loader:
        for batch in loader:
            (group,) = batch.groups
            columns = (group.unique_tables, group.missing, group.unique_ids, group.locations)
            for table, missing, raw, location in zip(*(c.tolist() for c in columns), strict=True):
                assert seen.setdefault((table, missing, raw), location) == location
        assert len(set(seen.values())) == len(seen) == len(loader.index)


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_the_same_batches_and_plans_for_any_number_of_threads(data, schema, num_workers):  # P74
    def run(threads):
        with loader_of(data, schema, num_workers=threads) as loader:
            return [(digest(b), b.plan.digest()) for b in loader], index_of(loader)

    assert run(num_workers) == run(0)


@pytest.mark.parametrize("window", [0, 1, 50])
def test_windows_change_no_row(data, schema, window):
    def run(window):
        with loader_of(data, schema, window=window) as loader:
            return [digest(b, without=PLACES) for b in loader], index_of(loader)

    assert run(window) == run(3)


def test_drop_last_and_exact_multiples(tmp_path, schema):  # P16
    for rows in (0, BATCH - 1, 3 * BATCH, 3 * BATCH + 1):
        write_lines(tmp_path / "part.txt", rows)
        for drop_last in (False, True):
            with loader_of(tmp_path / "part.txt", schema, drop_last=drop_last) as loader:
                sizes = [b.num_rows for b in loader]
            assert sizes == [BATCH] * (rows // BATCH) + ([] if drop_last or rows % BATCH == 0 else [rows % BATCH])


def test_shuffle_is_a_permutation_that_depends_on_seed_and_epoch(data, schema):  # L37, L39
    def orders(seed):
        with loader_of(data, schema, shuffle=True, seed=seed, shuffle_window_rows=64) as loader:
            return [row_order(loader) for _ in range(2)]

    first, second = orders(0)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert orders(0) == [first, second]
    assert orders(1)[0] != first


def test_no_shuffle_means_the_same_order_every_epoch(data, schema):  # L40
    with loader_of(data, schema) as loader:
        orders = [row_order(loader) for _ in range(3)]
    assert orders == [list(range(ROWS))] * 3


def test_len_where_it_is_exact(tmp_path, schema):
    headrace.generate("criteo-kaggle", tmp_path / "d", rows=105, files=2)
    with loader_of(tmp_path / "d", schema) as loader:
        assert len(loader) == 11 == len(list(loader))
    with loader_of(tmp_path / "d", schema, drop_last=True) as loader:
        assert len(loader) == 10
    with loader_of(tmp_path / "d", schema, bad_records="skip") as loader, pytest.raises(TypeError, match="not known"):
        len(loader)


def test_len_without_a_manifest_is_a_type_error(data, schema):
    with loader_of(data, schema) as loader, pytest.raises(TypeError, match="manifest"):
        len(loader)


def test_evaluation_inserts_nothing_and_marks_unknown_ids(data, schema, tmp_path):  # P30
    write_lines(tmp_path / "eval.txt", 25, seed=5, ids=500)
    with loader_of(data, schema) as loader:
        list(loader)
        before = index_of(loader)
        with headrace.DataLoader(tmp_path / "eval.txt", 10, schema=schema, index=loader.index, train=False) as eval_:
            batches = list(eval_)
        assert index_of(loader) == before
    known = set(zip(before["table_uid"], before["missing"], before["id"], strict=True))
    for batch in batches:
        assert batch.plan is None
        (group,) = batch.groups
        keys = zip(group.unique_tables.tolist(), group.missing.tolist(), group.unique_ids.tolist(), strict=True)
        absent = group.locations == int(headrace.ABSENT)
        assert [k not in known for k in keys] == absent.tolist()
        assert absent.any()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch_size": 0}, "batch_size"),  # L63
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"window": -1}, "window"),
        ({"hot_rows": "all"}, "hot_rows, unless \"auto\", is an integer of at least 0, got 'all'"),
        ({"capacity": 0}, "capacity"),
        ({"num_workers": -1}, "num_workers"),
        ({"hot_rows": -1}, "hot_rows"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
    ],
)
def test_bad_arguments_are_refused_at_construction(data, schema, options, name):
    with pytest.raises(ValueError, match=name):
        loader_of(data, schema, **options)


def test_too_little_capacity_says_how_many_rows_are_needed(data, schema):  # P34
    with loader_of(data, schema, capacity=50, hot_rows=0) as loader, pytest.raises(ValueError, match=r"\d+ rows"):
        list(loader)


def test_pin_memory_without_an_accelerator_warns_once(data, schema):  # L57
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loader_of(data, schema, pin_memory=True) as loader:
            assert sum(b.num_rows for b in loader) == ROWS
    assert len([w for w in caught if "pin_memory" in str(w.message)]) == 1


def test_gzip_and_plain_give_the_same_batches(data, schema, tmp_path):
    packed = tmp_path / "train.gz"
    packed.write_bytes(gzip.compress(data.read_bytes()))
    with loader_of(data, schema) as plain, loader_of(packed, schema) as zipped:
        assert [raw_ids(b) for b in plain] == [raw_ids(b) for b in zipped]


def test_stats_add_up(data, schema):
    with loader_of(data, schema, hot_rows=40) as loader:
        batches = list(loader)
        stats = loader.stats()
    unique = sum(g.num_unique for b in batches for g in b.groups)
    assert stats["rows"] == stats["rows_in"] == ROWS
    assert stats["ids"] == 26 * ROWS
    assert stats["unique_share"] == unique / (26 * ROWS)
    assert stats["stale_reads"] == 0
    assert stats["r_rows"] == 40
    hot = [
        g.position_offsets.diff()[p.hot].sum() for b in batches for g, p in zip(b.groups, b.plan.groups, strict=True)
    ]
    assert stats["r_coverage"] == int(sum(hot)) / (26 * ROWS)
    assert stats["bytes_planned"] == sum(b.plan.bytes_fetched + b.plan.bytes_written_back for b in batches)


def test_evaluation_is_looked_up_when_it_is_handed_out(data, schema):
    with loader_of(data, schema) as loader:
        train = iter(loader)
        next(train)
        with headrace.DataLoader(
            data, BATCH, schema=schema, index=loader.index, train=False, prefetch_factor=8
        ) as evaluation:
            held = iter(evaluation)
            next(held)
            for _ in train:
                pass
            assert all((b.groups[0].locations != int(headrace.ABSENT)).all() for b in held)


def test_evaluation_needs_an_index(data, schema):
    with pytest.raises(ValueError, match="train=False reads an index"):
        headrace.DataLoader(data, schema=schema, train=False)


def test_an_index_of_another_schema_is_refused(data, schema):
    with loader_of(data, schema) as loader:
        other = headrace.Schema(labels=schema.labels, dense=schema.dense, sparse=schema.sparse[::-1])
        with pytest.raises(ValueError, match="other tables"):
            headrace.DataLoader(data, schema=other, index=loader.index, train=False)


def test_a_reader_brings_its_own_policy_and_schema(data, schema):
    reader = headrace.CriteoFiles(data, schema, bad_records="skip")
    with pytest.raises(ValueError, match="brings its own policy"):
        headrace.DataLoader(reader, schema=schema, bad_records="skip")
    with pytest.raises(ValueError, match="another schema"):
        headrace.DataLoader(reader, schema=headrace.criteo_schema(dim=8))


def test_len_follows_the_policy_of_the_reader(tmp_path, schema):
    headrace.generate("criteo-kaggle", tmp_path / "d", rows=20)
    for policy, known in (("skip", False), ("raise", True), (headrace.BadRecords(mode="raise"), True)):
        loader = headrace.DataLoader(
            headrace.CriteoFiles(tmp_path / "d", schema, bad_records=policy), 10, schema=schema
        )
        with loader:
            if known:
                assert len(loader) == 2
            else:
                with pytest.raises(TypeError, match="not known"):
                    len(loader)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shuffle": "yes"}, TypeError),
        ({"drop_last": 1}, TypeError),
        ({"schema": None}, TypeError),
        ({"transform": 5}, TypeError),
        ({"timeout": float("inf")}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"num_workers": 300}, ValueError),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(data, schema, options, error):
    with pytest.raises(error, match=next(iter(options))):
        headrace.DataLoader(data, 10, **{"schema": schema, **options})


def test_a_user_transform_and_a_user_node(data, schema):
    def odd(block):
        return block.take(np.arange(1, block.num_rows, 2))

    class Every(headrace.Node):
        def _next(self):
            return self._pull()

        def _reset(self, state):
            self._reset_source(state)

        def _state(self):
            return {"source": self._source_state()}

    with loader_of(data, schema, transform=odd) as loader:
        assert sum(b.num_rows for b in loader) == ROWS // 2
    node = Every(headrace.ReadRows(headrace.CriteoFiles(data, schema)))
    with loader_of(node, schema) as loader:
        assert sum(b.num_rows for b in loader) == ROWS
