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
// together have neighbouring ones; here they stand together, in few lines of the cache. GROUP locations have one group
// of cells, as long as one of their rows is tracked; PAGE groups have one page, which says which groups there are, and
// is all that has to be looked up in a hash table.
//
// A cell that tracks nothing is AWAY, and its link is that of no use of the window: a new row in a group that is there
// needs nothing written. Links are numbers of uses, counted over the stream modulo 2^32.
class RowCells {
  public:
    static constexpr unsigned GROUP_BITS = 3, PAGE_BITS = 5;
    static constexpr uint32_t GROUP = 1u << GROUP_BITS, PAGE = 1u << PAGE_BITS;
    static constexpr size_t MAX_CELLS = size_t{1} << 31;

    static uint64_t key_of(uint64_t location) { return location >> (GROUP_BITS + PAGE_BITS); }

    size_t tracked() const { return tracked_; }
    size_t cells() const { return cells_.size(); }
    size_t nbytes() const {
        return index_.nbytes() + keys_.capacity() * sizeof(uint64_t) + groups_of_.capacity() + rows_of_.capacity() +
               cells_.capacity() * sizeof(RowCell) +
               sizeof(uint32_t) *
                   (groups_.capacity() + places_.capacity() + freed_groups_.capacity() + freed_pages_.capacity());
    }

    const RowCell& at(uint32_t cell) const { return cells_[cell]; }
    RowCell& at(uint32_t cell) { return cells_[cell]; }
    uint32_t& link(uint32_t cell) { return cells_[cell].link; }
    RowState& state(uint32_t cell) { return cells_[cell].state; }
    uint64_t location(uint32_t cell) const {
        const uint32_t place = places_[cell >> GROUP_BITS];
        return (keys_[place >> PAGE_BITS] << PAGE_BITS | (place & (PAGE - 1))) << GROUP_BITS | (cell & (GROUP - 1));
    }
    void prefetch(uint32_t cell) const { HEADRACE_PREFETCH_WRITE(cells_.data() + cell); }
    void prefetch_tracking(uint32_t cell) const { HEADRACE_PREFETCH_WRITE(&rows_of_[cell >> GROUP_BITS]); }
    void prefetch_location(uint32_t cell) const { HEADRACE_PREFETCH(&places_[cell >> GROUP_BITS]); }

    // Room for so many more groups and pages: nothing else allocates.
    void reserve(size_t more) {
        index_.reserve(more);
        if (more > freed_pages_.size()) {
            const size_t pages = keys_.size() + more - freed_pages_.size();
            if (pages > freed_pages_.capacity()) {
                const size_t larger = std::max(pages, keys_.capacity() + keys_.capacity() / 2);
                groups_.reserve(larger << PAGE_BITS);
                keys_.reserve(larger);
                groups_of_.reserve(larger);
                freed_pages_.reserve(larger);  // last: its capacity says that all have room
            }
        }
        if (more > freed_groups_.size()) {
            const size_t groups = places_.size() + more - freed_groups_.size();
            if (groups > MAX_CELLS >> GROUP_BITS) {
                throw std::overflow_error("more than 2^31 cells of rows in the window and the arena");
            }
            if (groups > freed_groups_.capacity()) {
                const size_t larger = std::max(groups, places_.capacity() + places_.capacity() / 2);
                cells_.reserve(larger << GROUP_BITS);
                places_.reserve(larger);
                rows_of_.reserve(larger);
                freed_groups_.reserve(larger);
            }
        }
    }

    // A row is looked up in three stages, between which the memory has time: the line of the hash table, the place of
    // its group (in a page), its cell.
    IndexLine* prefetch_line(uint64_t location) { return index_.prefetch(key_of(location)); }

    // The place of the group of a location as its home line tells it, if `there`; else that of some other group.
    // Without branches.
    static uint32_t place_in(const IndexLine& home, uint64_t location, bool& there) {
        const unsigned entry = home.find(key_of(location));
        there = entry < IndexLine::ENTRIES;
        return place_of(home.page[entry], location);
    }
    void prefetch_place(uint32_t place) const { HEADRACE_PREFETCH_WRITE(groups_.data() + place); }

    // The same if it may stand elsewhere, or the page is not there: it is added.
    uint32_t place_from(IndexLine* home, uint64_t location) {
        const uint64_t key = key_of(location);
        const PageIndex::Place found = index_.find_from(home, key);
        if (found.line != nullptr) return place_of(found.page(), location);
        auto page = static_cast<uint32_t>(keys_.size());
        if (freed_pages_.empty()) {
            keys_.push_back(key);
            groups_of_.push_back(0);
            groups_.resize(groups_.size() + PAGE, NO_GROUP);
        } else {
            page = freed_pages_.back();
            freed_pages_.pop_back();
            keys_[page] = key;
        }
        index_.add_from(home, key, page);
        return place_of(page, location);
    }

    // The cell of a location whose group has this place, if `there`; else 0.
    uint32_t cell_at(uint32_t place, uint64_t location, bool& there) const {
        there = groups_[place] != NO_GROUP;
        return there ? cell_in(groups_[place], location) : 0;
    }

    // The same where the group may not be there: it is added, and the links of new cells are `outside`.
    uint32_t add_cell_at(uint32_t place, uint64_t location, uint32_t outside) {
        if (groups_[place] != NO_GROUP) return cell_in(groups_[place], location);
        auto group = static_cast<uint32_t>(places_.size());
        if (freed_groups_.empty()) {
            places_.push_back(place);
            rows_of_.push_back(0);
            cells_.resize(cells_.size() + GROUP);
            std::fill_n(&cells_[cell_in(group, 0)], GROUP, RowCell{outside, AWAY});
        } else {
            group = freed_groups_.back();
            freed_groups_.pop_back();
            places_[group] = place;
        }
        groups_[place] = group;
        ++groups_of_[place >> PAGE_BITS];
        return cell_in(group, location);
    }

    uint32_t add(uint64_t location, uint32_t outside) {
        return add_cell_at(place_from(prefetch_line(location), location), location, outside);
    }

    void track(uint32_t cell) {
        ++rows_of_[cell >> GROUP_BITS];
        ++tracked_;
    }
    // The row is neither resident nor in the window any more.
    void forget(uint32_t cell) {
        cells_[cell].state = AWAY;
        --tracked_;
        if (--rows_of_[cell >> GROUP_BITS] == 0) remove_group(cell >> GROUP_BITS);
    }
    // Takes the group of a location away if it was added for rows that are not tracked after all.
    void remove_unused(uint64_t location) {
        const PageIndex::Place page = index_.find(key_of(location));
        if (page.line == nullptr) return;
        const uint32_t group = groups_[place_of(page.page(), location)];
        if (group != NO_GROUP && rows_of_[group] == 0) remove_group(group);
    }

  private:
    static constexpr uint32_t NO_GROUP = 0xFFFFFFFFu;

    static uint32_t place_of(uint32_t page, uint64_t location) {
        return page << PAGE_BITS | (static_cast<uint32_t>(location >> GROUP_BITS) & (PAGE - 1));
    }
    static uint32_t cell_in(uint32_t group, uint64_t location) {
        return group << GROUP_BITS | (static_cast<uint32_t>(location) & (GROUP - 1));
    }

    void remove_group(uint32_t group) {
        const uint32_t page = places_[group] >> PAGE_BITS;
        groups_[places_[group]] = NO_GROUP;
        freed_groups_.push_back(group);
        if (--groups_of_[page] > 0) return;
        index_.remove(keys_[page]);
        freed_pages_.push_back(page);
    }

    PageIndex index_;
    HugeVector<uint64_t> keys_;      // by page
    HugeVector<uint8_t> groups_of_;  // by page: how many groups are there
    HugeVector<uint32_t> groups_;    // by place: the group, or NO_GROUP
    HugeVector<uint32_t> places_;    // by group: its place
    HugeVector<uint8_t> rows_of_;    // by group: how many of its rows are tracked
    HugeVector<RowCell> cells_;
    HugeVector<uint32_t> freed_groups_, freed_pages_;
    size_t tracked_ = 0;
};

}  // namespace headrace::plan
