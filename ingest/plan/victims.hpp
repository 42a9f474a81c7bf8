// Which resident row has to leave: dead rows by last use, then the row used farthest in the future.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "radix_sort.hpp"
#include "row_lists.hpp"
#include "row_table.hpp"

namespace headrace::plan {

// Rows that may leave, cold and resident, in lists by step: of the next use, or, if no step of the window uses them
// (dead rows), of the last use.
//
// A row is in the list of its next use until it is taken or that step comes, which drops the whole list. A dead row that
// is used again stays behind in its list as a stale entry: the row's stamp tells. Stale entries never outnumber the rows
// by much (`sweep`). Order by location within one step is made only for what a movement takes out of it.
class Victims {
  public:
    explicit Victims(uint32_t window) {
        size_t lists = 2;
        while (lists < size_t{window} + 2) lists *= 2;
        used_.resize(lists);
    }

    size_t nbytes() const {
        return lists_.nbytes() + used_.capacity() * sizeof(RowLists::List) + dead_.capacity() * sizeof(DeadList) +
               (chosen_.capacity() + segment_.capacity() + spare_.capacity()) * sizeof(Victim);
    }

    // Room for so many more rows in the lists, so that neither `use_next` nor `revive` allocates.
    void reserve(size_t rows) { lists_.reserve(rows, used_.size() + 1); }

    void use_next(uint32_t row, uint32_t step) { lists_.append(used(step), row); }

    // The rows used at `step` are no candidates any more; they are listed anew after their use.
    void drop_step(uint32_t step) { lists_.clear(used(step)); }

    // Rows that die at `step` come between these two.
    void open_dead(uint32_t step) {
        if (dead_begin_ > 64 && 2 * dead_begin_ > dead_.size()) {
            dead_.erase(dead_.begin(), dead_.begin() + static_cast<std::ptrdiff_t>(dead_begin_));
            dead_begin_ = 0;
        }
        dead_.push_back({step, RowLists::List{}});
    }
    void die(uint32_t row) {
        lists_.append(dead_.back().rows, row);
        ++dead_entries_;
        ++dead_rows_;
    }
    void close_dead(RowTable& rows) {
        if (dead_.back().rows.count == 0) dead_.pop_back();
        if (dead_entries_ > 2 * dead_rows_ + SLACK) sweep(rows);
    }

    // A dead row is used again at `step`; the caller has cleared its stamp.
    void revive(uint32_t row, uint32_t step) {
        --dead_rows_;
        use_next(row, step);
    }

    // Up to `needed` victims, first to leave first, taken out of their lists: the dead ones, then those used from step
    // `last` down to `first`. `dead` of them were dead.
    const std::vector<Victim>& take(RowTable& rows, size_t needed, uint32_t first, uint32_t last, size_t& dead) {
        chosen_.clear();
        while (chosen_.size() < needed && dead_begin_ < dead_.size()) {
            DeadList& oldest = dead_[dead_begin_];
            dead_entries_ -= oldest.rows.count;
            take_segment(rows, oldest.rows, oldest.step + 1, needed);
            dead_entries_ += oldest.rows.count;
            if (oldest.rows.count == 0) ++dead_begin_;
        }
        dead = chosen_.size();
        dead_rows_ -= dead;
        for (uint32_t step = last + 1; step > first && chosen_.size() < needed; --step) {
            take_segment(rows, used(step - 1), ANY, needed);
        }
        return chosen_;
    }

  private:
    static constexpr uint32_t ANY = 0;
    static constexpr size_t SLACK = 4096;

    struct DeadList {
        uint32_t step;
        RowLists::List rows;
    };

    RowLists::List& used(uint32_t step) { return used_[step & (used_.size() - 1)]; }

    // The rows of a list (those with this stamp), as many as are needed, smaller location first; the rest is listed again.
    void take_segment(RowTable& rows, RowLists::List& list, uint32_t stamp, size_t needed) {
        if (list.count == 0) return;
        segment_.clear();
        lists_.for_each(list, [&](uint32_t row) { segment_.push_back({0, row, 0}); });
        lists_.clear(list);
        size_t found = 0;
        for (size_t i = 0; i < segment_.size(); ++i) {
            if (i + NEAR < segment_.size()) rows.prefetch(segment_[i + NEAR].row);
            const Row& row = rows[segment_[i].row];
            if (stamp != ANY && (row.slot == NO_SLOT || row.stamp != stamp)) continue;
            segment_[found++] = {row.location, segment_[i].row, row.slot};
        }
        segment_.resize(found);
        const size_t wanted = std::min(needed - chosen_.size(), found);
        const auto end = segment_.begin() + static_cast<std::ptrdiff_t>(wanted);
        if (wanted < found) {
            std::nth_element(segment_.begin(), end, segment_.end(),
                             [](const Victim& a, const Victim& b) { return a.location < b.location; });
            for (auto rest = end; rest != segment_.end(); ++rest) lists_.append(list, rest->row);
            segment_.resize(wanted);
        }
        sort_by_location(segment_, spare_);
        chosen_.insert(chosen_.end(), segment_.begin(), segment_.end());
    }

    // Drop the stale entries.
    void sweep(RowTable& rows) {
        size_t kept = dead_begin_;
        dead_entries_ = 0;
        for (size_t i = dead_begin_; i < dead_.size(); ++i) {
            DeadList old = dead_[i];
            DeadList fresh{old.step, RowLists::List{}};
            stale_.clear();
            lists_.for_each(old.rows, [&](uint32_t row) { stale_.push_back(row); });
            lists_.clear(old.rows);
            for (size_t k = 0; k < stale_.size(); ++k) {
                if (k + NEAR < stale_.size()) rows.prefetch(stale_[k + NEAR]);
                const Row& row = rows[stale_[k]];
                if (row.slot != NO_SLOT && row.stamp == old.step + 1) lists_.append(fresh.rows, stale_[k]);
            }
            dead_entries_ += fresh.rows.count;
            if (fresh.rows.count > 0) dead_[kept++] = fresh;
        }
        dead_.resize(kept);
    }

    static constexpr size_t NEAR = 16;

    RowLists lists_;
    std::vector<RowLists::List> used_;  // by step of the next use, modulo
    std::vector<DeadList> dead_;        // from dead_begin_ on: by step of the last use, ascending
    size_t dead_begin_ = 0, dead_entries_ = 0, dead_rows_ = 0;
    std::vector<Victim> chosen_, segment_, spare_;
    std::vector<uint32_t> stale_;
};

}  // namespace headrace::plan
