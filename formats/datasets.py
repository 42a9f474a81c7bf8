"""Public datasets by name: which schema describes them, which reader reads their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from headrace.formats.schema import Schema
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
