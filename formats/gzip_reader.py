"""Gzip files at the speed of ISA-L: straight into buffers, and with exact errors where a file is damaged."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedIOBase, RawIOBase

import pyarrow as pa
from isal import igzip, isal_zlib

from headrace.formats.errors import StoreReadError
from headrace.formats.gzip_members import GzipMembers

_PIECE_BYTES = 1 << 20
_INPUT_BYTES = 1 << 20
# BadGzipFile is an OSError without a number; a system's error keeps its own.
_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, isal_zlib.error)  # type: ignore[assignment]


def _fast_reader(file: RawIOBase) -> BufferedIOBase | RawIOBase:
    """ISA-L's reader without the buffer that its gzip file puts around it, through which all bytes are copied; with it,
    where a release of `isal` has no such reader."""
    bare: Callable[[RawIOBase, int], RawIOBase] | None = getattr(igzip, "_GzipReader", None)
    if bare is not None:
        return bare(file, _INPUT_BYTES)
    whole: BufferedIOBase = igzip.IGzipFile(fileobj=file, mode="rb")  # type: ignore[no-untyped-call]
    return whole


class GzipReader:
    """The bytes of :class:`GzipMembers`, its errors too, in half as many copies.

    ISA-L's own reader fills the buffers; it checks checksums, lengths and the end as well, but cannot say where in the
    file damage is, nor what came before it in the same buffer. Where it stops, `GzipMembers` reads the file again up to
    there and goes on in its place: what is given out, and what is refused, is up to that one alone.
    """

    def __init__(self, path: str, file: RawIOBase | None = None, reopen: Callable[[], RawIOBase] | None = None) -> None:
        """`file` is the one called `path`, open, which is closed with this; `reopen` opens it once more."""
        self._path = path
        self._reopen = reopen or (lambda: open(path, "rb", buffering=0))  # noqa: SIM115 (closed by close)
        self._file = file if file is not None else self._reopen()
        self._fast = _fast_reader(self._file)
        self._exact: GzipMembers | None = None
        self._given = 0

    def read_piece(self) -> bytes | memoryview:
        """The next bytes, at most 1 MiB; none at the end of the file."""
        if self._exact is None:
            buffer = memoryview(pa.allocate_buffer(_PIECE_BYTES)).cast("B")
            try:
                used = int(self._fast.readinto(buffer))
            except _DAMAGE as error:
                if isinstance(error, StoreReadError) or (isinstance(error, OSError) and error.errno is not None):
                    raise
                self._exact = self._go_to(self._given)
            else:
                self._given += used
                return buffer[:used]
        return self._exact.read_piece()

    def _go_to(self, offset: int) -> GzipMembers:
        members = GzipMembers(self._path, self._reopen())
        try:
            while offset and (piece := members.read_piece(offset)):
                offset -= len(piece)
        except BaseException:
            members.close()
            raise
        return members

    def close(self) -> None:
        self._fast.close()
        self._file.close()
        if self._exact is not None:
            self._exact.close()
