// Which resident row has to leave: dead rows by last use, then the row used farthest in the future.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cell_lists.hpp"
#include "huge_pages.hpp"
#include "radix_sort.hpp"
#include "row_cells.hpp"

namespace headrace::plan {

// Cold rows that are resident and may leave, by their cells: they are in lists by step, of their next use or, if no
// step of the window uses them (dead rows), of their last use.
//
// A row is in the list of its next use until it is taken or that step comes, which drops the whole list. (Near uses are
// in no list: see WindowPlanner::look_nearer.) A dead row that is used again stays behind in its list as a stale entry,
// which its link tells. Stale entries never outnumber the others by much (`sweep`). Order by location within one step
// is made only for what a movement takes out of it.
class Victims {
  public:
    explicit Victims(uint32_t window) {
        size_t lists = 2;
        while (lists < size_t{window} + 2) lists *= 2;
        used_.resize(lists);
    }

    size_t nbytes() const {
        return lists_.nbytes() + used_.capacity() * sizeof(CellLists::List) + dead_.capacity() * sizeof(DeadList) +
               (chosen_.capacity() + segment_.capacity() + spare_.capacity()) * sizeof(Victim) +
               entries_.capacity() * sizeof(uint32_t);
    }

    // Room for so many more rows in the lists, so that neither `use_next` nor `revive` allocates.
    void reserve(size_t rows) { lists_.reserve(rows, used_.size() + 1); }

    void use_next(uint32_t cell, uint32_t step) { lists_.append(used(step), cell); }

    // The rows used at `step` are no candidates any more; they are listed anew after their use.
    void drop_step(uint32_t step) { lists_.clear(used(step)); }

    // Whether so many can be taken that are dead, or used at `first` to `last`.
    bool enough(size_t needed, uint32_t first, uint32_t last) {
        size_t known = dead_rows_;
        for (uint32_t step = last + 1; step > first && known < needed; --step) known += CellLists::size(used(step - 1));
        return known >= needed;
    }

    // Rows whose last uses are among these, of one step, come between these two.
    void open_dead(uint32_t first_use, uint32_t uses) {
        if (dead_begin_ > 64 && 2 * dead_begin_ > dead_.size()) {
            dead_.erase(dead_.begin(), dead_.begin() + static_cast<std::ptrdiff_t>(dead_begin_));
            dead_begin_ = 0;
        }
        dead_.push_back({first_use, uses, {}});
    }
    void die(uint32_t cell) {
        lists_.append(dead_.back().cells, cell);
        ++dead_entries_;
        ++dead_rows_;
    }
    void close_dead(const RowCells& cells) {
        if (CellLists::empty(dead_.back().cells)) dead_.pop_back();
        if (dead_entries_ > 2 * dead_rows_ + SLACK) sweep(cells);
    }

    // The dead row in this cell is used again at `step`.
    void revive(uint32_t cell, uint32_t step) {
        --dead_rows_;
        use_next(cell, step);
    }

    // The links of dead rows become `link`, but for those of `kept` uses from `kept_first` on.
    void renumber(const RowCells& cells, uint32_t link, uint32_t kept_first, uint32_t kept) {
        if (entries_.size() < dead_entries_) entries_.resize(dead_entries_);  // all that may throw
        sweep(cells);
        for (size_t i = dead_begin_; i < dead_.size(); ++i) {
            if (dead_[i].first_use - kept_first >= kept) dead_[i] = {link, 1, dead_[i].cells};
        }
    }

    // Up to `needed` victims, first to leave first, taken out of their lists: the dead ones, then those used from step
    // `last` down to `first`. `dead` of them were dead.
    const std::vector<Victim>& take(const RowCells& cells, size_t needed, uint32_t first, uint32_t last, size_t& dead) {
        chosen_.clear();
        while (chosen_.size() < needed && dead_begin_ < dead_.size()) {
            DeadList& oldest = dead_[dead_begin_];
            take_segment(cells, oldest.cells, &oldest, needed);
            if (CellLists::empty(oldest.cells)) ++dead_begin_;
        }
        dead = chosen_.size();
        dead_rows_ -= dead;
        for (uint32_t step = last + 1; step > first && chosen_.size() < needed; --step) {
            take_segment(cells, used(step - 1), nullptr, needed);
        }
        return chosen_;
    }

  private:
    static constexpr size_t SLACK = 256;

    struct DeadList {
        uint32_t first_use, uses;  // the last uses of its rows are among these
        CellLists::List cells;

        bool has(uint32_t link) const { return link - first_use < uses; }
    };

    CellLists::List& used(uint32_t step) { return used_[step & (used_.size() - 1)]; }

    // The rows of a list (of `dead`, those that are not stale), as many as are needed, smaller location first; the rest
    // stays.
    void take_segment(const RowCells& cells, CellLists::List& list, const DeadList* dead, size_t needed) {
        if (CellLists::empty(list)) return;
        const size_t count = lists_.take(list, entries_);
        if (dead != nullptr) dead_entries_ -= count;
        segment_.resize(count);
        size_t found = 0;
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) {
                cells.prefetch(entries_[i + NEAR]);
                cells.prefetch_location(entries_[i + NEAR]);
            }
            const RowCell& cell = cells.at(entries_[i]);
            segment_[found] = {cells.location(entries_[i]), entries_[i], cell.state};
            found += dead == nullptr || dead->has(cell.link);
        }
        segment_.resize(found);
        const size_t wanted = std::min(needed - chosen_.size(), found);
        const auto end = segment_.begin() + static_cast<std::ptrdiff_t>(wanted);
        if (wanted < found) {
            std::nth_element(segment_.begin(), end, segment_.end(),
                             [](const Victim& a, const Victim& b) { return a.location < b.location; });
            for (auto rest = end; rest != segment_.end(); ++rest) lists_.append(list, rest->cell);
            if (dead != nullptr) dead_entries_ += found - wanted;
            segment_.resize(wanted);
        }
        sort_by_location(segment_, spare_);
        chosen_.insert(chosen_.end(), segment_.begin(), segment_.end());
    }

    // Drop the stale entries.
    void sweep(const RowCells& cells) {
        size_t kept = dead_begin_;
        dead_entries_ = 0;
        for (size_t i = dead_begin_; i < dead_.size(); ++i) {
            DeadList old = dead_[i];
            DeadList fresh{old.first_use, old.uses, {}};
            const size_t count = lists_.take(old.cells, entries_);
            for (size_t k = 0; k < count; ++k) {
                if (k + NEAR < count) cells.prefetch(entries_[k + NEAR]);
                if (!old.has(cells.at(entries_[k]).link)) continue;
                lists_.append(fresh.cells, entries_[k]);
                ++dead_entries_;
            }
            if (!CellLists::empty(fresh.cells)) dead_[kept++] = fresh;
        }
        dead_.resize(kept);
    }

    static constexpr size_t NEAR = 40;

    CellLists lists_;
    std::vector<CellLists::List> used_;  // by step of the next use, modulo
    std::vector<DeadList> dead_;         // from dead_begin_ on: by step of the last use, ascending
    size_t dead_begin_ = 0, dead_entries_ = 0, dead_rows_ = 0;
    std::vector<Victim> chosen_, segment_, spare_;
    std::vector<uint32_t> entries_;
};

}  // namespace headrace::plan
