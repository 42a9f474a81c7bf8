"""A record batch over one buffer in one call: the head of an Arrow IPC message, whose numbers are filled in.

Forty columns made one by one cost more time than parsing a thousand lines. `pyarrow.ipc.read_record_batch` makes them
at once, without a copy, out of a buffer that begins with a message's head. What differs from batch to batch in a head
are a few integers at fixed places; the rest comes from a message that Arrow itself wrote.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

_ALIGNMENT = 64
_PREFIX_BYTES = 8
"""Before the flatbuffer: a continuation mark, and its length with the padding behind it."""

# Fields of the flatbuffer tables Message and RecordBatch (format/Message.fbs).
_HEADER, _BODY_LENGTH = 2, 3
_LENGTH, _NODES, _BUFFERS = 0, 1, 2


@dataclass(frozen=True)
class MessageHead:
    """The head of a message for batches of `schema`, of columns of fixed width without children.

    `template` is a multiple of 64 bytes long, then the body begins. At `rows_at` and `body_bytes_at` stand int64: rows,
    and bytes of the body; from `nodes_at` on rows and nulls of each column; from `buffers_at` on offset in the body and
    bytes of its bitmap, then those of its values.
    """

    schema: pa.Schema
    template: bytes
    rows_at: int
    body_bytes_at: int
    nodes_at: int
    buffers_at: int

    @classmethod
    def of(cls, schema: pa.Schema) -> MessageHead:
        columns = [pa.nulls(1, field.type) for field in schema]  # nothing is left out, as zeros would be
        message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize().to_pybytes()
        (flat_bytes,) = struct.unpack_from("<i", message, 4)
        flat = message[_PREFIX_BYTES : _PREFIX_BYTES + flat_bytes]
        head_bytes = -(-(_PREFIX_BYTES + flat_bytes) // _ALIGNMENT) * _ALIGNMENT
        prefix = message[:4] + struct.pack("<i", head_bytes - _PREFIX_BYTES)
        (root,) = struct.unpack_from("<I", flat)
        batch = _reference(flat, _field(flat, root, _HEADER))
        nodes = _reference(flat, _field(flat, batch, _NODES)) + 4  # behind the vector's length
        buffers = _reference(flat, _field(flat, batch, _BUFFERS)) + 4
        return cls(
            schema=schema,
            template=(prefix + flat).ljust(head_bytes, b"\0"),
            rows_at=_PREFIX_BYTES + _field(flat, batch, _LENGTH),
            body_bytes_at=_PREFIX_BYTES + _field(flat, root, _BODY_LENGTH),
            nodes_at=_PREFIX_BYTES + nodes,
            buffers_at=_PREFIX_BYTES + buffers,
        )

    def read(self, buffer: pa.Buffer) -> pa.RecordBatch:
        """The batch of a buffer whose head is filled in; it keeps the buffer alive."""
        return pa.ipc.read_record_batch(buffer, self.schema)


def _field(flat: bytes, table: int, number: int) -> int:
    """Where a field of a table lies."""
    (vtable_back,) = struct.unpack_from("<i", flat, table)
    (offset,) = struct.unpack_from("<H", flat, table - vtable_back + 4 + 2 * number)
    if offset == 0:
        raise RuntimeError(f"Arrow wrote a message without its field {number}")
    return table + int(offset)


def _reference(flat: bytes, at: int) -> int:
    (offset,) = struct.unpack_from("<I", flat, at)
    return at + int(offset)
