"""Native parser of tab-separated click logs (see `_criteo.pyi`, `criteo_lines.py` and `criteo_parser.hpp`)."""

from libc.stdint cimport int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np
import pyarrow as pa


cdef extern from "criteo_parser.hpp" namespace "headrace::formats" nogil:
    cdef enum Kind "headrace::formats::Kind":
        kLabel
        kInt64
        kUint64
        kHex32
        kHex64

    cdef struct Fault:
        int64_t line, column, reason, begin, end, line_begin, line_end, found

    cdef struct Column:
        Kind kind
        cbool required
        uint8_t* values
        uint8_t* validity

    cdef cppclass Kernels:
        pass

    const Kernels* best_kernels()
    int64_t count_bytes(const uint8_t* data, int64_t size, uint8_t byte)
    int64_t count_lines(const uint8_t* data, int64_t size)
    int64_t min_row_bytes(const Column* columns, int64_t count)
    int64_t max_rows(int64_t size, int64_t row_bytes)

    cdef cppclass LineParser:
        LineParser(const Column* columns, int64_t count, int64_t max_line_bytes, const Kernels* kernels) except +
        cbool parse(const uint8_t* data, int64_t size, int64_t lines) except +
        int64_t rows()
        int64_t lines()
        int64_t nulls(int64_t column)
        const vector[Fault]& faults()


cdef inline int64_t value_bytes(uint8_t kind) noexcept nogil:
    return 4 if kind == kLabel or kind == kHex32 else 8


cdef inline int64_t padded(int64_t size) noexcept nogil:
    # 64-byte alignment for Arrow. The odd distance keeps the columns, which are written side by side, off the same
    # cache sets: 26 columns a power of two apart would evict each other at every row.
    return ((size + 1023) & ~(<int64_t> 1023)) + 192


cdef inline void put(uint8_t* at, int64_t value) noexcept nogil:
    memcpy(at, &value, sizeof(value))


def copy_bytes(uint8_t[::1] target not None, const uint8_t[::1] source not None):
    cdef int64_t size = min(target.shape[0], source.shape[0])
    if size > 0:
        with nogil:
            memcpy(&target[0], &source[0], size)
    return size


def count_feeds(const uint8_t[::1] data not None):
    cdef const uint8_t* text = &data[0] if data.shape[0] > 0 else NULL
    cdef int64_t feeds
    with nogil:
        feeds = count_bytes(text, data.shape[0], 10)
    return feeds


def after_last_feed(const uint8_t[::1] data not None):
    cdef int64_t at = data.shape[0]
    while at > 0 and data[at - 1] != 10:
        at -= 1
    return at


def parse_block(
    const uint8_t[::1] data not None,
    const uint8_t[::1] kinds not None,
    const uint8_t[::1] required not None,
    head not None,
    int64_t max_line_bytes,
    int64_t lines,
    cbool tiles=True,
):
    cdef int64_t size = data.shape[0]
    cdef int64_t count = kinds.shape[0]
    if count < 1 or required.shape[0] != count:
        raise ValueError(f"{count} kinds with {required.shape[0]} flags")
    cdef int64_t c
    for c in range(count):
        if kinds[c] > kHex64:
            raise ValueError(f"column {c}: kind {kinds[c]} is unknown")

    cdef vector[Column] columns
    cdef Column column
    columns.reserve(count)
    for c in range(count):
        column.kind = <Kind> kinds[c]
        column.required = required[c] != 0
        column.values = NULL
        column.validity = NULL
        columns.push_back(column)

    cdef const uint8_t* text = &data[0] if size > 0 else NULL
    if lines < 0:
        with nogil:
            lines = count_lines(text, size)
    # Lines may be too short to be rows: a block of line feeds needs next to no room.
    cdef int64_t capacity = min(lines, max_rows(size, min_row_bytes(columns.data(), count)) + 1)
    cdef int64_t bitmap_bytes = (capacity + 7) // 8
    cdef const uint8_t[::1] template = head.template
    cdef int64_t head_bytes = template.shape[0]
    cdef int64_t total = head_bytes
    for c in range(count):
        columns[c].values = <uint8_t*> total  # from the buffer's start, until there is one
        total += padded(capacity * value_bytes(kinds[c]))
    cdef int64_t bitmaps_at = total
    cdef int64_t bitmap_stride = (bitmap_bytes + 63) & ~(<int64_t> 63)
    total += bitmap_stride * count
    buffer = pa.allocate_buffer(total)

    cdef uint8_t* memory = <uint8_t*> <uintptr_t> buffer.address
    for c in range(count):
        columns[c].values = memory + <int64_t> columns[c].values
        columns[c].validity = memory + bitmaps_at + c * bitmap_stride
    memcpy(memory, &template[0], head_bytes)

    cdef uint8_t* node
    cdef uint8_t* place
    cdef int64_t nulls
    cdef LineParser* parser = new LineParser(columns.data(), count, max_line_bytes, best_kernels() if tiles else NULL)
    cdef cbool whole
    try:
        with nogil:
            memset(memory + bitmaps_at, 0xFF, bitmap_stride * count)
            whole = parser.parse(text, size, lines)
        if not whole:
            raise ValueError(f"more than {lines} lines in a block of {size} bytes")
        put(memory + <int64_t> head.rows_at, parser.rows())
        put(memory + <int64_t> head.body_bytes_at, total - head_bytes)
        node = memory + <int64_t> head.nodes_at
        place = memory + <int64_t> head.buffers_at
        for c in range(count):
            nulls = parser.nulls(c)
            put(node, parser.rows())
            put(node + 8, nulls)
            put(place, columns[c].validity - memory - head_bytes)
            put(place + 8, (parser.rows() + 7) // 8 if nulls else 0)
            put(place + 16, columns[c].values - memory - head_bytes)
            put(place + 24, parser.rows() * value_bytes(kinds[c]))
            node += 16
            place += 32
        return buffer, parser.rows(), parser.lines(), fault_table(parser.faults())
    finally:
        del parser


cdef object fault_table(const vector[Fault]& faults):
    """int64 [faults, 8]"""
    cdef object table = np.empty((faults.size(), sizeof(Fault) // sizeof(int64_t)), np.int64)
    cdef int64_t[:, ::1] target = table
    if faults.size() > 0:
        memcpy(&target[0, 0], faults.data(), faults.size() * sizeof(Fault))
    return table
