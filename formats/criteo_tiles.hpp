// Up to 64 well-formed lines at a time, column by column: all separators first, then each column in one loop.
#pragma once

#include <cstdint>
#include <vector>

#include "criteo_fields.hpp"
#include "criteo_kernels.hpp"

namespace headrace::formats {

// Lines that were stored, and where the next one begins; no lines: something was unusual, nothing counts as stored.
struct Tile {
    int lines;
    const std::uint8_t* next;
};

class TileParser {
  public:
    TileParser(const Column* columns, std::int64_t count, std::int64_t max_line_bytes, const Kernels* kernels)
        : columns_(columns, columns + count), max_line_bytes_(max_line_bytes), kernels_(kernels) {
        if (!usable()) return;
        const std::size_t wanted = columns_.size() * kTileRows;
        found_.resize(wanted + 64 + kBlock);
        ends_.resize((columns_.size() + kBlock) * kTileRows);
    }

    // Not for a single column, where a line may be blank, nor without kernels.
    bool usable() const { return kernels_ != nullptr && columns_.size() > 1; }

    // Lines from `text` on, at most `room` of them, into the rows from `row` on of the columns. A line is left to the
    // caller when it ends less than eight bytes before `end`, so that fields may be read eight bytes at a time.
    Tile parse(const std::uint8_t* text, const std::uint8_t* end, std::int64_t row, std::int64_t room) {
        const std::size_t count = columns_.size();
        const std::size_t rest = static_cast<std::size_t>(end - text);
        const std::size_t size = rest < kTileBytes ? rest : kTileBytes;
        const Separators found = kernels_->find(text, size, count * kTileRows, found_.data());
        std::size_t lines = found.count / count;
        if (lines > kTileRows) lines = kTileRows;
        if (static_cast<std::int64_t>(lines) > room) lines = static_cast<std::size_t>(room);
        while (lines > 0 && found_[lines * count - 1] + std::size_t{8} > rest) --lines;
        if (lines == 0 || !whole_lines(text, found, lines)) return {0, text};
        transpose(lines);
        if (!line_ends(text, static_cast<int>(lines))) return {0, text};
        const std::uint16_t* starts = first_starts_;
        for (std::size_t c = 0; c < count; ++c) {
            const std::uint16_t* const ends = c + 1 < count ? &ends_[c * kTileRows] : last_ends_;
            if (!store(columns_[c], {text, starts, ends, static_cast<int>(lines)}, row))
                return give_up(text, row, lines);
            if (c + 1 < count) starts = next_starts(ends);
        }
        return {static_cast<int>(lines), text + found_[lines * count - 1] + 1};
    }

  private:
    using Byte = std::uint8_t;
    static constexpr std::size_t kBlock = 8;

    // Every line ends at a line feed, and has none before: then all separators between are tabs.
    bool whole_lines(const Byte* text, const Separators& found, std::size_t lines) const {
        const std::size_t count = columns_.size();
        std::size_t feeds = found.feeds;
        for (std::size_t k = lines * count; k < found.count; ++k) feeds -= text[found_[k]] == '\n';
        if (feeds != lines) return false;
        for (std::size_t r = 1; r <= lines; ++r) {
            if (text[found_[r * count - 1]] != '\n') return false;
        }
        return true;
    }

    // found_ [lines, columns] -> ends_ [columns, kTileRows]
    void transpose(std::size_t lines) {
        const std::size_t count = columns_.size();
        for (std::size_t r = 0; r < lines; r += kBlock) {
            for (std::size_t c = 0; c < count; c += kBlock) {
                transpose_block(&found_[r * count + c], count, &ends_[c * kTileRows + r]);
            }
        }
    }

    static void transpose_block(const std::uint16_t* from, std::size_t stride, std::uint16_t* to) {
#if HEADRACE_X86
        __m128i a[8], b[8];
        for (std::size_t i = 0; i < 8; ++i) {
            a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride));
        }
        for (int i = 0; i < 4; ++i) {
            b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 2; ++i) {
            a[4 * i] = _mm_unpacklo_epi32(b[4 * i], b[4 * i + 2]);
            a[4 * i + 1] = _mm_unpackhi_epi32(b[4 * i], b[4 * i + 2]);
            a[4 * i + 2] = _mm_unpacklo_epi32(b[4 * i + 1], b[4 * i + 3]);
            a[4 * i + 3] = _mm_unpackhi_epi32(b[4 * i + 1], b[4 * i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (2 * i) * kTileRows), _mm_unpacklo_epi64(a[i], a[i + 4]));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (2 * i + 1) * kTileRows),
                             _mm_unpackhi_epi64(a[i], a[i + 4]));
        }
#else
        for (std::size_t i = 0; i < 8; ++i) {
            for (std::size_t j = 0; j < 8; ++j) to[j * kTileRows + i] = from[i * stride + j];
        }
#endif
    }

    // Where lines begin and where their last fields end; false when a line is too long.
    bool line_ends(const Byte* text, int lines) {
        const std::uint16_t* const feeds = &ends_[(columns_.size() - 1) * kTileRows];
        std::uint16_t start = 0;
        for (int r = 0; r < lines; ++r) {
            if (feeds[r] - start > max_line_bytes_) return false;
            first_starts_[r] = start;
            last_ends_[r] = static_cast<std::uint16_t>(feeds[r] - (text[feeds[r] - 1] == '\r'));
            start = static_cast<std::uint16_t>(feeds[r] + 1);
        }
        return true;
    }

    const std::uint16_t* next_starts(const std::uint16_t* ends) {
        for (int r = 0; r < kTileRows; ++r) starts_[r] = static_cast<std::uint16_t>(ends[r] + 1);
        return starts_;
    }

    bool store(const Column& column, const Fields& fields, std::int64_t row) const {
        switch (column.kind) {
            case kLabel:
                return store_labels(column, fields, row);
            case kInt64:
                return store_unusual<kInt64>(column, fields, row, decimals(column, fields, row));
            case kUint64:
                return store_unusual<kUint64>(column, fields, row, decimals(column, fields, row));
            case kHex32: {
                const Found found = kernels_->hex32(fields, reinterpret_cast<std::uint32_t*>(column.values) + row);
                return store_unusual<kHex32>(column, fields, row, found);
            }
            case kHex64:
                return store_unusual<kHex64>(column, fields, row, all_unusual(column, fields, row));
        }
        return false;
    }

    Found decimals(const Column& column, const Fields& fields, std::int64_t row) const {
        return kernels_->decimal(fields, reinterpret_cast<std::uint64_t*>(column.values) + row);
    }

    static Found all_unusual(const Column& column, const Fields& fields, std::int64_t row) {
        Found found{0, 0};
        for (int i = 0; i < fields.rows; ++i) {
            (fields.starts[i] == fields.ends[i] ? found.missing : found.unusual) |= std::uint64_t{1} << i;
            reinterpret_cast<std::uint64_t*>(column.values)[row + i] = 0;
        }
        return found;
    }

    static bool store_labels(const Column& column, const Fields& fields, std::int64_t row) {
        float* const out = reinterpret_cast<float*>(column.values) + row;
        bool good = true;
        for (int i = 0; i < fields.rows; ++i) {
            const Byte c = fields.text[fields.starts[i]];
            good &= fields.ends[i] - fields.starts[i] == 1 && (c == '0' || c == '1');
            out[i] = c == '1' ? 1.0F : 0.0F;
        }
        return good;
    }

    // What the kernel left: fields of an uncommon form, and the bits of the missing ones.
    template <Kind K>
    static bool store_unusual(const Column& column, const Fields& fields, std::int64_t row, Found found) {
        using Value = typename detail::Field<K>::Value;
        if (found.missing != 0 && column.required) return false;
        for (std::uint64_t left = found.unusual; left != 0; left &= left - 1) {
            const int i = __builtin_ctzll(left);
            const Byte* const end = fields.text + fields.ends[i];
            Value value{};
            bool present = false;
            const Byte* const parsed = detail::Field<K>::parse(fields.text + fields.starts[i], end, value, present);
            if (parsed != end || !present) return false;
            reinterpret_cast<Value*>(column.values)[row + i] = value;
        }
        Byte* byte = column.validity + (row >> 3);
        *byte = static_cast<Byte>(*byte & ~(found.missing << (row & 7)));
        for (std::uint64_t left = found.missing >> (8 - (row & 7)); left != 0; left >>= 8) {
            ++byte;
            *byte = static_cast<Byte>(*byte & ~left);
        }
        return true;
    }

    // Lines that were given up may have marked values as missing.
    Tile give_up(const Byte* text, std::int64_t row, std::size_t lines) {
        for (Column& column : columns_) {
            for (std::int64_t r = row; r < row + static_cast<std::int64_t>(lines); ++r) {
                column.validity[r >> 3] = static_cast<Byte>(column.validity[r >> 3] | 1U << (r & 7));
            }
        }
        return {0, text};
    }

    std::vector<Column> columns_;
    std::int64_t max_line_bytes_;
    const Kernels* kernels_;
    std::vector<std::uint16_t> found_;  // positions of the separators, in order
    std::vector<std::uint16_t> ends_;   // [columns, kTileRows]: of each field
    std::uint16_t first_starts_[kTileRows] = {};
    std::uint16_t starts_[kTileRows] = {};
    std::uint16_t last_ends_[kTileRows] = {};  // of the lines' text: before a carriage return
};

}  // namespace headrace::formats
