"""What reads Criteo text elsewhere, and what limits a reader of gzip files: for comparison in benchmarks.

Each function makes one pass over a file; a peer gives the number of its rows. None of them checks what the parser here
checks: `pyarrow.csv` leaves the ids as strings, the loop in Python takes what it cannot read as 0.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.csv
from isal import igzip

from headrace.formats.schema import Schema

_BUFFER_BYTES = 1 << 20


def read_by_pyarrow_csv(path: str, schema: Schema) -> int:
    """`pyarrow.csv` with one thread: numbers as the schema has them, ids as strings."""
    names, numbers = _names(schema)
    types = {n: pa.float32() if n in {c.name for c in schema.labels} else pa.int64() for n in numbers}
    types |= {name: pa.string() for name in names[len(numbers) :]}
    table = pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types),
    )
    return int(table.num_rows)


def read_by_python_csv(path: str, schema: Schema) -> int:
    """The loop of TorchRec's Criteo datapipe: `csv.reader`, then a dict a row, each value cast or its default."""
    names, numbers = _names(schema)
    casters: list[Callable[[str], Any]] = [_int_or_0] * len(numbers) + [_text] * (len(names) - len(numbers))
    rows = 0
    with open(path, encoding="ascii", newline="") as file:
        for example in csv.reader(file, delimiter="\t"):
            by_name = zip(names, casters, example, strict=True)
            _ = {name: cast(value) for name, cast, value in by_name}
            rows += 1
    return rows


def inflate(path: str) -> int:
    """ISA-L's inflate alone, into one buffer over and over; bytes of text."""
    buffer = bytearray(_BUFFER_BYTES)
    total = 0
    with igzip.IGzipFile(path, "rb") as file:  # type: ignore[no-untyped-call]
        while used := file.readinto(buffer):
            total += int(used)
    return total


def _names(schema: Schema) -> tuple[list[str], list[str]]:
    """(names of all columns, of those that are numbers), in the order of a line."""
    numbers = [column.name for column in schema.labels] + [column.name for column in schema.dense]
    return numbers + [column.name for column in schema.sparse], numbers


def _int_or_0(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _text(text: str) -> str:
    return str(text)
