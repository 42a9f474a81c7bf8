"""Two-dimensional arrays in files, read by ranges of rows in bounded memory: raw records, ``.npy`` and ``.npz``.

Nothing is unpickled: object arrays are refused by their header. Files are read, not mapped, so that one that shrinks is
an error and no crash. Members of ``.npz`` that are stored are read in place, wherever the local header says that they
begin; compressed ones are first unpacked into an unnamed temporary file (in ``TMPDIR``; as large as the array): only
those that are asked for, once their header fits their size and the disk has room for all of them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import lzma
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from headrace.formats.errors import ColumnMismatchError, CorruptShardError
from headrace.formats.file_kinds import HEAD_BYTES, with_kind
from headrace.formats.store import LOCAL, Store, open_size, read_at

_MAX_HEADER_BYTES = 1 << 16
_COPY_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
# UnicodeDecodeError is of names, struct.error of extra fields, OSError without a number of bzip2.
_ZIP_DAMAGE = (
    zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError, UnicodeDecodeError, struct.error,
    OSError,
)  # fmt: skip
_STORED_SIGNATURE = b"PK\x03\x04"


class ArrayOnDisk:
    """`rows` x `width` numbers at byte `offset` of an open file, in C or Fortran order; owns the file.

    CorruptShardError when the file is too short for them.
    """

    def __init__(
        self, path: str, file: io.RawIOBase, *, offset: int, rows: int, width: int, dtype: np.dtype[Any], fortran: bool
    ) -> None:
        self.path = path
        self.rows = rows
        self.width = width
        self.dtype = dtype
        self._file = file
        self._offset = offset
        self._fortran = fortran and width > 1
        self.file_bytes = size = open_size(file)
        if size < offset + rows * self.row_bytes:
            reason = f"cut: {rows} x {width} values of {dtype} from byte {offset} on do not fit into {size} bytes"
            raise CorruptShardError(path, size, max(0, size - offset) // max(1, self.row_bytes), reason)

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def read(self, first: int, rows: int) -> npt.NDArray[Any]:
        """[rows, width] in native byte order, owned by the caller."""
        if not self._fortran:
            data = self._read_values(first * self.width, rows * self.width)
            return data.reshape(rows, self.width).astype(self.dtype.newbyteorder("="), copy=False)
        found = np.empty((rows, self.width), self.dtype.newbyteorder("="))
        for column in range(self.width):
            found[:, column] = self._read_values(column * self.rows + first, rows)
        return found

    def _read_values(self, first: int, count: int) -> npt.NDArray[Any]:
        values = np.empty(count, self.dtype)
        target = values.view(np.uint8).data
        offset, done = self._offset + first * self.dtype.itemsize, 0
        while done < len(target):
            read = read_at(self._file, target[done:], offset + done)
            if read == 0:
                raise CorruptShardError(self.path, offset + done, 0, "the file became shorter while it was read")
            done += read
        return values

    def close(self) -> None:
        self._file.close()


def open_records(path: str, words: int, store: Store = LOCAL) -> ArrayOnDisk:
    """A file of nothing but records of `words` little-endian int32; CorruptShardError for a part of a record."""
    size, record = store.size(path), 4 * words
    if size % record:
        reason = f"{size} bytes are not whole records of {record} bytes ({words} int32): cut, or another format"
        with store.open(path, "array") as whole:
            raise CorruptShardError(path, size, size // record, with_kind(reason, _bytes_at(whole, HEAD_BYTES, 0)))
    file = store.open(path)
    return ArrayOnDisk(path, file, offset=0, rows=size // record, width=words, dtype=np.dtype("<i4"), fortran=False)


def open_values(path: str, *, dtype: np.dtype[Any], width: int, store: Store = LOCAL) -> ArrayOnDisk:
    """A file of nothing but rows of `width` values; CorruptShardError for a part of a row."""
    size, row = store.size(path), width * dtype.itemsize
    if size % row:
        reason = f"{size} bytes are not whole rows of {row} bytes ({width} x {dtype}): cut, or another format"
        raise CorruptShardError(path, size, size // row, reason)
    return ArrayOnDisk(path, store.open(path), offset=0, rows=size // row, width=width, dtype=dtype, fortran=False)


def open_integers(path: str, *, rows: int, store: Store = LOCAL) -> ArrayOnDisk:
    """A file of nothing but an integer a row, signed, of as many bytes as its size says: 1, 2 or 4."""
    size = store.size(path)
    item = next((item for item in (1, 2, 4) if rows * item == size), None)
    if item is None:
        reason = f"{size} bytes are not {rows} integers of 1, 2 or 4 bytes: cut, or of other rows"
        raise CorruptShardError(path, size, 0, reason)
    return open_values(path, dtype=np.dtype(f"<i{item}"), width=1, store=store)


def open_npy(path: str, store: Store = LOCAL) -> ArrayOnDisk:
    """The array of a ``.npy`` file."""
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(store.open(path, "array"))
        array = _array_at(path, file, 0, open_size(file))
        on_error.pop_all()
        return array


def open_npz(path: str, names: Iterable[str], store: Store = LOCAL, *, rows: int | None = None) -> list[ArrayOnDisk]:
    """The arrays `names` of a ``.npz`` file (members ``NAME.npy``), in that order; others are not looked at.

    ColumnMismatchError for one that is not there. CorruptShardError for damage and for an array of other than `rows`
    rows, where they are given; OSError where the temporary folder has no room: all before anything is unpacked.
    """
    arrays = []
    with contextlib.ExitStack() as on_error:
        directory = on_error.enter_context(store.open(path, "array"))
        with _damage_as_corrupt(path, directory), zipfile.ZipFile(cast(IO[bytes], directory)) as archive:
            members = _members(path, archive, list(names))
            for member in members:
                _check_header(path, archive, member, rows)
            _check_room(path, [member for member in members if _is_packed(member)])
            for member in members:
                arrays.append(_open_member(path, archive, member, store))
                on_error.callback(arrays[-1].close)
        directory.close()
        on_error.pop_all()
    return arrays


def _members(path: str, archive: zipfile.ZipFile, names: Sequence[str]) -> list[zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            continue
        if name in found:
            raise CorruptShardError(path, member.header_offset, 0, f"{member.filename} is there twice")
        found[name] = member
    for name in names:
        if name not in found:
            raise ColumnMismatchError(path, name, f"is no array of this file, which has {', '.join(found)}")
        if found[name].flag_bits & 1:
            raise CorruptShardError(path, found[name].header_offset, 0, f"{found[name].filename} is encrypted")
    return [found[name] for name in names]


def _is_packed(member: zipfile.ZipInfo) -> bool:
    return member.compress_type != zipfile.ZIP_STORED


def _check_header(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, rows: int | None) -> None:
    """Of a packed member: what its first bytes say of it must be what the directory says, and as many rows as asked
    for. A few KiB are unpacked."""
    if not _is_packed(member):
        return
    with archive.open(member) as packed:
        head = packed.read(min(_MAX_HEADER_BYTES, member.file_size))
    header = _parse_header(path, head, 0)
    _check_size(path, header, 0, member.file_size)
    if rows is not None and header.rows != rows:
        reason = f"{member.filename} has {header.rows} rows, but the labels have {rows}"
        raise CorruptShardError(path, member.header_offset, min(rows, header.rows), reason)


def _check_room(path: str, packed: Sequence[zipfile.ZipInfo]) -> None:
    wanted, folder = sum(member.file_size for member in packed), tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if wanted > free:
        names = ", ".join(member.filename for member in packed)
        raise OSError(
            errno.ENOSPC,
            f"{names}: {wanted} bytes when unpacked, and {folder} has room for {free}: set TMPDIR to a larger place",
            path,
        )


def _open_member(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, store: Store) -> ArrayOnDisk:
    with contextlib.ExitStack() as on_error:
        if not _is_packed(member):
            file = on_error.enter_context(store.open(path, "array"))
            begin = _data_offset(path, file, member)
            array = _array_at(path, file, begin, begin + member.file_size)
        else:
            file = cast(io.RawIOBase, on_error.enter_context(tempfile.TemporaryFile(buffering=0)))
            with archive.open(member) as packed:
                shutil.copyfileobj(packed, cast(IO[bytes], file), _COPY_BYTES)
            array = _array_at(path, file, 0, member.file_size)
        on_error.pop_all()
        return array


@contextlib.contextmanager
def _damage_as_corrupt(path: str, file: io.RawIOBase) -> Iterator[None]:
    """What zipfile, and what it unpacks with, raise for a damaged archive is a CorruptShardError; errors of the system
    stay what they are."""
    try:
        yield
    except CorruptShardError:
        raise
    except _ZIP_DAMAGE as error:
        # A damaged directory can point before the file: seeking there is an invalid argument. Damage has no number.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = f"no zip archive, or damaged, or packed in an unknown way ({error})"
        head = _bytes_at(file, HEAD_BYTES, 0)
        reason = reason if head.startswith(b"PK") else with_kind(reason, head)
        raise CorruptShardError(path, open_size(file), 0, reason) from error


def _data_offset(path: str, file: io.RawIOBase, member: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: its local header's own lengths say so, whoever wrote it."""
    header = _bytes_at(file, _LOCAL_HEADER.size, member.header_offset)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_STORED_SIGNATURE):
        raise CorruptShardError(path, member.header_offset, 0, f"{member.filename} has no local header")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return member.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


def _bytes_at(file: io.RawIOBase, size: int, offset: int) -> bytes:
    """Up to `size` bytes from `offset` on, fewer at the end of the file only."""
    target, done = bytearray(size), 0
    while done < size and (read := read_at(file, memoryview(target)[done:], offset + done)):
        done += read
    return bytes(target[:done])


class _Header(NamedTuple):
    """What a ``.npy`` header of `nbytes` bytes says."""

    rows: int
    width: int
    dtype: np.dtype[Any]
    fortran: bool
    nbytes: int


def _array_at(path: str, file: io.RawIOBase, begin: int, end: int) -> ArrayOnDisk:
    """The array whose ``.npy`` header stands at byte `begin`, and whose values end at `end`."""
    head = _bytes_at(file, min(_MAX_HEADER_BYTES, max(0, end - begin)), begin)
    header = _parse_header(path, head, begin)
    array = ArrayOnDisk(
        path,
        file,
        offset=begin + header.nbytes,
        rows=header.rows,
        width=header.width,
        dtype=header.dtype,
        fortran=header.fortran,
    )
    _check_size(path, header, begin, end)
    return array


def _parse_header(path: str, data: bytes, begin: int) -> _Header:
    """The header at the start of `data`, the bytes of the file from `begin` on."""
    head = io.BytesIO(data)
    try:
        version = npy.read_magic(head)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(head)
    except (ValueError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError) as error:  # of Python's parser
        reason = with_kind(f"not an array in NumPy's format ({error})", head.getvalue()[:HEAD_BYTES])
        raise CorruptShardError(path, begin, 0, reason) from error
    if dtype.kind not in "iufb" or dtype.itemsize > 8:
        raise CorruptShardError(path, begin, 0, f"an array of {dtype}, where numbers are expected")
    if len(shape) not in (1, 2):
        raise CorruptShardError(path, begin, 0, f"an array of shape {shape}, where rows of values are expected")
    rows, width = shape if len(shape) == 2 else (shape[0], 1)
    return _Header(rows, width, dtype, fortran, head.tell())


def _check_size(path: str, header: _Header, begin: int, end: int) -> None:
    """CorruptShardError unless header and values are [begin, end)."""
    after = begin + header.nbytes + header.rows * header.width * header.dtype.itemsize
    if after != end:
        raise CorruptShardError(path, min(after, end), 0, f"{end - begin} bytes, its header says {after - begin}")
