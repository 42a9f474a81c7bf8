"""Snapshots in files: Arrow IPC, a record batch a shard, written and read with one shard in memory at a time."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from headrace.formats.atomic_file import AtomicFile, sync_folder
from headrace.indexer.core import IndexCore, IndexCut
from headrace.indexer.snapshot import (
    DIGEST_KEY,
    KEY,
    NOT_A_SNAPSHOT,
    Header,
    Identity,
    Shard,
    restore_shards,
    schema_of,
    shards_of,
)

_MAGIC = b"ARROW1\0\0"
"""What an IPC file begins with; the messages of a stream follow, then a footer."""

_ROW_BYTES = 20
"""A row takes so many at least: uid 4, id 8, location 8."""


def write(cut: IndexCut, identity: Identity, path: Path) -> None:
    """Into an Arrow IPC file, flushed to the disk, that appears whole or not at all: the last writer wins."""
    schema = schema_of(cut, identity)
    with AtomicFile(path) as file:
        with pa.ipc.new_file(file.stream, schema) as writer:
            for shard in shards_of(cut, identity, schema):
                writer.write_batch(shard.batch, custom_metadata={DIGEST_KEY: shard.digest})
        file.finish()
        file.publish()
    sync_folder(file.target.parent)


def restore_file(path: Path, identity: Identity, core: IndexCore) -> None:
    """As :func:`~headrace.indexer.snapshot.restore_table`; errors name the file."""
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "a folder, and no file of write_snapshot", str(path))
    if not stat.S_ISREG(kind):  # to open a pipe waits for who writes to it
        raise ValueError(f"{path}: a pipe, socket or device; snapshots are read from files, which can be mapped")
    try:
        # Mapped: a damaged length cannot ask for more than there is.
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            if KEY not in (reader.schema.metadata or {}):
                raise ValueError(NOT_A_SNAPSHOT)
            header = Header(reader.schema, identity)
            if reader.num_record_batches != identity.num_shards:
                raise ValueError(f"{reader.num_record_batches} record batches for {identity.num_shards} shards")
            source.seek(0)
            content = source.read_buffer()
            if sum(header.rows) * _ROW_BYTES > content.size:
                raise ValueError(f"it is too short for the {sum(header.rows):,} rows of its header: it is damaged")
            restore_shards(_read_shards(content, reader.schema, identity.num_shards), header, core)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        what = "" if type(error) is ValueError else "not a whole snapshot file: "
        raise ValueError(f"{path}: {what}{error}") from error


def _read_shards(content: pa.Buffer, schema: pa.Schema, num_shards: int) -> Iterator[Shard]:
    """The record batches, in the order in which they stand: each message is looked at before Arrow decodes it, since
    the footer might name others than were looked at."""
    if content.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise ValueError("not a whole snapshot file: it does not begin as one")
    body = content.slice(len(_MAGIC))
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    first = messages.read_next_message()
    reader = pa.ipc.open_stream(pa.BufferReader(body))
    if first.type != "schema" or not reader.schema.equals(schema, check_metadata=True):
        raise ValueError("its schema is not that of its footer: it is damaged")
    for number in range(num_shards):
        try:
            message = messages.read_next_message()
        except StopIteration:
            raise ValueError(f"it ends before shard {number}: it is damaged") from None
        if message.type != "record batch" or _is_compressed(message.metadata):
            raise ValueError(
                f"shard {number} is not a plain record batch: snapshots are written without compression and "
                "dictionaries, and only so are they read"
            )
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        batch.validate(full=True)
        yield Shard(batch, (metadata or {}).get(DIGEST_KEY, b"").decode("ascii", "replace"))


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether the message of a record batch says that its body is compressed, which Arrow would expand to any size.

    A table of flatbuffers begins with the distance back to its vtable, which holds its own length, the table's, and the
    offset of each field in the table, 0 for one that is absent. Of a Message field 2 is the header; of a RecordBatch
    field 3 is the compression.
    """
    raw = memoryview(metadata)

    def field(table: int, number: int) -> int:
        """Where the field is; 0 if it is absent."""
        vtable = table - read("<i", table)
        if 4 + 2 * number + 2 > read("<H", vtable):
            return 0
        offset = read("<H", vtable + 4 + 2 * number)
        return table + offset if offset else 0

    def read(kind: str, at: int) -> int:
        if not 0 <= at <= len(raw) - struct.calcsize(kind):
            raise ValueError("a message points outside itself: it is damaged")
        return int(struct.unpack_from(kind, raw, at)[0])

    header = field(read("<I", 0), 2)
    return header == 0 or field(header + read("<I", header), 3) != 0
