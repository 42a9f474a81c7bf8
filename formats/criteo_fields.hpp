// Columns of a line, and what a value of each kind is: one field at a time.
//
// The columns are of five kinds (`Kind`); what is no value of its kind has a `Reason`.
#pragma once

#include <cstdint>
#include <cstring>

#include "criteo_kernels.hpp"

namespace headrace::formats {

// Mirrored by `headrace.formats.criteo_lines.Kind` and `.Reason`.
enum Kind : std::uint8_t { kLabel = 0, kInt64 = 1, kUint64 = 2, kHex32 = 3, kHex64 = 4 };
enum Reason : std::int64_t {
    kBlankLine = 1,
    kColumnCount = 2,
    kOversized = 3,
    kBadLabel = 4,
    kBadDecimal = 5,
    kOutOfRange = 6,
    kBadHex = 7,
    kMissingId = 8,
};

// Why line `line` (0-based in the block) was refused. [begin, end): the offending bytes; [line_begin, line_end): the
// line without its line feed; `column` is -1 and `found` the number of columns when the whole line is at fault.
struct Fault {
    std::int64_t line, column, reason, begin, end, line_begin, line_end, found;
};

// Where column values go: `capacity` values and `capacity` validity bits (little endian, 1 = present), all bits preset.
struct Column {
    Kind kind;
    bool required;
    std::uint8_t* values;
    std::uint8_t* validity;
};

namespace detail {

inline bool is_digit(Byte c) { return static_cast<Byte>(c - '0') <= 9; }

// 0..15, or 255 for a byte that is no hexadecimal digit.
inline Byte nibble(Byte c) {
    if (is_digit(c)) return static_cast<Byte>(c - '0');
    const Byte letter = static_cast<Byte>((c | 0x20) - 'a');
    return letter <= 5 ? static_cast<Byte>(letter + 10) : Byte{255};
}

// A field parser takes the longest value at `p`, sets `present` and `value`, and returns where it ends; the caller
// checks that a separator stands there. No value: `present` is false and `p` comes back. Out of range: nullptr.

inline const Byte* parse_label(const Byte* p, const Byte* end, float& value, bool& present) {
    present = p < end && (*p == '0' || *p == '1');
    value = present && *p == '1' ? 1.0F : 0.0F;
    return p + present;
}

template <bool kSigned>
inline const Byte* parse_decimal_slow(const Byte* p, const Byte* end, std::uint64_t& value, bool& present) {
    const bool negative = kSigned && p < end && *p == '-';
    const std::uint64_t limit = kSigned ? (std::uint64_t{1} << 63) - !negative : ~std::uint64_t{0};
    const Byte* const first = p + negative;
    const Byte* q = first;
    std::uint64_t n = 0;
    for (; q < end && is_digit(*q); ++q) {
        const std::uint64_t digit = *q - '0';
        if (n > limit / 10 || (n == limit / 10 && digit > limit % 10)) return nullptr;
        n = n * 10 + digit;
    }
    present = q != first;
    value = negative ? std::uint64_t{0} - n : n;
    if (present) return q;
    value = 0;
    return p;
}

// Up to seven digits in one load: the bytes after the last digit are shifted out, zeros come in front.
template <bool kSigned>
inline const Byte* parse_decimal(const Byte* p, const Byte* end, std::uint64_t& value, bool& present) {
    if (end - p >= 8) {
        const std::uint64_t t = load8(p) ^ repeat('0');
        // Bit 7 of a byte iff it is no digit; a carry can only spoil bytes above the first of them.
        const std::uint64_t other = ((t + repeat(0x76)) | t) & repeat(0x80);
        const int digits = other != 0 ? __builtin_ctzll(other) >> 3 : 0;
        if (digits != 0) {
            value = decimal8(t, digits);
            present = true;
            return p + digits;
        }
    }
    return parse_decimal_slow<kSigned>(p, end, value, present);
}

template <int kMaxDigits>
inline const Byte* parse_hex_slow(const Byte* p, const Byte* end, std::uint64_t& value, bool& present) {
    const Byte* q = p;
    std::uint64_t n = 0;
    for (; q < end && q - p < kMaxDigits; ++q) {
        const Byte v = nibble(*q);
        if (v == 255) break;
        n = (n << 4) | v;
    }
    value = n;
    present = q != p;
    return q;
}

inline const Byte* parse_hex32(const Byte* p, const Byte* end, std::uint32_t& value, bool& present) {
    if (end - p >= 8 && hex8(load8(p), value)) {
        present = true;
        return p + 8;
    }
    std::uint64_t wide;
    const Byte* const q = parse_hex_slow<8>(p, end, wide, present);
    value = static_cast<std::uint32_t>(wide);
    return q;
}

inline const Byte* parse_hex64(const Byte* p, const Byte* end, std::uint64_t& value, bool& present) {
    std::uint32_t high, low;
    if (end - p >= 16 && hex8(load8(p), high) && hex8(load8(p + 8), low)) {
        value = (std::uint64_t{high} << 32) | low;
        present = true;
        return p + 16;
    }
    return parse_hex_slow<16>(p, end, value, present);
}

template <Kind K>
struct Field;
template <>
struct Field<kLabel> {
    using Value = float;
    static const Byte* parse(const Byte* p, const Byte* end, Value& v, bool& ok) { return parse_label(p, end, v, ok); }
};
template <>
struct Field<kInt64> {
    using Value = std::uint64_t;  // two's complement
    static const Byte* parse(const Byte* p, const Byte* end, Value& v, bool& ok) {
        return parse_decimal<true>(p, end, v, ok);
    }
};
template <>
struct Field<kUint64> {
    using Value = std::uint64_t;
    static const Byte* parse(const Byte* p, const Byte* end, Value& v, bool& ok) {
        return parse_decimal<false>(p, end, v, ok);
    }
};
template <>
struct Field<kHex32> {
    using Value = std::uint32_t;
    static const Byte* parse(const Byte* p, const Byte* end, Value& v, bool& ok) { return parse_hex32(p, end, v, ok); }
};
template <>
struct Field<kHex64> {
    using Value = std::uint64_t;
    static const Byte* parse(const Byte* p, const Byte* end, Value& v, bool& ok) { return parse_hex64(p, end, v, ok); }
};

// Parses one field at `p` into row `row` of `column`; nullptr when it cannot be stored there.
template <Kind K>
inline const Byte* store_field(const Column& column, std::int64_t row, const Byte* p, const Byte* end) {
    typename Field<K>::Value value{};
    bool present = false;
    const Byte* const q = Field<K>::parse(p, end, value, present);
    if (q == nullptr) return nullptr;
    reinterpret_cast<typename Field<K>::Value*>(column.values)[row] = value;
    if (!present) {
        if (column.required) return nullptr;
        column.validity[row >> 3] &= static_cast<Byte>(~(1U << (row & 7)));
    }
    return q;
}

inline const Byte* store_any(const Column& column, std::int64_t row, const Byte* p, const Byte* end) {
    switch (column.kind) {
        case kLabel:
            return store_field<kLabel>(column, row, p, end);
        case kInt64:
            return store_field<kInt64>(column, row, p, end);
        case kUint64:
            return store_field<kUint64>(column, row, p, end);
        case kHex32:
            return store_field<kHex32>(column, row, p, end);
        case kHex64:
            return store_field<kHex64>(column, row, p, end);
    }
    return nullptr;
}

// Why the field [begin, end) cannot be a value of `column`.
inline Reason classify(const Column& column, const Byte* begin, const Byte* end) {
    if (column.kind == kLabel) return kBadLabel;
    if (begin == end) return kMissingId;
    if (column.kind == kHex32 || column.kind == kHex64) return kBadHex;
    const Byte* p = begin + (column.kind == kInt64 && *begin == '-');
    if (p == end) return kBadDecimal;
    while (p < end && is_digit(*p)) ++p;
    return p == end ? kOutOfRange : kBadDecimal;
}

}  // namespace detail

}  // namespace headrace::formats
