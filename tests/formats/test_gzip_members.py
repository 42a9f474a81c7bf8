"""Gzip files: members, padding, damage, bounds."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest

from headrace.formats.errors import CorruptShardError
from headrace.formats.gzip_members import GzipMembers
from headrace.formats.gzip_reader import GzipReader

TEXT = b"".join(b"%d\t%x\n" % (i, i * 2654435761 % 2**32) for i in range(2000))


def read(path: Path, step: int = 1000) -> bytes:
    out = bytearray()
    with GzipMembers(str(path)) as source:
        while piece := source.read_piece(step):
            assert len(piece) <= step
            out += piece
        assert source.read_piece(step) == b""
    return bytes(out)


def stored(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.gz"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_one_member(tmp_path: Path, step: int) -> None:
    assert read(stored(tmp_path, gzip.compress(TEXT)), step) == TEXT


@pytest.mark.parametrize("step", [13, 1 << 20])
def test_all_members_are_read(tmp_path: Path, step: int) -> None:
    # L82: many members, also empty ones, also more than one block of input
    parts = [TEXT[:1000], b"", TEXT[1000:1001], b"", TEXT[1001:]]
    assert read(stored(tmp_path, b"".join(map(gzip.compress, parts))), step) == TEXT
    noise = random.Random(1).randbytes(300_000)
    members = [noise[i : i + 1000] for i in range(0, len(noise), 1000)]
    assert read(stored(tmp_path, b"".join(map(gzip.compress, members)))) == noise


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    # L77
    assert read(stored(tmp_path, b"")) == b""
    assert read(stored(tmp_path, gzip.compress(b""))) == b""


@pytest.mark.parametrize("zeros", [1, 511, 200_000])
def test_zero_padding_is_accepted(tmp_path: Path, zeros: int) -> None:
    # L82
    member = gzip.compress(TEXT)
    assert read(stored(tmp_path, member + bytes(zeros))) == TEXT
    assert read(stored(tmp_path, member + bytes(zeros) + member)) == TEXT * 2


@pytest.mark.parametrize("padding", [b"", bytes(100)])
@pytest.mark.parametrize("garbage", [b"x", b"garbage", b"\x1fx", b"\x8b\x1f" * 50_000])
def test_other_bytes_behind_a_member_are_an_error(tmp_path: Path, garbage: bytes, padding: bytes) -> None:
    member = gzip.compress(TEXT)
    with pytest.raises(CorruptShardError, match="other bytes follow a gzip member") as caught:
        read(stored(tmp_path, member + padding + garbage))
    assert caught.value.byte_offset == len(member) + len(padding)


@pytest.mark.parametrize("data", [b"x", b"1\t2\t3\n" * 100, b"\x00" * 10, b"PK\x03\x04"])
def test_what_is_not_gzip_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptShardError, match="not a gzip file at byte 0"):
        read(stored(tmp_path, data))


def test_every_cut_inside_a_member_is_an_error(tmp_path: Path) -> None:
    # DATASETS "Criteo text" 12: "unexpected end of file"
    data = gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:1200])
    first = len(gzip.compress(TEXT[:700]))
    for cut in range(1, len(data)):
        path = stored(tmp_path, data[:cut])
        if cut == first:  # L81: a cut between members cannot be seen here
            assert read(path) == TEXT[:700]
            continue
        with pytest.raises(CorruptShardError, match="ends inside a gzip member") as caught:
            read(path)
        assert (caught.value.path, caught.value.byte_offset) == (str(path), cut)


def test_every_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    """Damage in header fields that carry no data (time, system, flags for text) is harmless; elsewhere an error."""
    member = gzip.compress(TEXT[:500])
    harmless = []
    for place in range(len(member)):
        data = bytearray(member)
        data[place] ^= 0x01
        try:
            assert read(stored(tmp_path, bytes(data))) == TEXT[:500]
            harmless.append(place)
        except CorruptShardError:
            pass
    assert harmless == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("place", [-8, -5, -4, -1])
def test_checksum_and_length_are_verified(tmp_path: Path, place: int) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[place] ^= 0x80
    with pytest.raises(CorruptShardError, match="damaged gzip data"):
        read(stored(tmp_path, bytes(data)))


def test_a_bomb_is_read_in_bounded_steps(tmp_path: Path) -> None:
    path = stored(tmp_path, gzip.compress(bytes(50 << 20)))
    total = 0
    tracemalloc.start()
    try:
        with GzipMembers(str(path)) as source:
            while piece := source.read_piece():
                total += len(piece)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert total == 50 << 20


def outcome(source: GzipMembers | GzipReader) -> tuple[bytes, str, int]:
    """(bytes given out, reason and place of the error that ended them)."""
    out = bytearray()
    try:
        while piece := source.read_piece():
            out += piece
    except CorruptShardError as error:
        return bytes(out), error.reason, error.byte_offset
    finally:
        source.close()
    return bytes(out), "", -1


def test_the_fast_reader_gives_the_same_bytes_and_errors_for_any_damage(tmp_path: Path) -> None:
    data = gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:1200]) + bytes(3)
    cases = [data[:cut] for cut in range(len(data))]
    cases += [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    cases += [data, data + b"x", data + data, b"", b"x" * 30, gzip.compress(TEXT * 200), gzip.compress(TEXT * 200)[:-5]]
    for case in cases:
        path = str(stored(tmp_path, case))
        assert outcome(GzipReader(path)) == outcome(GzipMembers(path))
