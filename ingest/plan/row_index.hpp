// Location -> row number and last use: the one hash table of the planner, read once for each pushed row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "huge_pages.hpp"

namespace headrace::plan {

// A line of the table, which is a line of the cache. A location of NOTHING marks a free entry: no row lives there.
struct alignas(64) IndexLine {
    static constexpr unsigned ENTRIES = 4;
    static constexpr uint64_t NOTHING = 0xFFFFFFFFFFFFFFFFull;

    static constexpr unsigned ROW_BITS = 30;
    static constexpr uint32_t MANY = 255;

    uint32_t low[ENTRIES], high[ENTRIES];  // halves of the locations, so that all four are compared at once
    uint32_t row_and_count[ENTRIES];       // row numbers; in the two bits above each, a quarter of displaced()
    uint32_t link[ENTRIES];                // number of the row's last use, counted over the stream modulo 2^32

    uint64_t location(unsigned entry) const { return uint64_t{high[entry]} << 32 | low[entry]; }
    void set_location(unsigned entry, uint64_t location) {
        low[entry] = static_cast<uint32_t>(location);
        high[entry] = static_cast<uint32_t>(location >> 32);
    }
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
    bool any_displaced() const {
        return (row_and_count[0] | row_and_count[1] | row_and_count[2] | row_and_count[3]) >> ROW_BITS != 0;
    }
    void set_displaced(uint32_t count) {
        for (unsigned e = 0; e < ENTRIES; ++e) row_and_count[e] = (count >> 2 * e & 3) << ROW_BITS | row(e);
    }

    // The first entry of a location, or ENTRIES. Without branches, which nobody could foresee.
    unsigned find(uint64_t wanted) const {
        const auto low_half = static_cast<uint32_t>(wanted), high_half = static_cast<uint32_t>(wanted >> 32);
#if defined(__SSE2__)
        const auto* const lows = reinterpret_cast<const __m128i*>(low);
        const auto* const highs = reinterpret_cast<const __m128i*>(high);
        const __m128i same =
            _mm_and_si128(_mm_cmpeq_epi32(_mm_load_si128(lows), _mm_set1_epi32(static_cast<int>(low_half))),
                          _mm_cmpeq_epi32(_mm_load_si128(highs), _mm_set1_epi32(static_cast<int>(high_half))));
        const auto found = static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(same)));
#else
        unsigned found = 0;
        for (unsigned e = 0; e < ENTRIES; ++e) found |= unsigned{(low[e] == low_half) & (high[e] == high_half)} << e;
#endif
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

    // The line after the home line, if a location may be displaced, or would be by `add`; the home line is read.
    void prefetch_displaced(IndexLine* home) {
        if (home->any_displaced() || full(*home)) HEADRACE_PREFETCH_WRITE(next(home));
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
                if (line.location(e) != IndexLine::NOTHING) add(line.location(e), line.row(e), line.link[e]);
            }
        }
    }

    Place find(uint64_t location) { return find_from(&lines_[home_of(location)], location); }

    // The same where the home line is at hand, as `prefetch` gave it.
    Place find_from(IndexLine* home, uint64_t location) {
        const unsigned entry = home->find(location);
        if (entry < IndexLine::ENTRIES) return {home, entry};
        return home->any_displaced() ? find_displaced(location, home) : Place{nullptr, 0};
    }

    // A location that is not there.
    Place add(uint64_t location, uint32_t row, uint32_t link) {
        return add_from(&lines_[home_of(location)], location, row, link);
    }
    Place add_from(IndexLine* home, uint64_t location, uint32_t row, uint32_t link) {
        IndexLine* line = home;
        unsigned entry = line->find(IndexLine::NOTHING);
        while (entry == IndexLine::ENTRIES) {
            line = next(line);
            entry = line->find(IndexLine::NOTHING);
        }
        if (line != home) count_displaced(*home, 1);
        line->set_location(entry, location);
        line->set_row(entry, row);
        line->link[entry] = link;
        ++size_;
        return {line, entry};
    }

    void remove(Place place) { remove_from(&lines_[home_of(place.line->location(place.entry))], place); }
    void remove_from(IndexLine* home, Place place) {
        if (place.line != home) count_displaced(*home, -1);
        place.line->set_location(place.entry, IndexLine::NOTHING);
        --size_;
    }

    template <class F>
    void for_each(F&& visit) {
        for (IndexLine& line : lines_) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                if (line.location(e) != IndexLine::NOTHING) visit(Place{&line, e});
            }
        }
    }

  private:
    static constexpr size_t LEAST = 256;

    static IndexLine free_line() {
        IndexLine line{};
        for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) line.set_location(e, IndexLine::NOTHING);
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
    IndexLine* next(IndexLine* line) { return line == &lines_.back() ? lines_.data() : line + 1; }

    static void count_displaced(IndexLine& line, int more) {
        const uint32_t count = line.displaced();
        if (count < IndexLine::MANY) line.set_displaced(count + static_cast<uint32_t>(more));
    }

    // Goes on until all displaced entries of the home were seen; where there are many, once around.
    Place find_displaced(uint64_t location, IndexLine* home) {
        const uint32_t displaced = home->displaced();
        uint32_t left = displaced == IndexLine::MANY ? 0xFFFFFFFFu : displaced;
        for (IndexLine* line = next(home); line != home; line = next(line)) {
            const unsigned entry = line->find(location);
            if (entry < IndexLine::ENTRIES) return {line, entry};
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                const uint64_t there = line->location(e);
                if (there == IndexLine::NOTHING || &lines_[home_of(there)] != home) continue;
                if (--left == 0) return {nullptr, 0};
            }
        }
        return {nullptr, 0};
    }

    HugeVector<IndexLine> lines_;
    size_t size_ = 0;
};

}  // namespace headrace::plan
