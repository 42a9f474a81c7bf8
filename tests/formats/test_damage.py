"""Files with bytes changed or cut off anywhere: rows, or one of three errors; no other exception, no crash.

Another process reads them, since what is tested is also that it survives: Arrow itself trusts the offsets in IPC files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import io, random, sys, tarfile
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError
from headrace.formats.schema import Dense, Label, Schema, Sparse

ids = Sparse(name="c"), Sparse(name="h", encoding="uint64", multi_hot=True)
schema = Schema(labels=(Label(name="y"),), dense=(Dense(name="d"),), sparse=ids)
words = pa.array([f"{i:x}" for i in range(100)])
lists = pa.array([[i] * (i % 3) for i in range(100)], pa.list_(pa.uint64()))
arrays = dict(X_int=np.ones((50, 13), np.int32), X_cat=np.arange(1300, dtype=np.int32).reshape(50, 26), y=np.ones(50))


def write(form, path):
    coded = words if form == "parquet" else words.dictionary_encode()
    table = pa.table({"y": [0, 1] * 50, "d": list(range(100)), "c": coded, "h": lists})
    if form == "parquet":
        pq.write_table(table, path, row_group_size=30, write_page_checksum=True)
    elif form in ("file", "stream"):
        with {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form](path, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    elif form == "tar":
        with tarfile.open(path, "w") as tar:
            for i in range(4):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table.slice(25 * i, 25))
                data = sink.getvalue().to_pybytes()
                member = tarfile.TarInfo(f"part-{i}.arrow")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    else:
        {"stored": np.savez, "packed": np.savez_compressed}[form](path, **arrays)


def damaged(whole, rng):
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return data[: rng.randrange(len(data))] if rng.random() < 0.2 else data


def read(path):
    if path.suffix == ".npz":
        reader = open_dataset("criteo-dlrm-npz", path, bad_records="skip")
    elif path.name.startswith("tar"):
        reader = open_dataset("tar", path, schema=schema, bad_records="skip")
    else:
        reader = open_dataset("parquet", path, schema=schema, bad_records="skip")
    return sum(reader.settle(reader.decode(block)).num_rows for block in reader.raw_blocks())


folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for form in sys.argv[4:]:
    path = folder / (form + ".npz" if form in ("stored", "packed") else form)
    write(form, path)
    whole, rng, errors, rows = path.read_bytes(), random.Random(seed), 0, 0
    for _ in range(count):
        path.write_bytes(damaged(whole, rng))
        try:
            rows += read(path)
        except (BadRecordError, ColumnMismatchError, CorruptShardError):
            errors += 1
    print(form, errors, rows)
"""

FORMS = ["parquet", "file", "stream", "tar", "stored", "packed"]


def read_damaged(folder: Path, repository: Path, *, seed: int, count: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "PYTHONFAULTHANDLER": "1"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(seed), str(count), *FORMS],
        env=environment, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [form for form, _, _ in lines] == FORMS
    for _, errors, rows in lines:
        assert 0 < int(errors) < count
        assert int(rows) > 0


def test_damaged_files_neither_crash_nor_surprise(tmp_path: Path, repository: Path) -> None:
    read_damaged(tmp_path, repository, seed=0, count=200)


@pytest.mark.long
def test_many_damaged_files(tmp_path: Path, repository: Path) -> None:
    read_damaged(tmp_path, repository, seed=1, count=3000)
