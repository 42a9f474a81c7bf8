"""Public datasets by name: which schema describes them, which reader reads their files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.formats.ali_ccp import ALI_CCP, ali_ccp_schema
from headrace.formats.ali_ccp_raw import ali_ccp_raw, ali_ccp_raw_schema
from headrace.formats.array_reader import ArrayFiles
from headrace.formats.arrow_reader import ArrowFiles
from headrace.formats.avazu import AVAZU, avazu_schema
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_flag, check_paths, check_text
from headrace.formats.converted_schema import converted_schema
from headrace.formats.criteo import CRITEO_CSV, criteo_schema
from headrace.formats.criteo_arrays import (
    DCNV2_BIN,
    DCNV2_NPZ,
    DLRM_BIN,
    DLRM_NPZ,
    NVIDIA_SPLIT,
    PACKED_BIN,
    TORCHREC_NPY,
    ArrayForm,
)
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.delimited_reader import DelimitedFiles
from headrace.formats.file_reader import FileReader
from headrace.formats.files import PathLike
from headrace.formats.growing import GrowingFolder
from headrace.formats.histories import LOGS
from headrace.formats.own_text import no_schema, own_text
from headrace.formats.rows import SourceRange
from headrace.formats.schema import Schema, check_schema
from headrace.formats.splits import Convention, Split, kaggle_files_split, terabyte_files_split
from headrace.formats.taobao import TAOBAO_USER_BEHAVIOR, taobao_schema
from headrace.formats.taobao_ad import TAOBAO_AD, TAOBAO_BEHAVIOR_LOG, taobao_ad_schema
from headrace.formats.taobao_ad_raw import taobao_ad_raw, taobao_ad_raw_schema
from headrace.formats.taobao_history import taobao_history, taobao_history_schema
from headrace.formats.tar_reader import TarFiles


@dataclass(frozen=True)
class Dataset:
    """A dataset as published; `schema` takes ``dim`` and ``labels``, `reader` paths, a schema and ``bad_records``."""

    name: str
    summary: str
    schema: Callable[..., Schema]
    reader: Callable[..., FileReader[Any]]


def _transformed_schema(**options: Any) -> Schema:
    """Dense values are floats that are not to be transformed again."""
    return criteo_schema(dense_dtype="float32", dense_transform="identity", **options)


_ALL: tuple[Dataset, ...] = (
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
    Dataset(
        "taobao-userbehavior-history",
        "UserBehavior.csv, and the same sorted by convert --history",
        taobao_history_schema,
        taobao_history,
    ),
    Dataset("avazu", "train.csv, test.csv, plain or .gz", avazu_schema, partial(DelimitedFiles, text_format=AVAZU)),
    Dataset("taobao-ad", "joined CSV", taobao_ad_schema, partial(DelimitedFiles, text_format=TAOBAO_AD)),
    Dataset("taobao-ad-raw", "raw_sample.csv, ad_feature.csv, user_profile.csv", taobao_ad_raw_schema, taobao_ad_raw),
    Dataset(
        "taobao-ad-history",
        "the same, and behavior_log.csv sorted by convert --history",
        partial(taobao_ad_raw_schema, history=True),
        taobao_ad_raw,
    ),
    Dataset(
        "taobao-behavior-log",
        "behavior_log.csv, for convert --history",
        LOGS["taobao-behavior-log"].open_schema,
        partial(DelimitedFiles, text_format=TAOBAO_BEHAVIOR_LOG),
    ),
    Dataset("ali-ccp", "joined CSV", ali_ccp_schema, partial(DelimitedFiles, text_format=ALI_CCP)),
    Dataset("ali-ccp-raw", "sample_skeleton_X.csv, with common_features_X.csv beside", ali_ccp_raw_schema, ali_ccp_raw),
    Dataset("csv", "delimited text with a header, of a schema of yours", no_schema, own_text),
    Dataset("parquet", "Parquet or Arrow IPC; the schema of the conversion, else Criteo's", criteo_schema, ArrowFiles),
    Dataset("tar", "tar shards of Arrow record batches, the same", criteo_schema, TarFiles),
)

_ARRAYS: tuple[tuple[ArrayForm, str, Callable[..., Schema]], ...] = (
    (DLRM_BIN, "DLRM v1's *_data.bin: 40 int32 a row", criteo_schema),
    (PACKED_BIN, "packed *.bin: int32, 13 float32, 26 int32 a row", _transformed_schema),
    (DCNV2_BIN, "DLRM-DCNv2 *_data.bin: 912 bytes a row", partial(_transformed_schema, multi_hot=True)),
    (DLRM_NPZ, "DLRM v1's *_reordered.npz, *_processed.npz", criteo_schema),
    (TORCHREC_NPY, "day_i_{dense,sparse,labels}.npy", _transformed_schema),
    (DCNV2_NPZ, "day_i_sparse_multi_hot.npz", partial(_transformed_schema, multi_hot=True)),
    (NVIDIA_SPLIT, "label.bin, numerical.bin, cat_0.bin .. cat_25.bin", _transformed_schema),
)
_ALL += tuple(
    Dataset(f"criteo-{form.name}", summary, schema, partial(ArrayFiles, form=form)) for form, summary, schema in _ARRAYS
)

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


_CONVERTED = ("parquet", "tar")
"""What ``headrace convert`` writes."""


def dataset_split(
    name: str,
    split: Split,
    *,
    convention: Convention | None = None,
    files: Sequence[str],
    rows_per_file: Sequence[int] | None,
) -> tuple[SourceRange, ...]:
    """Rows of a standard split of a dataset; `rows_per_file` are those of its `files`, the published ones when None.

    `convention` must be given for test and validation of the Terabyte; for Kaggle it is "dlrm-v1" when None. Days of
    the Terabyte are known by their names. ValueError for a dataset without standard split, and for files that are not
    what is split.
    """
    of_files = {"criteo-kaggle": kaggle_files_split, "criteo-terabyte": terabyte_files_split}.get(name)
    if of_files is None:
        raise ValueError(f"dataset {name!r} has no standard split by row counts")
    return of_files(split, files, rows_per_file=rows_per_file, convention=convention)


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

    Without `schema` it is the dataset's own (for "parquet" and "tar" that of the conversion, if a ``manifest.json`` of
    ``headrace convert`` lies beside the files), with tables of `dim` values a row; `labels` says whether the files have
    the label. `options` are those of the format's reader. ValueError for a name that is not in :data:`DATASETS`.
    """
    check_flag("labels", labels)
    check_paths(paths.path if isinstance(paths, GrowingFolder) else paths)
    if schema is not None:
        check_schema(schema)
    if check_text("name", name) not in DATASETS:
        raise ValueError(f"dataset {name!r} is unknown; known: {', '.join(DATASETS)}")
    if schema is None:
        paths = paths if isinstance(paths, (str, bytes, os.PathLike, GrowingFolder)) else list(paths)
        schema = default_schema(name, paths, dim=dim, labels=labels, **options)
    return DATASETS[name].reader(paths, schema, bad_records=bad_records, **options)


def default_schema(
    name: str, paths: PathLike | Iterable[PathLike] | GrowingFolder, *, dim: int = 16, labels: bool, **options: Any
) -> Schema:
    """The schema of a dataset's files where none is given; `options` are those of the reader. `paths` is read twice."""
    schema = None
    if name in _CONVERTED and not isinstance(paths, GrowingFolder) and "allow_commands" not in options:
        schema = converted_schema(paths, dim=dim, labels=labels, filesystem=options.get("filesystem"))
    return DATASETS[name].schema(dim=dim, labels=labels) if schema is None else schema
