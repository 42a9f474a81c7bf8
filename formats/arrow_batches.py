"""Parquet and Arrow IPC files as record batches in bounded memory; damage is a :class:`CorruptShardError`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.errors import CorruptShardError
from headrace.formats.file_kinds import HEAD_BYTES, with_kind
from headrace.formats.store import LOCAL, LocalStore, Store

_SHOWN_BYTES = 8
_STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
# Pages of a column chunk are read through a buffer of this size: a chunk of any length is never held whole.
_READ_BUFFER_BYTES = 1 << 18

_T = TypeVar("_T")


class ArrowFile(Protocol):
    """An open file: its columns, its number of rows where that is known without reading it, and its rows."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def num_rows(self) -> int | None: ...

    def batches(self, columns: Sequence[str], first_row: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows from `first_row` on, at most `max_rows` at a time, no empty batches; `columns` in this order."""

    def close(self) -> None: ...


def open_arrow_file(
    path: str, *, verify_page_checksums: bool = True, store: Store = LOCAL, end_required: bool = True
) -> ArrowFile:
    """Open a Parquet file, or an Arrow IPC file or stream; what it is, its first bytes say, not its name.

    Anything else, a zero-byte file too, is a :class:`CorruptShardError`. So is a stream without a mark at its end,
    which may have been cut between two batches, unless `end_required` is False (then a manifest vouches for its size).
    """
    with store.open(path, "columns") as file:
        head = file.read(HEAD_BYTES) or b""
    if head.startswith(b"PAR1"):
        return _ParquetFile(path, verify_page_checksums, store)
    if head.startswith(b"ARROW1"):
        return _IpcFile(path, stream=False, store=store)
    if head.startswith(_STREAM_MAGIC):
        return _IpcFile(path, stream=True, store=store, end_required=end_required)
    if not head:
        raise CorruptShardError(path, 0, 0, "an empty file, without a footer")
    reason = with_kind(f"neither Parquet nor Arrow IPC (it begins with {head[:_SHOWN_BYTES]!r})", head)
    raise CorruptShardError(path, 0, 0, reason)


class _ParquetFile:
    """Row groups are read one after the other, each in batches of pages (``ParquetFile.iter_batches``: L44, P69)."""

    def __init__(self, path: str, verify_page_checksums: bool, store: Store) -> None:
        self._path = path
        self._bytes = store.size(path)
        self._stored = None if isinstance(store, LocalStore) else store.open(path, "columns")
        # no map: a file that shrinks is an error, not a crash
        self._source = pa.OSFile(os.fsencode(path)) if self._stored is None else pa.PythonFile(self._stored, mode="r")
        self._file: pq.ParquetFile = self._reading(
            0,
            lambda: pq.ParquetFile(
                self._source,
                pre_buffer=False,
                buffer_size=_READ_BUFFER_BYTES,
                page_checksum_verification=verify_page_checksums,
            ),
        )
        metadata = self._file.metadata
        self._group_rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.schema: pa.Schema = self._reading(0, lambda: with_names(self._file.schema_arrow))
        self.num_rows: int = sum(self._group_rows)
        if metadata.num_rows != self.num_rows:
            raise CorruptShardError(
                path, 0, 0, f"{metadata.num_rows} rows in the footer, {self.num_rows} in its row groups"
            )

    def batches(self, columns: Sequence[str], first_row: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        ends = np.cumsum(self._group_rows)  # row groups are of any size, 0 included (L96)
        group = int(np.searchsorted(ends, first_row, side="right"))
        row = first_row
        joins = not any(map(_has_inner_dictionary, (self.schema.field(name).type for name in columns)))
        while group < len(ends):
            last = group + 1  # small row groups are read together
            while joins and last < len(ends) and ends[last] - row <= max_rows:
                last += 1
            skip = row - int(ends[group]) + self._group_rows[group]
            for batch in self._groups(range(group, last), columns, row, max_rows):
                kept = batch.slice(skip) if skip else batch
                skip = max(0, skip - batch.num_rows)
                if kept.num_rows:
                    yield kept
                    row += kept.num_rows
            if row != ends[last - 1]:
                raise CorruptShardError(
                    self._path, 0, row, f"row group {last - 1} ends at row {row}, not {ends[last - 1]}"
                )
            group = last

    def _groups(self, groups: range, columns: Sequence[str], row: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(max_rows, row_groups=list(groups), columns=list(columns), use_threads=False)
        while True:
            batch = self._reading(row, lambda: next(batches, None))
            if batch is None:
                return
            row += batch.num_rows
            yield chosen(batch, columns)

    def _reading(self, row: int, read: Callable[[], _T]) -> _T:
        return reading(self._path, self._bytes, row, read)

    def close(self) -> None:
        self._file.close()
        self._source.close()
        if self._stored is not None:
            self._stored.close()


class _IpcFile:
    """An IPC file or stream; a resume reads through what comes before."""

    num_rows: int | None = None

    def __init__(self, path: str, *, stream: bool, store: Store, end_required: bool = True) -> None:
        self._path = path
        self._stream = stream
        self._end_required = end_required
        self._bytes = store.size(path)
        if isinstance(store, LocalStore):
            self._source = pa.OSFile(os.fsencode(path))  # no map: a file that shrinks is an error, not a crash
        else:
            self._source = pa.PythonFile(store.open(path), mode="r")
        try:
            self.schema: pa.Schema = self._reading(0, lambda: with_names(self._reader().schema))
        except BaseException:
            self._source.close()
            raise

    def _reader(self) -> Any:
        self._source.seek(0)
        return pa.ipc.open_stream(self._source) if self._stream else pa.ipc.open_file(self._source)

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        reader = self._reader()
        if self._stream:
            return iter(reader)
        return (reader.get_batch(i) for i in range(reader.num_record_batches))

    def batches(self, columns: Sequence[str], first_row: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        row = 0
        batches = self._record_batches()
        while (batch := self._reading(row, lambda: next(batches, None))) is not None:
            skip = min(max(0, first_row - row), batch.num_rows)
            kept = chosen(batch, columns)
            self._reading(row, partial(kept.validate, full=True))  # lengths and offsets are as the file has them
            row += batch.num_rows
            for at in range(skip, batch.num_rows, max_rows):
                yield kept.slice(at, max_rows)
        if self._stream and (fault := self._reading(row, lambda: stream_end_fault(self._source, self._end_required))):
            raise CorruptShardError(self._path, self._source.tell(), row, fault)

    def _reading(self, row: int, read: Callable[[], _T]) -> _T:
        return reading(self._path, self._bytes, row, read)

    def close(self) -> None:
        self._source.close()


def stream_end_fault(source: Any, end_required: bool) -> str:
    """What is wrong with the end of an IPC stream that was read from `source`, an Arrow file; "" when nothing is.

    A reader stops at the mark of its end, whatever follows, and takes the end of the file for that mark.
    """
    at = source.tell()
    if at < source.size():
        return "other bytes behind the end of the stream, which are not read: streams are files of their own"
    if not end_required:
        return ""
    source.seek(max(0, at - len(_END_OF_STREAM)))
    if bytes(source.read(len(_END_OF_STREAM))) == _END_OF_STREAM:
        return ""
    return "cut: the end of the stream is not marked, and no manifest vouches for its size"


def _has_inner_dictionary(kind: pa.DataType) -> bool:
    """Whether a list's elements are dictionaries, which Arrow cannot join over row groups."""
    return bool(
        pa.types.is_nested(kind) and any(pa.types.is_dictionary(kind.field(i).type) for i in range(kind.num_fields))
    )


def chosen(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """These columns of the batch in this order; the batch itself where it has just them."""
    return batch if batch.schema.names == list(columns) else batch.select(list(columns))


def with_names(schema: pa.Schema) -> pa.Schema:
    """The schema, once it is known that its names are text (UnicodeDecodeError)."""
    _ = schema.names
    return schema


def reading(path: str, size: int, row: int, read: Callable[[], _T]) -> _T:
    """What `read` gives; whatever Arrow says of damaged data is one kind of error (L92). The system's errors stay.

    size: bytes of the file at `path`
    """
    try:
        return read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, pa.ArrowNotImplementedError):
            raise CorruptShardError(path, size, row, f"holds what Arrow cannot read ({error})") from error
        raise CorruptShardError(path, size, row, f"damaged or cut ({error}) before its end") from error
