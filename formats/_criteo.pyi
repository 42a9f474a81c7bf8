"""Native parser of tab-separated click logs; `headrace.formats.criteo_lines.parse_lines` is its front."""

import pyarrow as pa

from headrace.formats.bad_lines import I64
from headrace.formats.criteo_lines import BytesLike

def parse_block(
    data: BytesLike, kinds: bytes, required: bytes, max_line_bytes: int, lines: int
) -> tuple[pa.Buffer, list[tuple[int, int, int]], int, int, I64]:
    """Parse whole lines into one freshly allocated buffer; the GIL is released meanwhile.

    `kinds` and `required` hold a byte a column (`Kind`, 0 or 1). `lines` is the number of lines, -1 to have them counted;
    more of them than that raise ValueError. Returns the buffer; for each column the byte offsets of
    its values (native order; float32 for labels, 4 bytes for hex32, else 8) and of its validity bitmap (1 = present),
    and its number of nulls; the rows stored; the lines seen; int64 [n, 8], the fields of a
    `BadLine` for each line refused, `line` counted from 0.
    """
