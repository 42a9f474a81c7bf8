// What the planner knows of each row that is in the arena, in the window, or was written back a short while ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

constexpr uint32_t NO_SLOT = 0xFFFFFFFFu;

// Four rows share a cache line. Step and move numbers are held one higher, so that 0 says "none".
struct Row {
    uint64_t location;
    uint32_t slot;   // arena slot, or NO_SLOT
    uint32_t stamp;  // resident: the last use, + 1, if it is dead; else: the move of its last write-back, + 1
};
static_assert(sizeof(Row) == 16, "four rows share a cache line");

// Records by row number. Numbers that are given back are used again before new ones, so that there are never more
// records than rows at once.
class RowTable {
  public:
    Row& operator[](uint32_t row) { return rows_[row]; }
    size_t nbytes() const { return rows_.capacity() * sizeof(Row) + freed_.capacity() * sizeof(uint32_t); }
    void prefetch(uint32_t row) const { HEADRACE_PREFETCH(&rows_[row]); }

    // Room for so many more rows: `add` and `remove` do not allocate then.
    void reserve(size_t more) {
        if (more <= freed_.size()) return;
        const size_t rows = rows_.size() + more - freed_.size();
        if (rows > rows_.capacity()) rows_.reserve(rows > 2 * rows_.capacity() ? rows : 2 * rows_.capacity());
        if (rows_.capacity() > freed_.capacity()) freed_.reserve(rows_.capacity());
    }

    uint32_t add(uint64_t location) {
        if (freed_.empty()) {
            rows_.push_back({location, NO_SLOT, 0});
            return static_cast<uint32_t>(rows_.size() - 1);
        }
        const uint32_t row = freed_.back();
        freed_.pop_back();
        rows_[row] = {location, NO_SLOT, 0};
        return row;
    }

    // Of the records that the next `count` calls of `add` write.
    void prefetch_added(size_t count) const {
        const size_t last = freed_.size() > count ? freed_.size() - count : 0;
        for (size_t i = freed_.size(); i > last; --i) HEADRACE_PREFETCH_WRITE(&rows_[freed_[i - 1]]);
    }

    void remove(uint32_t row) { freed_.push_back(row); }

  private:
    HugeVector<Row> rows_;
    HugeVector<uint32_t> freed_;
};

}  // namespace headrace::plan
