// Page of neighbouring locations -> page number: the one hash table of the planner.
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

// A line of the table, which is a line of the cache. A key of NOTHING marks a free entry.
struct alignas(64) IndexLine {
    static constexpr unsigned ENTRIES = 4;
    static constexpr uint64_t NOTHING = 0xFFFFFFFFFFFFFFFFull;

    uint32_t low[ENTRIES], high[ENTRIES];  // halves of the keys, so that all four are compared at once
    uint32_t page[ENTRIES + 1];  // the last one is displaced(), so that it may be read as a page, and thrown away

    // How many entries whose home this is stand elsewhere.
    uint32_t& displaced() { return page[ENTRIES]; }

    uint64_t key(unsigned entry) const { return uint64_t{high[entry]} << 32 | low[entry]; }
    void set_key(unsigned entry, uint64_t key) {
        low[entry] = static_cast<uint32_t>(key);
        high[entry] = static_cast<uint32_t>(key >> 32);
    }

    // The first entry of a key, or ENTRIES. Without branches, which nobody could foresee.
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
        for (unsigned e = 0; e < ENTRIES; ++e)
            found |= static_cast<unsigned>((low[e] == low_half) & (high[e] == high_half)) << e;
#endif
        return FIRST_OF[found];
    }
    static constexpr uint8_t FIRST_OF[16] = {4, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0};
};

// Open addressing by lines: an entry stands in its home line or, if that was full, in the first line after it that had
// room: it is displaced. How many entries of a home are displaced is counted, so that nearly always the home line alone
// tells that a key is not there, and deletion moves nothing and leaves no tombstones. At most half full.
class PageIndex {
  public:
    struct Place {
        IndexLine* line;  // nullptr: not there
        unsigned entry;
        uint32_t page() const { return line->page[entry]; }
    };

    PageIndex() : lines_(LEAST, free_line()) {}

    size_t size() const { return size_; }
    size_t nbytes() const { return lines_.capacity() * sizeof(IndexLine); }
    IndexLine* prefetch(uint64_t key) {
        IndexLine* const home = &lines_[home_of(key)];
        HEADRACE_PREFETCH_WRITE(home);
        return home;
    }

    // Room for so many more pages, without which `add` must not be called.
    void reserve(size_t more) {
        const size_t least = (size_ + more) * 2 / IndexLine::ENTRIES + 1;
        if (least <= lines_.size()) return;
        HugeVector<IndexLine> old(std::max(least, lines_.size() + lines_.size() / 4), free_line());
        old.swap(lines_);
        size_ = 0;
        for (const IndexLine& line : old) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                if (line.key(e) != IndexLine::NOTHING) add(line.key(e), line.page[e]);
            }
        }
    }

    Place find(uint64_t key) { return find_from(&lines_[home_of(key)], key); }

    // The same where the home line is at hand, as `prefetch` gave it.
    Place find_from(IndexLine* home, uint64_t key) {
        const unsigned entry = home->find(key);
        if (entry < IndexLine::ENTRIES) return {home, entry};
        return home->displaced() > 0 ? find_displaced(key, home) : Place{nullptr, 0};
    }

    // A key that is not there.
    void add(uint64_t key, uint32_t page) { add_from(&lines_[home_of(key)], key, page); }
    void add_from(IndexLine* home, uint64_t key, uint32_t page) {
        IndexLine* line = home;
        unsigned entry = line->find(IndexLine::NOTHING);
        while (entry == IndexLine::ENTRIES) {
            line = next(line);
            entry = line->find(IndexLine::NOTHING);
        }
        home->displaced() += line != home;
        line->set_key(entry, key);
        line->page[entry] = page;
        ++size_;
    }

    // A key that is there.
    void remove(uint64_t key) {
        IndexLine* const home = &lines_[home_of(key)];
        const Place place = find_from(home, key);
        home->displaced() -= place.line != home;
        place.line->set_key(place.entry, IndexLine::NOTHING);
        --size_;
    }

  private:
    static constexpr size_t LEAST = 256;

    static IndexLine free_line() {
        IndexLine line{};
        for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) line.set_key(e, IndexLine::NOTHING);
        return line;
    }

    // Neighbouring pages in pairs, since rows that are used together come from both: fewer lines are read, and those
    // that overflow stay rare. The upper half of the pair's number times the golden ratio, which spreads neighbours
    // evenly, scaled to the number of lines (which fits into 32 bits).
    size_t home_of(uint64_t key) const {
        return static_cast<size_t>(((key >> 1) * 0x9E3779B97F4A7C15ull >> 32) * uint64_t{lines_.size()} >> 32);
    }
    IndexLine* next(IndexLine* line) { return line == &lines_.back() ? lines_.data() : line + 1; }

    // Goes on until all displaced entries of the home were seen.
    Place find_displaced(uint64_t key, IndexLine* home) {
        uint32_t left = home->displaced();
        for (IndexLine* line = next(home);; line = next(line)) {
            const unsigned entry = line->find(key);
            if (entry < IndexLine::ENTRIES) return {line, entry};
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                const uint64_t there = line->key(e);
                if (there == IndexLine::NOTHING || &lines_[home_of(there)] != home) continue;
                if (--left == 0) return {nullptr, 0};
            }
        }
    }

    HugeVector<IndexLine> lines_;
    size_t size_ = 0;
};

}  // namespace headrace::plan
