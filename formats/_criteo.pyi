"""Native parser of tab-separated click logs; `headrace.formats.criteo_lines.parse_lines` is its front."""

import pyarrow as pa

from headrace.formats.criteo_lines import BytesLike

def parse_block(
    data: BytesLike, kinds: bytes, required: bytes, max_line_bytes: int
) -> tuple[pa.Buffer, list[tuple[int, int, int]], int, int, list[tuple[int, int, int, int, int, int, int, int]]]:
    """Parse whole lines into one freshly allocated buffer; the GIL is released meanwhile.

    `kinds` and `required` hold a byte a column (`Kind`, 0 or 1). Returns the buffer; for each column the byte offsets of
    its values (native order; float32 for labels, 4 bytes for hex32, else 8) and of its validity bitmap (1 = present),
    and its number of nulls; the rows stored; the lines seen; the fields of a `LineFault` for each line refused.
    """
