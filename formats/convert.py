"""Raw files -> Parquet or tar shards, one for one: in parallel, resumable after a kill, accounted for row by row.

A file gets its name when it is whole and a record of what it was made from lies on disk, so that a run that was killed
is continued by a run with the same arguments: what is done stays, if its hash is what the record says, and the rest is
made. A folder that holds anything else is refused, and so is one made of other sources (name, size and time of change),
another schema or other options: stale data is never taken for the new one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyarrow import fs

from headrace.formats.atomic_file import sync_folder
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_integer
from headrace.formats.convert_folder import TOOL, ConversionFolder, FileReport, refuse_own_sources
from headrace.formats.datasets import DATASETS, default_schema
from headrace.formats.file_reader import FileReader
from headrace.formats.files import PathLike, is_hidden
from headrace.formats.generate.output_folder import sole_writer
from headrace.formats.manifest import ManifestFile
from headrace.formats.parquet_output import COMPRESSIONS, ParquetOutput
from headrace.formats.schema import Schema
from headrace.formats.store import Store
from headrace.formats.tar_output import TAR_COMPRESSIONS, TarOutput

DEFAULT_ROW_GROUP_ROWS = 1 << 17

_STRIPPED = (".gz", ".zst", ".txt", ".tsv", ".csv", ".npy", ".npz", ".bin", ".parquet", ".arrow", ".tar")


OutputForm = Literal["parquet", "tar"]

_OUTPUTS: dict[str, tuple[type[ParquetOutput] | type[TarOutput], tuple[str, ...]]] = {
    "parquet": (ParquetOutput, COMPRESSIONS),
    "tar": (TarOutput, TAR_COMPRESSIONS),
}


class ConversionError(ValueError):
    """Rows are missing or too many, or the output folder is not what this run would make."""


@dataclass(frozen=True)
class ConvertReport:
    """Totals over all files; `files_kept` of them were there already, from a run that was interrupted or complete."""

    out: str
    files: int
    files_kept: int
    rows_in: int
    rows_skipped: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float


def convert(
    dataset: str,
    paths: PathLike | Iterable[PathLike],
    out: PathLike,
    *,
    schema: Schema | None = None,
    labels: bool = True,
    to: OutputForm = "parquet",
    bad_records: BadRecords | str = "raise",
    compression: str | None = None,
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS,
    threads: int = 1,
    overwrite: bool = False,
    filesystem: fs.FileSystem | Store | None = None,
    **options: Any,
) -> ConvertReport:
    """Write each file of a dataset (see `datasets.py`) as ``out/NAME.parquet``, then ``out/manifest.json``.

    ``to="tar"`` writes ``out/NAME.tar`` instead, with a member of Arrow IPC for each `row_group_rows` rows. `paths` and
    `filesystem` are those of the readers; `out` is a local folder.

    The columns are the schema's, in its types; limits of `bad_records` hold for each file. `threads` files are
    converted at a time, with the same result for every number. `overwrite` removes what an earlier conversion wrote
    there, complete or not, and nothing else. Without `compression` it is "lz4" for Parquet and "zstd" for tar shards.
    `options` are those of the format's reader.

    Raises FileExistsError for a folder that holds something else, ConversionError for rows that do not add up, and what
    the reader raises; what was finished before stays, for the next run.
    """
    began = time.monotonic()
    if dataset not in DATASETS:
        raise ValueError(f"dataset {dataset!r} is unknown; known: {', '.join(DATASETS)}")
    if to not in _OUTPUTS:
        raise ValueError(f"to={to!r} is not one of {', '.join(_OUTPUTS)}")
    compressions = _OUTPUTS[to][1]
    compression = compressions[0] if compression is None else compression
    if compression not in compressions:
        raise ValueError(f"compression={compression!r} is not one of {', '.join(compressions)}")
    check_integer("row_group_rows", row_group_rows, 1, 1 << 26)
    check_integer("threads", threads, 1, 256)
    if schema is None:
        paths = paths if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
        schema = default_schema(dataset, paths, labels=labels, filesystem=filesystem, **options)
    policy = BadRecords.of(bad_records)

    def open_reader(source: str) -> FileReader[Any]:
        return DATASETS[dataset].reader(source, schema, bad_records=policy, filesystem=reader.store, **options)

    reader = DATASETS[dataset].reader(paths, schema, bad_records=policy, filesystem=filesystem, **options)
    sources = reader.files
    targets = _target_names(sources, to)
    refuse_own_sources(Path(out), (name for file in range(len(sources)) for name in reader.files_of(file)))
    identities = reader.identity()
    parameters = {
        "tool": TOOL,
        "dataset": dataset,
        "schema": schema.to_dict(),
        "bad_records": policy.parameters(),
        "compression": compression,
        "row_group_rows": row_group_rows,
        "options": {name: repr(value) for name, value in sorted(options.items())},
        "sources": identities,
    }
    if to != "parquet":
        parameters["to"] = to
    with sole_writer(Path(out)):
        folder = ConversionFolder(Path(out), parameters)
        folder.prepare(targets, identities, overwrite=overwrite)
        work = _Work(folder, open_reader, schema, to, compression, row_group_rows)
        done = work.run(sources, targets, threads)
        entries = {target: entry for target, (entry, _, _) in zip(targets, done, strict=True)}
        reports = [report for _, report, _ in done]
        folder.complete(entries, dict(zip(targets, reports, strict=True)))
    return ConvertReport(
        out=str(folder.path.absolute()),
        files=len(targets),
        files_kept=sum(kept for _, _, kept in done),
        rows_in=sum(r.rows_in for r in reports),
        rows_skipped=sum(r.rows_skipped for r in reports),
        rows_out=sum(r.rows_out for r in reports),
        bytes_in=sum(r.bytes_in for r in reports),
        bytes_out=sum(entry.bytes for entry in entries.values()),
        seconds=time.monotonic() - began,
    )


_Done = tuple[ManifestFile, FileReport, bool]


class _Work:
    """The files of one run; the first error stops all of them at their next block."""

    def __init__(
        self,
        folder: ConversionFolder,
        open_reader: Callable[[str], FileReader[Any]],
        schema: Schema,
        to: OutputForm,
        compression: str,
        row_group_rows: int,
    ) -> None:
        self._output = _OUTPUTS[to][0]
        self._folder = folder
        self._open_reader = open_reader
        self._schema = schema
        self._compression = compression
        self._row_group_rows = row_group_rows
        self._stop = threading.Event()

    def run(self, sources: tuple[str, ...], targets: list[str], threads: int) -> list[_Done]:
        with ThreadPoolExecutor(threads, thread_name_prefix="convert") as pool:
            try:
                futures = [pool.submit(self._one, s, t) for s, t in zip(sources, targets, strict=True)]
                finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
                _raise_first(futures, finished)
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def _one(self, source: str, target: str) -> _Done:
        reader = self._open_reader(source)
        kept = self._folder.kept(target, reader.identity()[0])
        if kept is not None:
            return (*kept, True)
        entry, report = self._convert(reader, source, target)
        return entry, report, False

    def _convert(self, reader: FileReader[Any], source: str, target: str) -> tuple[ManifestFile, FileReport]:
        identity = reader.identity()[0]
        schema = self._schema.arrow_schema(labels=bool(self._schema.labels))
        with self._output(
            self._folder.path / target, schema, compression=self._compression, row_group_rows=self._row_group_rows
        ) as output:
            for block in reader.raw_blocks():
                if self._stop.is_set():
                    raise ConversionError(f"{source}: given up, since another file failed")
                output.append(reader.settle(reader.decode(block)).data)
            entry = output.finish()
            report = FileReport(
                os.path.basename(source), reader.rows_in, reader.rows_skipped, entry.rows, reader.bytes_in
            )
            _check_rows(report, reader.num_rows)
            if reader.identity()[0] != identity:
                raise ConversionError(f"{source}: changed while it was converted")
            self._folder.record(target, identity, entry, report)
            output.publish()
        sync_folder(self._folder.path)
        return entry, report


def _raise_first(futures: list[Future[_Done]], finished: set[Future[_Done]]) -> None:
    """The error of the first file in order that has one."""
    for future in futures:
        if future in finished and (error := future.exception()) is not None:
            raise error


def _check_rows(report: FileReport, expected: int | None) -> None:
    if report.rows_in != report.rows_out + report.rows_skipped:
        raise ConversionError(
            f"{report.source}: {report.rows_in} rows in, {report.rows_out} out and {report.rows_skipped} skipped"
        )
    if expected is not None and expected != report.rows_in:
        raise ConversionError(f"{report.source}: {report.rows_in} rows in, {expected} expected")


def _target_names(sources: tuple[str, ...], to: OutputForm) -> list[str]:
    """``day_0.gz`` -> ``day_0.parquet`` or ``day_0.tar``; ConversionError for two sources that would get one name."""
    names: dict[str, str] = {}
    for source in sources:
        stem = os.path.basename(source)
        while (shorter := next((stem[: -len(s)] for s in _STRIPPED if stem.endswith(s)), "")) != "":
            stem = shorter
        target = f"{stem}.{to}"
        if is_hidden(target):
            raise ConversionError(f"{source} would become {target}, which readers of a folder leave out; rename it")
        if target in names:
            raise ConversionError(f"{names[target]} and {source} would both become {target}; convert them apart")
        names[target] = source
    return list(names)
