from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.growing import GrowingFolder
from headrace.formats.schema import Schema, Sparse
from headrace.ingest.engine.conformance import check_node, equal_blocks
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.nodes.batch_rows import BatchRows
from headrace.ingest.nodes.read_rows import MOST_FILES_IN_STATE, ReadRows
from headrace.ingest.nodes.shuffle import Shuffle
from tests.support.memory_reader import MemoryReader

WORKERS = [0, 1, 4]
CLEAN = {"a.tsv": ["1", "2", "3", "4", "5"], "empty.tsv": [], "b.tsv": ["6", "7", "8"]}
DIRTY = {"a.tsv": ["1", "x", "3", "4", "y", "z", "7"], "b.tsv": ["bad", "bad"], "c.tsv": ["8", "", "9", "no"]}
every_worker_count = pytest.mark.parametrize("num_workers", WORKERS)


def read(files, num_workers: int, *, block_lines: int = 2, on_bad_record="skip") -> ReadRows:
    return ReadRows(MemoryReader(files, block_lines=block_lines, on_bad_record=on_bad_record), num_workers=num_workers)


@every_worker_count
def test_rows_come_in_the_order_of_the_files(values, num_workers: int) -> None:
    with read(CLEAN, num_workers) as node:
        blocks = list(node)
    assert values(blocks) == [[1, 2], [3, 4], [5], [6, 7], [8]]
    assert blocks[3].source.locate(1) == ("b.tsv", 1)


@every_worker_count
def test_bad_records_are_counted_and_empty_blocks_left_out(values, num_workers: int) -> None:
    with read(DIRTY, num_workers) as node:
        assert values(list(node)) == [[1], [3, 4], [7], [8], [9]]
        assert (node.rows_in, node.rows_skipped, node.stats().skipped) == (13, 7, 7)
        assert node.bytes_in == sum(len(line) + 1 for lines in DIRTY.values() for line in lines)


@every_worker_count
def test_no_rows_at_all(num_workers: int) -> None:  # L77
    check_node(lambda: read({"a": [], "b": []}, num_workers), expected=[])
    check_node(lambda: read({}, num_workers), expected=[])
    check_node(lambda: read({"a": ["x", "y", "z"]}, num_workers), expected=[])


@every_worker_count
def test_a_bad_record_is_raised_where_it_stands(values, num_workers: int) -> None:
    with read(DIRTY, num_workers, block_lines=1, on_bad_record="raise") as node:
        assert values([next(node)]) == [[1]]
        for _ in range(2):
            with pytest.raises(ValueError, match=r"a\.tsv, line 2: not an integer: 'x'") as caught:
                next(node)
            assert caught.value.headrace_context == ["in node ReadRows, after line 1 of a.tsv"]
        assert node.get_state()["rows_in"] == 1


@every_worker_count
def test_the_state_is_the_position_after_the_delivered_block(num_workers: int) -> None:  # L33
    with read(DIRTY, num_workers) as node:
        next(node)
        next(node)
        digest = node.reader.digest
        assert node.get_state() == {
            "node": "ReadRows",
            "version": 1,
            "digest": digest,
            "num_files": 3,
            "files": {"names": ["a.tsv", "b.tsv", "c.tsv"], "sizes": [None, None, None]},
            "position": {"file": 0, "byte_offset": 8, "line": 4},
            "file": "a.tsv",
            "rows_in": 4,
            "rows_skipped": 1,
            "bytes_in": 8,
        }


@every_worker_count
def test_counts_are_absolute_after_resumes(num_workers: int) -> None:  # L22
    state = None
    for _ in range(5):
        with read(DIRTY, num_workers) as node:
            node.reset(state)
            next(node)
            state = node.get_state()
    with read(DIRTY, num_workers) as node:
        node.reset(state)
        assert list(node) == []
        assert (node.rows_in, node.rows_skipped) == (13, 7)


@every_worker_count
def test_a_second_epoch_counts_anew(num_workers: int) -> None:
    with read(DIRTY, num_workers) as node:
        for _ in range(2):
            node.reset()
            list(node)
            assert (node.rows_in, node.rows_skipped) == (13, 7)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.tsv": ["1", "2", "3"]}, "2 files then, 1 now; the first that is missing is number 2, b.tsv"),
        ({"z.tsv": ["1", "2", "3"], "b.tsv": []}, "the first that differs is number 1: a.tsv then, z.tsv now"),
        ({"a.tsv": ["1", "2", "3"], "c.tsv": []}, "the first that differs is number 2: b.tsv then, c.tsv now"),
    ],
)
def test_a_state_of_other_files_is_refused_naming_the_difference(files, message: str) -> None:  # L11
    node = read({"a.tsv": ["1", "2", "3"], "b.tsv": []}, 0)
    next(node)
    with pytest.raises(ValueError, match=f"ReadRows: the state is of other files: .*{message}"):
        read(files, 0).reset(node.get_state())


def test_the_size_of_a_file_that_differs_is_named() -> None:
    def sized(size: int) -> ReadRows:
        reader = MemoryReader(CLEAN)
        reader.sizes = (1, size, 3)
        reader.digest = str(size)
        return ReadRows(reader)

    with pytest.raises(
        ValueError, match=r"number 2: empty\.tsv of 20 bytes then, of 21 now: give the files that it was"
    ):
        sized(21).reset(sized(20).get_state())


def test_a_state_has_names_of_the_first_files_alone_or_of_none() -> None:
    many = {f"{i}.tsv": ["1"] * 4 for i in range(MOST_FILES_IN_STATE + 5)}
    node = read(many, 0)
    while node.get_state()["file"] != "34.tsv":
        next(node)
    state = node.get_state()
    assert len(state["files"]["names"]) == MOST_FILES_IN_STATE
    other = {**many, "x.tsv": []}
    with pytest.raises(
        ValueError, match=r"37 files then, 38 now; behind the first 32; it goes on in 34.tsv, number 35: give"
    ):
        read(other, 0).reset(state)
    for files in (None, {"names": 3, "sizes": []}, {"names": ["a"], "sizes": []}):  # of an older release, or damaged
        with pytest.raises(ValueError, match=r"of other files: digest '.*', now '.*': give"):
            read(other, 0).reset({**state, "files": files})
        read(many, 0).reset({**state, "files": files})


@pytest.mark.parametrize("position", [{"file": 0}, {"file": -1, "byte_offset": 0, "line": 0}, 3])
def test_a_malformed_position_is_refused(position: object) -> None:
    node = read(CLEAN, 0)
    state = {**node.get_state(), "position": position}
    with pytest.raises(ValueError, match="position"):
        node.reset(state)


def test_raw_blocks_are_closed_with_the_node() -> None:
    closed = []

    class Reader(MemoryReader):
        def raw_blocks(self, start):
            try:
                yield from super().raw_blocks(start)
            finally:
                closed.append(True)

    for num_workers in WORKERS:
        node = ReadRows(Reader(CLEAN, block_lines=1), num_workers=num_workers)
        next(node)
        node.close()
        assert closed == [True]
        closed.clear()


@every_worker_count
@pytest.mark.parametrize("files", [CLEAN, DIRTY], ids=["clean", "dirty"])
def test_conforms(files, num_workers: int) -> None:
    check_node(lambda: read(files, num_workers), equal=equal_blocks)


@every_worker_count
def test_chains_conform(num_workers: int) -> None:
    check_node(lambda: Prefetch(BatchRows(read(DIRTY, num_workers), 3)), equal=equal_blocks)


@every_worker_count
def test_batches_do_not_depend_on_where_a_resume_cuts_blocks(num_workers: int) -> None:
    def chain():
        reader = MemoryReader(DIRTY, block_lines=3, on_bad_record="skip", odd_first_block=True)
        shuffled = Shuffle(ReadRows(reader, num_workers=num_workers), window_rows=4, seed=1, block_rows=3)
        return BatchRows(Prefetch(shuffled), 2)

    check_node(chain, equal=equal_blocks, stable_states=False)


@settings(max_examples=30, deadline=None)
@given(
    files=st.lists(st.lists(st.sampled_from(["1", "2", "x"]), max_size=6), max_size=4),
    block_lines=st.integers(1, 4),
    num_workers=st.sampled_from(WORKERS),
    cuts=st.lists(st.integers(0, 3), max_size=3),
)
def test_any_sequence_of_resumes_reads_each_row_once(files, block_lines: int, num_workers: int, cuts) -> None:  # P53
    named = {f"{i}.tsv": lines for i, lines in enumerate(files)}
    state, places = None, []
    for cut in [*cuts, 100]:
        with read(named, num_workers, block_lines=block_lines) as node:
            node.reset(state)
            places += [block.source.locate(i) for block in islice(node, cut) for i in range(block.num_rows)]
            state = node.get_state()
            rows_in, rows_skipped = node.rows_in, node.rows_skipped
    expected = [(name, i) for name, lines in named.items() for i, line in enumerate(lines) if line != "x"]
    assert places == expected
    assert rows_in == sum(map(len, files))
    assert rows_in == len(places) + rows_skipped


@every_worker_count
def test_a_growing_folder_conforms(tmp_path, num_workers: int) -> None:
    for n in range(4):
        (tmp_path / f"f_{n}").write_bytes(b"%x\n" % n * 5)
    (tmp_path / "_END").touch()

    def make() -> ReadRows:
        folder = GrowingFolder(path=tmp_path, poll_s=0.01)
        return ReadRows(CriteoFiles(folder, Schema(sparse=(Sparse(name="a"),)), block_bytes=4), num_workers=num_workers)

    check_node(make, equal=lambda a, b: a.data.equals(b.data))
