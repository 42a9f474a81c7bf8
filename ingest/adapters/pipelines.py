"""Datapipes and webdataset pipelines as sources of the loader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.errors import CorruptShardError
from headrace.formats.schema import Schema
from headrace.ingest.adapters.rows_from import Item, OnBadRecord, Payload, RowsFrom, payload_of
from headrace.ingest.engine.source import IterableSource
from headrace.ingest.engine.state import State

KEY, URL = "__key__", "__url__"


def from_datapipe(
    pipe: Iterable[Any],
    schema: Schema,
    *,
    block_rows: int = 1024,
    bad_records: OnBadRecord = "raise",
    origin: str = "datapipe",
) -> RowsFrom:
    """A node over an ``IterDataPipe``, or anything that is iterated over like one; see :class:`RowsFrom` for its items.

    Where the pipe has ``state_dict`` and ``load_state_dict``, the loader's state holds the pipe's, taken after each
    item; else a resume iterates over the items that were used, and leaves them out. A pipe that shuffles without such a
    state cannot be resumed: it gives other rows the second time.
    """
    return RowsFrom(pipe, schema, block_rows=block_rows, bad_records=bad_records, origin=origin)


def from_webdataset(
    samples: Iterable[Any],
    schema: Schema,
    *,
    block_rows: int = 1024,
    bad_records: OnBadRecord = "raise",
) -> RowsFrom:
    """A node over a ``webdataset.WebDataset`` or ``DataPipeline`` that gives samples as dictionaries.

    A sample is, decoded or not: one entry ``arrow``, ``arrows`` or ``ipc`` (an Arrow IPC file or stream), ``parquet``,
    or ``json`` (an object is a row, an array of objects several); or entries named as the schema's columns, which are
    one row. A row's place is the sample's ``__url__`` and the row's number in the stream.

    A resume reads again what was used, and raises ValueError if the last sample has another key then: the pipeline has
    to give the same samples each time (so no ``shuffle``; shuffle in the loader). A tar file that ends early is an
    error of webdataset's, which passes through unless the pipeline was given another `handler`. What `samples` may open
    (``pipe:`` among it) is decided where it is made.
    """
    source = _SampleSource(samples)
    return RowsFrom(source, schema, block_rows=block_rows, bad_records=bad_records, origin="webdataset", unpack=_unpack)


class _SampleSource(IterableSource[Any]):
    """Samples; the state has the key of the last one, too, so that a resume notices other samples."""

    def __init__(self, samples: Iterable[Any]) -> None:
        super().__init__(samples)
        self._last: str | None = None

    @property
    def name(self) -> str:
        return "WebDatasetSource"

    def _next(self) -> Any:
        sample = super()._next()
        self._last = _key(sample)
        return sample

    def _reset(self, state: State | None) -> None:
        super()._reset(state)
        skipped, self._last = self._last, None
        if state is None or not self._yielded:
            return
        self._last = skipped
        if state.get("key") != skipped:
            raise ValueError(
                f"{self.name}: sample {self._yielded} was {state.get('key')!r} when the state was saved, and is "
                f"{skipped!r} now: the pipeline gives other samples, or another order (shuffle in the loader instead)"
            )

    def _begin(self, count: int) -> Iterator[Any]:
        if not count:
            return super()._begin(0)
        iterator = super()._begin(count - 1)
        for sample in islice(iterator, 1):
            self._last = _key(sample)
            return iterator
        raise ValueError(f"{self.name}: the state says {count} samples, but there are only {count - 1}")

    def _state(self) -> State:
        return {**super()._state(), "key": self._last}


def _key(sample: Any) -> str | None:
    return str(sample[KEY]) if isinstance(sample, Mapping) and KEY in sample else None


def _unpack(sample: Any) -> Item:
    if not isinstance(sample, Mapping):
        return Item("webdataset", payload_of(sample, "from_webdataset"))
    url, key = str(sample.get(URL, "webdataset")), str(sample.get(KEY, "without a key"))
    entries = {str(k).lstrip("."): v for k, v in sample.items() if not str(k).startswith("__")}
    label = f"sample {key}"
    if len(entries) == 1:
        (kind, value), *_ = entries.items()
        if isinstance(value, (pa.RecordBatch, pa.Table)):
            return Item(url, payload_of(value, "from_webdataset"), label)
        if kind in _READ:
            return Item(url, _decoded(kind, value, url, key), label)
    return Item(url, entries, label)


def _decoded(kind: str, value: Any, url: str, key: str) -> Payload:
    """The rows in an entry, if it is still bytes."""
    try:
        found = _READ[kind](value) if isinstance(value, (bytes, bytearray, memoryview)) else value
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptShardError(url, 0, 0, f"sample {key}: its {kind} is damaged ({error})") from error
    if isinstance(found, Mapping):
        return found
    if isinstance(found, list) and all(isinstance(one, (Mapping, pa.RecordBatch)) for one in found):
        return found
    raise TypeError(f"{url}, sample {key}: its {kind} is a {type(found).__name__}, not an object or an array of them")


def _read_ipc(data: bytes) -> list[pa.RecordBatch]:
    buffer = pa.py_buffer(data)
    if bytes(buffer[:6]) == b"ARROW1":
        reader = pa.ipc.open_file(buffer)
        return [reader.get_batch(i) for i in range(reader.num_record_batches)]
    return list(pa.ipc.open_stream(buffer))


def _read_parquet(data: bytes) -> list[pa.RecordBatch]:
    return list(pq.read_table(pa.BufferReader(data), page_checksum_verification=True).to_batches())


_READ: dict[str, Callable[[Any], Any]] = {
    "arrow": _read_ipc,
    "arrows": _read_ipc,
    "ipc": _read_ipc,
    "parquet": _read_parquet,
    "json": json.loads,
}
