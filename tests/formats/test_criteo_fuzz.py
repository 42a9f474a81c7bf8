"""Seeded fuzz of the parser of Criteo text: no crash, no byte out of bounds, every line a row or a counted fault."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from headrace.formats import _criteo_py, criteo_lines
from headrace.formats.criteo import criteo_schema
from headrace.formats.criteo_lines import LineLayout
from tests.support.sanitized import run_sanitized

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[2] / "formats"
LAYOUT = LineLayout.from_schema(criteo_schema())
ALPHABET = b"\t\n\r\x00-0fgG :/@`\xff"


def test_random_blocks_under_the_sanitizers(tmp_path: Path) -> None:
    run_sanitized(
        HERE / "lines.cpp", headers=HEADERS, sanitizers="address,undefined", level="-O1", folder=tmp_path,
        arguments=["12000"],
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_random_blocks_under_the_sanitizers(tmp_path: Path) -> None:
    run_sanitized(
        HERE / "lines.cpp", headers=HEADERS, sanitizers="address,undefined", level="-O1", folder=tmp_path,
        arguments=["150000"], timeout_s=1000,
    )  # fmt: skip


def line(rng: random.Random) -> bytes:
    fields = [b"01"[(bit := rng.randrange(2)) : bit + 1]]
    fields += [b"" if rng.random() < 0.2 else b"%d" % (rng.getrandbits(rng.randrange(40)) - 2) for _ in range(13)]
    fields += [b"" if rng.random() < 0.2 else b"%08x" % rng.getrandbits(32) for _ in range(26)]
    return b"\t".join(fields) + (b"\r\n" if rng.random() < 0.1 else b"\n")


def damaged(text: bytes, rng: random.Random) -> bytes:
    out = bytearray(text)
    for _ in range(rng.choice([0, 0, 1, 1, 2, 8])):
        at = rng.randrange(len(out) + 1)
        byte = ALPHABET[rng.randrange(len(ALPHABET))]
        kind = rng.randrange(4)
        if kind == 0:
            out[at : at + 1] = bytes([byte])
        elif kind == 1:
            out[at:at] = bytes([byte]) * rng.randrange(1, 4)
        elif kind == 2:
            del out[at : at + rng.randrange(1, 300)]
        else:
            out[at:at] = out[rng.randrange(len(out) + 1) :][: rng.randrange(300)]
    return bytes(out)


def fuzz(seed: int, seconds: float) -> int:
    """Blocks of up to 200 Terabyte lines, damaged here and there, by all three parsers; how many were tried."""
    rng = random.Random(seed)
    lines = [line(rng) for _ in range(2000)]
    end, tried = time.monotonic() + seconds, 0
    while time.monotonic() < end or tried < 20:
        text = damaged(b"".join(rng.choices(lines, k=rng.randrange(1, 200))), rng)
        limit = rng.choice([1 << 20, 300])
        native = criteo_lines.parse_lines(text, LAYOUT, max_line_bytes=limit)
        single = criteo_lines.parse_lines(text, LAYOUT, max_line_bytes=limit, tiles=False)
        assert native.rows + len(native.faults) == native.lines == text.count(b"\n") + (text[-1:] not in (b"\n", b""))
        assert native.faults == single.faults, (seed, tried)
        assert native.batch.equals(single.batch), (seed, tried)
        if tried % 8 == 0:
            twin = _criteo_py.parse_lines(text, LAYOUT, max_line_bytes=limit)
            assert native.batch.equals(twin.batch), (seed, tried)
            assert native.faults == twin.faults, (seed, tried)
        tried += 1
    return tried


def test_damaged_terabyte_text_is_a_row_or_a_fault() -> None:
    fuzz(seed=1, seconds=8)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_much_damaged_terabyte_text() -> None:
    print(f"{fuzz(seed=2, seconds=120)} blocks")
