"""What the readers of all formats share: list of files, manifests, passes, counts, the policy for bad records."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import fs

from headrace.formats.arrow_store import store_of
from headrace.formats.bad_lines import I64
from headrace.formats.bad_records import BadRecordLog, BadRecords, Describe
from headrace.formats.checks import check_integer
from headrace.formats.errors import BadRecordError, ManifestError, ReadInterruptedError
from headrace.formats.files import PathLike, digest, is_hidden, natural_key
from headrace.formats.growing import GrowingFolder, Waiting
from headrace.formats.manifest import (
    Manifest,
    ManifestFile,
    Verify,
    check_rows,
    check_size,
    check_verify,
)
from headrace.formats.reader import START, DecodedBlock, FilePosition
from headrace.formats.row_selection import RowSelection
from headrace.formats.rows import RowBlock, SourceRange
from headrace.formats.schema import Schema, check_schema
from headrace.formats.store import Store

BlockT = TypeVar("BlockT")

Paths = PathLike | Iterable[PathLike] | GrowingFolder
"""What a reader reads: what :func:`headrace.formats.files.list_files` accepts, or a folder that grows."""


class FileReader(ABC, Generic[BlockT]):
    """A :class:`RowReader` over files; what a format adds is how a file is cut into blocks and how these are decoded.

    `paths` is what :func:`list_files` accepts, or a :class:`GrowingFolder`, whose files are read as they appear; only
    then do `files` and `digest` grow. A file whose size is not what it was when the reader was made raises
    :class:`CorruptShardError`, when it is opened and at its end.

    `bad_records` is "raise", "skip" or a :class:`BadRecords`.

    `filesystem`, a ``pyarrow.fs.FileSystem`` or an :class:`ArrowStore`, is where the files are, when `paths` are
    neither local ones nor URIs (see :func:`headrace.formats.arrow_store.store_of`).

    A ``manifest.json`` beside a file is checked unless ``verify_manifest="off"``: the size when the file is opened
    (``"full"``: its hash, too), the number of rows at its end; when `paths` is a folder, every file of the manifest
    must be there, and no other.

    Counters, over the blocks of this pass settled so far (:meth:`raw_blocks` starts one): `rows_in` (rows, bad ones
    counted), `rows_skipped`, `bytes_in` (uncompressed); rows given out = ``rows_in - rows_skipped``.
    """

    _a_folder_is_its_manifest = True

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        *,
        bad_records: BadRecords | str = "raise",
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        check_schema(schema)
        check_verify(verify_manifest)
        self._growing = paths if isinstance(paths, GrowingFolder) else None
        self.store, found = store_of(paths.path if isinstance(paths, GrowingFolder) else paths, filesystem)
        self._found = found
        self.files: tuple[str, ...] = () if self._growing is not None else self._list(found)
        self.schema = schema
        self._sizes = self.store.sizes(self.files)
        self.digest = self._files_digest = digest(self.files, self._sizes)
        self.bytes_in = 0
        self._log = BadRecordLog(BadRecords.of(bad_records))
        self._refuse_own_quarantine()
        self._verify = verify_manifest
        whole = found if self._a_folder_is_its_manifest else ()
        self._entries: list[ManifestFile | None] = [None] * len(self.files)
        if verify_manifest != "off" and self._growing is None:  # a manifest is of a folder that is complete
            self._entries = _manifest_entries(self.store, self.files, whole)
        self._begun = False
        self._selection: RowSelection | None = None
        self._row_bytes = row_bytes_of(schema.arrow_schema(labels=bool(schema.labels)))
        self._waiting: Waiting | None = None
        self._ended = self._growing is None
        if self._growing is not None:
            try:
                self._look()
            except (FileNotFoundError, NotADirectoryError) as error:
                raise type(error)(
                    f"{self._growing.path}: a growing folder is one folder (no file, no pattern), which must be there "
                    f"before it is read; make it first ({error.strerror or error})"
                ) from error

    def _refuse_own_quarantine(self) -> None:
        """ValueError for a quarantine that is one of the files, such as a replayed one: it would grow as it is read."""
        path = self._log.policy.quarantine_path
        if path is None:
            return
        own = os.path.realpath(path)
        for file in self.files:
            if os.path.realpath(file.removeprefix("local://")) == own:
                raise ValueError(f"quarantine_path={str(path)!r}: is one of the files to be read; give another one")

    @property
    def growing(self) -> GrowingFolder | None:
        """The folder whose files are read as they appear; None where all files are known."""
        return self._growing

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each file as stored, when it was listed."""
        return self._sizes

    def files_of(self, file: int) -> tuple[str, ...]:
        """All files that the rows of file number `file` come from."""
        return (self.files[file],)

    def _list(self, paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
        return self.store.find(paths)

    @property
    def rows_in(self) -> int:
        return self._log.lines

    @property
    def rows_skipped(self) -> int:
        return self._log.count

    @property
    def bad_records(self) -> BadRecords:
        """The policy for bad records."""
        return self._log.policy

    @property
    def may_skip(self) -> bool:
        """Whether the policy leaves bad records out, so that fewer rows may come than there are."""
        return self._log.policy.mode != "raise"

    @property
    def num_rows(self) -> int | None:
        """Rows that a pass reads, bad ones counted, where that is known without reading (a manifest, a footer)."""
        if self._selection is not None:
            return self._selection.num_rows
        rows = self.rows_per_file
        return None if rows is None else sum(rows)

    @property
    def rows_per_file(self) -> tuple[int, ...] | None:
        """Rows of each file, whatever is selected; None where that is not known without reading."""
        if self._growing is not None:
            return None
        rows = []
        for file in range(len(self.files)):
            if (count := self._rows_of(file)) is None:
                return None
            rows.append(count)
        return tuple(rows)

    def _rows_of(self, file: int) -> int | None:
        entry = self._entries[file]
        return None if entry is None else entry.rows

    def select(self, ranges: Iterable[SourceRange]) -> None:
        """Read these rows only, such as a split (see `splits.py`), from the next pass on; row numbers are those of a
        :class:`Source`, physical lines for text.

        Rows outside are neither given out nor counted, and bad ones among them are nobody's business. A file that ends
        before its ranges do is an error: it is not the file that they were made for. Files are read up to their last
        range, so that a manifest's row counts are checked for those alone that are selected to their end.
        """
        if self._growing is not None:
            raise ValueError("rows of a growing folder cannot be selected: its files are not known yet")
        self._selection = RowSelection(ranges, files=len(self.files))
        self.digest = self._selection.digest(self._files_digest)

    def identity(self) -> list[list[dict[str, Any]]]:
        """Name, size and time of change of the files that the rows of each file number come from."""
        return [[self.store.identity(name) for name in self.files_of(file)] for file in range(len(self.files))]

    def interrupt(self) -> None:
        """Wake whoever waits for a file inside this reader, from any thread, with ReadInterruptedError; at once."""
        self.store.interrupt()
        if (waiting := self._waiting) is not None:
            waiting.interrupt()

    def digest_at(self, position: FilePosition | None) -> str:
        """The digest that tells whether a position is one of these files: of those begun, where more may follow."""
        if self._growing is None:
            return self.digest
        begun = 0 if position is None else position.file + 1
        return digest(self.files[:begun], self._sizes[:begun])

    def begin(self, *, rows_in: int = 0, rows_skipped: int = 0) -> None:
        """Count on from `rows_in` and `rows_skipped` in the pass about to start: those settled before a resume.

        Call it just before or after :meth:`raw_blocks`; limits on bad records then hold for the pass as a whole.
        """
        rows_in = check_integer("rows_in", rows_in, 0, 2**62)
        self._log.begin(lines=rows_in, count=check_integer("rows_skipped", rows_skipped, 0, rows_in))
        self.bytes_in = 0
        self._begun = True

    def raw_blocks(self, start: FilePosition | None = None) -> Iterator[BlockT]:
        """Blocks of whole rows from `start` on, in order. Checks each file's manifest entry.

        The call starts a new pass: the counters are 0, unless :meth:`begin` was called just before. Several iterators
        may be open at the same time; they then share the counters.
        """
        start = START if start is None else start
        if self._growing is not None:
            self._waiting = Waiting(self._growing)
        elif start.file >= len(self.files):
            raise ValueError(f"position in file number {start.file}, but there are {len(self.files)} files")
        if not self._begun:
            self.begin()
        self._begun = False
        return self._blocks(start)

    def _blocks(self, start: FilePosition) -> Iterator[BlockT]:
        for file in count(start.file):
            if not self._is_there(file):
                return
            if self._selection is not None and not self._selection.has(file):
                continue
            if (entry := self._entries[file]) is not None:
                store = self.store
                check_size(entry, self.files[file], verify=self._verify, size_of=store.size, blake2b_of=store.blake2b)
            at = start if file == start.file else FilePosition(file, 0, 0)
            blocks = self._file_blocks(at)
            if self._selection is None:
                yield from blocks
            else:
                yield from self._selection.blocks(self.files[file], file, at.line, blocks, self._rows_of_block)

    def _is_there(self, file: int) -> bool:
        """Whether there is a file of this number; waits for it where the folder grows."""
        if file < len(self.files) or self._growing is None:
            return file < len(self.files)
        waiting = self._waiting
        assert waiting is not None
        while not self._ended:
            self._look()
            if file < len(self.files):
                waiting.found()
                return True
            if not self._ended and not waiting.wait():
                raise ReadInterruptedError(f"{self._growing.path}: closed while it was waited for")
        return file < len(self.files)

    def _look(self) -> None:
        """Take the files that are new in the growing folder, in natural order.

        A listing is not of one moment: it may have a file and lack one that appeared before, whose place in the folder
        it had passed by then. So what is in a listing says up to where the next one is whole.
        """
        assert self._growing is not None
        marker, path = self._growing.end_marker, os.fspath(self._found)  # type: ignore[arg-type]
        known = set(self.files)

        def look() -> tuple[bool, list[str]]:
            names = self.store.names(path)
            kept = [file for name, file in names.items() if name != marker and not is_hidden(name)]
            return marker in names, [file for file in kept if file not in known]

        ended, seen = look()
        new: list[str] = []
        if ended or seen:
            last = max(map(natural_key, seen), default=())
            new = [file for file in look()[1] if ended or natural_key(file) <= last]
        new.sort(key=natural_key)
        if new and self.files and natural_key(new[0]) < natural_key(self.files[-1]):
            raise ValueError(
                f"{new[0]}: appeared when {self.files[-1]} was there already; names must sort as files appear"
            )
        if new:
            self._add(tuple(new))
        self._ended = ended

    def _add(self, files: tuple[str, ...]) -> None:
        """More files, behind the others."""
        sizes = self.store.sizes(files)
        self._entries += [None] * len(files)
        self._sizes += sizes
        self.files += files  # last: whoever sees a file finds all about it

    def _check_end(self, file: int, rows: int) -> None:
        """Compare the rows of a file that was read to its end with its manifest entry."""
        if (entry := self._entries[file]) is not None:
            check_rows(entry, self.files[file], rows, verify=self._verify)

    @abstractmethod
    def _file_blocks(self, start: FilePosition) -> Generator[BlockT, None, None]:
        """The blocks of file ``start.file`` from `start` on; calls :meth:`_check_end`."""

    @abstractmethod
    def _rows_of_block(self, block: BlockT) -> tuple[int, int]:
        """First row of a block and the one behind its last, bad ones counted."""

    def decode(self, block: BlockT) -> DecodedBlock:
        """Decode a block, without the GIL in all real work; thread-safe. Bad rows are listed, not raised."""
        decoded = self._decode(block)
        return decoded if self._selection is None else self._selection.trim(decoded)

    @abstractmethod
    def _decode(self, block: BlockT) -> DecodedBlock:
        """All rows of a block."""

    def settle(self, decoded: DecodedBlock) -> RowBlock:
        """Apply the policy for bad records, count, and give the rows; once for each block, in order, by one thread.

        A block that raises counts and stores nothing: it may be settled again.
        """
        position = decoded.position

        def describe_at(at: int) -> tuple[BadRecordError, memoryview | None]:
            return self._describe_at(decoded, at)

        self._check(decoded, describe_at)
        file, header = self.files[position.file], self._header_of(position.file)
        self._log.settle(file, position.line, decoded.lines, decoded.bad.numbers, describe_at, header)
        self._begun = False
        self.bytes_in += decoded.next_position.byte_offset - position.byte_offset
        return decoded.rows

    def bad_records_of(self, decoded: DecodedBlock) -> Iterator[BadRecordError]:
        """The error of each bad record of a block, whatever the policy; counts nothing."""
        return (self._describe_at(decoded, at)[0] for at in range(len(decoded.bad)))

    def _check(self, decoded: DecodedBlock, describe_at: Describe) -> None:
        """Raise what the policy says of a block; changes nothing then."""
        self._log.check(decoded.position.line, decoded.bad.numbers, describe_at)

    def _header_of(self, file: int) -> bytes | None:
        """The line above the rows of a file that names its columns, without its line feed; None where there is none."""
        return None

    @abstractmethod
    def _describe_at(self, decoded: DecodedBlock, at: int) -> tuple[BadRecordError, memoryview | None]:
        """The error of the bad record number `at` of a block, and the raw record where it can be quarantined."""


def row_bytes_of(schema: pa.Schema) -> int | None:
    """Bytes of a row's values when all columns are of fixed width, else None."""
    if not all(pa.types.is_primitive(kind) for kind in schema.types):
        return None
    return sum(int(kind.bit_width) for kind in schema.types) // 8


def good_ranges(file: int, first: int, rows: int, bad: I64) -> tuple[SourceRange, ...]:
    """The rows [first, first + rows) of a file without the 0-based rows `bad` (ascending)."""
    if not len(bad):
        return (SourceRange(file, first, rows),) if rows else ()
    begins = np.concatenate([[first], bad + 1])
    lengths = np.concatenate([bad, [first + rows]]) - begins
    kept = lengths > 0
    return tuple(
        SourceRange(file, begin, length)
        for begin, length in zip(begins[kept].tolist(), lengths[kept].tolist(), strict=True)
    )


def _manifest_entries(
    store: Store, files: tuple[str, ...], paths: PathLike | Iterable[PathLike]
) -> list[ManifestFile | None]:
    """The entry of each file in the manifest beside it, None where there is none."""
    manifests: dict[str, Manifest | None] = {}
    for file in files:
        folder = store.folder_of(file)
        if folder not in manifests:
            manifests[folder] = store.manifest(folder)
    if isinstance(paths, (str, os.PathLike)) and store.is_folder(os.fspath(paths)):
        folder = store.folder_of(files[0])
        _compare_listing(folder, files, manifests[folder])
    entries = []
    for file in files:
        manifest = manifests[store.folder_of(file)]
        entries.append(None if manifest is None else manifest.files.get(os.path.basename(file)))
    return entries


def _compare_listing(folder: str, files: tuple[str, ...], manifest: Manifest | None) -> None:
    if manifest is None:
        return
    listed, found = set(manifest.files), {os.path.basename(f) for f in files}
    if missing := sorted(listed - found):
        raise ManifestError(folder, f"{len(missing)} files of the manifest are missing, the first is {missing[0]!r}")
    if unknown := sorted(found - listed):
        raise ManifestError(
            folder,
            f"{len(unknown)} files are not in its manifest, the first is {unknown[0]!r}; "
            "name the files to read (a pattern will do); in Python, verify_manifest='off' reads all of them",
        )
