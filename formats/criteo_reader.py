"""Criteo-shaped text files as decoded rows: the reader that the loader drives (see `reader.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.formats.bad_records import BadRecordLog, BadRecords
from headrace.formats.criteo_faults import describe
from headrace.formats.criteo_lines import LineLayout, Reason, parse_lines
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.files import PathLike, digest, list_files
from headrace.formats.manifest import (
    Manifest,
    ManifestFile,
    Verify,
    check_rows,
    check_size,
    check_verify,
    read_manifest,
)
from headrace.formats.reader import START, BadLine, DecodedBlock, FilePosition
from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.formats.schema import Schema
from headrace.formats.text_blocks import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_MAX_LINE_BYTES,
    TextBlock,
    check_sizes,
    text_blocks,
)

# A file whose first lines all have another number of columns is another kind of file: that is never skipped in silence.
MISMATCHED_LINES = 100


class CriteoFiles:
    """Tab-separated files of one schema: labels, dense int64, sparse one-hot ids, in this order.

    `paths` is what :func:`list_files` accepts; ``.gz`` files are decompressed on the way. `bad_records` is a
    :class:`BadRecords` or the name of its mode. Whatever the mode, a file whose first 100 lines all have another number
    of columns than the schema is an error: it was not written for this schema.

    A ``manifest.json`` beside a file is checked unless ``verify_manifest="off"``: the size when the file is opened
    (``"full"``: its hash, too), the number of rows at its end; when `paths` is a folder, every file of the
    manifest must be there.

    Counters, over the blocks settled so far: `rows_in` (lines, bad ones counted), `rows_skipped`, `bytes_in`
    (uncompressed); rows given out = ``rows_in - rows_skipped``.
    """

    def __init__(
        self,
        paths: PathLike | Iterable[PathLike],
        schema: Schema,
        *,
        bad_records: BadRecords | str = "raise",
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        verify_manifest: Verify = "size",
    ) -> None:
        check_sizes(block_bytes=block_bytes, max_line_bytes=max_line_bytes)
        check_verify(verify_manifest)
        self.files = list_files(paths)
        self.schema = schema
        self.digest = digest(self.files)
        self.rows_in = 0
        self.rows_skipped = 0
        self.bytes_in = 0
        self._layout = LineLayout.from_schema(schema)
        self._log = BadRecordLog(BadRecords.of(bad_records))
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._verify = verify_manifest
        self._entries = _manifest_entries(self.files, paths) if verify_manifest != "off" else [None] * len(self.files)
        self._mismatched = 0

    @property
    def may_skip(self) -> bool:
        """Whether the policy leaves bad records out, so that fewer rows may come than there are."""
        return self._log.policy.mode != "raise"

    @property
    def num_rows(self) -> int | None:
        """Lines of all files, bad ones counted, when the manifest knows all of them; else None."""
        rows = [entry.rows for entry in self._entries if entry is not None]
        return sum(rows) if len(rows) == len(self.files) else None

    def raw_blocks(self, start: FilePosition | None = None) -> Iterator[TextBlock]:
        """Blocks of whole lines from `start` on, in order; see :func:`text_blocks`. Checks each file's manifest entry.

        Several iterators may be open at the same time.
        """
        start = START if start is None else start
        if start.file >= len(self.files):
            raise ValueError(f"position in file number {start.file}, but there are {len(self.files)} files")
        for file in range(start.file, len(self.files)):
            yield from self._file_blocks(start if file == start.file else FilePosition(file, 0, 0))

    def _file_blocks(self, start: FilePosition) -> Iterator[TextBlock]:
        path, entry = self.files[start.file], self._entries[start.file]
        if entry is not None:
            check_size(entry, path, verify=self._verify)
        rows = start.line
        for block in text_blocks(
            path,
            file=start.file,
            start_offset=start.byte_offset,
            start_line=start.line,
            block_bytes=self._block_bytes,
            max_line_bytes=self._max_line_bytes,
        ):
            yield block
            rows = block.next_line
        if entry is not None:
            check_rows(entry, path, rows, verify=self._verify)

    def decode(self, block: TextBlock) -> DecodedBlock:
        """Parse a block natively, without the GIL; thread-safe. Bad lines are listed, not raised."""
        if block.oversized_bytes:
            end = len(block.data)
            bad: tuple[BadLine, ...] = (BadLine(block.first_line + 1, -1, Reason.OVERSIZED, 0, end, 0, end, 0),)
            return self._decoded(block, self._layout.empty_batch(), bad)
        parsed = parse_lines(block.data, self._layout, max_line_bytes=self._max_line_bytes)
        bad = tuple(BadLine(block.first_line + fault.line + 1, *fault[1:]) for fault in parsed.faults)
        return self._decoded(block, self._layout.record_batch(parsed.columns), bad)

    def _decoded(self, block: TextBlock, data: pa.RecordBatch, bad: tuple[BadLine, ...]) -> DecodedBlock:
        ranges = _good_ranges(block, [line.line - 1 for line in bad])
        return DecodedBlock(
            rows=RowBlock(data, Source(self.files, ranges)),
            position=FilePosition(block.file, block.byte_offset, block.first_line),
            next_position=FilePosition(block.file, block.next_offset, block.next_line),
            lines=block.lines,
            bad=bad,
            text=block.data if bad else memoryview(b""),
            text_offset=block.byte_offset if block.oversized_bytes else block.next_offset - len(block.data),
        )

    def settle(self, decoded: DecodedBlock) -> RowBlock:
        """Apply the policy for bad records, count, and give the rows; once for each block, in order, by one thread."""
        if decoded.position.line == 0:
            self._mismatched = 0
        for bad in decoded.bad:
            record = self._describe(bad, decoded)
            self._check_kind_of_file(bad, record)
            held = bad.reason != Reason.OVERSIZED
            line = decoded.text[bad.line_begin : bad.line_end] if held else None
            lines_read = self.rows_in + bad.line - decoded.position.line
            self._log.add(record, line, lines_read=lines_read)
        self.rows_in += decoded.lines
        self.rows_skipped += len(decoded.bad)
        self.bytes_in += decoded.next_position.byte_offset - decoded.position.byte_offset
        return decoded.rows

    def _describe(self, bad: BadLine, decoded: DecodedBlock) -> BadRecordError:
        return describe(
            bad,
            file=self.files[decoded.position.file],
            layout=self._layout,
            text=decoded.text,
            text_offset=decoded.text_offset,
            max_line_bytes=self._max_line_bytes,
        )

    def _check_kind_of_file(self, bad: BadLine, record: BadRecordError) -> None:
        if bad.reason == Reason.COLUMN_COUNT and bad.line == self._mismatched + 1:
            self._mismatched += 1
            if self._mismatched == MISMATCHED_LINES:
                raise BadRecordError(
                    record.file,
                    record.line,
                    record.column,
                    record.offending,
                    f"{record.reason}, as in all lines before it: not a file of this schema",
                    record.hint,
                )


def _good_ranges(block: TextBlock, bad_lines: list[int]) -> tuple[SourceRange, ...]:
    """The lines of `block` without the 0-based `bad_lines`."""
    ranges = []
    first = block.first_line
    for line in [*bad_lines, block.next_line]:
        if line > first:
            ranges.append(SourceRange(block.file, first, line - first))
        first = line + 1
    return tuple(ranges)


def _manifest_entries(files: tuple[str, ...], paths: PathLike | Iterable[PathLike]) -> list[ManifestFile | None]:
    """The entry of each file in the manifest beside it, None where there is none."""
    manifests: dict[str, Manifest | None] = {}
    for file in files:
        folder = os.path.dirname(file)
        if folder not in manifests:
            manifests[folder] = read_manifest(folder)
    if isinstance(paths, (str, os.PathLike)) and os.path.isdir(paths):
        _refuse_missing(os.path.abspath(paths), files, manifests)
    entries = []
    for file in files:
        manifest = manifests[os.path.dirname(file)]
        entries.append(None if manifest is None else manifest.files.get(os.path.basename(file)))
    return entries


def _refuse_missing(folder: str, files: tuple[str, ...], manifests: dict[str, Manifest | None]) -> None:
    manifest = manifests[folder]
    missing = sorted(set(manifest.files) - {os.path.basename(f) for f in files}) if manifest else []
    if missing:
        raise ManifestError(folder, f"{len(missing)} files of the manifest are missing, the first is {missing[0]!r}")
