// The window planner of one rank and one row layout. The rules are in README.md; the twin is _planner_py.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_table.hpp"
#include "victims.hpp"

namespace headrace::plan {

constexpr int64_t NEVER = -1;

struct Movement {
    std::vector<uint64_t> evict_locations;
    std::vector<int64_t> evict_slots;
    std::vector<uint64_t> fetch_locations;
    std::vector<int64_t> fetch_slots, fetch_unique, fetch_wait, slot_wait;

    void clear() {
        evict_locations.clear();
        evict_slots.clear();
        fetch_locations.clear();
        fetch_slots.clear();
        fetch_unique.clear();
        fetch_wait.clear();
        slot_wait.clear();
    }
    size_t nbytes() const {
        return 8 * (evict_locations.capacity() + evict_slots.capacity() + fetch_locations.capacity() +
                    fetch_slots.capacity() + fetch_unique.capacity() + fetch_wait.capacity() + slot_wait.capacity());
    }
};

struct Counters {
    size_t window_rows, peak_window_rows, peak_resident, tracked_rows, rows_needed, rows_never_late, nbytes;
};

enum PushResult : int { PUSHED = 0, DUPLICATE = 1, TOO_LARGE = 2 };

class WindowPlanner {
  public:
    // Steps are counted in 32 bits, moves (two a step) too.
    static constexpr uint32_t MAX_STEPS = 0x7FFFFF00u;

    WindowPlanner(uint32_t window, uint32_t capacity, uint32_t r_rows, uint32_t horizon)
        : window_(window),
          cache_capacity_(capacity - r_rows),
          r_rows_(r_rows),
          horizon_(horizon),
          batches_(size_t{window} + 1),
          victims_(window) {}

    // The position of the first duplicate, or count.
    size_t set_hot(const uint64_t* locations, size_t count) {
        std::vector<uint32_t> rows(count);
        table_.find_or_add(locations, count, rows.data());
        for (size_t i = 0; i < count; ++i) {
            Row& row = table_[rows[i]];
            if (row.hot_rank >= 0) return i;
            row.hot_rank = static_cast<int32_t>(i);
        }
        return count;
    }

    // Takes the batch whole, or leaves all as it was: all that may throw comes first. `problem()` says where the
    // duplicate is.
    PushResult push(const uint64_t* locations, size_t count) {
        Batch& batch = batch_of(tail_);
        resize(batch, count);
        table_.find_or_add(locations, count, batch.rows.data());
        const PushResult result = examine(batch);
        if (result != PUSHED) {
            for (const uint32_t row : batch.rows) release_if_idle(row);
            return result;
        }
        for (size_t i = 0; i < count; ++i) note_use(batch.rows[i], static_cast<uint32_t>(i));
        ++tail_;
        window_rows_ += count;
        peak_window_rows_ = std::max(peak_window_rows_, window_rows_);
        return PUSHED;
    }

    void finish() { finished_ = true; }
    bool finished() const { return finished_; }
    bool full() const { return tail_ - head_ > window_; }
    bool ready() const { return full() || (finished_ && tail_ > head_); }
    bool exhausted() const { return tail_ >= MAX_STEPS; }

    // Plans step `head`; the outcome stays in the buffers below until the next call. Only when ready().
    void pop() {
        const uint32_t step = head_;
        Batch& batch = batch_of(step);
        late.clear();
        ahead.clear();
        forget_write_backs(2 * step);
        victims_.drop_step(step);
        const size_t brought_before = brought_ahead_;
        const size_t brought_late = bring(batch, 2 * step, step + 1, late);
        hits = batch.rows.size() - brought_before - brought_late;
        describe(batch);
        brought_ahead_ = 0;
        if (window_ > 0 && step + 1 < tail_) {
            brought_ahead_ = bring(batch_of(step + 1), 2 * step + 1, step + 2, ahead);
        }
        resident = resident_;
        for (size_t i = 0; i < batch.rows.size(); ++i) {
            if (i + NEAR < batch.rows.size() && !hot[i + NEAR]) {
                victims_.prefetch(static_cast<uint32_t>(slots[i + NEAR]) - r_rows_);
            }
            link(batch, i, step);
        }
        ++head_;
        window_rows_ -= batch.rows.size();
    }

    std::vector<int64_t> slots;
    std::vector<uint8_t> hot, urgent;
    Movement late, ahead;
    size_t hits = 0, resident = 0;

    size_t problem() const { return problem_; }
    Counters counters() const {
        return {window_rows_, peak_window_rows_, peak_resident_, table_.size(),
                rows_needed_, rows_never_late_,  nbytes()};
    }
    size_t window_steps() const { return tail_ - head_; }
    size_t window_size(size_t i) { return batch_of(head_ + static_cast<uint32_t>(i)).rows.size(); }

  private:
    struct Batch {
        std::vector<uint32_t> rows;  // row numbers, in batch order
        std::vector<uint32_t> gap;   // steps until the next use known so far; 0: none

        size_t nbytes() const { return 4 * (rows.capacity() + gap.capacity()); }
    };
    size_t nbytes() const {
        return sizeof(*this) + table_.nbytes() + victims_.nbytes() + late.nbytes() + ahead.nbytes() +
               slots.capacity() * 8 + hot.capacity() + urgent.capacity() + missing_.capacity() * 4 +
               written_.capacity() * sizeof(WriteBack) + batches_.capacity() * sizeof(Batch) + batch_bytes_;
    }
    struct WriteBack {
        uint32_t move_end;  // move + 1
        uint32_t row;
    };
    static constexpr size_t NEAR = 8;

    Batch& batch_of(uint32_t step) { return batches_[step % batches_.size()]; }
    bool in_window(const Row& row) const { return row.uses_end > head_; }

    // The buffers of a step that is not in the window; `batch_bytes_` stays right when memory runs out between the two.
    void resize(Batch& batch, size_t count) {
        const size_t before = batch.nbytes();
        try {
            batch.rows.resize(count);
            batch.gap.assign(count, 0);
        } catch (...) {
            batch_bytes_ += batch.nbytes() - before;
            throw;
        }
        batch_bytes_ += batch.nbytes() - before;
    }

    PushResult examine(const Batch& batch) {
        const size_t count = batch.rows.size();
        size_t cold = 0, shared = 0;
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) HEADRACE_PREFETCH(&table_[batch.rows[i + NEAR]]);
            Row& row = table_[batch.rows[i]];
            if (row.mark < i && batch.rows[row.mark] == batch.rows[i]) {
                problem_ = i;
                return DUPLICATE;
            }
            row.mark = static_cast<uint32_t>(i);
            if (row.hot_rank >= 0) continue;
            ++cold;
            shared += tail_ > 0 && row.uses_end == tail_;
        }
        rows_needed_ = std::max(rows_needed_, cold + r_rows_);
        rows_never_late_ = std::max(rows_never_late_, cold + cold_before_ - shared + r_rows_);
        if (cold > cache_capacity_) return TOO_LARGE;
        cold_before_ = cold;
        return PUSHED;
    }

    void note_use(uint32_t number, uint32_t position) {
        Row& row = table_[number];
        if (in_window(row)) {
            const uint32_t before = row.uses_end - 1;
            batch_of(before).gap[row.position] = tail_ - before;
        } else if (row.slot >= 0 && row.hot_rank < 0) {  // it was dead
            const uint32_t slot = static_cast<uint32_t>(row.slot) - r_rows_;
            victims_.unlink(slot);
            victims_.link_used(slot, tail_);
        }
        row.uses_end = tail_ + 1;
        row.position = position;
    }

    void release_if_idle(uint32_t number) {
        const Row& row = table_[number];
        if (row.slot == -1 && row.hot_rank < 0 && !in_window(row) && row.written_end == 0) table_.remove(number);
    }

    // Write-backs older than the horizon have landed: no fetch from `move` on has to wait for them.
    void forget_write_backs(uint32_t move) {
        while (written_begin_ != written_end_) {
            const WriteBack& oldest = written_[written_begin_ & (written_.size() - 1)];
            if (move < oldest.move_end || move - (oldest.move_end - 1) <= horizon_) return;
            Row& row = table_[oldest.row];
            if (row.written_end == oldest.move_end) {
                row.written_end = 0;
                release_if_idle(oldest.row);
            }
            ++written_begin_;
        }
    }

    void remember_write_back(uint32_t move, uint32_t row) {
        if (written_end_ - written_begin_ == written_.size()) grow_written();
        written_[written_end_++ & (written_.size() - 1)] = {move + 1, row};
    }

    void grow_written() {
        std::vector<WriteBack> larger(written_.empty() ? 1024 : 2 * written_.size());
        size_t count = 0;
        for (size_t i = written_begin_; i != written_end_; ++i) larger[count++] = written_[i & (written_.size() - 1)];
        written_.swap(larger);
        written_begin_ = 0;
        written_end_ = count;
    }

    // The rows of `batch` that are not resident, as far as there is room; victims are used at `first_use` or later.
    size_t bring(const Batch& batch, uint32_t move, uint32_t first_use, Movement& movement) {
        missing_.clear();
        size_t cold = 0;
        for (size_t i = 0; i < batch.rows.size(); ++i) {
            if (i + NEAR < batch.rows.size()) HEADRACE_PREFETCH(&table_[batch.rows[i + NEAR]]);
            const Row& row = table_[batch.rows[i]];
            if (row.slot >= 0) continue;
            missing_.push_back(static_cast<uint32_t>(i));
            cold += row.hot_rank < 0;
        }
        const size_t unused = cache_capacity_ - used_slots_;
        const auto& chosen = victims_.take(cold > unused ? cold - unused : 0, first_use, tail_ - 1);
        for (const Victim& victim : chosen) evict(victim, move, movement);
        auto victim = chosen.begin();
        for (const uint32_t i : missing_) {
            const uint32_t number = batch.rows[i];
            const int32_t rank = table_[number].hot_rank;
            if (rank >= 0) {
                fetch(number, i, static_cast<uint32_t>(rank), NEVER, move, movement);
            } else if (used_slots_ < cache_capacity_) {
                cache(number, used_slots_++);
                fetch(number, i, r_rows_ + used_slots_ - 1, NEVER, move, movement);
            } else if (victim != chosen.end()) {
                cache(number, victim->slot);
                fetch(number, i, r_rows_ + victim->slot, move, move, movement);
                ++victim;
            }
        }
        peak_resident_ = std::max(peak_resident_, resident_);
        return movement.fetch_slots.size();
    }

    void evict(const Victim& victim, uint32_t move, Movement& movement) {
        Row& row = table_[victim.row];
        row.slot = -1;
        row.written_end = move + 1;
        remember_write_back(move, victim.row);
        movement.evict_locations.push_back(victim.location);
        movement.evict_slots.push_back(int64_t{r_rows_} + victim.slot);
        --resident_;
    }

    void cache(uint32_t number, uint32_t slot) { victims_.place(slot, table_[number].location, number); }

    void fetch(uint32_t number, uint32_t unique, uint32_t slot, int64_t slot_wait, uint32_t move, Movement& movement) {
        Row& row = table_[number];
        row.slot = static_cast<int32_t>(slot);
        const bool waits = row.written_end > 0 && move - (row.written_end - 1) <= horizon_;
        movement.fetch_locations.push_back(row.location);
        movement.fetch_slots.push_back(slot);
        movement.fetch_unique.push_back(unique);
        movement.fetch_wait.push_back(waits ? int64_t{row.written_end} - 1 : NEVER);
        movement.slot_wait.push_back(slot_wait);
        ++resident_;
    }

    void describe(const Batch& batch) {
        const size_t count = batch.rows.size();
        slots.resize(count);
        hot.resize(count);
        urgent.resize(count);
        for (size_t i = 0; i < count; ++i) {
            const Row& row = table_[batch.rows[i]];
            slots[i] = row.slot;
            hot[i] = row.hot_rank >= 0;
            urgent[i] = window_ == 0 || batch.gap[i] == 1;
        }
    }

    // After the step a cached row is a candidate again, except for the step that needs it next.
    void link(const Batch& batch, size_t i, uint32_t step) {
        if (hot[i] || batch.gap[i] == 1) return;
        const uint32_t slot = static_cast<uint32_t>(slots[i]) - r_rows_;
        if (batch.gap[i] == 0) {
            victims_.link_dead(slot, step);
        } else {
            victims_.link_used(slot, step + batch.gap[i]);
        }
    }

    uint32_t window_, cache_capacity_, r_rows_, horizon_;
    uint32_t head_ = 0, tail_ = 0, used_slots_ = 0;  // steps [head_, tail_) are in the window
    bool finished_ = false;
    std::vector<Batch> batches_;
    RowTable table_;
    VictimLists victims_;
    std::vector<uint32_t> missing_;
    std::vector<WriteBack> written_;  // ring of a power of two, oldest first
    size_t written_begin_ = 0, written_end_ = 0;
    size_t resident_ = 0, peak_resident_ = 0, brought_ahead_ = 0, cold_before_ = 0, problem_ = 0;
    size_t window_rows_ = 0, peak_window_rows_ = 0, rows_needed_ = 0, rows_never_late_ = 0, batch_bytes_ = 0;
};

}  // namespace headrace::plan
