"""A tar shard of Arrow record batches: members are IPC streams or files, read in order by webdataset."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
from webdataset.tariterators import tar_file_iterator

from headrace.formats.arrow_batches import chosen, reading, stream_end_fault, with_names
from headrace.formats.errors import ColumnMismatchError, CorruptShardError
from headrace.formats.file_kinds import HEAD_BYTES, is_tar, with_kind
from headrace.formats.store import Store
from headrace.formats.tar_walk import BLOCK_BYTES, TarWalk
from headrace.formats.text_blocks import ByteSource, open_bytes

MEMBER_SUFFIXES = (".arrow", ".arrows", ".ipc")
_MAX_NAME_CHARS = 1024
_READ_BYTES = 1 << 20

_T = TypeVar("_T")


class _WatchedBytes(io.RawIOBase):
    """What webdataset reads from: each byte goes through the walk first.

    At the first error the bytes end, and it stays in `error`: so the members before it are given out before it is
    raised, however far tar readers read ahead.
    """

    def __init__(self, source: ByteSource, walk: TarWalk) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.head = b""
        self._source = source
        self._walk = walk

    def read(self, size: int = -1, /) -> bytes:
        buffer = bytearray(_READ_BYTES if size < 0 else size)
        view, done = memoryview(buffer), 0
        while done < len(view) and self.error is None:
            before, read = self._walk.bytes, 0
            try:
                read = self._source.readinto(view[done:]) or 0
                self.head += bytes(view[done : done + read][: HEAD_BYTES - len(self.head)])
                self._walk.feed(view[done : done + read])
            except Exception as error:
                self.error = error
                read = max(0, self._walk.bytes - BLOCK_BYTES - before) if read else 0
            done += read
            if not read:
                break
        return bytes(view[:done])

    def drain(self) -> None:
        """Let the rest pass; raises the error, if there is one."""
        while self.read(_READ_BYTES):
            pass
        if self.error is not None:
            raise self.error


class TarShard:
    """An open shard (see ``ArrowFile`` in `arrow_batches.py`); :meth:`batches` may be called once.

    Member names are relative, without ``..``, end in one of :data:`MEMBER_SUFFIXES`, and occur once. All members have
    the schema of the first. Without a mark at the end of the archive it is cut, unless `end_required` is False (then a
    manifest vouches for it). One member is held at a time, of at most `max_member_bytes`.
    """

    num_rows: int | None = None

    def __init__(self, path: str, store: Store, *, end_required: bool, max_member_bytes: int) -> None:
        self._path = path
        self._end_required = end_required
        self._walk = TarWalk(path, max_member_bytes=max_member_bytes)
        self._source, self._stored = open_bytes(path, store)
        self._row = 0
        try:
            self._members = self._named_members()
            first = next(self._members, None)
            if first is None:
                raise CorruptShardError(path, self._walk.bytes, 0, "an archive without members")
            self.schema: pa.Schema = self._reading(lambda: _batches(first[1])[0])
            self._members = chain([first], self._members)
        except BaseException:
            self.close()
            raise

    def batches(self, columns: Sequence[str], first_row: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        for name, data in self._members:
            schema, batches, end_fault = self._reading(partial(_batches, data))
            if not schema.equals(self.schema):
                reason = f"member {name} has the columns {_described(schema)}, the first {_described(self.schema)}"
                raise ColumnMismatchError(self._path, name, reason)
            while (batch := self._reading(lambda: next(batches, None))) is not None:  # noqa: B023 (called at once)
                skip = min(max(0, first_row - self._row), batch.num_rows)
                kept = chosen(batch, columns)
                self._reading(partial(kept.validate, full=True))
                self._row += batch.num_rows
                for at in range(skip, batch.num_rows, max_rows):
                    yield kept.slice(at, max_rows)
            if fault := self._reading(end_fault):
                raise CorruptShardError(self._path, self._walk.bytes, self._row, f"member {name}: {fault}")

    def _named_members(self) -> Iterator[tuple[str, bytes]]:
        watched, names = _WatchedBytes(self._source, self._walk), set[str]()
        members = tar_file_iterator(watched, skip_meta=None)  # type: ignore[arg-type,unused-ignore]
        while (member := self._next_member(watched, members)) is not None:
            name: str = member["fname"]
            _check_name(self._path, name, names)
            names.add(name)
            yield name, member["data"]
        self._in_archive(watched, watched.drain)
        self._in_archive(watched, partial(self._walk.finish, end_required=self._end_required))
        if self._walk.members != len(names):
            reason = f"{self._walk.members} members, of which webdataset gave {len(names)}"
            raise CorruptShardError(self._path, self._walk.bytes, self._row, reason)

    def _next_member(self, watched: _WatchedBytes, members: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        return self._in_archive(watched, lambda: next(members, None))

    def _in_archive(self, watched: _WatchedBytes, step: Callable[[], _T]) -> _T:
        """What `step` gives; damage is a CorruptShardError with the rows given out, other errors stay what they are."""
        try:
            return step()
        except Exception as raised:
            error = watched.error or raised
            if isinstance(error, CorruptShardError):
                reason = error.reason if is_tar(watched.head) else with_kind(error.reason, watched.head)
                raise CorruptShardError(self._path, error.byte_offset, self._row, reason) from error
            if error is watched.error:
                raise error from None
            reason = f"cut, no tar archive, or damaged ({str(raised).partition(' @ ')[0]})"
            reason = reason if is_tar(watched.head) else with_kind(reason, watched.head)
            raise CorruptShardError(self._path, self._walk.bytes, self._row, reason) from raised

    def _reading(self, read: Callable[[], _T]) -> _T:
        return reading(self._path, self._walk.bytes, self._row, read)

    def close(self) -> None:
        self._source.close()


def _batches(data: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Callable[[], str]]:
    """Schema and record batches of a member, and what is wrong with its end once they are read: an IPC file or stream,
    which its first bytes tell.

    UnicodeDecodeError for a schema whose names are no text, before anyone asks for them.
    """
    buffer = pa.py_buffer(data)
    if data.startswith(b"ARROW1"):
        file = pa.ipc.open_file(buffer)
        return with_names(file.schema), (file.get_batch(i) for i in range(file.num_record_batches)), str
    source = pa.BufferReader(buffer)
    stream = pa.ipc.open_stream(source)
    return with_names(stream.schema), iter(stream), partial(stream_end_fault, source, end_required=False)


def _check_name(path: str, name: str, before: set[str]) -> None:
    parts = name.split("/")
    if (
        not name
        or len(name) > _MAX_NAME_CHARS
        or name.startswith("/")
        or ".." in parts
        or any(c in name for c in "\\\0")
    ):
        raise CorruptShardError(path, 0, 0, f"member name {name[:80]!r} is not a plain relative one")
    if name in before:
        raise CorruptShardError(path, 0, 0, f"member {name!r} is there twice")
    if not name.endswith(MEMBER_SUFFIXES):
        expected = ", ".join(MEMBER_SUFFIXES)
        raise CorruptShardError(path, 0, 0, f"member {name!r} is none of Arrow's ({expected})")


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:400]
