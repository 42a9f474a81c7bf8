// What is known of each row: where it is, and when it was used last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "huge_pages.hpp"
#include "page_index.hpp"

namespace headrace::plan {

// The slot of a resident row; else AWAY and the move of its last write-back, + 1 (0: none that matters).
using RowState = uint32_t;
constexpr RowState AWAY = 0x80000000u;

struct RowCell {
    uint32_t link;  // the last use of the row
    RowState state;
};

// A row is known by its cell. Rows get their locations one after the other on first sight, so those that are used
// together have neighbouring ones; here they stand together, in few lines of the cache. PAGE locations have one page of
// cells, as long as one of their rows is tracked, and the page is all that has to be looked up, in a hash table.
//
// A cell that tracks nothing is AWAY, and its link is that of no use of the window: a new row in a page that is there
// needs nothing written. Links are numbers of uses, counted over the stream modulo 2^32.
class RowCells {
  public:
    static constexpr unsigned PAGE_BITS = 5;  // 4 lines of the cache
    static constexpr uint32_t PAGE = 1u << PAGE_BITS;
    static constexpr size_t MAX_CELLS = size_t{1} << 31;

    static uint64_t key_of(uint64_t location) { return location >> PAGE_BITS; }

    size_t tracked() const { return tracked_; }
    size_t cells() const { return cells_.size(); }
    size_t nbytes() const {
        return index_.nbytes() + keys_.capacity() * sizeof(uint64_t) + rows_of_.capacity() +
               cells_.capacity() * sizeof(RowCell) + freed_.capacity() * sizeof(uint32_t);
    }

    const RowCell& at(uint32_t cell) const { return cells_[cell]; }
    RowCell& at(uint32_t cell) { return cells_[cell]; }
    uint32_t& link(uint32_t cell) { return cells_[cell].link; }
    RowState& state(uint32_t cell) { return cells_[cell].state; }
    uint64_t location(uint32_t cell) const { return keys_[cell >> PAGE_BITS] << PAGE_BITS | (cell & (PAGE - 1)); }
    void prefetch(uint32_t cell) const { HEADRACE_PREFETCH_WRITE(cells_.data() + cell); }
    void prefetch_tracking(uint32_t cell) const { HEADRACE_PREFETCH_WRITE(&rows_of_[cell >> PAGE_BITS]); }
    void prefetch_location(uint32_t cell) const { HEADRACE_PREFETCH(&keys_[cell >> PAGE_BITS]); }

    // Room for so many more pages: nothing else allocates.
    void reserve(size_t more) {
        index_.reserve(more);
        if (more <= freed_.size()) return;
        const size_t pages = keys_.size() + more - freed_.size();
        if (pages > MAX_CELLS >> PAGE_BITS) {
            throw std::overflow_error("more than 2^31 cells of rows in the window and the arena");
        }
        if (pages <= freed_.capacity()) return;
        const size_t larger = std::max(pages, keys_.capacity() + keys_.capacity() / 2);
        cells_.reserve(larger << PAGE_BITS);
        keys_.reserve(larger);
        rows_of_.reserve(larger);
        freed_.reserve(larger);  // last: its capacity says that all have room
    }

    // A row is looked up in two stages, between which the memory has time: the line of the hash table, its cell.
    IndexLine* prefetch_line(uint64_t location) { return index_.prefetch(key_of(location)); }

    // The cell of a location as its home line tells it, if `there`; else that of some other row. Without branches.
    static uint32_t cell_in(const IndexLine& home, uint64_t location, bool& there) {
        const unsigned entry = home.find(key_of(location));
        there = entry < IndexLine::ENTRIES;
        return cell_of(home.page[entry], location);
    }

    // The same if its page may stand elsewhere, or is not there: it is added, and the links of new cells are `outside`.
    uint32_t cell_from(IndexLine* home, uint64_t location, uint32_t outside) {
        const uint64_t key = key_of(location);
        const PageIndex::Place found = index_.find_from(home, key);
        if (found.line != nullptr) return cell_of(found.page(), location);
        auto page = static_cast<uint32_t>(keys_.size());
        if (freed_.empty()) {
            keys_.push_back(key);
            rows_of_.push_back(0);
            cells_.resize(cells_.size() + PAGE);
            std::fill_n(&cells_[cell_of(page, 0)], PAGE, RowCell{outside, AWAY});
        } else {
            page = freed_.back();
            freed_.pop_back();
            keys_[page] = key;
        }
        index_.add_from(home, key, page);
        return cell_of(page, location);
    }

    uint32_t add(uint64_t location, uint32_t outside) { return cell_from(prefetch_line(location), location, outside); }

    void track(uint32_t cell) {
        ++rows_of_[cell >> PAGE_BITS];
        ++tracked_;
    }
    // The row is neither resident nor in the window any more.
    void forget(uint32_t cell) {
        cells_[cell].state = AWAY;
        --tracked_;
        if (--rows_of_[cell >> PAGE_BITS] == 0) remove_page(cell >> PAGE_BITS);
    }
    // Takes the page of a location away if it was added for rows that are not tracked after all.
    void remove_unused(uint64_t location) {
        const PageIndex::Place found = index_.find(key_of(location));
        if (found.line != nullptr && rows_of_[found.page()] == 0) remove_page(found.page());
    }

  private:
    static uint32_t cell_of(uint32_t page, uint64_t location) {
        return page << PAGE_BITS | (static_cast<uint32_t>(location) & (PAGE - 1));
    }

    void remove_page(uint32_t page) {
        index_.remove(keys_[page]);
        freed_.push_back(page);
    }

    PageIndex index_;
    HugeVector<uint64_t> keys_;    // by page
    HugeVector<uint8_t> rows_of_;  // by page: how many of its rows are tracked
    HugeVector<RowCell> cells_;
    HugeVector<uint32_t> freed_;  // pages
    size_t tracked_ = 0;
};

}  // namespace headrace::plan
