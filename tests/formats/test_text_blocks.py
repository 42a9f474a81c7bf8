"""Blocks of whole lines: any block size gives the same lines, in bounded memory."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.formats.errors import CorruptShardError
from headrace.formats.text_blocks import TextBlock, _blank_tail, text_blocks
from tests.support.criteo_text import write

NAMES = ["x.tsv", "x.gz"]


def lines_of(blocks: list[TextBlock]) -> list[tuple[int, int, bytes, int]]:
    """(line number, byte offset, line without its line feed, size when oversized) of each line; checks the blocks."""
    found = []
    for previous, block in zip([None, *blocks], blocks, strict=False):
        if previous is not None:
            assert (block.byte_offset, block.first_line) == (previous.next_offset, previous.next_line)
        assert block.lines > 0
        assert block.data.readonly
        if block.oversized_bytes:
            assert block.lines == 1
            found.append((block.first_line, block.byte_offset, bytes(block.data), block.oversized_bytes))
            continue
        lines = bytes(block.data).split(b"\n")
        if not lines[-1]:
            lines.pop()
        else:
            assert block is blocks[-1]
        assert len(lines) == block.lines
        offset = block.next_offset - len(block.data)
        for i, line in enumerate(lines):
            found.append((block.first_line + i, offset, line, 0))
            offset += len(line) + 1
    return found


def expected_lines(data: bytes, max_line_bytes: int) -> list[tuple[int, int, bytes]]:
    """The rules, once more: number, offset and text (or head) of each line of a file of the bytes `data`."""
    offset = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    lines = data[offset:].split(b"\n")
    if lines[-1] in (b"", b"\r"):
        lines.pop()
    tail = len(lines)
    while tail and lines[tail - 1] in (b"", b"\r"):
        tail -= 1
    if sum(len(line) + 1 for line in lines[tail:]) <= max_line_bytes:
        del lines[tail:]
    found = []
    for number, line in enumerate(lines):
        found.append((number, offset, line))
        offset += len(line) + 1
    return found


PIECES = st.sampled_from(
    [b"\n", b"\n\n\n", b"\r\n", b"\r", b"a", b"0\t1\t2", b"abcdefghij" * 4, b"\xef\xbb\xbf", b"\x00", b"\xff", b"\t\n"]
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(PIECES, max_size=25).map(b"".join),
    block_bytes=st.one_of(st.integers(1, 12), st.sampled_from([64, 1 << 20])),
    max_line_bytes=st.sampled_from([5, 30, 1 << 20]),
)
def test_any_block_size_gives_the_same_lines(
    tmp_path: Path, name: str, data: bytes, block_bytes: int, max_line_bytes: int
) -> None:
    # L73, L77
    path = str(write(tmp_path / name, data))
    blocks = list(text_blocks(path, block_bytes=block_bytes, max_line_bytes=max_line_bytes))
    found = lines_of(blocks)
    expected = expected_lines(data, max_line_bytes)
    # The mark at the start belongs to the first block, not to its first line.
    assert [number for number, *_ in found] == [number for number, *_ in expected]
    for (_, offset, line, oversized), (_, right_offset, right_line) in zip(found, expected, strict=True):
        if oversized:
            assert oversized == len(right_line) > max_line_bytes
            assert line == right_line[:81]
        else:
            assert (offset, line) == (right_offset, right_line)
    # Each block is a place to resume from.
    for i, block in enumerate(blocks):
        rest = list(
            text_blocks(
                path,
                start_offset=block.next_offset,
                start_line=block.next_line,
                block_bytes=block_bytes,
                max_line_bytes=max_line_bytes,
            )
        )
        if not any(b.data.tobytes().strip(b"\r\n") == b"" for b in blocks):  # a long blank run is told from its start
            # A long line may be held in one run and passed by in the other.
            again, once = ([(*line[:2], line[2][:81]) for line in lines_of(b)] for b in (rest, blocks[i + 1 :]))
            assert again == once


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from([b"a", b"0\t1\t2", b"abcdefg", b"\xef\xbb\xbf", b"\r"]), max_size=60),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    block_bytes=st.integers(10, 40),
)
def test_who_resumes_behind_a_block_gets_the_same_blocks(
    tmp_path: Path, name: str, lines: list[bytes], ending: bytes, block_bytes: int
) -> None:
    path = str(write(tmp_path / name, b"".join(line + ending for line in lines)))
    blocks = list(text_blocks(path, block_bytes=block_bytes))
    for i, block in enumerate(blocks):
        resumed = text_blocks(path, start_offset=block.next_offset, start_line=block.next_line, block_bytes=block_bytes)
        cuts = [[(b.byte_offset, b.lines, b.data.tobytes()) for b in part] for part in (resumed, blocks[i + 1 :])]
        assert cuts[0] == cuts[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n", b"\n\n\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_of_nothing_has_no_lines(tmp_path: Path, name: str, data: bytes) -> None:
    # L72, L77
    assert list(text_blocks(str(write(tmp_path / name, data)))) == []


def test_blank_lines_at_the_end_are_no_lines_elsewhere_they_are(tmp_path: Path) -> None:
    # L72
    path = str(write(tmp_path / "x", b"\n1\n\n2\n\r\n\n"))
    for block_bytes in range(1, 12):
        lines = [line for _, _, line, _ in lines_of(list(text_blocks(path, block_bytes=block_bytes)))]
        assert lines == [b"", b"1", b"", b"2"]


@pytest.mark.parametrize("blank", [3, 4, 100])
def test_an_endless_blank_tail_is_not_held(tmp_path: Path, blank: int) -> None:
    path = str(write(tmp_path / "x", b"1\n" + b"\n" * blank))
    for block_bytes in (1, 2, 7, 1000):
        lines = lines_of(list(text_blocks(path, block_bytes=block_bytes, max_line_bytes=3)))
        assert len(lines) == (1 if blank <= 3 else 1 + blank)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ending", [b"", b"\n", b"\n2\n3"])
def test_a_line_of_100_megabytes_is_passed_by_in_bounded_memory(tmp_path: Path, name: str, ending: bytes) -> None:
    # L75; the .gz is a bomb of 100 MB in 100 KB
    size = 100 << 20
    path = tmp_path / name
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "wb") as file:
        file.write(b"1\n")
        for _ in range(100):
            file.write(b"0" * (1 << 20))
        file.write(ending)
    tracemalloc.start()
    try:
        found = []
        for block in text_blocks(str(path)):
            found.append((block.byte_offset, block.first_line, block.lines, block.oversized_bytes, len(block.data)))
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
    expected = [(0, 0, 1, 0, 2), (2, 1, 1, size, 81)]
    if len(ending) > 1:
        expected.append((size + 3, 2, 2, 0, 3))
    assert found == expected


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_a_cut_gzip_gives_its_whole_lines_then_an_error(tmp_path: Path, block_bytes: int) -> None:
    # DATASETS "Criteo text" 12
    text = b"".join(b"%d\t%x\n" % (i, i * 2654435761 % 2**32) for i in range(300))
    data = gzip.compress(text)
    salvaged = []
    for cut in range(20, len(data), 61):
        path = tmp_path / "x.gz"
        path.write_bytes(data[:cut])
        blocks: list[TextBlock] = []
        with pytest.raises(CorruptShardError, match="ends inside a gzip member") as caught:
            blocks.extend(text_blocks(str(path), block_bytes=block_bytes))
        got = b"".join(block.data for block in blocks)
        assert text.startswith(got)
        assert not got or got.endswith(b"\n")
        assert caught.value.rows_salvaged == got.count(b"\n")
        assert (caught.value.path, caught.value.byte_offset) == (str(path), cut)
        salvaged.append(caught.value.rows_salvaged)
    assert salvaged == sorted(salvaged)
    assert salvaged[-1] > 250


def test_a_cut_inside_an_oversized_line_is_an_error_not_a_row(tmp_path: Path) -> None:
    data = gzip.compress(b"1\n" + bytes(range(65, 91)) * 1000)
    path = tmp_path / "x.gz"
    path.write_bytes(data[:-9])
    blocks = text_blocks(str(path), max_line_bytes=100)
    assert bytes(next(blocks).data) == b"1\n"
    with pytest.raises(CorruptShardError) as caught:
        next(blocks)
    assert caught.value.rows_salvaged == 1


def test_gzip_data_needs_its_name(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_bytes(gzip.compress(b"1\n"))
    with pytest.raises(CorruptShardError, match=r"does not end in \.gz"):
        list(text_blocks(str(tmp_path / "day_0")))
    (tmp_path / "day_0.gz").write_bytes(b"1\n")
    with pytest.raises(CorruptShardError, match="not a gzip file"):
        list(text_blocks(str(tmp_path / "day_0.gz")))


@pytest.mark.parametrize("name", NAMES)
def test_a_position_that_is_no_line_start_is_refused(tmp_path: Path, name: str) -> None:
    path = str(write(tmp_path / name, b"12\n34\n56"))
    for offset, lines in [(0, 3), (3, 2), (6, 1), (8, 0)]:
        assert sum(b.lines for b in text_blocks(path, start_offset=offset)) == lines
    for offset in (1, 2, 4, 5, 7):
        with pytest.raises(ValueError, match=f"no line starts at byte {offset}"):
            list(text_blocks(path, start_offset=offset))
    for offset in (9, 10**6):
        with pytest.raises(CorruptShardError, match="ends before the position"):
            list(text_blocks(path, start_offset=offset))


@pytest.mark.parametrize("option", ["block_bytes", "max_line_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "1", 2**30 + 1])
def test_sizes_are_integers_within_bounds(option: str, value: object) -> None:
    # L63
    with pytest.raises(ValueError if type(value) is int else TypeError, match=option):
        list(text_blocks("absent", **{option: value}))  # type: ignore[arg-type]


def open_files() -> list[str]:
    return [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]


def test_an_early_end_closes_the_file(tmp_path: Path) -> None:
    path = str(write(tmp_path / "日本.tsv", b"1\n" * 100))  # L84
    blocks = text_blocks(path, block_bytes=10)
    next(blocks)
    assert path in open_files()
    blocks.close()  # type: ignore[attr-defined]
    assert path not in open_files()
    with pytest.raises(FileNotFoundError, match="absent"):
        next(text_blocks(str(tmp_path / "absent")))


def test_blocks_own_their_data(tmp_path: Path) -> None:
    path = str(write(tmp_path / "x", b"".join(b"%d\n" % i for i in range(1000))))
    blocks = list(text_blocks(path, block_bytes=100))
    assert len(blocks) > 10
    assert b"".join(bytes(b.data) for b in blocks) == Path(path).read_bytes()


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"\r\r\n"]), max_size=12).map(b"".join), st.integers(0, 3)
)
def test_the_blank_tail_is_that_of_a_look_at_each_line(text: bytes, begin: int) -> None:
    lines = text.split(b"\n")
    expected = len(text)
    if not lines.pop():
        while lines and lines[-1] in (b"", b"\r"):
            expected -= len(lines.pop()) + 1
    assert _blank_tail(memoryview(b"\n" * begin + text), begin, begin + len(text)) == begin + expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["longer", "cut"])
def test_another_size_than_that_listed_is_an_error_at_once(tmp_path: Path, name: str, change: str) -> None:
    path = write(tmp_path / name, b"1\n2\n")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"3\n" if change == "longer" else path.read_bytes()[:-2])
    with pytest.raises(CorruptShardError, match="changed since it was listed"):
        next(text_blocks(str(path), file_bytes=size))


@pytest.mark.parametrize("max_line_bytes", [3, 1 << 20])
@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (b"", [b"10"]),
        (b"10\n20", [b"10"]),  # the part of a line is not taken for its last line
        (b"10\n20\n30", [b"10", b"20"]),
        (b"10\n20\n30\n40\n5", [b"10", b"20", b"30", b"40"]),
        (b"10\n20\n30\n44444", [b"10", b"20", b"30"]),
    ],
)
def test_a_change_of_size_while_reading_is_an_error_behind_the_whole_lines(
    tmp_path: Path, max_line_bytes: int, changed: bytes, lines: list[bytes]
) -> None:
    path = write(tmp_path / "x", b"10\n20\n30\n40\n")
    blocks = text_blocks(str(path), file_bytes=12, block_bytes=3, max_line_bytes=max_line_bytes)
    found = [next(blocks)]
    path.write_bytes(changed)
    told = rf"changed since it was listed \(12 bytes then, {len(changed)} now\)"
    with pytest.raises(CorruptShardError, match=told) as caught:
        found.extend(blocks)
    assert [line for _, _, line, _ in lines_of(found)] == lines
    assert caught.value.rows_salvaged == len(lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_replaced_or_removed_while_it_is_read_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"1\n" * 100)
    blocks = text_blocks(str(path), file_bytes=path.stat().st_size, block_bytes=10)
    first = next(blocks)
    os.replace(write(tmp_path / f"new-{name}", b"2\n" * 10), path)
    assert b"".join(bytes(b.data) for b in [first, *blocks]) == b"1\n" * 100
