"""A behaviour log -> a folder sorted by user and time (`history_store.py`): an external merge sort in bounded memory.

States of the output folder: empty -> runs (hidden, each with a record of the rows that it holds) -> arrays and the
manifest (complete; the runs are gone). A run that was killed is continued by one with the same arguments: runs that are
recorded stay, and reading goes on behind the last one; a kill during the merge repeats the merge. What is removed goes
in an order in which whatever is left is accounted for: arrays, records of runs, runs, their parameters, the manifest.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrow_buffers import null_mask, primitive_values
from headrace.formats.atomic_file import AtomicFile, is_partial, sync_folder, write_atomic
from headrace.formats.checks import check_integer
from headrace.formats.convert import ConversionError, ConvertReport
from headrace.formats.convert_folder import check_complete_folder, refuse_own_sources
from headrace.formats.file_reader import FileReader
from headrace.formats.files import MANIFEST_NAME, PathLike
from headrace.formats.generate.output_folder import sole_writer
from headrace.formats.history_runs import LogRows, is_whole, merge_runs, open_run, rows_at_a_time, write_run
from headrace.formats.history_store import TOOL
from headrace.formats.manifest import Manifest, ManifestFile, new_hasher, read_manifest, write_manifest
from headrace.formats.reader import DecodedBlock, FilePosition
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema, SchemaError

DEFAULT_RUN_ROWS = 1 << 21
_WORK = ".runs"
_PARAMETERS = "parameters.json"


def build_history(
    reader: FileReader[Any],
    out: PathLike,
    *,
    key: str,
    time_column: str,
    run_rows: int = DEFAULT_RUN_ROWS,
    threads: int = 1,
    overwrite: bool = False,
) -> ConvertReport:
    """Sort the rows of `reader` by the columns `key` and `time_column` into the folder `out`; others are its values.

    All columns are sparse ones with one id a row; `key` and `time_column` (int64) have ``missing="raise"``. About 150
    bytes for each of `run_rows` rows are held, and as much for 2 M rows in the merge, besides 16 bytes a user.

    FileExistsError for a folder that holds something else, or the work of other arguments, unless `overwrite`, which
    begins anew whatever a sorted log is there. ManifestError for a complete folder where something is gone or changed.
    """
    began = time.monotonic()
    check_integer("run_rows", run_rows, 1, 1 << 30)
    check_integer("threads", threads, 1, 256)
    log = _Log(reader, key, time_column)
    folder = Path(out)
    refuse_own_sources(folder, (name for file in range(len(reader.files)) for name in reader.files_of(file)))
    sources = reader.identity()
    parameters = json.loads(
        json.dumps(
            {
                "tool": TOOL,
                "key": key,
                "time": time_column,
                "columns": log.columns,
                "bad_records": reader.bad_records.parameters(),
                "schema": reader.schema.to_dict(),
                "sources": sources,
            }
        )
    )
    with sole_writer(folder):
        kept = _prepare(folder, parameters, overwrite=overwrite)
        files_kept = 0 if kept is None else len(kept.files)
        if kept is None:
            runs = _Runs(folder / _WORK, parameters)
            runs.fill(log, run_rows, threads)
            if reader.identity() != sources:
                raise ConversionError("the log changed while it was sorted")
            kept = _merge(folder, runs, log, parameters)
    results = kept.results
    return ConvertReport(
        out=str(folder.absolute()),
        files=len(kept.files),
        files_kept=files_kept,
        rows_in=results["rows_in"],
        rows_skipped=results["rows_skipped"],
        rows_out=results["rows_in"] - results["rows_skipped"],
        bytes_in=sum(file["bytes"] for source in sources for file in source),
        bytes_out=sum(entry.bytes for entry in kept.files.values()),
        seconds=time.monotonic() - began,
    )


class _Log:
    """The reader of a log, and its rows as arrays."""

    def __init__(self, reader: FileReader[Any], key: str, time_column: str) -> None:
        schema: Schema = reader.schema
        names = [s.name for s in schema.sparse]
        if schema.labels or schema.dense or any(s.multi_hot or s.derived for s in schema.sparse):
            raise SchemaError("the columns of a log are sparse ones, with one id a row")
        for name in (key, time_column):
            if name not in names:
                raise SchemaError(f"the log has no column {name!r}")
            if schema.sparse[names.index(name)].missing != "raise":
                raise SchemaError(f"column {name!r} of a log needs missing='raise'")
        if schema.sparse[names.index(time_column)].encoding != "int64":
            raise SchemaError(f"column {time_column!r} of a log needs the encoding int64")
        self.reader = reader
        self.columns = [name for name in names if name not in (key, time_column)]
        self._key, self._time = key, time_column

    def rows(self, block: RowBlock) -> LogRows:
        key, seconds = (self._words(block, name)[0] for name in (self._key, self._time))
        found = [self._words(block, name) for name in self.columns]
        return LogRows(key, seconds.view(np.int64), tuple(v for v, _ in found), tuple(m for _, m in found))

    @staticmethod
    def _words(block: RowBlock, name: str) -> tuple[Any, Any]:
        array = block.data.column(block.data.schema.get_field_index(name))
        values, missing = primitive_values(array), null_mask(array)
        words = values.view(np.uint64) if values.dtype == np.int64 else values.astype(np.uint64)
        if missing is None:
            return words, np.zeros(len(words), np.bool_)
        return np.where(missing, np.uint64(0), words), missing

    def blocks(self, start: FilePosition | None, threads: int) -> Iterator[DecodedBlock]:
        """Decoded blocks in order; `threads` decode, and as many wait."""
        reader = self.reader
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            waiting: deque[Future[DecodedBlock]] = deque()
            try:
                for block in reader.raw_blocks(start):
                    waiting.append(pool.submit(reader.decode, block))
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


class _Runs:
    """The runs of a log in a work folder: ``run-N`` with ``run-N.json`` beside, written when the run is whole."""

    def __init__(self, folder: Path, parameters: dict[str, Any]) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        folder.mkdir(exist_ok=True)
        described = folder / _PARAMETERS
        if not described.exists():
            _remove_work(folder, keep_folder=True)  # runs of nobody knows what
            write_atomic(described, json.dumps(parameters).encode())
        while (record := self._whole(len(self.records), len(parameters["columns"]))) is not None:
            self.records.append(record)
        for record_file in folder.glob("run-*.json"):  # of runs behind one that is not whole: they are made again
            if int(record_file.stem.removeprefix("run-")) >= len(self.records):
                record_file.unlink()

    def _whole(self, number: int, columns: int) -> dict[str, Any] | None:
        """The record of a run that is there as a whole; whether it is, nothing but its arrays can tell (a disk may have
        lost them)."""
        path = self.folder / f"run-{number}.json"
        if not path.exists():
            return None
        record: dict[str, Any] = json.loads(path.read_bytes())
        return record if is_whole(self.folder / f"run-{number}", columns, record["rows"]) else None

    @property
    def counts(self) -> tuple[int, int]:
        """(rows in, rows skipped) of all runs."""
        last = self.records[-1] if self.records else {"rows_in": 0, "rows_skipped": 0}
        return last["rows_in"], last["rows_skipped"]

    def fill(self, log: _Log, run_rows: int, threads: int) -> None:
        """Write the runs that are not there yet."""
        if self.records and self.records[-1]["last"]:
            return
        start = FilePosition.from_dict(self.records[-1]["next_position"]) if self.records else None
        rows_in, rows_skipped = self.counts
        log.reader.begin(rows_in=rows_in, rows_skipped=rows_skipped)
        parts: list[LogRows] = []
        position = start
        for decoded in log.blocks(start, threads):
            parts.append(log.rows(log.reader.settle(decoded)))
            position = decoded.next_position
            if sum(map(len, parts)) >= run_rows:
                self._write(log, parts, position, last=False)
                parts = []
        self._write(log, parts, position, last=True)

    def _write(self, log: _Log, parts: list[LogRows], position: FilePosition | None, *, last: bool) -> None:
        number = len(self.records)
        path = self.folder / f"run-{number}"
        if path.exists():
            shutil.rmtree(path)
        empty = np.zeros(0, np.uint64)
        nothing = tuple(np.zeros(0, np.bool_) for _ in log.columns)
        rows = LogRows.concat([LogRows(empty, empty.view(np.int64), (empty,) * len(nothing), nothing), *parts])
        write_run(path, rows.sorted())
        record = {
            "rows": len(rows),
            "largest": [int(v.max(initial=0)) for v in rows.values],
            "any_missing": [bool(m.any()) for m in rows.missing],
            "keys": len(np.unique(rows.keys)),
            "next_position": None if position is None else position.to_dict(),
            "rows_in": log.reader.rows_in,
            "rows_skipped": log.reader.rows_skipped,
            "last": last,
        }
        write_atomic(self.folder / f"run-{number}.json", json.dumps(record).encode())
        self.records.append(record)


def _prepare(folder: Path, parameters: dict[str, Any], *, overwrite: bool) -> Manifest | None:
    """The manifest of a folder that is complete; else the folder is made one to go on in."""
    manifest = read_manifest(folder)
    if manifest is not None and manifest.parameters.get("tool") != TOOL:
        raise FileExistsError(f"{folder}: its {MANIFEST_NAME} was not written by {TOOL}; give another folder")
    work = folder / _WORK
    written = {MANIFEST_NAME, _WORK, *(manifest.files if manifest is not None else _arrays_of(work))}
    entries = [path.name for path in folder.iterdir()]
    if unknown := sorted(n for n in entries if n not in written and not is_partial(n)):
        raise FileExistsError(f"{folder}: holds {unknown[0]!r}, which is no part of a sorted log; give another folder")
    described = work / _PARAMETERS
    found = manifest.parameters if manifest is not None else None
    if found is None and described.exists():
        found = json.loads(described.read_bytes())
    if found is not None and found != parameters and not overwrite:
        differing = sorted(k for k in {*parameters, *found} if found.get(k) != parameters.get(k))
        raise FileExistsError(
            f"{folder}: holds the sorted log of other {', '.join(differing)}; give another folder, "
            "or overwrite=True (--overwrite)"
        )
    for name in filter(is_partial, entries):
        (folder / name).unlink()
    if overwrite:
        for name in sorted(written & set(entries) - {_WORK, MANIFEST_NAME}):
            (folder / name).unlink()
        _remove_work(work)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        return None
    if manifest is not None:
        check_complete_folder(folder, manifest, verify="full")
        _remove_work(work)  # killed while it cleaned up
    return manifest


def _remove_work(work: Path, *, keep_folder: bool = False) -> None:
    """Remove the runs: their parameters last, so that runs of one log are never taken for those of another."""
    if not work.exists():
        return
    paths = [path for path in work.iterdir() if path.name != _PARAMETERS]
    for path in sorted(paths, key=lambda path: path.is_dir()):  # records first: a run without one is none
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (work / _PARAMETERS).unlink(missing_ok=True)
    if not keep_folder:
        work.rmdir()


def _arrays_of(work: Path) -> set[str]:
    """Names of the arrays that an interrupted merge may have left."""
    described = work / _PARAMETERS
    columns = json.loads(described.read_bytes())["columns"] if described.exists() else []
    values = {f"{kind}-{name}.npy" for kind in ("value", "missing") for name in columns}
    return {"keys.npy", "offsets.npy", "times.npy", *values} if described.exists() else set()


def _merge(folder: Path, runs: _Runs, log: _Log, parameters: dict[str, Any]) -> Manifest:
    """Write the arrays and the manifest, and remove the runs."""
    rows = sum(record["rows"] for record in runs.records)
    rows_in, rows_skipped = runs.counts
    if rows_in != rows + rows_skipped:
        raise ConversionError(f"{folder}: {rows_in} rows in, {rows} out and {rows_skipped} skipped")
    opened = [open_run(runs.folder / f"run-{i}", len(log.columns)) for i in range(len(runs.records))]
    largest = np.max([record["largest"] for record in runs.records], axis=0) if log.columns else []
    writers = {"times": _ArrayWriter(folder / "times.npy", np.dtype(np.int64), rows)}
    for i, name in enumerate(log.columns):
        dtype = np.dtype(np.uint32 if int(largest[i]) < 2**32 else np.uint64)
        writers[f"value-{name}"] = _ArrayWriter(folder / f"value-{name}.npy", dtype, rows)
        if any(record["any_missing"][i] for record in runs.records):
            writers[f"missing-{name}"] = _ArrayWriter(folder / f"missing-{name}.npy", np.dtype(np.bool_), rows)
    keys: list[npt.NDArray[np.uint64]] = []
    starts: list[npt.NDArray[np.int64]] = []
    try:
        done, last = 0, None
        for block in merge_runs(opened, rows=rows_at_a_time(len(opened))):
            writers["times"].append(block.times)
            for i, name in enumerate(log.columns):
                writers[f"value-{name}"].append(block.values[i])
                if f"missing-{name}" in writers:
                    writers[f"missing-{name}"].append(block.missing[i])
            new = np.concatenate([[last is None or block.keys[0] != last], block.keys[1:] != block.keys[:-1]])
            first = np.flatnonzero(new)
            keys.append(block.keys[first])
            starts.append(first + done)
            done, last = done + len(block), block.keys[-1]
        distinct = np.concatenate([np.zeros(0, np.uint64), *keys])
        offsets = np.concatenate([np.zeros(0, np.int64), *starts, [rows]]).astype(np.int64)
        for name, array in (("keys", distinct), ("offsets", offsets)):
            writers[name] = _ArrayWriter(folder / f"{name}.npy", array.dtype, len(array))
            writers[name].append(array)
        entries = {f"{name}.npy": writer.publish() for name, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.close()
    sync_folder(folder)
    manifest = Manifest(
        files=entries, parameters=parameters, results={"rows_in": rows_in, "rows_skipped": rows_skipped}
    )
    write_manifest(folder, manifest)
    _remove_work(runs.folder)
    return manifest


class _ArrayWriter:
    """A ``.npy`` file of a known length that is written in parts, appears whole, and whose bytes are hashed."""

    def __init__(self, target: Path, dtype: np.dtype[Any], rows: int) -> None:
        self._file = AtomicFile(target)
        self._hasher = new_hasher()
        self._bytes = self._written = 0
        self._dtype, self._rows = dtype, rows
        np.lib.format.write_array_header_1_0(
            self,
            {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows,)},
        )

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hasher.update(data)
        self._bytes += len(data)

    def append(self, values: npt.NDArray[Any]) -> None:
        self.write(values.astype(self._dtype).tobytes())
        self._written += len(values)

    def publish(self) -> ManifestFile:
        if self._written != self._rows:
            raise ConversionError(f"{self._file.target}: {self._written} rows written, {self._rows} expected")
        self._file.finish()
        self._file.publish()
        return ManifestFile(bytes=self._bytes, rows=self._rows, blake2b=self._hasher.hexdigest())

    def close(self) -> None:
        self._file.__exit__(None, None, None)
