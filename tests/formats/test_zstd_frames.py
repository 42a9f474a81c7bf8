"""Zstandard text files: the same rows, and every damage an error."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.errors import CorruptShardError
from headrace.formats.reader import FilePosition
from headrace.formats.zstd_frames import ZSTD_MAGIC, ZstdFrames
from tests.support.criteo_text import SMALL, read_all, rows_of, write

LINES = b"".join(b"%d\t%d\t\t%x\t\n" % (i % 2, i, i * 7919 % 65536) for i in range(3000))


def frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@pytest.mark.parametrize("frames", [1, 3])
def test_the_rows_of_the_plain_file(tmp_path: Path, frames: int) -> None:
    size = len(LINES) // frames
    parts = [LINES[i * size : (i + 1) * size if i + 1 < frames else None] for i in range(frames)]
    path = write(tmp_path / "x.zst", b"".join(map(frame, parts)))
    expected = rows_of(read_all(CriteoFiles(write(tmp_path / "x", LINES), SMALL)))
    reader = CriteoFiles(path, SMALL, block_bytes=10_000)
    decoded = [reader.decode(block) for block in reader.raw_blocks()]
    assert rows_of([reader.settle(d) for d in decoded]) == expected
    assert reader.bytes_in == len(LINES)
    position = FilePosition.from_dict(decoded[1].next_position.to_dict())
    assert rows_of(read_all(reader, start=position)) == expected[position.line :]


def test_an_empty_file(tmp_path: Path) -> None:
    for data in (b"", frame(b"")):
        assert rows_of(read_all(CriteoFiles(write(tmp_path / "x.zst", data), SMALL))) == []


def test_every_cut_inside_a_frame_is_an_error_after_the_whole_lines(tmp_path: Path) -> None:
    data = frame(LINES)
    whole = LINES.splitlines(keepends=True)
    for end in [1, 3, 10, *range(100, len(data), 997), len(data) - 1]:
        reader = CriteoFiles(write(tmp_path / "x.zst", data[:end]), SMALL, block_bytes=1000)
        blocks = []
        with pytest.raises(CorruptShardError, match="damaged or cut Zstandard") as caught:
            blocks.extend(reader.raw_blocks())
        assert sum(block.lines for block in blocks) == caught.value.rows_salvaged < len(whole)


def test_other_bytes(tmp_path: Path) -> None:
    for data in (frame(LINES) + b"junk", LINES, b"hello"):
        with pytest.raises(CorruptShardError):
            read_all(CriteoFiles(write(tmp_path / "x.zst", data), SMALL))
    with pytest.raises(CorruptShardError, match=r"Zstandard data under a name that does not end in \.zst"):
        read_all(CriteoFiles(write(tmp_path / "x", frame(LINES)), SMALL))


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    path.write_bytes(frame(bytes(64 << 20)))
    assert path.read_bytes().startswith(ZSTD_MAGIC)
    before = pa.total_allocated_bytes()
    frames, total, peak = ZstdFrames(str(path)), 0, 0
    while piece := frames.read_piece():
        assert len(piece) <= 1 << 20
        total += len(piece)
        peak = max(peak, pa.total_allocated_bytes() - before)
    frames.close()
    assert total == 64 << 20
    assert peak < 8 << 20
