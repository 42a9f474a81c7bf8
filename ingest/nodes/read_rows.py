"""The first node of the usual chain: row blocks from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from headrace.formats.errors import ReadInterruptedError
from headrace.formats.reader import FilePosition, RowReader
from headrace.formats.rows import RowBlock
from headrace.ingest.engine.buffered import BufferedNode, make_run
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.errors import NodeClosedError
from headrace.ingest.engine.ordered import Run
from headrace.ingest.engine.state import Snapshot, State, count_in, state_in
from headrace.ingest.file_facts import first_difference, listed_files

MOST_FILES_IN_STATE = 32
"""Of so many files a state has names and sizes, so that a reader of others can say which differ."""


class ReadRows(BufferedNode[RowBlock]):
    """Rows of a reader's files, in their order; decoding is done by `num_workers` threads (0: inline).

    Threads take turns at reading raw blocks and decode them side by side, at most ``num_workers * prefetch_factor``
    ahead; bad records are settled in order when a block is handed out, so that counts, limits and errors do not depend
    on threads. Blocks without good rows are not given on.

    The state is the position after the last delivered block, the counts up to there (absolute, not since a
    resume), and of the files their digest, their number, and names and sizes of the first
    :data:`MOST_FILES_IN_STATE`: a state of other files is refused, with a word on which differ.
    """

    def __init__(self, reader: RowReader[Any, Any], *, num_workers: int = 0, prefetch_factor: int = 2) -> None:
        super().__init__()
        if not hasattr(reader, "raw_blocks"):
            wanted = "a reader of files, as CriteoFiles(paths, schema) or open_dataset(name, paths)"
            raise TypeError(f"ReadRows: reader is {wanted}, not a {type(reader).__name__}")
        self.reader = reader
        self._names = [PurePath(str(file)).name for file in reader.files]
        self._num_workers = check_int("ReadRows", "num_workers", num_workers, minimum=0)
        self._capacity = self._num_workers * check_int("ReadRows", "prefetch_factor", prefetch_factor, minimum=1)
        self._raw: Iterator[Any] = iter(())
        self._at: FilePosition | None = None
        self._listed = Snapshot(names=[], sizes=[])
        self._rows_in = self._rows_skipped = self._bytes_in = 0

    @property
    def rows_in(self) -> int:
        """Records read up to the last delivered block, those before a resume included."""
        return self._rows_in

    @property
    def rows_skipped(self) -> int:
        """Of `rows_in`, those that were bad and left out."""
        return self._rows_skipped

    @property
    def bytes_in(self) -> int:
        """Bytes of text read up to the last delivered block, those before a resume included."""
        return self._bytes_in

    def _make_run(self) -> Run[Any]:
        return make_run(
            self.name,
            _RawBlocks(self._raw),
            self.reader.decode,
            num_workers=self._num_workers,
            capacity=self._capacity,
        )

    def _next(self) -> RowBlock:
        while True:
            decoded, _ = self._take()
            rows = self._settle(decoded)
            self._at = decoded.next_position
            if rows.num_rows:
                return rows

    def _settle(self, decoded: Any) -> RowBlock:
        reader = self.reader
        before = reader.rows_in, reader.rows_skipped, reader.bytes_in
        rows = reader.settle(decoded)
        self._rows_in += reader.rows_in - before[0]
        self._rows_skipped += reader.rows_skipped - before[1]
        self._bytes_in += reader.bytes_in - before[2]
        self._skip(reader.rows_skipped - before[1])
        return rows

    def _reset(self, state: State | None) -> None:
        position = None if state is None else self._position_in(state)
        self._stop_run_for_reset()
        self._close_files()
        self._at = position
        self._rows_in, self._rows_skipped, self._bytes_in = (
            0 if state is None else count_in(self.name, state, key) for key in ("rows_in", "rows_skipped", "bytes_in")
        )
        self.reader.begin(rows_in=self._rows_in, rows_skipped=self._rows_skipped)
        self._raw = iter(self.reader.raw_blocks(position))
        self._begin_run()

    def _state(self) -> State:
        at = self._at
        return {
            "digest": self._digest_at(at),
            "num_files": self._num_files(at),
            "files": self._listed_at(at),
            "position": None if at is None else at.to_dict(),
            "file": None if at is None else self._file_name(at.file),
            "rows_in": self._rows_in,
            "rows_skipped": self._rows_skipped,
            "bytes_in": self._bytes_in,
        }

    def check_files(self, state: State) -> None:
        """ValueError, naming what differs, unless `state` is one of this node over the very same files; reads none."""
        self._position_in(state)

    def _position_in(self, state: State) -> FilePosition | None:
        """Position of a state of the very same files; else ValueError naming what differs."""
        position = None
        if state.get("position") is not None:
            position = FilePosition.from_dict(state_in(self.name, state, "position"))
        digest = self._digest_at(position)
        if state.get("digest") == digest:
            return position
        difference = self._difference(state, position, digest)
        raise ValueError(
            f"ReadRows: the state is of other files: {difference}: give the files that it was saved with, or begin "
            "without a state"
        )

    def _difference(self, state: State, position: FilePosition | None, digest: str) -> str:
        """Between the files of a state and those here, in words."""
        then, now = _files_in(state), self._listed_at(position)
        if then is None:
            return f"digest {state.get('digest')!r}, now {digest!r}"
        here = [self._num_files(position), _pairs(now), digest]
        found = first_difference([state.get("num_files"), _pairs(then), state.get("digest")], here, ("then", "now"))
        if position is None or position.file < MOST_FILES_IN_STATE:
            return found
        return f"{found}; it goes on in {state.get('file')}, number {position.file + 1}"

    def _num_files(self, at: FilePosition | None) -> int:
        """Of the reader's files; of those begun, where they grow."""
        if getattr(self.reader, "growing", None) is None:
            return len(self.reader.files)
        return 0 if at is None else min(at.file + 1, len(self.reader.files))

    def _listed_at(self, at: FilePosition | None) -> Snapshot:
        """Names and sizes of the first of these files; shared by the states that are alike."""
        most = min(self._num_files(at), MOST_FILES_IN_STATE)
        if len(self._listed["names"]) != most:
            listed = listed_files(self.reader, most=most)
            self._listed = Snapshot(names=[name for name, _ in listed], sizes=[size for _, size in listed])
        return self._listed

    def _digest_at(self, at: FilePosition | None) -> str:
        """The digest of the reader's files; of those begun, where they grow."""
        digest_at = getattr(self.reader, "digest_at", None)
        return self.reader.digest if digest_at is None else str(digest_at(at))

    def _interrupt(self) -> None:
        super()._interrupt()
        interrupt = getattr(self.reader, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def _file_name(self, file: int) -> str | None:
        """Last part of a file's name: a data set may be moved as a whole."""
        return self._names[file] if file < len(self._names) else None

    def _close(self) -> None:
        if self._stop_run():
            self._close_files()

    def _close_files(self) -> None:
        close = getattr(self._raw, "close", None)  # a generator: its files are closed now, not when it is collected
        if close is not None:
            close()
        self._raw = iter(())

    def _position(self) -> str | None:
        at = self._at
        return None if at is None else f"after line {at.line} of {self._file_name(at.file)}"


def _files_in(state: State) -> State | None:
    """What a state says of its files, where it does (older ones do not)."""
    files = state.get("files")
    if not isinstance(files, dict) or not all(isinstance(files.get(key), list) for key in ("names", "sizes")):
        return None
    return files if len(files["names"]) == len(files["sizes"]) else None


def _pairs(files: State) -> list[list[Any]]:
    return [list(pair) for pair in zip(files["names"], files["sizes"], strict=True)]


class _RawBlocks:
    """Pull of the run: no state goes with a raw block, decoding tells its position."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks

    def __call__(self) -> tuple[Any, None]:
        try:
            return next(self._blocks), None
        except ReadInterruptedError as error:
            raise NodeClosedError(f"ReadRows was closed or reset while it waited for a file: {error}") from None
