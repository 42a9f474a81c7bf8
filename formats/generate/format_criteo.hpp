// Lines of the Criteo text format out of columns: label, decimal dense values, 8-digit hexadecimal ids; tab and LF.
//
// Columns are feature-major: value (c, r) of a block of `rows` rows is at [c * rows + r]. A value whose mask byte is 0
// is written as an empty field. Two passes, both without allocation: `text_bytes` counts, `write_text` fills exactly
// that many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace {

struct CriteoColumns {
    const uint8_t* labels;  // [rows], 0 or 1; null: the lines have no label field
    const int64_t* dense;   // [n_dense, rows]
    const uint8_t* dense_valid;
    const uint32_t* ids;  // [n_sparse, rows]
    const uint8_t* ids_valid;
    size_t rows;
    size_t n_dense;
    size_t n_sparse;
};

// |value| without overflow at the smallest integer.
inline uint64_t magnitude(int64_t value) {
    return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

inline size_t decimal_digits(uint64_t value) {
    size_t digits = 1;
    while (value >= 10000) {
        value /= 10000;
        digits += 4;
    }
    return digits + (value >= 10) + (value >= 100) + (value >= 1000);
}

inline char* write_decimal(char* out, int64_t value) {
    uint64_t rest = magnitude(value);
    if (value < 0) *out++ = '-';
    char* const end = out + decimal_digits(rest);
    char* place = end;
    do {
        *--place = static_cast<char>('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    return end;
}

inline char* write_hex32(char* out, uint32_t value) {
    static constexpr char kDigits[] = "0123456789abcdef";
    for (int nibble = 7; nibble >= 0; --nibble) {
        out[nibble] = kDigits[value & 15U];
        value >>= 4;
    }
    return out + 8;
}

// Bytes of all lines. A line has one separator (tab, or LF after the last field) a field.
inline size_t text_bytes(const CriteoColumns& c) {
    const size_t fields = (c.labels != nullptr ? 1 : 0) + c.n_dense + c.n_sparse;
    size_t bytes = c.rows * (fields + (c.labels != nullptr ? 1 : 0));
    for (size_t i = 0; i < c.n_dense * c.rows; ++i) {
        if (c.dense_valid[i] != 0) bytes += decimal_digits(magnitude(c.dense[i])) + (c.dense[i] < 0 ? 1 : 0);
    }
    for (size_t i = 0; i < c.n_sparse * c.rows; ++i) bytes += c.ids_valid[i] != 0 ? 8 : 0;
    return bytes;
}

// Writes all lines to `out` and returns the end: out + text_bytes(c). Needs at least one field.
inline char* write_text(const CriteoColumns& c, char* out) {
    for (size_t row = 0; row < c.rows; ++row) {
        if (c.labels != nullptr) {
            *out++ = static_cast<char>('0' + c.labels[row]);
            *out++ = '\t';
        }
        for (size_t i = row, end = c.n_dense * c.rows; i < end; i += c.rows) {
            if (c.dense_valid[i] != 0) out = write_decimal(out, c.dense[i]);
            *out++ = '\t';
        }
        for (size_t i = row, end = c.n_sparse * c.rows; i < end; i += c.rows) {
            if (c.ids_valid[i] != 0) out = write_hex32(out, c.ids[i]);
            *out++ = '\t';
        }
        out[-1] = '\n';
    }
    return out;
}

}  // namespace headrace
