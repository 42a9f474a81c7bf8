"""Native parser of tab-separated click logs; `headrace.formats.criteo_lines.parse_lines` is its front."""

import pyarrow as pa

from headrace.formats.bad_lines import I64
from headrace.formats.batch_message import MessageHead
from headrace.formats.criteo_lines import BytesLike

def copy_bytes(target: bytearray | memoryview, source: BytesLike) -> int:
    """Copy as many bytes as both have, and give their number; the GIL is released, which a slice's assignment holds."""

def parse_block(
    data: BytesLike,
    kinds: bytes,
    required: bytes,
    head: MessageHead,
    max_line_bytes: int,
    lines: int,
    tiles: bool = True,
) -> tuple[pa.Buffer, int, int, I64]:
    """Parse whole lines into one freshly allocated buffer; the GIL is released meanwhile.

    `kinds` and `required` hold a byte a column (`Kind`, 0 or 1). `lines` is the number of lines, -1 to have them
    counted; more of them than that raise ValueError. `tiles`: take many lines at a time where the machine can.
    Returns the buffer, a message whose `head` is filled in and whose values are in native order (float32 for labels, 4
    bytes for hex32, else 8); the rows stored; the lines seen; int64 [n, 8], the fields of a `BadLine` for each line
    refused, `line` counted from 0.
    """

def count_feeds(data: BytesLike) -> int:
    """Line feeds in `data`; without the GIL."""

def after_last_feed(data: BytesLike) -> int:
    """Where the bytes behind the last line feed of `data` begin; 0 when there is none."""
