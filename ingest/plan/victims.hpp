// Which resident row has to leave: dead rows by last use, then the row used farthest in the future.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"
#include "radix_sort.hpp"
#include "row_cells.hpp"
#include "slot_lists.hpp"

namespace headrace::plan {

// A slot of the window cache. Slots count from 0 here, behind those of the hot rows.
struct Slot {
    uint32_t cell;  // of its row
    uint32_t died;  // the last use of the row, + 1, if no step of the window uses it; else 0
};

// Cold rows that are resident, by slot, and which of them may leave: those are in lists by step, of their next use or,
// if no step of the window uses them (dead rows), of their last use.
//
// A row is in the list of its next use until it is taken or that step comes, which drops the whole list. A dead row
// that is used again stays behind in its list as a stale entry, which `died` tells. Stale entries never outnumber the
// others by much (`sweep`). Order by location within one step is made only for what a movement takes out of it.
class Victims {
  public:
    explicit Victims(uint32_t window) {
        size_t lists = 2;
        while (lists < size_t{window} + 2) lists *= 2;
        used_.resize(lists);
    }

    size_t nbytes() const {
        return slots_.capacity() * sizeof(Slot) + lists_.nbytes() + used_.capacity() * sizeof(SlotLists::List) +
               dead_.capacity() * sizeof(DeadList) +
               (chosen_.capacity() + segment_.capacity() + spare_.capacity()) * sizeof(Victim) +
               entries_.capacity() * sizeof(uint32_t);
    }

    size_t used_slots() const { return slots_.size(); }
    void prefetch(uint32_t slot) const { HEADRACE_PREFETCH_WRITE(&slots_[slot]); }
    uint32_t place_new(uint32_t cell) {
        slots_.push_back({cell, 0});
        return static_cast<uint32_t>(slots_.size() - 1);
    }
    void place(uint32_t slot, uint32_t cell) { slots_[slot] = {cell, 0}; }

    // Room for so many more rows in the lists, so that neither `use_next` nor `revive` allocates.
    void reserve(size_t rows) { lists_.reserve(rows, used_.size() + 1); }

    void use_next(uint32_t slot, uint32_t step) { lists_.append(used(step), slot); }

    // The rows used at `step` are no candidates any more; they are listed anew after their use.
    void drop_step(uint32_t step) { lists_.clear(used(step)); }

    // Whether so many can be taken that are dead, or used at `first` to `last`.
    bool enough(size_t needed, uint32_t first, uint32_t last) {
        size_t known = dead_rows_;
        for (uint32_t step = last + 1; step > first && known < needed; --step) known += SlotLists::size(used(step - 1));
        return known >= needed;
    }

    // Rows that die at `step` come between these two.
    void open_dead(uint32_t step) {
        if (dead_begin_ > 64 && 2 * dead_begin_ > dead_.size()) {
            dead_.erase(dead_.begin(), dead_.begin() + static_cast<std::ptrdiff_t>(dead_begin_));
            dead_begin_ = 0;
        }
        dead_.push_back({step, SlotLists::List{}});
    }
    void die(uint32_t slot) {
        slots_[slot].died = dead_.back().step + 1;
        lists_.append(dead_.back().slots, slot);
        ++dead_entries_;
        ++dead_rows_;
    }
    void close_dead() {
        if (SlotLists::empty(dead_.back().slots)) dead_.pop_back();
        if (dead_entries_ > 2 * dead_rows_ + SLACK) sweep();
    }

    // The dead row in this slot is used again at `step`.
    void revive(uint32_t slot, uint32_t step) {
        slots_[slot].died = 0;
        --dead_rows_;
        use_next(slot, step);
    }

    // Up to `needed` victims, first to leave first, taken out of their lists: the dead ones, then those used from step
    // `last` down to `first`. `dead` of them were dead.
    const std::vector<Victim>& take(const RowCells& cells, size_t needed, uint32_t first, uint32_t last, size_t& dead) {
        chosen_.clear();
        while (chosen_.size() < needed && dead_begin_ < dead_.size()) {
            DeadList& oldest = dead_[dead_begin_];
            take_segment(cells, oldest.slots, oldest.step + 1, needed);
            if (SlotLists::empty(oldest.slots)) ++dead_begin_;
        }
        dead = chosen_.size();
        dead_rows_ -= dead;
        for (uint32_t step = last + 1; step > first && chosen_.size() < needed; --step) {
            take_segment(cells, used(step - 1), ANY, needed);
        }
        return chosen_;
    }

  private:
    static constexpr uint32_t ANY = 0;
    static constexpr size_t SLACK = 256;

    struct DeadList {
        uint32_t step;
        SlotLists::List slots;
    };

    SlotLists::List& used(uint32_t step) { return used_[step & (used_.size() - 1)]; }

    // The rows of a list (those that died then), as many as are needed, smaller location first; the rest stays.
    void take_segment(const RowCells& cells, SlotLists::List& list, uint32_t died, size_t needed) {
        if (SlotLists::empty(list)) return;
        const size_t count = lists_.take(list, entries_);
        if (died != ANY) dead_entries_ -= count;
        size_t found = 0;
        segment_.resize(count);
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) prefetch(entries_[i + NEAR]);
            const Slot& slot = slots_[entries_[i]];
            segment_[found] = {0, slot.cell, entries_[i]};
            found += died == ANY || slot.died == died;
        }
        segment_.resize(found);
        for (size_t i = 0; i < found; ++i) {
            if (i + NEAR < found) cells.prefetch_location(segment_[i + NEAR].cell);
            segment_[i].location = cells.location(segment_[i].cell);
        }
        const size_t wanted = std::min(needed - chosen_.size(), found);
        const auto end = segment_.begin() + static_cast<std::ptrdiff_t>(wanted);
        if (wanted < found) {
            std::nth_element(segment_.begin(), end, segment_.end(),
                             [](const Victim& a, const Victim& b) { return a.location < b.location; });
            for (auto rest = end; rest != segment_.end(); ++rest) lists_.append(list, rest->slot);
            if (died != ANY) dead_entries_ += found - wanted;
            segment_.resize(wanted);
        }
        sort_by_location(segment_, spare_);
        chosen_.insert(chosen_.end(), segment_.begin(), segment_.end());
    }

    // Drop the stale entries.
    void sweep() {
        size_t kept = dead_begin_;
        dead_entries_ = 0;
        for (size_t i = dead_begin_; i < dead_.size(); ++i) {
            DeadList old = dead_[i];
            DeadList fresh{old.step, SlotLists::List{}};
            const size_t count = lists_.take(old.slots, entries_);
            for (size_t k = 0; k < count; ++k) {
                if (k + NEAR < count) prefetch(entries_[k + NEAR]);
                if (slots_[entries_[k]].died != old.step + 1) continue;
                lists_.append(fresh.slots, entries_[k]);
                ++dead_entries_;
            }
            if (!SlotLists::empty(fresh.slots)) dead_[kept++] = fresh;
        }
        dead_.resize(kept);
    }

    static constexpr size_t NEAR = 16;

    HugeVector<Slot> slots_;
    SlotLists lists_;
    std::vector<SlotLists::List> used_;  // by step of the next use, modulo
    std::vector<DeadList> dead_;         // from dead_begin_ on: by step of the last use, ascending
    size_t dead_begin_ = 0, dead_entries_ = 0, dead_rows_ = 0;
    std::vector<Victim> chosen_, segment_, spare_;
    std::vector<uint32_t> entries_;
};

}  // namespace headrace::plan
