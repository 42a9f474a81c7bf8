// Location -> row number and last use: the one hash table of the planner, read once for each pushed row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huge_pages.hpp"

namespace headrace::plan {

// A line of the table, which is a line of the cache. A location of NOTHING marks a free entry: no row lives there.
struct alignas(64) IndexLine {
    static constexpr unsigned ENTRIES = 4;
    static constexpr uint64_t NOTHING = 0xFFFFFFFFFFFFFFFFull;

    uint64_t location[ENTRIES];
    uint32_t row[ENTRIES];
    uint32_t link[ENTRIES];  // number of the row's last use, counted over the stream modulo 2^32

    // The first entry of a location, or ENTRIES. Without branches, which nobody could foresee: by arithmetic.
    unsigned find(uint64_t wanted) const {
        const unsigned other0 = location[0] != wanted, other1 = location[1] != wanted, other2 = location[2] != wanted,
                       other3 = location[3] != wanted;
        return other0 * (1 + other1 * (1 + other2 * (1 + other3)));
    }
};

// Open addressing by lines: an entry stands in its home line or, where that is full, in one of the lines that follow,
// up to the first one that is not. Deletion shifts back (no tombstones, so it never degrades). At most 60 % full.
class RowIndex {
  public:
    struct Place {
        IndexLine* line;  // nullptr: not there
        unsigned entry;
        uint32_t& row() const { return line->row[entry]; }
        uint32_t& link() const { return line->link[entry]; }
    };

    RowIndex() : lines_(LEAST, free_line()) {}

    size_t size() const { return size_; }
    size_t nbytes() const { return lines_.capacity() * sizeof(IndexLine); }
    IndexLine& home(uint64_t location) { return lines_[home_of(location)]; }
    void prefetch(uint64_t location) const { HEADRACE_PREFETCH_WRITE(&lines_[home_of(location)]); }

    // Room for so many more rows, without which `add` must not be called.
    void reserve(size_t more) {
        const size_t least = ((size_ + more) * 5 / 3 + 1) / IndexLine::ENTRIES + 1;
        if (least <= lines_.size()) return;
        const size_t grown = lines_.size() + lines_.size() / 2;
        HugeVector<IndexLine> old(grown > least ? grown : least, free_line());
        old.swap(lines_);
        for (const IndexLine& line : old) {
            for (unsigned e = 0; e < IndexLine::ENTRIES; ++e) {
                if (line.location[e] == IndexLine::NOTHING) continue;
                const Place place = room_for(line.location[e]);
                place.line->location[place.entry] = line.location[e];
                place.row() = line.row[e];
                place.link() = line.link[e];
            }
        }
    }

    Place find(uint64_t location) {
        for (size_t line = home_of(location);; line = next(line)) {
            const unsigned entry = lines_[line].find(location);
            if (entry < IndexLine::ENTRIES) return {&lines_[line], entry};
            if (!full(lines_[line])) return {nullptr, 0};
        }
    }

    // A location that is not there.
    Place add(uint64_t location, uint32_t row, uint32_t link) {
        const Place place = room_for(location);
        place.line->location[place.entry] = location;
        place.row() = row;
        place.link() = link;
        ++size_;
        return place;
    }

    void remove(Place place) {
        --size_;
        for (auto line = static_cast<size_t>(place.line - lines_.data()); full(*place.line); ) {
            // An entry of a later line, up to the first that is not full, may stand in the hole.
            bool moved = false;
            size_t probe = line;
            do {
                probe = next(probe);
                IndexLine& later = lines_[probe];
                for (unsigned e = 0; e < IndexLine::ENTRIES && !moved; ++e) {
                    if (later.location[e] == IndexLine::NOTHING) continue;
                    if (distance(home_of(later.location[e]), probe) < distance(line, probe)) continue;
                    place.line->location[place.entry] = later.location[e];
                    place.row() = later.row[e];
                    place.link() = later.link[e];
                    place = {&later, e};
                    line = probe;
                    moved = true;
                }
            } while (!moved && full(lines_[probe]));
            if (!moved) break;
        }
        place.line->location[place.entry] = IndexLine::NOTHING;
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

    // The upper half of the mixed location, scaled to the number of lines (which fits into 31 bits).
    size_t home_of(uint64_t location) const {
        location ^= location >> 32;
        location *= 0x9E3779B97F4A7C15ull;
        location ^= location >> 29;
        location *= 0xBF58476D1CE4E5B9ull;
        return static_cast<size_t>((location >> 32) * uint64_t{lines_.size()} >> 32);
    }
    size_t next(size_t line) const { return line + 1 == lines_.size() ? 0 : line + 1; }
    size_t distance(size_t from, size_t to) const { return to >= from ? to - from : to + lines_.size() - from; }

    Place room_for(uint64_t location) {
        size_t line = home_of(location);
        while (full(lines_[line])) line = next(line);
        return {&lines_[line], lines_[line].find(IndexLine::NOTHING)};
    }

    HugeVector<IndexLine> lines_;
    size_t size_ = 0;
};

}  // namespace headrace::plan
