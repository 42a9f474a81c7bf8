// Location -> row number and last use: the one hash table of the planner, read once for each pushed row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "huge_pages.hpp"

namespace headrace::plan {

// A line of the table, which is a line of the cache. A location of NOTHING marks a free entry: no row lives there.
struct alignas(64) IndexLine {
    static constexpr unsigned ENTRIES = 4;
    static constexpr uint64_t NOTHING = 0xFFFFFFFFFFFFFFFFull;

    static constexpr unsigned ROW_BITS = 30;
    static constexpr uint32_t MANY = 255;

    uint64_t location[ENTRIES];
    uint32_t row_and_count[ENTRIES];  // row numbers; in the two bits above each, a quarter of displaced()
    uint32_t link[ENTRIES];           // number of the row's last use, counted over the stream modulo 2^32

    uint32_t row(unsigned entry) const { return row_and_count[entry] & ((1u << ROW_BITS) - 1); }
    void set_row(unsigned entry, uint32_t row) {
        row_and_count[entry] = (row_and_count[entry] >> ROW_BITS << ROW_BITS) | row;
    }
    // How many entries whose home this is stand elsewhere; MANY stands for as many or more, and is never left again.
    uint32_t displaced() const {
        uint32_t count = 0;
        for (unsigned e = 0; e < ENTRIES; ++e) count |= row_and_count[e] >> ROW_BITS << 2 * e;
        return count;
    }
    void set_displaced(uint32_t count) {
        for (unsigned e = 0; e < ENTRIES; ++e) row_and_count[e] = (count >> 2 * e & 3) << ROW_BITS | row(e);
    }

    // The first entry of a location, or ENTRIES. Without branches, which nobody could foresee.
    unsigned find(uint64_t wanted) const {
        const unsigned found = unsigned{location[0] == wanted} | unsigned{location[1] == wanted} << 1 |
                               unsigned{location[2] == wanted} << 2 | unsigned{location[3] == wanted} << 3;
        return FIRST_OF[found];
    }
    static constexpr uint8_t FIRST_OF[16] = {4, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0};
};

// Open addressing by lines: an entry stands in its home line or, if that was full, in the first line after it that had
// room: it is displaced. How many entries of a home are displaced is counted, so that nearly always the home line alone
// tells that a location is not there, and deletion moves nothing and leaves no tombstones. At most 40 % full.
class RowIndex {
  public:
    struct Place {
        IndexLine* line;  // nullptr: not there
        unsigned entry;
        uint32_t row() const { return line->row(entry); }
        uint32_t& link() const { return line->link[entry]; }
    };

    static constexpr size_t MAX_ROWS = size_t{1} << IndexLine::ROW_BITS;

    RowIndex() : lines_(LEAST, free_line()) {}

    size_t size() const { return size_; }
    size_t nbytes() const { return lines_.capacity() * sizeof(IndexLine); }
    IndexLine* prefetch(uint64_t location) {
        IndexLine* const home = &lines_[home_of(location)];
        HEADRACE_PREFETCH_WRITE(home);
        return home;
    }

    // The line after the home line, if the location may be displaced, or would be by `add`; the home line is read.
    void prefetch_displaced(uint64_t location) const {
        const size_t line = home_of(location);
        if (lines_[line].displaced() > 0 || full(lines_[line])) HEADRACE_PREFETCH_WRITE(&lines_[next(line)]);
    }

    // Room for so many more rows, without which `add` must not be called.
    void reserve(size_t more) {
        if (size_ + more > MAX_ROWS) throw std::overflow_error("more than 2^30 rows in the window and the arena");
        const size_t least = (size_ + more) * 5 / 2 / IndexLine::ENTRIES + 1;
        if (least <= lines_.size()) return;
        HugeVector<IndexLine> old(std::max(least, lines_.size() + lines_.size() / 4), free_line());
        old.swap(lines_);
        size_ = 0;
        for (const IndexLine& line : old) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                if (line.location[e] != IndexLine::NOTHING) add(line.location[e], line.row(e), line.link[e]);
            }
        }
    }

    Place find(uint64_t location) {
        const size_t line = home_of(location);
        const unsigned entry = lines_[line].find(location);
        if (entry < IndexLine::ENTRIES) return {&lines_[line], entry};
        const uint32_t displaced = lines_[line].displaced();
        return displaced == 0 ? Place{nullptr, 0} : find_displaced(location, line, displaced);
    }

    // A location that is not there.
    Place add(uint64_t location, uint32_t row, uint32_t link) {
        const size_t first = home_of(location);
        size_t line = first;
        while (full(lines_[line])) line = next(line);
        if (line != first) count_displaced(lines_[first], 1);
        const Place place{&lines_[line], lines_[line].find(IndexLine::NOTHING)};
        place.line->location[place.entry] = location;
        place.line->set_row(place.entry, row);
        place.link() = link;
        ++size_;
        return place;
    }

    void remove(Place place) {
        uint64_t& location = place.line->location[place.entry];
        IndexLine& first = lines_[home_of(location)];
        if (place.line != &first) count_displaced(first, -1);
        location = IndexLine::NOTHING;
        --size_;
    }

    template <class F>
    void for_each(F&& visit) {
        for (IndexLine& line : lines_) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                if (line.location[e] != IndexLine::NOTHING) visit(Place{&line, e});
            }
        }
    }

  private:
    static constexpr size_t LEAST = 256;

    static IndexLine free_line() {
        IndexLine line{};
        for (uint64_t& location : line.location) location = IndexLine::NOTHING;
        return line;
    }
    static bool full(const IndexLine& line) { return line.find(IndexLine::NOTHING) == IndexLine::ENTRIES; }

    // The upper half of the mixed location, scaled to the number of lines (which fits into 32 bits).
    size_t home_of(uint64_t location) const {
        location ^= location >> 32;
        location *= 0x9E3779B97F4A7C15ull;
        location ^= location >> 29;
        location *= 0xBF58476D1CE4E5B9ull;
        return static_cast<size_t>((location >> 32) * uint64_t{lines_.size()} >> 32);
    }
    size_t next(size_t line) const { return line + 1 == lines_.size() ? 0 : line + 1; }

    static void count_displaced(IndexLine& line, int more) {
        const uint32_t count = line.displaced();
        if (count < IndexLine::MANY) line.set_displaced(count + static_cast<uint32_t>(more));
    }

    // Goes on until all displaced entries of the home were seen; where there are many, once around.
    Place find_displaced(uint64_t location, size_t first, uint32_t displaced) {
        uint32_t left = displaced == IndexLine::MANY ? 0xFFFFFFFFu : displaced;
        for (size_t line = next(first); line != first; line = next(line)) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                const uint64_t there = lines_[line].location[e];
                if (there == location) return {&lines_[line], e};
                if (there == IndexLine::NOTHING || home_of(there) != first) continue;
                if (--left == 0) return {nullptr, 0};
            }
        }
        return {nullptr, 0};
    }

    HugeVector<IndexLine> lines_;
    size_t size_ = 0;
};

}  // namespace headrace::plan
