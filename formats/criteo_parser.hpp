// Lines of tab-separated click logs -> columns.
//
// What cannot be stored is refused as a `Fault`, and parsing goes on after that line. Three paths, the fastest first:
// `TileParser` takes up to 64 well-formed lines at once; `parse_row` expects one, and stops at the first surprise;
// `parse_strict` then cuts the same line into fields, decides, and names the reason. All use the same parsers of fields
// where a value is not of the common form, so that they agree on what one is. No load ever crosses `end`.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "criteo_fields.hpp"
#include "criteo_kernels.hpp"
#include "criteo_tiles.hpp"

namespace headrace::formats {

// How often `byte` occurs in [data, data + size).
inline std::int64_t count_bytes(const std::uint8_t* data, std::int64_t size, std::uint8_t byte) {
    // Side by side in bytes, which compilers turn into vectors; 255 rounds fit into a byte.
    constexpr std::int64_t kLanes = 64, kRounds = 255;
    std::int64_t count = 0, at = 0;
    while (size - at >= kLanes) {
        std::uint8_t lanes[kLanes] = {};
        const std::int64_t left = (size - at) / kLanes, rounds = left < kRounds ? left : kRounds;
        for (std::int64_t r = 0; r < rounds; ++r, at += kLanes) {
            for (std::int64_t i = 0; i < kLanes; ++i) {
                lanes[i] = static_cast<std::uint8_t>(lanes[i] + (data[at + i] == byte));
            }
        }
        for (const std::uint8_t lane : lanes) count += lane;
    }
    for (; at < size; ++at) count += data[at] == byte;
    return count;
}

// Number of lines in [data, data + size): line feeds, and one more when the last line has none.
inline std::int64_t count_lines(const std::uint8_t* data, std::int64_t size) {
    return count_bytes(data, size, '\n') + (size > 0 && data[size - 1] != '\n');
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
    // `kernels`: those of the tiles; nullptr: every line by itself.
    LineParser(const Column* columns, std::int64_t count, std::int64_t max_line_bytes, const Kernels* kernels)
        : columns_(columns, columns + count),
          tiles_(columns, count, max_line_bytes, kernels),
          max_line_bytes_(max_line_bytes) {
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
        const std::int64_t most =
            max_rows(size, min_row_bytes(columns_.data(), static_cast<std::int64_t>(columns_.size()))) + 1;
        const std::int64_t capacity = lines < most ? lines : most;
        std::int64_t one_by_one = tiles_.usable() ? 0 : size, after_surprise = kTileRows;
        const std::uint8_t* p = data;
        while (p < end_) {
            if (lines_ == lines) return false;
            if (one_by_one == 0) {
                const std::int64_t room = lines - lines_ < capacity - rows_ ? lines - lines_ : capacity - rows_;
                const Tile tile = tiles_.parse(p, end_, rows_, room);
                if (tile.lines > 0) {
                    rows_ += tile.lines;
                    lines_ += tile.lines;
                    p = tile.next;
                    after_surprise = kTileRows;
                    continue;
                }
                // Where there is no end of surprises, tiles are tried less and less often.
                one_by_one = after_surprise;
                if (after_surprise < kMostOneByOne) after_surprise *= 2;
            }
            p = parse_line(p);
            --one_by_one;
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
    static constexpr std::int64_t kMostOneByOne = 1024;
    struct Run {
        Kind kind;
        std::int64_t first, last;  // columns [first, last)
    };

    const Byte* parse_line(const Byte* line) {
        const Byte* next = parse_row(line);
        if (next != nullptr) {
            ++rows_;
        } else {
            reset_row();
            next = parse_strict(line);
        }
        ++lines_;
        return next;
    }

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
    TileParser tiles_;
    const Byte* begin_ = nullptr;
    const Byte* end_ = nullptr;
    std::int64_t max_line_bytes_;
    std::int64_t rows_ = 0;
    std::int64_t lines_ = 0;
};

}  // namespace headrace::formats
