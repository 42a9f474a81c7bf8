"""Small Criteo-shaped schemas and texts, and readings of them that share no code with the package."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

from headrace.formats.file_reader import FileReader
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Dense, Label, Schema, Sparse

NUM_DENSE, NUM_SPARSE = 13, 26

SMALL = Schema(
    labels=(Label(name="y"),),
    dense=(Dense(name="d1"), Dense(name="d2")),
    sparse=(Sparse(name="a"), Sparse(name="b")),
)


def random_line(rng: random.Random, *, ids: int) -> str:
    """One line: label, 13 integers, 26 hex ids out of `ids` a column, skewed; some of each missing."""
    dense = ["" if rng.random() < 0.2 else str(int(rng.expovariate(0.02)) - 2) for _ in range(NUM_DENSE)]
    sparse = []
    for column in range(NUM_SPARSE):
        rank = int(ids * rng.random() ** 3)
        value = (rank * 2654435761 + column * 40503) % 2**32
        sparse.append("" if rng.random() < 0.1 else f"{value:08x}")
    return "\t".join([str(int(rng.random() < 0.3)), *dense, *sparse])


def write_lines(path: Path, rows: int, *, seed: int = 0, ids: int = 50) -> list[str]:
    """Write `rows` random lines; returns them."""
    rng = random.Random(seed)
    lines = [random_line(rng, ids=ids) for _ in range(rows)]
    path.write_text("".join(line + "\n" for line in lines))
    return lines


def parse_line(line: str) -> tuple[float, list[int | None], list[int | None]]:
    """(label, dense, ids); None where missing."""
    fields = line.rstrip("\n").split("\t")
    assert len(fields) == 1 + NUM_DENSE + NUM_SPARSE
    dense = [int(v) if v else None for v in fields[1 : 1 + NUM_DENSE]]
    return float(fields[0]), dense, [int(v, 16) if v else None for v in fields[1 + NUM_DENSE :]]


def split_rows(data: bytes) -> list[dict[str, Any]]:
    """Independent parse of clean Criteo text with 13 dense and 26 sparse columns: one dict a row."""
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    rows = []
    for line in data.decode("ascii").split("\n")[:-1]:
        fields = line.split("\t")
        assert len(fields) == 40
        values: list[Any] = [float(fields[0])]
        values += [int(f) if f else None for f in fields[1:14]]
        values += [int.from_bytes(bytes.fromhex(f), "big") if f else None for f in fields[14:]]
        rows.append(dict(zip(names, values, strict=True)))
    return rows


def write(path: Path, data: bytes) -> Path:
    """Write `data`, compressed when the name ends in .gz."""
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_all(reader: FileReader[Any], **kwargs: Any) -> list[RowBlock]:
    return [reader.settle(reader.decode(block)) for block in reader.raw_blocks(**kwargs)]


def rows_of(blocks: list[RowBlock]) -> list[tuple[Any, ...]]:
    """(file, line, values...) of each row."""
    found = []
    for block in blocks:
        file, row = block.source.arrays()
        values = block.data.to_pylist()
        found += [(int(f), int(r), *v.values()) for f, r, v in zip(file, row, values, strict=True)]
    return found
