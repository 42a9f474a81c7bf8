"""Ali-CCP as it is published: a skeleton of samples, and the features that many of them share, joined as they are read.

| file | lines |
|---|---|
| ``sample_skeleton_{train,test}.csv`` | ``sample_id,click,buy,common_feature_index,feature_num,feature_list`` |
| ``common_features_{train,test}.csv`` | ``common_feature_index,feature_num,feature_list`` |

A field may repeat, and all its ids are kept in their order (torch-rechub#116). Samples that were bought and not clicked
are invalid by the dataset's own words: bad records.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.ali_ccp import FIELDS
from headrace.formats.arrow_arrays import offsets
from headrace.formats.bad_lines import BadLine, BadLines
from headrace.formats.bad_records import BadRecords
from headrace.formats.errors import BadRecordError
from headrace.formats.feature_lists import FeatureLayout, lists_or_ids, parse_feature_lines
from headrace.formats.files import PathLike
from headrace.formats.line_faults import describe
from headrace.formats.reader import DecodedBlock
from headrace.formats.schema import Label, OptimizerName, Schema, Sparse, Table
from headrace.formats.side_table import key_words
from headrace.formats.text_blocks import TextBlock
from headrace.formats.text_reader import TextFiles
from headrace.formats.text_values import U64, Bool
from headrace.formats.unmatched import JoiningReader

KEY = "common_feature_index"
SKELETON = ("sample_id", "click", "buy", KEY)
COMMON = (KEY,)
REPEATED = ("210", "508", "509", "702", "853", "109_14", "110_14", "127_14", "150_14")

I64 = np.ndarray[Any, np.dtype[np.int64]]


def ali_ccp_raw_schema(*, dim: int = 16, optimizer: OptimizerName = "rowwise_adagrad", labels: bool = True) -> Schema:
    """``click`` and ``buy``, 23 fields; those that repeat are multi-hot."""
    return Schema(
        labels=(Label(name="click"), Label(name="buy")) if labels else (),
        sparse=tuple(
            Sparse(
                name=name, encoding="uint64", multi_hot=name in REPEATED, pooling="mean" if name in REPEATED else "sum"
            )
            for name in FIELDS
        ),
        tables=tuple(Table(name=name, dim=dim, optimizer=optimizer) for name in FIELDS),
    )


class FeatureListFiles(TextFiles):
    """Text files of lines with feature lists (see `feature_lists.py`), no header; options are those of TextFiles."""

    def __init__(
        self, paths: PathLike | Iterable[PathLike], schema: Schema, columns: tuple[str, ...], **options: Any
    ) -> None:
        self._layout = FeatureLayout(schema, columns)
        super().__init__(paths, schema, **options)

    def _parse(self, block: TextBlock) -> tuple[pa.RecordBatch, BadLines]:
        return parse_feature_lines(
            block.data, self._layout, first_line=block.first_line, max_line_bytes=self._max_line_bytes
        )

    def _empty_batch(self) -> pa.RecordBatch:
        return self._layout.empty_batch()

    def _describe(self, bad: BadLine, decoded: DecodedBlock) -> BadRecordError:
        return describe(
            bad,
            file=self.files[decoded.position.file],
            layout=self._layout,
            text=decoded.text,
            text_offset=decoded.text_offset,
            max_line_bytes=self._max_line_bytes,
        )


class CommonFeatures:
    """The ids of each field by ``common_feature_index``. Ids lie in temporary files (in TMPDIR), 8 bytes each, mapped.

    In memory are 16 bytes for each line of the files, and 8 more for each field. ValueError for an index that two lines
    have.
    """

    def __init__(self, reader: FeatureListFiles, fields: tuple[Sparse, ...]) -> None:
        self.files = reader.files
        keys: list[U64] = []
        counts: dict[str, list[I64]] = {field.name: [] for field in fields}
        self._stores = {field.name: tempfile.TemporaryFile(prefix="headrace-ids-") for field in fields}  # noqa: SIM115
        for block in reader.raw_blocks():
            rows = reader.settle(reader.decode(block))
            keys.append(key_words(rows.data.column(KEY))[0])
            for field in fields:
                lengths, ids = field_ids(rows.data.column(field.name), field)
                counts[field.name].append(lengths)
                self._stores[field.name].write(ids.tobytes())
        self.rows_skipped = reader.rows_skipped
        every = np.concatenate([np.zeros(0, np.uint64), *keys])
        self._order = np.argsort(every, kind="stable").astype(np.int64)
        self._keys = every[self._order]
        same = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if len(same):
            raise ValueError(f"{reader.files[0]}: two lines have {KEY} {int(self._keys[same[0]]):016x}")
        self._starts = {
            name: np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.zeros(0, np.int64), *parts]))])
            for name, parts in counts.items()
        }
        self._ids = {name: self._mapped(name) for name in counts}

    def _mapped(self, name: str) -> U64:
        with self._stores.pop(name) as store:  # the mapping outlives the file
            store.flush()
            if not self._starts[name][-1]:
                return np.zeros(0, np.uint64)
            return np.memmap(store, np.uint64, mode="r", shape=(int(self._starts[name][-1]),))

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: U64) -> tuple[I64, Bool]:
        """(line int64 [n], arbitrary where nothing is found; bool [n] whether there is one)."""
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._order[at], self._keys[at] == keys

    def ids(self, field: str, lines: I64, found: Bool) -> tuple[I64, U64]:
        """(number of ids of each line, int64 [n]; all ids one after the other) of a field."""
        starts = self._starts[field]
        if not len(self):
            return np.zeros(len(lines), np.int64), np.zeros(0, np.uint64)
        lengths = np.where(found, starts[lines + 1] - starts[lines], 0)
        inner = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return lengths, np.asarray(self._ids[field][np.repeat(starts[lines], lengths) + inner])


class AliCcpFiles(JoiningReader[TextBlock], FeatureListFiles):
    """A skeleton's samples with the common features; of a field, the sample's own ids stand before the common ones.

    For a field of one id a row the sample's own is taken, else the first common one. A sample whose index the common
    features do not have stays, with what the skeleton says, and is counted in ``rows_unmatched["common_features"]``.
    """

    def __init__(
        self, paths: PathLike | Iterable[PathLike], schema: Schema, common: CommonFeatures, **options: Any
    ) -> None:
        key = Sparse(name=KEY, encoding="hex64", missing="raise")
        fields = (Sparse(name=s.name, encoding=s.encoding, multi_hot=s.multi_hot) for s in schema.stored_sparse)
        own = Schema(labels=schema.labels, sparse=(key, *fields))  # what is missing here may be common
        super().__init__(paths, own, SKELETON, **options)
        self.schema = schema
        self._common = common
        self._joins_are(("common_features",), common.files, {"common_features": common.rows_skipped})

    def _joined(self, data: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        lines, found = self._common.find(key_words(data.column(KEY))[0])
        columns: Mapping[str, pa.Array] = {
            field.name: self._both(data.column(field.name), field, lines, found) for field in self._layout.fields
        }
        schema = self.schema.arrow_schema(labels=bool(self.schema.labels))
        arrays = [columns[name] if name in columns else data.column(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema), {"common_features": int(np.count_nonzero(~found))}

    def _both(self, own: pa.Array, field: Sparse, lines: I64, found: Bool) -> pa.Array:
        own_counts, own_ids = field_ids(own, field)
        counts, ids = self._common.ids(field.name, lines, found)
        total = own_counts + counts
        if not own_counts.any():
            return lists_or_ids(field, counts, ids)
        starts = np.cumsum(total) - total
        joined = np.empty(int(total.sum()), np.uint64)
        joined[_places(starts, own_counts)] = own_ids
        joined[_places(starts + own_counts, counts)] = ids
        return lists_or_ids(field, total, joined)


def field_ids(column: pa.Array, field: Sparse) -> tuple[I64, U64]:
    """(number of ids of each row, int64 [n]; all ids) of a field's column; a missing value is no id."""
    missing = null_mask(column)
    if not field.multi_hot:
        values = primitive_values(column)
        there = np.ones(len(column), np.bool_) if missing is None else ~missing
        return there.astype(np.int64), values[there]
    lengths = np.diff(offsets(column))
    if missing is not None:
        lengths[missing] = 0
    return lengths, primitive_values(column.flatten())


def _places(starts: I64, counts: I64) -> I64:
    """Places of elements of lists that begin at `starts`."""
    inner = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    places: I64 = np.repeat(starts, counts) + inner
    return places


def ali_ccp_raw(
    paths: PathLike | Iterable[PathLike],
    schema: Schema,
    *,
    common: PathLike | CommonFeatures | None = None,
    bad_records: BadRecords | str = "raise",
    **options: Any,
) -> AliCcpFiles:
    """A reader of ``sample_skeleton_X.csv`` with ``common_features_X.csv`` beside it, unless another one is given.

    The common features are read once when the reader is made (see :class:`CommonFeatures`). `bad_records` holds for
    both files; a quarantine ``bad.csv`` has the skeleton's lines, ``bad.common_features.csv`` beside it the others.
    """
    if not isinstance(common, CommonFeatures):
        fields = tuple(Sparse(name=s.name, encoding=s.encoding, multi_hot=s.multi_hot) for s in schema.stored_sparse)
        side = Schema(sparse=(Sparse(name=KEY, encoding="hex64", missing="raise"), *fields))
        path = _common_of(paths) if common is None else common
        of_common = BadRecords.of(bad_records).of_side("common_features")
        common = CommonFeatures(FeatureListFiles(path, side, COMMON, bad_records=of_common), fields)
    return AliCcpFiles(paths, schema, common, bad_records=bad_records, **options)


def _common_of(paths: PathLike | Iterable[PathLike]) -> str:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    folder, name = os.path.split(os.fspath(given[0]))
    if len(given) != 1 or not name.startswith("sample_skeleton"):
        raise ValueError(f"{name}: give one sample_skeleton_*.csv, or say where the common features are")
    path = os.path.join(folder, name.replace("sample_skeleton", "common_features", 1))
    if not os.path.exists(path):
        raise FileNotFoundError(f"no {path}, which the samples are joined with; say where the common features are")
    return path
