"""The loader over every kind of reader: any number of threads, a resume in the middle, the same batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.formats.convert import convert
from headrace.formats.datasets import open_dataset
from headrace.formats.file_reader import FileReader
from headrace.formats.generate.generate import generate
from headrace.formats.splits import kaggle_split, over_files
from headrace.ingest.data_loader import DataLoader

ROWS, BATCH = 700, 64


def taobao(folder: Path) -> Callable[[], FileReader[Any]]:
    generate("taobao-userbehavior", folder / "raw", rows=ROWS, files=3, seed=2)
    return lambda: open_dataset("taobao-userbehavior", folder / "raw", block_bytes=4096)


def avazu(folder: Path) -> Callable[[], FileReader[Any]]:
    header = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    header += "device_ip,device_model,device_type,device_conn_type," + ",".join(f"C{i}" for i in range(14, 22))
    ids = ",".join(["{0:x}"] * 9)
    line = "{0},{1},14102{2}00,5,0," + ids + ",1,2," + ",".join(["{3}"] * 8)
    rows = [line.format(i, i % 2, i % 10, i % 50) for i in range(ROWS)]
    (folder / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    return lambda: open_dataset("avazu", folder / "train.csv", block_bytes=4096)


def parquet(folder: Path) -> Callable[[], FileReader[Any]]:
    generate("criteo-kaggle", folder / "raw", rows=ROWS, files=3, seed=2)
    convert("criteo-kaggle", folder / "raw", folder / "out", row_group_rows=90)
    return lambda: open_dataset("parquet", folder / "out", batch_rows=40)


def split(folder: Path) -> Callable[[], FileReader[Any]]:
    generate("criteo-kaggle", folder / "raw", rows=ROWS * 7 // 6, files=3, seed=2, compression="gzip")

    def open_train() -> FileReader[Any]:
        reader = open_dataset("criteo-kaggle", folder / "raw", block_bytes=4096)
        rows = reader.rows_per_file
        assert rows is not None
        reader.select(over_files(kaggle_split("train", rows=sum(rows)), rows))
        return reader

    return open_train


def multi_hot(folder: Path) -> Callable[[], FileReader[Any]]:
    rng = np.random.default_rng(0)
    for day, rows in enumerate((300, 0, 400)):
        np.save(folder / f"day_{day}_labels.npy", rng.integers(0, 2, (rows, 1), np.int32))
        np.save(folder / f"day_{day}_dense.npy", rng.random((rows, 13), np.float32))
        ids = {str(j): rng.integers(0, 99, (rows, 1 + j % 3), np.int32) for j in range(26)}
        np.savez(folder / f"day_{day}_sparse_multi_hot.npz", **ids)
    return lambda: open_dataset("criteo-dcnv2-npz", folder, batch_rows=50)


def digest_of(batch: Any) -> tuple[Any, ...]:
    (group,) = batch.groups
    files, rows = batch.source.arrays()
    raw = group.unique_ids.numpy()[group.query_ids.numpy()]
    lengths, labels = group.lengths.numpy(), batch.labels.numpy()
    return tuple(part.tobytes() for part in (files, rows, raw, lengths, labels, batch.dense.numpy()))


@pytest.mark.parametrize("make", [taobao, avazu, parquet, split, multi_hot])
def test_threads_and_resumes_give_the_same_batches(tmp_path: Path, make: Any) -> None:
    open_reader = make(tmp_path)

    def loader(num_workers: int) -> DataLoader:
        reader = open_reader()
        return DataLoader(reader, BATCH, schema=reader.schema, window=3, num_workers=num_workers, verify_plan=True)

    with loader(0) as first:
        expected = [digest_of(batch) for batch in first]
        stats = first.stats()
    assert (len(expected), stats["rows"], stats["stale_reads"]) == (-(-ROWS // BATCH), ROWS, 0)
    assert len(set(expected)) == len(expected)
    for stop in (1, 5):
        with loader(2) as broken:
            batches = iter(broken)
            assert [digest_of(next(batches)) for _ in range(stop)] == expected[:stop]
            state = broken.state_dict()
        with loader(1) as resumed:
            resumed.load_state_dict(state)
            assert [digest_of(batch) for batch in resumed] == expected[stop:]
