"""What it costs to resume inside a file: seconds to the first rows behind a position, by form and by how far in it is.

Plain text is sought; a compressed file is decompressed up to the position, and not parsed; Parquet is read from the row
group. ``python benchmarks/resume.py --rows 4e6 --json resume.json``
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bench_files import PRESET, gzip_copy, parquet_copies, text_files, work_folder
from headrace.formats.datasets import open_dataset
from headrace.formats.file_reader import FileReader
from headrace.formats.reader import FilePosition

SHARES = (0.0, 0.25, 0.5, 0.75, 0.95)


def zstd_copy(path: str, folder: Path) -> str:
    target = folder / f"{Path(path).name}.zst"
    with open(path, "rb") as text, pa.CompressedOutputStream(str(target), "zstd") as packed:
        shutil.copyfileobj(text, packed, 1 << 20)
    return str(target)


def positions(reader: FileReader[Any], shares: tuple[float, ...]) -> list[FilePosition | None]:
    """Where blocks begin, as a state has them, at these shares of the file's rows or before; None is the beginning."""
    places = [(d.position, d.next_position) for d in map(reader.decode, reader.raw_blocks())]
    begins, rows = [begin for begin, _ in places], places[-1][1].line
    return [None if not share else [at for at in begins if at.line <= share * rows][-1] for share in shares]


def first_rows_s(reader: FileReader[Any], start: FilePosition | None) -> float:
    began = time.perf_counter()
    blocks = reader.raw_blocks(start)
    reader.settle(reader.decode(next(blocks)))
    seconds = time.perf_counter() - began
    blocks.close()  # type: ignore[attr-defined]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e6, help="rows of the one file, 250 bytes of text each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help="where to put the files that are made")
    parser.add_argument("--json", help="where to write the report; - is the output")
    given = parser.parse_args()
    report: dict[str, Any] = {"rows": int(given.rows), "shares": SHARES, "seconds": {}, "text_bytes": 0}
    with work_folder(given.work) as folder:
        (text,) = text_files(None, folder, rows=int(given.rows), files=1, seed=0)
        report["text_bytes"] = Path(text).stat().st_size
        (parquet,) = parquet_copies([text], folder, threads=1)
        forms = {"tsv": text, "tsv_gz": gzip_copy(text, folder), "tsv_zst": zstd_copy(text, folder), "parquet": parquet}
        for name, path in forms.items():
            reader = open_dataset("parquet" if name == "parquet" else PRESET, path)
            starts = positions(reader, SHARES)
            rounds = [[first_rows_s(reader, start) for start in starts] for _ in range(given.rounds)]
            medians = [round(statistics.median(times), 4) for times in zip(*rounds, strict=True)]
            report["seconds"][name] = medians
            print(f"{name:8}", *(f"{seconds:8.3f}" for seconds in medians), file=sys.stderr)
    if given.json == "-":
        print(json.dumps(report))
    elif given.json:
        Path(given.json).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
