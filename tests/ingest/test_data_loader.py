"""The DataLoader as a user sees it: rows, order, state, threads, errors, the index after each."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import headrace
from tests.support.batches import digest, raw_ids
from tests.support.criteo_text import parse_line, write_lines

ROWS, BATCH = 157, 10
PLACES = frozenset({"slots"})
"""A resumed run plans from an empty arena: slots are its own."""


@pytest.fixture(scope="module")
def schema():
    return headrace.criteo_schema(dim=4)


@pytest.fixture
def data(tmp_path):
    write_lines(tmp_path / "train.txt", ROWS)
    return tmp_path / "train.txt"


def loader_of(data, schema, **options):
    options = {"batch_size": BATCH, "window": 3, "capacity": 4000, "timeout": 60, "verify_plan": True, **options}
    return headrace.DataLoader(data, schema=schema, **options)


def index_of(loader):
    return loader.index.snapshot().to_pydict()


def row_order(loader):
    return [row for batch in loader for row in batch.source.arrays()[1].tolist()]


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


@pytest.mark.parametrize("shuffle", [False, True])
def test_state_after_every_k_continues_with_the_same_rows(data, schema, shuffle):  # L19-L34, P51
    options = {"shuffle": shuffle, "shuffle_window_rows": 64, "num_workers": 2}
    with loader_of(data, schema, **options) as loader:
        states, snapshots, whole = [json.dumps(loader.state_dict())], [loader.index.snapshot()], []
        for batch in loader:
            whole.append(digest(batch, without=PLACES))
            states.append(json.dumps(loader.state_dict()))
            snapshots.append(loader.index.snapshot())
        following = [digest(b, without=PLACES) for b in loader]
    for k, (state, snapshot) in enumerate(zip(states, snapshots, strict=True)):
        with loader_of(data, schema, **options) as resumed:
            resumed.index.restore(snapshot)
            resumed.load_state_dict(json.loads(state))
            assert resumed.state_dict() == json.loads(state)
            rest = [digest(b, without=PLACES) for b in resumed]
            if k < len(whole):
                assert rest == whole[k:]
                rest = [digest(b, without=PLACES) for b in resumed]
            assert rest == following  # the epoch after it is whole; so is the one behind a state of the very end


RESUME = """
    import json, sys
    import headrace
    from tests.support.batches import digest

    data, folder = sys.argv[1:]
    schema = headrace.criteo_schema(dim=4)
    for k in range(18):
        state = json.load(open(f"{folder}/{k}.json"))
        with headrace.DataLoader(data, 10, schema=schema, window=3, capacity=4000, timeout=60) as loader:
            loader.index.read_snapshot(f"{folder}/{k}.arrow")
            loader.load_state_dict(state)
            print(json.dumps([digest(b, without=frozenset({"slots"})) for b in loader]))
"""


def test_state_is_restored_in_a_fresh_process(data, schema, tmp_path, repository):
    whole = []
    with loader_of(data, schema) as loader:

        def save(k):
            (tmp_path / f"{k}.json").write_text(json.dumps(loader.state_dict()))
            loader.index.write_snapshot(tmp_path / f"{k}.arrow")

        save(0)
        for k, batch in enumerate(loader, 1):
            whole.append(digest(batch, without=PLACES))
            save(k)
        save(17)  # behind the end of the epoch
    printed = run_python(RESUME, repository, str(data), str(tmp_path)).splitlines()
    assert [json.loads(line) for line in printed] == [whole[k:] or whole for k in range(18)]


def run_python(code: str, repository: Path, *arguments: str, timeout: float = 100) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_resume_of_a_resume(data, schema):  # L22
    with loader_of(data, schema) as loader:
        whole = [digest(b, without=PLACES | {"locations"}) for b in loader]
    state, got = None, []
    while len(got) < len(whole):
        with loader_of(data, schema) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _, batch in zip(range(3), loader, strict=False):
                got.append(digest(batch, without=PLACES | {"locations"}))
            state = loader.state_dict()
    assert got == whole


@pytest.mark.parametrize("taken", [0, 1, 5, 15])
def test_break_leaves_the_index_as_if_the_rest_had_never_been_read(data, schema, taken):  # L30, L51
    with loader_of(data, schema) as loader:
        for _, _batch in zip(range(taken), loader, strict=False):
            pass
        broken = index_of(loader)
        first = [digest(b, without=PLACES) for b in loader]  # a new epoch is not a resume
        after = index_of(loader)
    with loader_of(data, schema) as fresh:
        for count, _batch in enumerate(fresh, 1):
            if count == taken:
                break
        expected = index_of(fresh) if taken else {k: [] for k in broken}
        expected_first = [digest(b, without=PLACES) for b in fresh]
    assert broken == expected
    assert first == expected_first
    assert len(first) == 16
    assert after == index_of(fresh)


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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_record_is_raised_behind_the_batches_before_it(data, schema, num_workers):
    lines = data.read_text().splitlines()
    lines[43] = lines[43].replace("\t", ",")
    data.write_text("\n".join(lines))
    with loader_of(data, schema, num_workers=num_workers) as loader:
        it, got = iter(loader), []
        with pytest.raises(headrace.BadRecordError, match=r"train\.txt.*line 44") as caught:
            got.extend(it)
        with pytest.raises(headrace.BadRecordError):  # not a false end
            next(it)
    assert caught.value.line == 44
    assert len(got) <= 4
    with loader_of(data, schema, num_workers=num_workers, bad_records="skip") as loader:
        rows = sum(b.num_rows for b in loader)
        assert (rows, loader.stats()["rows_in"], loader.stats()["rows_skipped"]) == (ROWS - 1, ROWS, 1)


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


def test_an_older_iterator_does_not_steal_from_a_newer_one(data, schema):
    with loader_of(data, schema) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(RuntimeError, match="another iterator"):
            next(old)
        assert sum(b.num_rows for b in new) == ROWS
        with pytest.raises(StopIteration):
            next(new)


def test_states_of_other_loaders_are_refused(data, schema):
    with loader_of(data, schema) as loader:
        state = loader.state_dict()
        for wrong, message in (
            ({}, "'version' is missing"),
            ({**state, "version": 99}, "version 99"),
            ({**state, "schema": "x"}, "another schema"),
        ):
            with pytest.raises(ValueError, match=message):
                loader.load_state_dict(wrong)


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


def test_counts_add_up_over_epochs_and_after_a_resume(data, schema):
    with loader_of(data, schema) as loader:
        list(loader)
        list(loader)
        assert (loader.stats()["rows"], loader.stats()["rows_in"]) == (2 * ROWS, 2 * ROWS)
        for _, _batch in zip(range(4), loader, strict=False):
            state = loader.state_dict()
    with loader_of(data, schema) as resumed:
        resumed.load_state_dict(state)
        rest = sum(b.num_rows for b in resumed)
        assert rest == ROWS - 40
        assert resumed.stats()["rows"] == rest
        assert resumed.stats()["rows_in"] >= rest  # its first block is read again


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


def test_a_refused_state_is_refused_again(data, schema, tmp_path):
    write_lines(tmp_path / "other.txt", 30)
    with loader_of(tmp_path / "other.txt", schema) as other:
        next(iter(other))
        state = other.state_dict()
    with loader_of(data, schema) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ValueError, match="other files"):
                iter(loader)
        for wrong in (None, {**state, "epoch": "x"}, {**state, "batches": True}, {**state, "pipeline": 3}):
            with pytest.raises(ValueError, match="state of a DataLoader"):
                loader.load_state_dict(wrong)


def test_a_chosen_epoch_is_in_the_state(data, schema):
    with loader_of(data, schema) as loader:
        list(loader)
        loader.set_epoch(9)
        assert loader.state_dict()["epoch"] == 9
        state = loader.state_dict()
    with loader_of(data, schema) as loader:
        loader.load_state_dict(state)
        assert sum(b.num_rows for b in loader) == ROWS
        assert loader.epoch == 10
        loader.load_state_dict(state)
        with pytest.raises(RuntimeError, match="state says"):
            loader.set_epoch(3)


def test_close_is_bounded_and_wakes_who_waits(data, schema):
    begun, go, caught = threading.Event(), threading.Event(), []

    def slow(block):
        begun.set()
        go.wait(60)
        return block

    def wait(it):
        try:
            next(it)
        except headrace.NodeClosedError as error:
            caught.append(error)

    loader = loader_of(data, schema, transform=slow)
    thread = threading.Thread(target=wait, args=(iter(loader),))
    thread.start()
    assert begun.wait(30)
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="not stopped"):
        loader.close()
    assert time.monotonic() - start < 30  # the bound is 5 s; without it, it would be 60
    thread.join(30)
    assert [type(e) for e in caught] == [headrace.NodeClosedError]
    go.set()


def test_leaving_with_an_error_keeps_the_users_error(data, schema):
    blocks = headrace.ReadRows(headrace.CriteoFiles(data, schema))
    once = Once(iter(list(blocks)))

    def leave():
        with loader_of(once, schema) as loader:
            for _batch in loader:
                raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        leave()


class Once(headrace.Node):
    """A source that can be read once."""

    def _next(self):
        return self._pull()


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


class EvenRows(headrace.Node):
    """The README's node: its result depends on where blocks begin."""

    def _next(self):
        block = self._pull()
        kept = block.take(range(0, block.num_rows, 2))
        self._skip(block.num_rows - kept.num_rows)
        return kept


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_node_that_looks_at_whole_blocks_resumes_exactly(data, schema, tmp_path, packed, num_workers):
    path = data
    if packed:
        path = tmp_path / "train.gz"
        path.write_bytes(gzip.compress(data.read_bytes()))

    def new_loader():
        reader = headrace.CriteoFiles(path, schema, block_bytes=3000)
        return loader_of(EvenRows(headrace.ReadRows(reader, num_workers=num_workers)), schema)

    with new_loader() as loader:
        states, rows = [], []
        for batch in loader:
            rows.append(batch.source.arrays()[1].tolist())
            states.append(loader.state_dict())
    assert len({row % 2 for part in rows for row in part}) == 2  # blocks begin at odd and at even rows
    for k, state in enumerate(states[:-1], 1):
        with new_loader() as resumed:
            resumed.load_state_dict(state)
            assert [b.source.arrays()[1].tolist() for b in resumed] == rows[k:]


LEAK = """
    import sys
    import headrace
    loader = headrace.DataLoader(sys.argv[1], 4, schema=headrace.criteo_schema(dim=4), num_workers=2, window=2)
    it = iter(loader)
    next(it)
    print("leaving")
"""


def test_a_loader_that_is_never_closed_lets_the_process_end(data, repository):  # L48, L49
    assert run_python(LEAK, repository, str(data), timeout=60) == "leaving\n"


INTERRUPT = """
    import os, signal, sys, threading
    import headrace
    loader = headrace.DataLoader(sys.argv[1], 4, schema=headrace.criteo_schema(dim=4), num_workers=2, window=2)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        for batch in loader:
            pass
"""


def test_ctrl_c_ends_with_one_traceback(data, repository):  # L48
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPT), str(data)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "\nKeyboardInterrupt\n" in done.stderr
