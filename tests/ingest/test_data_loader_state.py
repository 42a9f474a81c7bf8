"""The DataLoader's state: what was handed out, continued anywhere, and what is undone."""

from __future__ import annotations

import gzip
import json

import pytest
from torchdata.nodes import IterableWrapper, Mapper

import headrace
from tests.support.batches import digest
from tests.support.criteo_text import write_lines
from tests.support.loaders import BATCH, PLACES, ROWS, index_of, loader_of, run_python


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


def test_a_state_of_an_epochs_end_can_give_that_end_first(data, schema):
    with loader_of(data, schema) as loader:
        whole = [digest(batch, without=PLACES) for batch in loader]
        before, at_end = None, None
    with loader_of(data, schema) as loader:
        for number, _ in enumerate(loader, start=1):
            before, at_end = at_end, loader.state_dict()
            if number == len(whole):
                break  # the end itself was not met
    for state, rest in ((before, 1), (at_end, 0)):
        with loader_of(data, schema) as loader:
            loader.load_state_dict(state, next_epoch=False)
            assert len(list(loader)) == rest
            assert len(list(loader)) == len(whole)
            assert loader.epoch == 2


def test_sums_go_on_with_the_state(data, schema):
    times = ("trainer_wait_s", "trainer_wait_share", "rows_per_s")
    with loader_of(data, schema, hot_rows=0) as loader:
        for _ in range(2):
            list(loader)
        expected = loader.stats()
    state = totals = snapshot = None
    for _ in range(40):  # a loader for each three batches
        reader = headrace.CriteoFiles(data, schema, block_bytes=2000)  # a state stands between two of many blocks
        with loader_of(reader, schema, hot_rows=0, num_workers=1) as loader:
            if state is not None:
                loader.index.restore(snapshot)
                loader.load_state_dict(state)
                loader.restore_totals(totals)
            for number, _ in enumerate(loader, start=1):
                if number == 3:
                    break
            state, totals = json.loads(json.dumps([loader.state_dict(), loader.totals()]))
            loader.load_state_dict(state)
            snapshot = loader.index.snapshot()
            found = loader.stats()
        if state["epoch"] == 1 and state["batches"] == 16:
            break
    for name in ("rows", "batches", "ids", "unique_share", "index_rows"):
        assert found[name] == expected[name], name
    assert totals["rows_in"] == expected["rows_in"]
    assert totals["span_s"] > 0
    assert set(times) < set(found)
    with loader_of(data, schema) as loader, pytest.raises(ValueError, match="not the sums of a loader"):
        loader.restore_totals({"rows": 1})
    with loader_of(data, schema) as loader:
        right = loader.totals()
        for wrong in ("3", None, True, [1.0]):
            with pytest.raises(ValueError, match="not the sums of a loader: span_s is"):
                loader.restore_totals({**dict.fromkeys(right, 7), "span_s": wrong})
            assert loader.totals() == right


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
        last = index_of(fresh)
    assert broken == expected
    assert first == expected_first
    assert len(first) == 16
    if taken == 0:  # the fresh loader has read one epoch more
        last["uses"] = [uses / 2 for uses in last["uses"]]
    assert after == last


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


def test_counts_of_epochs_that_were_broken_off(data, schema):
    with loader_of(data, schema) as loader:
        for _batch in loader:
            break
        list(loader)
        assert loader.stats()["rows"] == BATCH + ROWS
        assert loader.stats()["rows_in"] == 2 * ROWS  # the whole block was read for the first batch
        for _, _batch in zip(range(3), loader, strict=False):
            state = loader.state_dict()
    with loader_of(data, schema) as resumed:
        resumed.load_state_dict(state)
        next(iter(resumed))
        list(resumed)
        assert resumed.stats()["rows_in"] >= resumed.stats()["rows"] == BATCH + ROWS
        assert resumed.stats()["rows_skipped"] == 0


def test_a_state_that_turns_out_wrong_at_the_first_batch_is_not_forgotten(data, schema):
    with loader_of(data, schema) as loader:
        next(iter(loader))
        state = loader.state_dict()
    node = state["pipeline"]
    while "used_rows" not in node:
        node = node["source"]
    node["used_rows"] = 10_000
    with loader_of(data, schema) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ValueError, match="ended"):
                next(iter(loader))


def test_a_refused_state_is_refused_again(data, schema, tmp_path):
    write_lines(tmp_path / "other.txt", 30)
    with loader_of(tmp_path / "other.txt", schema) as other:
        next(iter(other))
        state = other.state_dict()
    with loader_of(data, schema) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"other files: .* number 1: other.txt then, train.txt now: give"):
                iter(loader)
        for wrong in (None, {**state, "epoch": "x"}, {**state, "batches": True}, {**state, "pipeline": 3}):
            with pytest.raises(ValueError, match="state of a DataLoader"):
                loader.load_state_dict(wrong)


def test_a_state_of_a_loader_with_other_options_names_them(data, schema):
    def unchanged(block):
        return block

    kinds = {"": {}, "shuffle=True": {"shuffle": True}, "transform=": {"transform": unchanged}}
    states = {}
    for option, options in kinds.items():
        with loader_of(data, schema, **options) as loader:
            next(iter(loader))
            states[option] = loader.state_dict()
    for saved, here, words in (
        ("", "shuffle=True", "without shuffle=True, unlike this one: give it the same"),
        ("shuffle=True", "", "with shuffle=True, unlike"),
        ("transform=", "shuffle=True", "without shuffle=True and with transform=, unlike"),
    ):
        with loader_of(data, schema, **kinds[here]) as loader:
            loader.load_state_dict(states[saved])
            for _ in range(2):
                with pytest.raises(ValueError, match=f"the state was saved by a loader {words}"):
                    iter(loader)
            loader.load_state_dict(states[here])
            next(iter(loader))


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


class Renamed(EvenRows):
    """A node whose state is one of its own."""

    def _reset(self, state):
        self._reset_source(None if state is None else {"source": state["inner"]})

    def _state(self):
        return {"inner": self._source_state()}


@pytest.mark.parametrize("own", [EvenRows, Renamed, lambda read: Mapper(read, lambda block: block)])
def test_rows_are_counted_that_a_node_of_ones_own_reads(data, schema, own):
    def new_loader(bad_records="skip"):
        reader = headrace.CriteoFiles(bad, schema, block_bytes=3000, bad_records=bad_records)
        return loader_of(own(headrace.ReadRows(reader)), schema)

    bad = data.with_name("bad")
    bad.write_bytes(data.read_bytes() + b"no row\n")
    with new_loader() as loader:
        assert loader.stats()["rows_in"] == 0
        list(loader)
        expected = loader.stats()
        assert (expected["rows_in"], expected["rows_skipped"]) == (ROWS + 1, 1)
        totals, state = loader.totals(), loader.state_dict()
        assert (totals["rows_in"], totals["rows_skipped"]) == (ROWS + 1, 1)
    with new_loader() as loader:  # nothing is left to read
        loader.check_files(state)
        loader.load_state_dict(state, next_epoch=False)
        loader.restore_totals(totals)
        assert (loader.stats()["rows_in"], loader.stats()["rows_skipped"]) == (ROWS + 1, 1)
    bad.write_bytes(bad.read_bytes() + b"\n")
    with new_loader() as loader, pytest.raises(ValueError, match="the state is of other files"):
        loader.check_files(state)


def test_rows_of_no_file_are_not_counted(data, schema):
    with loader_of(data, schema) as loader:
        blocks = list(headrace.ReadRows(headrace.CriteoFiles(data, schema)))
    with loader_of(IterableWrapper(blocks), schema) as loader:
        list(loader)
        assert (loader.stats()["rows"], loader.stats()["rows_in"], loader.stats()["rows_skipped"]) == (ROWS, None, None)
