# distutils: language = c++
"""Native part of `location_set.py`. Signatures: _location_set.pyi."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef uint64_t EMPTY = 0xFFFFFFFFFFFFFFFF  # ABSENT, which is no member
cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: neighbours fall far apart


cdef inline uint64_t _find(const uint64_t* table, uint64_t mask, int shift, uint64_t location) noexcept nogil:
    """Where the location is, or the free entry where it belongs: there is one, since at most half are taken."""
    cdef uint64_t at = (location * MULTIPLIER) >> shift
    while table[at] != location and table[at] != EMPTY:
        at = (at + 1) & mask
    return at


cdef int _shift(uint64_t size) except -1:
    cdef int bits = 0
    while (<uint64_t> 1 << bits) < size:
        bits += 1
    if bits == 0 or (<uint64_t> 1 << bits) != size:
        raise ValueError(f"a table of {size} entries; it must have a power of two of them, two or more")
    return 64 - bits


def fill(uint64_t[::1] table not None, const uint64_t[::1] locations not None):
    cdef uint64_t size = table.shape[0], count = locations.shape[0], i
    cdef int shift = _shift(size)
    if count > size // 2:
        raise ValueError(f"{count} locations for a table of {size} entries; it must have twice as many")
    with nogil:
        for i in range(size):
            table[i] = EMPTY
        for i in range(count):
            table[_find(&table[0], size - 1, shift, locations[i])] = locations[i]


def contains(const uint64_t[::1] table not None, const uint64_t[::1] locations not None, uint8_t[::1] out not None):
    cdef uint64_t size = table.shape[0], count = locations.shape[0], i
    cdef int shift = _shift(size)
    if out.shape[0] != locations.shape[0]:
        raise ValueError(f"{out.shape[0]} places for the answers of {count} locations")
    with nogil:
        for i in range(count):
            out[i] = locations[i] != EMPTY and table[_find(&table[0], size - 1, shift, locations[i])] == locations[i]


def fill_positions(
    uint64_t[::1] table not None, int64_t[::1] positions not None, const uint64_t[::1] locations not None
):
    cdef uint64_t size = table.shape[0], count = locations.shape[0], i, at
    cdef int shift = _shift(size)
    if positions.shape[0] != table.shape[0]:
        raise ValueError(f"{positions.shape[0]} positions for a table of {size} entries")
    fill(table, locations)
    with nogil:
        for i in range(count):
            if locations[i] != EMPTY:
                at = _find(&table[0], size - 1, shift, locations[i])
                positions[at] = i


def find(
    const uint64_t[::1] table not None,
    const int64_t[::1] positions not None,
    const uint64_t[::1] locations not None,
    int64_t[::1] out not None,
):
    cdef uint64_t size = table.shape[0], count = locations.shape[0], i, at
    cdef int shift = _shift(size)
    if positions.shape[0] != table.shape[0]:
        raise ValueError(f"{positions.shape[0]} positions for a table of {size} entries")
    if out.shape[0] != locations.shape[0]:
        raise ValueError(f"{out.shape[0]} places for the answers of {count} locations")
    with nogil:
        for i in range(count):
            at = _find(&table[0], size - 1, shift, locations[i])
            out[i] = positions[at] if locations[i] != EMPTY and table[at] == locations[i] else -1
