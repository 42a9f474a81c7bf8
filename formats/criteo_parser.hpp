// Lines of tab-separated click logs -> columns.
//
// The columns are of five kinds (`Kind`); everything else is refused as a `Fault`, and parsing goes on after that line.
// Two paths: `parse_row` expects a well-formed row, reads eight bytes at a time and stops at the first surprise;
// `parse_strict` then cuts the same line into fields, decides, and names the reason. Both use the same field parsers,
// so that they agree on what a value is. No load ever crosses `end`.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

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

using Byte = std::uint8_t;

constexpr std::uint64_t repeat(Byte b) { return 0x0101010101010101ULL * b; }

// Eight bytes, the first one lowest, whatever the machine's byte order.
inline std::uint64_t load8(const Byte* p) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

inline bool is_digit(Byte c) { return static_cast<Byte>(c - '0') <= 9; }

// 0..15, or 255 for a byte that is no hexadecimal digit.
inline Byte nibble(Byte c) {
    if (is_digit(c)) return static_cast<Byte>(c - '0');
    const Byte letter = static_cast<Byte>((c | 0x20) - 'a');
    return letter <= 5 ? static_cast<Byte>(letter + 10) : Byte{255};
}

// True when the eight bytes of `word` are all hexadecimal digits; `value` is then their number.
// Each byte x < 0x80 is compared by additions that set bit 7: x + 0x50 iff x >= '0', x + 0x46 iff x > '9', and for
// y = x | 0x20: y + 0x1f iff y >= 'a', y + 0x19 iff y > 'f'. A byte >= 0x80 may carry into its neighbours: refused
// first.
inline bool hex8(std::uint64_t word, std::uint32_t& value) {
    const std::uint64_t high = repeat(0x80);
    const std::uint64_t folded = word | repeat(0x20);
    const std::uint64_t digit = (word + repeat(0x50)) & ~(word + repeat(0x46)) & high;
    const std::uint64_t letter = (folded + repeat(0x1f)) & ~(folded + repeat(0x19)) & high;
    if ((word & high) != 0 || (digit | letter) != high) return false;
    std::uint64_t n = (word & repeat(0x0f)) + (letter >> 7) * 9;
    n = ((n << 4) | (n >> 8)) & 0x00FF00FF00FF00FFULL;
    n = ((n << 8) | (n >> 16)) & 0x0000FFFF0000FFFFULL;
    value = static_cast<std::uint32_t>((n << 16) | (n >> 32));
    return true;
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
        std::uint64_t t = load8(p) ^ repeat('0');
        // Bit 7 of a byte iff it is no digit; a carry can only spoil bytes above the first of them.
        const std::uint64_t other = ((t + repeat(0x76)) | t) & repeat(0x80);
        const int digits = other != 0 ? __builtin_ctzll(other) >> 3 : 0;
        if (digits != 0) {
            t <<= 8 * (8 - digits);
            t = (t * 10 + (t >> 8)) & 0x00FF00FF00FF00FFULL;
            t = (t * 100 + (t >> 16)) & 0x0000FFFF0000FFFFULL;
            value = (t * 10000 + (t >> 32)) & 0xFFFFFFFFULL;
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

// Number of lines in [data, data + size): line feeds, and one more when the last line has none.
inline std::int64_t count_lines(const std::uint8_t* data, std::int64_t size) {
    std::int64_t lines = 0;
    for (std::int64_t i = 0; i < size; ++i) lines += data[i] == '\n';
    return lines + (size > 0 && data[size - 1] != '\n');
}

// Bytes of the shortest row with its line feed: separators, and a byte for each value that must be there.
inline std::int64_t min_row_bytes(const Column* columns, std::int64_t count) {
    std::int64_t bytes = count;
    for (std::int64_t c = 0; c < count; ++c) bytes += columns[c].required;
    return bytes;
}

// Rows that `size` bytes can hold; the last one may lack its line feed.
inline std::int64_t max_rows(std::int64_t size, std::int64_t row_bytes) { return (size + 1) / row_bytes; }

class LineParser {
  public:
    LineParser(const Column* columns, std::int64_t count, std::int64_t max_line_bytes)
        : columns_(columns, columns + count), max_line_bytes_(max_line_bytes) {
        // Neighbours of one kind form a run, so that the kind is chosen once a run, not once a field.
        for (std::int64_t c = 0; c + 1 < count; ++c) {
            if (runs_.empty() || runs_.back().kind != columns[c].kind) runs_.push_back({columns[c].kind, c, c});
            runs_.back().last = c + 1;
        }
    }

    // Parses the `lines` lines of [data, data + size); the columns have room for
    // min(lines, max_rows(size, min_row_bytes) + 1) rows: a row is written where the next one goes until it is refused.
    // False when there are more lines, after the first `lines` of them.
    bool parse(const std::uint8_t* data, std::int64_t size, std::int64_t lines) {
        begin_ = data;
        end_ = data + size;
        const std::uint8_t* p = data;
        while (p < end_) {
            if (lines_ == lines) return false;
            const std::uint8_t* next = parse_row(p);
            if (next != nullptr) {
                ++rows_;
            } else {
                reset_row();
                next = parse_strict(p);
            }
            ++lines_;
            p = next;
        }
        return true;
    }

    std::int64_t rows() const { return rows_; }
    std::int64_t lines() const { return lines_; }
    const std::vector<Fault>& faults() const { return faults_; }

    // Missing values among the stored rows of column `c`.
    std::int64_t nulls(std::int64_t c) const {
        const std::uint8_t* bits = columns_[static_cast<std::size_t>(c)].validity;
        std::int64_t present = 0;
        for (std::int64_t i = 0; i < rows_ >> 3; ++i) present += __builtin_popcount(bits[i]);
        if ((rows_ & 7) != 0) present += __builtin_popcount(bits[rows_ >> 3] & ((1U << (rows_ & 7)) - 1));
        return rows_ - present;
    }

  private:
    using Byte = std::uint8_t;
    struct Run {
        Kind kind;
        std::int64_t first, last;  // columns [first, last)
    };

    template <Kind K>
    const Byte* parse_run(const Run& run, const Byte* p) {
        for (std::int64_t c = run.first; c < run.last; ++c) {
            p = detail::store_field<K>(columns_[static_cast<std::size_t>(c)], rows_, p, end_);
            if (p == nullptr || p >= end_ || *p != '\t') return nullptr;
            ++p;
        }
        return p;
    }

    // The row at `line` -> start of the next line; nullptr when anything is unusual.
    const Byte* parse_row(const Byte* line) {
        const Byte* p = line;
        for (const Run& run : runs_) {
            switch (run.kind) {
                case kLabel:
                    p = parse_run<kLabel>(run, p);
                    break;
                case kInt64:
                    p = parse_run<kInt64>(run, p);
                    break;
                case kUint64:
                    p = parse_run<kUint64>(run, p);
                    break;
                case kHex32:
                    p = parse_run<kHex32>(run, p);
                    break;
                case kHex64:
                    p = parse_run<kHex64>(run, p);
                    break;
            }
            if (p == nullptr) return nullptr;
        }
        p = detail::store_any(columns_.back(), rows_, p, end_);
        if (p == nullptr || p == line || p >= end_) return nullptr;
        if (*p == '\r') ++p;
        if (p >= end_ || *p != '\n' || p - line > max_line_bytes_) return nullptr;
        return p + 1;
    }

    // A row that was given up may have marked values as missing.
    void reset_row() {
        for (Column& column : columns_) column.validity[rows_ >> 3] |= static_cast<Byte>(1U << (rows_ & 7));
    }

    const Byte* parse_strict(const Byte* line) {
        const void* feed = std::memchr(line, '\n', static_cast<std::size_t>(end_ - line));
        const Byte* const line_end = feed != nullptr ? static_cast<const Byte*>(feed) : end_;
        const Byte* const next = feed != nullptr ? line_end + 1 : end_;
        const Byte* const text_end = line_end > line && line_end[-1] == '\r' ? line_end - 1 : line_end;
        if (line_end - line > max_line_bytes_) {
            refuse(kOversized, -1, line, text_end, line, line_end, 0);
        } else if (text_end == line) {
            refuse(kBlankLine, -1, line, text_end, line, line_end, 0);
        } else {
            parse_fields(line, text_end, line_end);
        }
        return next;
    }

    void parse_fields(const Byte* line, const Byte* text_end, const Byte* line_end) {
        std::int64_t found = 1;
        for (const Byte* p = line; p < text_end; ++p) found += *p == '\t';
        if (found != static_cast<std::int64_t>(columns_.size())) {
            refuse(kColumnCount, -1, line, text_end, line, line_end, found);
            return;
        }
        const Byte* field = line;
        for (std::size_t c = 0; c < columns_.size(); ++c) {
            const void* tab = std::memchr(field, '\t', static_cast<std::size_t>(text_end - field));
            const Byte* const field_end = tab != nullptr ? static_cast<const Byte*>(tab) : text_end;
            if (detail::store_any(columns_[c], rows_, field, field_end) != field_end) {
                reset_row();
                refuse(detail::classify(columns_[c], field, field_end), static_cast<std::int64_t>(c), field, field_end,
                       line, line_end, found);
                return;
            }
            field = field_end + 1;
        }
        ++rows_;
    }

    void refuse(Reason reason, std::int64_t column, const Byte* from, const Byte* to, const Byte* line,
                const Byte* line_end, std::int64_t found) {
        faults_.push_back(
            {lines_, column, reason, from - begin_, to - begin_, line - begin_, line_end - begin_, found});
    }

    std::vector<Column> columns_;
    std::vector<Run> runs_;
    std::vector<Fault> faults_;
    const Byte* begin_ = nullptr;
    const Byte* end_ = nullptr;
    std::int64_t max_line_bytes_;
    std::int64_t rows_ = 0;
    std::int64_t lines_ = 0;
};

}  // namespace headrace::formats
