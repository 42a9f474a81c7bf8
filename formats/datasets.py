"""Public datasets by name: which schema describes them, which reader reads their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.avazu import AVAZU, avazu_schema
from headrace.formats.bad_records import BadRecords
from headrace.formats.criteo import CRITEO_CSV, criteo_schema
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.file_reader import FileReader
from headrace.formats.files import PathLike
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Schema
from headrace.formats.splits import (
    KAGGLE_ROWS,
    TERABYTE_ROWS,
    Convention,
    Split,
    kaggle_split,
    over_files,
    terabyte_split,
)
from headrace.formats.taobao import TAOBAO_USER_BEHAVIOR, taobao_schema


@dataclass(frozen=True)
class Dataset:
    """A dataset as published; `schema` takes ``dim`` and ``labels``, `reader` paths, a schema and ``bad_records``."""

    name: str
    summary: str
    schema: Callable[..., Schema]
    reader: Callable[..., FileReader[Any]]


_ALL = (
    Dataset("criteo-kaggle", "train.txt, test.txt (tab separated)", criteo_schema, CriteoFiles),
    Dataset("criteo-terabyte", "day_0 .. day_23 (tab separated)", criteo_schema, CriteoFiles),
    Dataset(
        "criteo-csv",
        "comma separated derivatives with a header",
        criteo_schema,
        partial(DelimitedFiles, text_format=CRITEO_CSV),
    ),
    Dataset(
        "taobao-userbehavior",
        "UserBehavior.csv",
        taobao_schema,
        partial(DelimitedFiles, text_format=TAOBAO_USER_BEHAVIOR),
    ),
    Dataset("avazu", "train.csv, test.csv, plain or .gz", avazu_schema, partial(DelimitedFiles, text_format=AVAZU)),
    Dataset("parquet", "Parquet or Arrow IPC; Criteo columns unless a schema is given", criteo_schema, ArrowFiles),
)

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def dataset_split(
    name: str, split: Split, *, convention: Convention | None, rows_per_file: Sequence[int] | None
) -> tuple[SourceRange, ...]:
    """Rows of a standard split of a dataset; `rows_per_file` are those of its files, the published ones when None.

    `convention` must be given for the Terabyte, where test and validation differ; for Kaggle it is "dlrm-v1" when
    None. ValueError for a dataset without standard split.
    """
    if name == "criteo-kaggle":
        rows_per_file = (KAGGLE_ROWS,) if rows_per_file is None else rows_per_file
        ranges = kaggle_split(split, rows=sum(rows_per_file), convention=convention or "dlrm-v1")
        return over_files(ranges, rows_per_file)
    if name == "criteo-terabyte":
        if convention is None:
            raise ValueError("DLRM v1 and TorchRec disagree on what the halves of day 23 are: say which convention")
        return terabyte_split(split, rows=rows_per_file or TERABYTE_ROWS, convention=convention)
    raise ValueError(f"dataset {name!r} has no standard split by row counts")


def open_dataset(
    name: str,
    paths: PathLike | Iterable[PathLike],
    *,
    schema: Schema | None = None,
    dim: int = 16,
    labels: bool = True,
    bad_records: BadRecords | str = "raise",
    **options: Any,
) -> FileReader[Any]:
    """A reader of the dataset's files, to be given to a DataLoader together with its ``schema``.

    Without `schema` it is the dataset's own, with tables of `dim` values a row; `labels` says whether the files have
    the label. `options` are those of the format's reader. ValueError for a name that is not in :data:`DATASETS`.
    """
    if name not in DATASETS:
        raise ValueError(f"dataset {name!r} is unknown; known: {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    schema = dataset.schema(dim=dim, labels=labels) if schema is None else schema
    return dataset.reader(paths, schema, bad_records=bad_records, **options)
