"""A message whose head is filled in by hand is read as the batch that it says, over the same memory."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from headrace.formats.batch_message import MessageHead
from headrace.formats.criteo import criteo_schema

SCHEMAS = [
    pa.schema([("a", pa.uint32())]),
    pa.schema([("y", pa.float32()), ("d", pa.int64()), ("c", pa.uint64())]),
    criteo_schema().arrow_schema(labels=True),
]


def filled(head: MessageHead, rows: int, nulls: bool) -> tuple[pa.Buffer, list[np.ndarray]]:
    """A buffer of `rows` rows, every third value null, and the values of each column."""
    body, places, columns = bytearray(), [], []
    for number, field in enumerate(head.schema):
        values = (np.arange(rows) * (number + 1)).astype(field.type.to_pandas_dtype())
        bitmap = np.packbits(np.arange(rows) % 3 != 0, bitorder="little").tobytes()
        for part in (bitmap if nulls else b"", values.tobytes()):
            places.append((len(body), len(part)))
            body += part + bytes(-len(part) % 64)
        columns.append(values)
    data = bytearray(head.template) + body
    struct.pack_into("<q", data, head.rows_at, rows)
    struct.pack_into("<q", data, head.body_bytes_at, len(body))
    for number in range(len(head.schema)):
        struct.pack_into("<qq", data, head.nodes_at + 16 * number, rows, -(-rows // 3) if nulls else 0)
    for number, place in enumerate(places):
        struct.pack_into("<qq", data, head.buffers_at + 16 * number, *place)
    return pa.py_buffer(bytes(data)), columns


@pytest.mark.parametrize("schema", SCHEMAS, ids=["one column", "three", "criteo"])
@pytest.mark.parametrize("rows", [0, 1, 8, 1000])
@pytest.mark.parametrize("nulls", [False, True])
def test_a_filled_head_is_a_batch_without_a_copy(schema: pa.Schema, rows: int, nulls: bool) -> None:
    head = MessageHead.of(schema)
    assert len(head.template) % 64 == 0
    buffer, columns = filled(head, rows, nulls)
    batch = head.read(buffer)
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch.num_rows == rows
    for array, values in zip(batch.columns, columns, strict=True):
        expected = [None if nulls and i % 3 == 0 else v for i, v in enumerate(values.tolist())]
        assert array.to_pylist() == expected
        assert array.null_count == (-(-rows // 3) if nulls else 0)
        address = array.buffers()[1].address if rows else buffer.address
        assert buffer.address <= address <= buffer.address + buffer.size
