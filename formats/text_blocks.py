"""Text files, plain, gzip or Zstandard, as blocks of whole lines, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from typing import Protocol

import pyarrow as pa

from headrace.formats._criteo import after_last_feed, count_feeds
from headrace.formats.checks import check_integer
from headrace.formats.errors import MAX_EXCERPT_BYTES, CorruptShardError
from headrace.formats.gzip_members import GZIP_MAGIC
from headrace.formats.gzip_reader import GzipReader
from headrace.formats.read_ahead import ReadAhead
from headrace.formats.store import LOCAL, Store, open_size
from headrace.formats.zstd_frames import ZSTD_MAGIC, ZstdFrames

DEFAULT_BLOCK_BYTES = 1 << 21
DEFAULT_MAX_LINE_BYTES = 1 << 20
MAX_BYTES = 1 << 30

UTF8_BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 1 << 20
_HEAD_BYTES = MAX_EXCERPT_BYTES + 1  # one more than an error shows, so that it shows that something is left out
_LF = 0x0A
_MARK_BYTES = max(map(len, (UTF8_BOM, GZIP_MAGIC, ZSTD_MAGIC)))


@dataclass(frozen=True)
class TextBlock:
    """Whole lines [first_line, first_line + lines) of file number `file`; line numbers are 0-based and physical.

    The block covers `num_bytes` bytes of (uncompressed) text from `byte_offset` on. Each line ends with a line feed,
    except perhaps the last one of the file. `data` is read-only and belongs to the block.

    With `oversized_bytes` > 0 the block stands for one line of that many bytes (line feed aside) that was too long to
    be held; `data` is then its first bytes only.
    """

    file: int
    byte_offset: int
    first_line: int
    data: memoryview
    lines: int
    num_bytes: int
    oversized_bytes: int = 0

    @property
    def next_offset(self) -> int:
        return self.byte_offset + self.num_bytes

    @property
    def next_line(self) -> int:
        return self.first_line + self.lines


class ByteSource(Protocol):
    """Bytes of a file, decompressed."""

    def readinto(self, target: memoryview, /) -> int | None: ...
    def close(self) -> None: ...


def open_bytes(path: str, store: Store = LOCAL) -> tuple[ByteSource, RawIOBase]:
    """The bytes of a file, decompressed as its name says, and the file as stored, which the former closes."""
    file = store.open(path)
    try:
        if path.endswith(".gz"):
            return ReadAhead(GzipReader(path, file, lambda: store.open(path))), file
        if path.endswith(".zst"):
            return ReadAhead(ZstdFrames(path, file)), file
    except BaseException:
        file.close()
        raise
    return file, file


def check_sizes(**sizes: int) -> None:
    """Refuse a size, given by the name of its option, that is no number of bytes from 1 to 1 GiB."""
    for name, value in sizes.items():
        check_integer(name, value, 1, MAX_BYTES)


def text_blocks(
    path: str,
    *,
    file: int = 0,
    file_bytes: int | None = None,
    start_offset: int = 0,
    start_line: int = 0,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    store: Store = LOCAL,
) -> Iterator[TextBlock]:
    """Blocks of about `block_bytes` of whole lines of the file at `path`, from `start_offset` (a line start) on.

    - A name that ends in ``.gz`` means gzip, ``.zst`` Zstandard. `start_offset` counts uncompressed bytes: a plain file
      is sought, a compressed one decompressed and discarded up to there.
    - A UTF-8 byte order mark at the start of the file is not part of the first line.
    - Blank lines at the very end of the file are not lines, as long as they are at most `max_line_bytes` together; nor
      is a carriage return that is all there is behind the last line feed. (Resumed inside a longer run of blank lines,
      the end of that run may be taken for the end of the file.)
    - A line that grows past `max_line_bytes` is skipped through (see :class:`TextBlock`): no more than a small multiple
      of ``block_bytes + max_line_bytes`` is held, whatever the file holds.

    Damaged data raises :class:`CorruptShardError` after the last whole line before it was yielded; so does a file that
    has not `file_bytes` bytes as stored, where that is given, when it is opened or when its end is met.
    """
    check_sizes(block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    source, stored = open_bytes(path, store)
    cutter = _LineCutter(source, stored, path, file, file_bytes, start_line, block_bytes, max_line_bytes)
    try:
        cutter.check_size()
        cutter.seek(start_offset)
        yield from cutter.blocks()
    except CorruptShardError as error:
        raise CorruptShardError(path, error.byte_offset, cutter.line, error.reason) from error
    finally:
        source.close()


class _LineCutter:
    """Cuts a stream of bytes behind line feeds.

    `offset` and `line` are the position of the first byte not yielded. ``_carry`` holds the bytes looked at but not
    yielded: blank lines that may turn out to be the tail of the file, then the beginning of an unfinished line.
    ``_ahead`` holds bytes read but not looked at.

    Blocks end at the last line end before a multiple of `block_bytes` in the file, wherever the reading began: who
    resumes behind a block gets the same blocks as who reads on, as long as lines and runs of blank lines are shorter
    than `block_bytes` (of longer ones only the lines, not their grouping, are sure to be the same).
    """

    def __init__(
        self,
        source: ByteSource,
        stored: RawIOBase,
        path: str,
        file: int,
        file_bytes: int | None,
        line: int,
        block_bytes: int,
        max_line_bytes: int,
    ) -> None:
        self.offset = 0
        self.line = line
        self._source = source
        self._stored = stored
        self._path = path
        self._file = file
        self._file_bytes = file_bytes
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._carry = b""
        self._ahead = b""
        self._edge = 0  # position up to which bytes were looked at
        self._mark_bytes = 0  # of a byte order mark that the next block covers
        self._must_end = False
        self._blank_run = False  # inside a run of blank lines too long to be taken for the tail of the file
        self._error: CorruptShardError | None = None

    def check_size(self) -> None:
        """CorruptShardError when the file has another size than it should have."""
        size = open_size(self._stored)
        if self._file_bytes is not None and size != self._file_bytes:
            reason = f"changed since it was listed ({self._file_bytes} bytes then, {size} now)"
            raise CorruptShardError(self._path, min(size, self._file_bytes), self.line, reason)

    def seek(self, offset: int) -> None:
        """Go to `offset`: 0, behind a line feed, or the end of a file without a final one."""
        if offset == 0:
            return
        if isinstance(self._source, RawIOBase):
            self._source.seek(offset - 1)
        else:
            self._discard(offset - 1)
        last = bytearray(1)
        if not self._read(memoryview(last)):
            reason = "the file ends before the position to resume at"
            raise self._error or CorruptShardError(self._path, offset, self.line, reason)
        self._must_end = last != b"\n"
        self.offset = offset

    def _discard(self, num_bytes: int) -> None:
        scratch = memoryview(bytearray(min(num_bytes, _SKIP_BYTES)))
        while num_bytes and (read := self._read(scratch[:num_bytes])):
            num_bytes -= read

    def blocks(self) -> Iterator[TextBlock]:
        at_start = self.offset == 0
        at_end = False
        while not at_end:
            buffer, used = self._fill()
            at_end = used < len(buffer) and self._error is None
            if self._must_end and used:
                raise ValueError(f"{self._path}: no line starts at byte {self.offset}; has the file changed?")
            begin = self._skip_mark(buffer, used) if at_start else 0
            at_start = False
            yield from self._cut(buffer, begin, used, at_end)
            if self._error is not None:
                raise self._error

    def _fill(self) -> tuple[memoryview, int]:
        """A new buffer with the carry and what comes next; number of bytes used, less than its size at the end."""
        carried = len(self._carry)
        start = self.offset + self._mark_bytes
        size = self._block_bytes
        edge = max((start // size + 1) * size, -(-len(UTF8_BOM) // size) * size)
        while edge <= self._edge:  # as long again as an unfinished line: a long one costs a logarithm of copies
            edge = -(-(start + 2 * (edge - start)) // size) * size if edge - start >= size else edge + size
        self._edge = edge
        buffer = memoryview(pa.allocate_buffer(self._edge - start)).cast("B")  # of a pool, and not filled with zeros
        buffer[:carried] = self._carry
        return buffer, carried + self._read(buffer[carried:])

    def _read(self, target: memoryview) -> int:
        """Fill `target`; fewer bytes mean the end, or an error that is kept until the bytes before it are used."""
        used = min(len(target), len(self._ahead))
        target[:used] = self._ahead[:used]
        self._ahead = self._ahead[used:]
        try:
            while used < len(target) and (read := self._source.readinto(target[used:])):
                used += read
            if used < len(target):
                self.check_size()  # before what looks like the end is taken for the end
        except CorruptShardError as error:
            self._error = error
        return used

    def _skip_mark(self, buffer: memoryview, used: int) -> int:
        start = bytes(buffer[: min(used, _MARK_BYTES)])
        if start.startswith(GZIP_MAGIC):
            raise CorruptShardError(self._path, 0, 0, "gzip data under a name that does not end in .gz")
        if start.startswith(ZSTD_MAGIC):
            raise CorruptShardError(self._path, 0, 0, "Zstandard data under a name that does not end in .zst")
        self._mark_bytes = len(UTF8_BOM) if start.startswith(UTF8_BOM) else 0
        return self._mark_bytes

    def _cut(self, buffer: memoryview, begin: int, used: int, at_end: bool) -> Iterator[TextBlock]:
        """Yield the whole lines in ``buffer[begin:used]``, keep the rest."""
        whole = begin + after_last_feed(buffer[begin:used])
        if at_end and bytes(buffer[whole:used]) not in (b"", b"\r"):
            whole = used  # the last line of the file, without a line feed
        keep = _blank_tail(buffer, begin, whole)
        if keep > begin:
            self._blank_run = False
        if self._blank_run or whole - keep > self._max_line_bytes:
            self._blank_run = True
            keep = whole
        too_long = used - whole > self._max_line_bytes and not at_end
        if too_long:
            keep = whole  # something follows: the blank lines are not the tail
        if keep > begin:
            yield self._block(buffer, begin, keep)
        if too_long:
            self._blank_run = False
            yield from self._skip_line(bytes(buffer[whole : whole + _HEAD_BYTES]), used - whole)
        else:
            self._carry = bytes(buffer[keep:used])

    def _block(self, buffer: memoryview, begin: int, end: int) -> TextBlock:
        text = buffer[begin:end]
        lines = count_feeds(text) + (text[-1] != _LF)
        return self._advance(text.toreadonly(), lines, end - begin, 0)

    def _skip_line(self, head: bytes, seen: int) -> Iterator[TextBlock]:
        """Read to the end of a line of which `seen` bytes, beginning with `head`, have been read."""
        feed = -1
        while feed < 0:
            buffer = bytearray(_SKIP_BYTES)
            used = self._read(memoryview(buffer))
            feed = buffer.find(b"\n", 0, used)
            head = (head + buffer[: min(feed if feed >= 0 else used, _HEAD_BYTES)])[:_HEAD_BYTES]
            seen += feed if feed >= 0 else used
            if used < len(buffer):
                break
        if feed < 0 and self._error is not None:
            return
        self._carry = b""
        self._ahead = bytes(buffer[feed + 1 : used]) + self._ahead if feed >= 0 else b""
        yield self._advance(memoryview(head), 1, seen + (feed >= 0), seen)
        self._edge = self.offset

    def _advance(self, data: memoryview, lines: int, num_bytes: int, oversized_bytes: int) -> TextBlock:
        num_bytes += self._mark_bytes
        self._mark_bytes = 0
        block = TextBlock(self._file, self.offset, self.line, data, lines, num_bytes, oversized_bytes)
        self.offset = block.next_offset
        self.line = block.next_line
        return block


def _blank_tail(buffer: memoryview, begin: int, end: int) -> int:
    """Where the blank lines (LF or CR LF) that end at `end` begin; `begin` is the start of a line."""
    ending = bytes(buffer[max(begin, end - 3) : end])
    if not ending.endswith((b"\n\n", b"\n\r\n")) and ending not in (b"\n", b"\r\n"):
        return end
    text = bytes(buffer[begin:end])
    blank_from = len(text.rstrip(b"\r\n"))
    # A line of several carriage returns is not blank.
    last_content = max(text.rfind(b"\r\r", blank_from), blank_from - 1)
    return begin + (text.index(b"\n", last_content) + 1 if last_content >= 0 else 0)
