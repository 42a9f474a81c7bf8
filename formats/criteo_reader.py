"""Criteo-shaped text files as decoded rows: the reader that the loader drives (see `reader.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from headrace.formats.bad_lines import I64, NO_BAD_LINES, BadLine, BadLines
from headrace.formats.bad_records import BadRecordLog, BadRecords
from headrace.formats.checks import check_integer
from headrace.formats.criteo_faults import describe
from headrace.formats.criteo_lines import LineLayout, Reason, parse_lines
from headrace.formats.errors import BadRecordError, ManifestError
from headrace.formats.files import PathLike, digest, file_sizes, list_files
from headrace.formats.manifest import (
    Manifest,
    ManifestFile,
    Verify,
    check_rows,
    check_size,
    check_verify,
    read_manifest,
)
from headrace.formats.reader import START, DecodedBlock, FilePosition
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

    `paths` is what :func:`list_files` accepts; ``.gz`` files are decompressed on the way. A file whose size is not what
    it was when the reader was made raises :class:`CorruptShardError`, when it is opened and at its end.

    `bad_records` is "raise", "skip" or a :class:`BadRecords`. Whatever the mode, a file whose first 100 lines all have
    another number of columns than the schema is an error: it was not written for this schema.

    A ``manifest.json`` beside a file is checked unless ``verify_manifest="off"``: the size when the file is opened
    (``"full"``: its hash, too), the number of rows at its end; when `paths` is a folder, every file of the manifest
    must be there, and no other.

    Counters, over the blocks of this pass settled so far (:meth:`raw_blocks` starts one): `rows_in` (lines, bad ones
    counted), `rows_skipped`, `bytes_in` (uncompressed); rows given out = ``rows_in - rows_skipped``.
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
        self._sizes = file_sizes(self.files)
        self.digest = digest(self.files, self._sizes)
        self.bytes_in = 0
        self._layout = LineLayout.from_schema(schema)
        self._log = BadRecordLog(BadRecords.of(bad_records))
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._verify = verify_manifest
        self._entries = _manifest_entries(self.files, paths) if verify_manifest != "off" else [None] * len(self.files)
        self._mismatched = 0
        self._begun = False

    @property
    def rows_in(self) -> int:
        return self._log.lines

    @property
    def rows_skipped(self) -> int:
        return self._log.count

    @property
    def may_skip(self) -> bool:
        """Whether the policy leaves bad records out, so that fewer rows may come than there are."""
        return self._log.policy.mode != "raise"

    @property
    def num_rows(self) -> int | None:
        """Lines of all files, bad ones counted, when the manifest knows all of them; else None."""
        rows = [entry.rows for entry in self._entries if entry is not None]
        return sum(rows) if len(rows) == len(self.files) else None

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        """Count on from `rows_in` and `rows_skipped` in the pass about to start: those settled before a resume.

        Call it just before or after :meth:`raw_blocks`; limits on bad records then hold for the pass as a whole.
        """
        rows_in = check_integer("rows_in", rows_in, 0, 2**62)
        self._log.begin(lines=rows_in, count=check_integer("rows_skipped", rows_skipped, 0, rows_in))
        self.bytes_in = 0
        self._mismatched = 0
        self._begun = True

    def raw_blocks(self, start: FilePosition | None = None) -> Iterator[TextBlock]:
        """Blocks of whole lines from `start` on, in order; see :func:`text_blocks`. Checks each file's manifest entry.

        The call starts a new pass: the counters are 0, unless :meth:`begin` was called just before. Several iterators
        may be open at the same time; they then share the counters.
        """
        start = START if start is None else start
        if start.file >= len(self.files):
            raise ValueError(f"position in file number {start.file}, but there are {len(self.files)} files")
        if not self._begun:
            self.begin()
        self._begun = False
        return self._blocks(start)

    def _blocks(self, start: FilePosition) -> Iterator[TextBlock]:
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
            file_bytes=self._sizes[start.file],
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
            line = BadLine(block.first_line + 1, -1, Reason.OVERSIZED, 0, end, 0, end, 0)
            return self._decoded(block, self._layout.empty_batch(), BadLines.of([line]))
        parsed = parse_lines(
            block.data,
            self._layout,
            first_line=block.first_line,
            lines=block.lines,
            max_line_bytes=self._max_line_bytes,
        )
        bad = parsed.faults if len(parsed.faults) else NO_BAD_LINES
        return self._decoded(block, self._layout.record_batch(parsed.columns), bad)

    def _decoded(self, block: TextBlock, data: pa.RecordBatch, bad: BadLines) -> DecodedBlock:
        ranges = _good_ranges(block, bad.numbers - 1)
        return DecodedBlock(
            rows=RowBlock(data, Source(self.files, ranges)),
            position=FilePosition(block.file, block.byte_offset, block.first_line),
            next_position=FilePosition(block.file, block.next_offset, block.next_line),
            lines=block.lines,
            bad=bad,
            text=block.data if len(bad) else memoryview(b""),
            text_offset=block.byte_offset if block.oversized_bytes else block.next_offset - len(block.data),
        )

    def settle(self, decoded: DecodedBlock) -> RowBlock:
        """Apply the policy for bad records, count, and give the rows; once for each block, in order, by one thread.

        A block that raises counts and stores nothing: it may be settled again.
        """
        position, bad = decoded.position, decoded.bad

        def describe_at(at: int) -> tuple[BadRecordError, memoryview | None]:
            line = bad[at]
            held = line.reason != Reason.OVERSIZED
            return self._describe(line, decoded), decoded.text[line.line_begin : line.line_end] if held else None

        mismatched = 0 if position.line == 0 else self._mismatched
        more = _leading_mismatches(bad, mismatched)
        foreign = mismatched < MISMATCHED_LINES <= mismatched + more
        before = bad.numbers[: MISMATCHED_LINES - mismatched - 1] if foreign else bad.numbers
        self._log.check(position.line, before, describe_at)
        if foreign:
            raise _not_of_this_schema(describe_at(len(before))[0])
        self._log.settle(self.files[position.file], position.line, decoded.lines, bad.numbers, describe_at)
        self._mismatched = mismatched + more
        self._begun = False
        self.bytes_in += decoded.next_position.byte_offset - position.byte_offset
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


def _leading_mismatches(bad: BadLines, before: int) -> int:
    """How many of the first `bad` lines carry on a run of lines of another number of columns, `before` long so far."""
    candidates = bad[: max(0, MISMATCHED_LINES - before)]
    in_run = candidates.numbers == np.arange(before + 1, before + 1 + len(candidates))
    in_run &= candidates.reasons == Reason.COLUMN_COUNT
    return len(candidates) if in_run.all() else int(in_run.argmin())


def _not_of_this_schema(record: BadRecordError) -> BadRecordError:
    reason = f"{record.reason}, as in all lines before it: not a file of this schema"
    return BadRecordError(record.file, record.line, record.column, record.offending, reason, record.hint)


def _good_ranges(block: TextBlock, bad_lines: I64) -> tuple[SourceRange, ...]:
    """The lines of `block` without the 0-based `bad_lines`."""
    begins = np.concatenate([[block.first_line], bad_lines + 1])
    lengths = np.concatenate([bad_lines, [block.next_line]]) - begins
    kept = lengths > 0
    return tuple(
        SourceRange(block.file, first, rows)
        for first, rows in zip(begins[kept].tolist(), lengths[kept].tolist(), strict=True)
    )


def _manifest_entries(files: tuple[str, ...], paths: PathLike | Iterable[PathLike]) -> list[ManifestFile | None]:
    """The entry of each file in the manifest beside it, None where there is none."""
    manifests: dict[str, Manifest | None] = {}
    for file in files:
        folder = os.path.dirname(file)
        if folder not in manifests:
            manifests[folder] = read_manifest(folder)
    if isinstance(paths, (str, os.PathLike)) and os.path.isdir(paths):
        _compare_listing(os.path.abspath(paths), files, manifests)
    entries = []
    for file in files:
        manifest = manifests[os.path.dirname(file)]
        entries.append(None if manifest is None else manifest.files.get(os.path.basename(file)))
    return entries


def _compare_listing(folder: str, files: tuple[str, ...], manifests: dict[str, Manifest | None]) -> None:
    manifest = manifests[folder]
    if manifest is None:
        return
    listed, found = set(manifest.files), {os.path.basename(f) for f in files}
    if missing := sorted(listed - found):
        raise ManifestError(folder, f"{len(missing)} files of the manifest are missing, the first is {missing[0]!r}")
    if unknown := sorted(found - listed):
        raise ManifestError(
            folder,
            f"{len(unknown)} files are not in its manifest, the first is {unknown[0]!r}; "
            "name the files to read, or give verify_manifest='off'",
        )
