// The window planner of one rank and one row layout. The rules are in README.md; the twin is _planner_py.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_index.hpp"
#include "row_states.hpp"
#include "victims.hpp"
#include "window_uses.hpp"

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
    // As many fetches are written by the caller, one by one.
    void resize_fetches(size_t count) {
        fetch_locations.resize(count);
        fetch_slots.resize(count);
        fetch_unique.resize(count);
        fetch_wait.resize(count);
        slot_wait.resize(count);
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
    // Moves, two a step, are held in 31 bits.
    static constexpr uint32_t MAX_STEPS = 0x3FFFFF00u;

    WindowPlanner(uint32_t window, uint32_t capacity, uint32_t r_rows, uint32_t horizon, bool overlap = true)
        : window_(window),
          cache_capacity_(capacity - r_rows),
          r_rows_(r_rows),
          horizon_(horizon),
          overlap_(overlap && window > 0),
          uses_(window),
          victims_(window) {}

    // The position of the first duplicate, or count. Hot rows have the row numbers [0, count), which is their R slot
    // too.
    size_t set_hot(const uint64_t* locations, size_t count) {
        index_.reserve(count);
        states_.reserve(count);
        for (size_t i = 0; i < count; ++i) {
            if (index_.find(locations[i]).line != nullptr) return i;
            index_.add(locations[i], states_.add(), outside());
            hot_count_ = static_cast<uint32_t>(i + 1);
        }
        return count;
    }

    // Takes the batch whole, or leaves all as it was: all that may throw comes first. `problem()` says where the
    // duplicate is.
    PushResult push(const uint64_t* locations, size_t count) {
        const WindowUses::Batch batch = uses_.prepare(count);
        index_.reserve(count);
        states_.reserve(count);
        victims_.reserve(count);
        if (links_.size() < count) {
            links_.resize(count);
        }
        if (uses_.end_use() - renumbered_at_ > renumber_after_) renumber();
        const PushResult result = enter(locations, batch);
        if (result != PUSHED) return result;
        note_uses(batch);
        uses_.append(batch, locations);
        last_count_ = count;
        peak_window_rows_ = std::max(peak_window_rows_, uses_.size());
        forget_write_backs();
        return PUSHED;
    }

    void finish() {
        finished_ = true;
        forget_write_backs();
    }
    bool finished() const { return finished_; }
    bool full() const { return uses_.tail() - uses_.head() > window_; }
    bool ready() const { return full() || (finished_ && uses_.tail() > uses_.head()); }
    bool exhausted() const { return uses_.tail() >= MAX_STEPS; }

    // Plans step `head`; the outcome stays in the buffers below until the next call. Only when ready().
    void pop() {
        const uint32_t step = uses_.head();
        const WindowUses::Batch batch = uses_.batch(step);
        late.clear();
        ahead.clear();
        victims_.reserve(batch.count);
        victims_.drop_step(step);
        if (!looked_up_) look_up(batch);
        const size_t missing = missing_count_;
        slots.swap(next_slots_);
        bring(batch, 2 * step, step + 1, slots, late);
        hits = batch.count - brought_ahead_ - missing;
        brought_ahead_ = 0;
        looked_up_ = overlap_ && step + 1 < uses_.tail();
        if (looked_up_) {
            const WindowUses::Batch following = uses_.batch(step + 1);
            look_up(following);
            bring(following, 2 * step + 1, step + 2, next_slots_, ahead);
            brought_ahead_ = ahead.fetch_slots.size();
        }
        resident = resident_;
        release(batch, step);
        uses_.drop_first();
        if (finished_) forget_write_backs();
    }

    std::vector<int64_t> slots;
    std::vector<uint8_t> hot, urgent;
    Movement late, ahead;
    size_t hits = 0, resident = 0;

    size_t problem() const { return problem_; }
    Counters counters() const {
        return {uses_.size(), peak_window_rows_, peak_resident_, index_.size(),
                rows_needed_, rows_never_late_,  nbytes()};
    }
    size_t window_steps() const { return uses_.tail() - uses_.head(); }
    size_t window_size(size_t i) const { return uses_.batch(uses_.head() + static_cast<uint32_t>(i)).count; }

    // For tests: the links of old uses are renewed after so many uses, before they could be taken for new ones (at most
    // 2^30).
    void set_renumber_after(uint64_t uses) { renumber_after_ = uses; }

  private:
    // Dead rows written back in one move, and the end of the stream's uses then.
    struct WriteBacks {
        uint32_t move;
        uint64_t end_use;
        size_t rows_end;  // of written_
    };
    struct Missing {
        uint32_t position;  // in the batch
        uint32_t written;   // move of the row's last write-back, + 1; 0: none that matters
    };
    struct Other {
        IndexLine* home;
        uint32_t position;  // in the batch
    };
    static constexpr size_t FAR = 48, NEAR = 40;

    size_t nbytes() const {
        return sizeof(*this) + index_.nbytes() + states_.nbytes() + uses_.nbytes() + victims_.nbytes() + late.nbytes() +
               ahead.nbytes() + (slots.capacity() + next_slots_.capacity()) * 8 + hot.capacity() + urgent.capacity() +
               missing_.capacity() * sizeof(Missing) + links_.capacity() * 4 + written_.capacity() * 8 +
               write_backs_.capacity() * sizeof(WriteBacks);
    }

    // A link that is that of no use of the window, nor of the last batch.
    uint32_t outside() const { return static_cast<uint32_t>(uses_.first_use()) - (1u << 30); }
    // Whether a link is that of a use of the last batch, which with a window of 0 is not in the window any more.
    bool in_last_batch(uint32_t link) const {
        return static_cast<uint32_t>(uses_.end_use()) - 1 - link < static_cast<uint32_t>(last_count_);
    }

    // Row numbers and last uses of the batch; links_ keeps what the last uses were before. Changes nothing if it is
    // refused.
    PushResult enter(const uint64_t* locations, const WindowUses::Batch& batch) {
        uint32_t* const rows = uses_.rows(batch);
        const auto link = static_cast<uint32_t>(batch.first_use);
        IndexLine* lines[LOT];  // home lines of the next NEAR rows, a ring
        static_assert(NEAR < LOT, "the ring holds them");
        for (size_t i = 0; i < std::min(NEAR, batch.count); ++i) lines[i] = index_.prefetch(locations[i]);
        // Rows that are in their home lines go lot by lot, without branches; the others a lot later, when what they
        // need has been prefetched.
        Other others[2][LOT];
        uint32_t waiting = 0;
        for (size_t begin = 0, lot = 0; begin < batch.count; begin += LOT, ++lot) {
            const size_t end = std::min(begin + LOT, batch.count);
            uint32_t other = 0;
            for (size_t i = begin; i < end; ++i) {
                if (i + NEAR < batch.count) lines[(i + NEAR) % LOT] = index_.prefetch(locations[i + NEAR]);
                IndexLine& line = *lines[i % LOT];
                const unsigned entry = line.find(locations[i]), at = entry % IndexLine::ENTRIES;
                const bool found = entry < IndexLine::ENTRIES;
                rows[i] = line.row(at);
                links_[i] = line.link[at];
                line.link[at] = found ? link + static_cast<uint32_t>(i) : links_[i];
                others[lot % 2][other] = {&line, static_cast<uint32_t>(i)};
                other += !found;
            }
            for (uint32_t k = 0; k < other; ++k) index_.prefetch_displaced(others[lot % 2][k].home);
            enter_others(locations, batch, others[(lot + 1) % 2], waiting);
            states_.prefetch_added(other);
            waiting = other;
            if (end == batch.count) enter_others(locations, batch, others[lot % 2], waiting);
        }
        return examine(locations, batch);
    }

    // The same for rows of the batch, by position, that are new or displaced in the index.
    void enter_others(const uint64_t* locations, const WindowUses::Batch& batch, const Other* others, uint32_t count) {
        uint32_t* const rows = uses_.rows(batch);
        for (uint32_t k = 0; k < count; ++k) {
            const auto [home, i] = others[k];
            RowIndex::Place place = index_.find_from(home, locations[i]);
            if (place.line == nullptr) place = index_.add_from(home, locations[i], states_.add(), outside());
            rows[i] = place.row();
            links_[i] = place.link();
            place.link() = static_cast<uint32_t>(batch.first_use) + i;
        }
    }

    PushResult examine(const uint64_t* locations, const WindowUses::Batch& batch) {
        const uint32_t* const rows = uses_.rows(batch);
        const auto first = static_cast<uint32_t>(uses_.first_use()), size = static_cast<uint32_t>(uses_.size());
        const auto count = static_cast<uint32_t>(batch.count);
        uint32_t hot = 0, shared = 0, twice = 0;
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t use = links_[i] - first, cold = rows[i] >= hot_count_;
            hot += 1 - cold;
            shared += cold & in_last_batch(links_[i]);
            twice += use - size < count;
        }
        if (twice > 0) {
            undo(locations, batch);
            problem_ = first_duplicate(rows, batch.count);
            return DUPLICATE;
        }
        const size_t cold = count - hot;
        rows_needed_ = std::max(rows_needed_, cold + r_rows_);
        rows_never_late_ = std::max(rows_never_late_, cold + cold_before_ - shared + r_rows_);
        if (cold > cache_capacity_) {
            undo(locations, batch);
            return TOO_LARGE;
        }
        cold_before_ = cold;
        return PUSHED;
    }

    static size_t first_duplicate(const uint32_t* rows, size_t count) {
        std::vector<uint64_t> keys(count);  // row, position
        for (size_t i = 0; i < count; ++i) keys[i] = uint64_t{rows[i]} << 32 | i;
        std::sort(keys.begin(), keys.end());
        size_t first = count;
        for (size_t k = 1; k < count; ++k) {
            if (keys[k] >> 32 == keys[k - 1] >> 32) first = std::min<size_t>(first, keys[k] & 0xFFFFFFFFu);
        }
        return first;
    }

    // The rows of the batch get the links back that they had before it; those that were new are forgotten.
    void undo(const uint64_t* locations, const WindowUses::Batch& batch) {
        const uint32_t* const rows = uses_.rows(batch);
        const auto first = static_cast<uint32_t>(uses_.first_use()), size = static_cast<uint32_t>(uses_.size());
        for (size_t i = 0; i < batch.count; ++i) {
            if (links_[i] - first - size >= batch.count) index_.find(locations[i]).link() = links_[i];
        }
        for (size_t i = 0; i < batch.count; ++i) {
            const RowIndex::Place place = index_.find(locations[i]);
            if (place.line == nullptr || rows[i] < hot_count_ || place.link() - first < size) continue;
            if (states_[rows[i]] != AWAY) continue;  // it is resident, or its write-back is remembered
            index_.remove(place);
            states_.remove(rows[i]);
        }
    }

    // The last use of each row of the batch gets to know its next one.
    void note_uses(const WindowUses::Batch& batch) {
        const uint32_t* const rows = uses_.rows(batch);
        const auto first = static_cast<uint32_t>(uses_.first_use()), size = static_cast<uint32_t>(uses_.size());
        const uint32_t tail = uses_.tail();
        const uint32_t code = uses_.code_of(tail);
        const WindowUses::Places places = uses_.places();
        for (size_t begin = 0; begin < batch.count; begin += LOT) {
            const size_t end = std::min(begin + LOT, batch.count);
            size_t known[LOT], others[LOT], known_count = 0, other = 0;
            for (size_t i = begin; i < end; ++i) {
                const uint32_t use = links_[i] - first;
                known[known_count] = places.of(use);
                others[other] = i;
                known_count += use < size;
                other += use >= size;
            }
            for (size_t k = 0; k < known_count; ++k) uses_.prefetch_code(known[k]);
            for (size_t k = 0; k < other; ++k) states_.prefetch(rows[others[k]]);
            for (size_t k = 0; k < known_count; ++k) uses_.set_code(known[k], code);
            for (size_t k = 0; k < other; ++k) {
                const uint32_t number = rows[others[k]];
                if (states_[number] >= AWAY || number < hot_count_) continue;
                victims_.revive(states_[number] - r_rows_, tail);  // it was dead
            }
        }
    }
    static constexpr size_t LOT = 64;

    // Links of rows outside the window move up to it, so that none is ever more than 2^31 uses behind.
    void renumber() {
        const auto first = static_cast<uint32_t>(uses_.first_use());
        const auto size = static_cast<uint32_t>(uses_.size());
        index_.for_each([&](RowIndex::Place place) {
            if (place.link() - first >= size && !in_last_batch(place.link())) place.link() = outside();
        });
        renumbered_at_ = uses_.end_use();
    }

    // A row that is neither resident nor in the window is known as long as a fetch might have to wait for its
    // write-back: the earliest one that may still come is ahead of the next batch to be pushed.
    void forget_write_backs() {
        const uint64_t next_move = 2 * uint64_t{uses_.tail()};
        size_t begin = written_begin_, done = 0;
        for (; done < write_backs_.size(); ++done) {
            const WriteBacks& oldest = write_backs_[done];
            if (!finished_ && next_move <= 1 + uint64_t{oldest.move} + horizon_) break;
            forget_unused(written_.data() + begin, oldest.rows_end - begin, static_cast<uint32_t>(oldest.end_use));
            begin = oldest.rows_end;
        }
        if (done == 0) return;
        written_begin_ = begin;
        write_backs_.erase(write_backs_.begin(), write_backs_.begin() + static_cast<std::ptrdiff_t>(done));
        if (2 * written_begin_ < written_.size()) return;
        written_.erase(written_.begin(), written_.begin() + static_cast<std::ptrdiff_t>(begin));
        for (WriteBacks& rest : write_backs_) rest.rows_end -= begin;
        written_begin_ = 0;
    }

    // Those of these rows that were not used since, `end_use` on.
    void forget_unused(const uint64_t* locations, size_t count, uint32_t end_use) {
        const uint32_t later = static_cast<uint32_t>(uses_.end_use()) - end_use;
        IndexLine* lines[LOT];
        for (size_t i = 0; i < std::min(NEAR, count); ++i) lines[i] = index_.prefetch(locations[i]);
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) lines[(i + NEAR) % LOT] = index_.prefetch(locations[i + NEAR]);
            IndexLine* const home = lines[i % LOT];
            const RowIndex::Place place = index_.find_from(home, locations[i]);
            if (place.line == nullptr || place.link() - end_use < later) continue;
            states_.remove(place.row());
            index_.remove_from(home, place);
        }
    }

    // Slots of the batch's rows, in next_slots_; missing_ has those that are not resident.
    void look_up(const WindowUses::Batch& batch) {
        const uint32_t* const rows = uses_.rows(batch);
        next_slots_.resize(batch.count);
        if (missing_.size() < batch.count) missing_.resize(batch.count);
        size_t missing = 0;
        for (size_t i = 0; i < batch.count; ++i) {
            if (i + FAR < batch.count) states_.prefetch(rows[i + FAR]);
            const RowState state = states_[rows[i]];
            next_slots_[i] = state;
            missing_[missing] = {static_cast<uint32_t>(i), state - AWAY};
            missing += state >= AWAY;
        }
        missing_count_ = missing;
    }

    // The missing rows of `batch`, as far as there is room; victims are used at `first_use` or later. What is brought
    // has its slot in `places`, and what is not stays missing.
    void bring(const WindowUses::Batch& batch, uint32_t move, uint32_t first_use, std::vector<int64_t>& places,
               Movement& movement) {
        if (missing_count_ == 0) return;
        const uint32_t* const rows = uses_.rows(batch);
        const uint64_t* const locations = uses_.locations(batch);
        size_t cold = 0;
        for (size_t k = 0; k < missing_count_; ++k) cold += rows[missing_[k].position] >= hot_count_;
        const size_t unused = cache_capacity_ - victims_.used_slots();
        size_t dead = 0;
        const auto& chosen = victims_.take(cold > unused ? cold - unused : 0, first_use, uses_.tail() - 1, dead);
        evict(chosen, dead, move, movement);
        movement.resize_fetches(missing_count_ - cold + std::min(cold, unused + chosen.size()));
        size_t left = 0, done = 0;
        auto victim = chosen.begin();
        for (size_t k = 0; k < missing_count_; ++k) {
            if (k + NEAR < missing_count_) states_.prefetch(rows[missing_[k + NEAR].position]);
            const auto [i, written] = missing_[k];
            const uint32_t number = rows[i];
            uint32_t slot = number;
            int64_t slot_wait = NEVER;
            if (number >= hot_count_) {
                if (victims_.used_slots() < cache_capacity_) {
                    slot = r_rows_ + victims_.place_new(locations[i], number);
                } else if (victim != chosen.end()) {
                    slot = r_rows_ + victim->slot;
                    victims_.place(victim->slot, locations[i], number);
                    slot_wait = move;
                    ++victim;
                } else {
                    missing_[left++] = missing_[k];
                    continue;
                }
            }
            const bool waits = written > 0 && move - (written - 1) <= horizon_;
            movement.fetch_locations[done] = locations[i];
            movement.fetch_slots[done] = slot;
            movement.fetch_unique[done] = i;
            movement.fetch_wait[done] = waits ? int64_t{written} - 1 : NEVER;
            movement.slot_wait[done++] = slot_wait;
            states_[number] = slot;
            places[i] = slot;
        }
        resident_ += done;
        peak_resident_ = std::max(peak_resident_, resident_);
        missing_count_ = left;
    }

    void evict(const std::vector<Victim>& chosen, size_t dead, uint32_t move, Movement& movement) {
        movement.evict_locations.resize(chosen.size());
        movement.evict_slots.resize(chosen.size());
        for (size_t k = 0; k < chosen.size(); ++k) {
            if (k + NEAR < chosen.size()) states_.prefetch(chosen[k + NEAR].row);
            states_[chosen[k].row] = AWAY | (move + 1);
            movement.evict_locations[k] = chosen[k].location;
            movement.evict_slots[k] = int64_t{r_rows_} + chosen[k].slot;
        }
        resident_ -= chosen.size();
        if (dead > 0) {
            for (size_t k = 0; k < dead; ++k) written_.push_back(chosen[k].location);
            write_backs_.push_back({move, uses_.end_use(), written_.size()});
        }
    }

    // The step is over: its cold rows may leave again, but for those that the next step needs. What the step says of
    // each of its rows is known by now.
    void release(const WindowUses::Batch& batch, uint32_t step) {
        const uint32_t* const rows = uses_.rows(batch);
        hot.resize(batch.count);
        urgent.resize(batch.count);
        // Branches on gaps are hard to foresee, so that the rows are told apart without any, lot by lot.
        // In locals, since a byte written could be one of anything else.
        uint8_t *const is_hot = hot.data(), *const is_urgent = urgent.data();
        const int64_t* const places = slots.data();
        const uint32_t now = uses_.code_of(step), hot_count = hot_count_, r_rows = r_rows_;
        const bool all_urgent = window_ == 0;
        victims_.open_dead(step);
        for (size_t begin = 0; begin < batch.count; begin += LOT) {
            const size_t end = std::min(begin + LOT, batch.count);
            uint32_t dead[LOT], used[LOT], next[LOT], gaps[LOT];
            size_t dead_count = 0, used_count = 0;
            uses_.gaps(batch.place + begin, end - begin, now, gaps);
            for (size_t i = begin; i < end; ++i) {
                const uint32_t gap = gaps[i - begin];
                const bool cold = rows[i] >= hot_count;
                is_hot[i] = !cold;
                is_urgent[i] = all_urgent | (gap == 1);
                dead[dead_count] = used[used_count] = static_cast<uint32_t>(places[i]) - r_rows;
                next[used_count] = step + gap;
                dead_count += cold & (gap == 0);
                used_count += cold & (gap > 1);
            }
            for (size_t k = 0; k < dead_count; ++k) victims_.prefetch(dead[k]);
            for (size_t k = 0; k < used_count; ++k) victims_.use_next(used[k], next[k]);
            for (size_t k = 0; k < dead_count; ++k) victims_.die(dead[k]);
        }
        victims_.close_dead();
    }

    uint32_t window_, cache_capacity_, r_rows_, horizon_;
    bool overlap_, finished_ = false, looked_up_ = false;
    uint32_t hot_count_ = 0;
    WindowUses uses_;
    RowIndex index_;
    RowStates states_;
    Victims victims_;
    std::vector<int64_t> next_slots_;  // of the rows of the step that was looked up last
    std::vector<Missing> missing_;     // those of them that are not resident
    size_t missing_count_ = 0;
    std::vector<uint32_t> links_;          // scratch of push
    std::vector<uint64_t> written_;        // locations of dead rows that were written back, oldest first
    size_t written_begin_ = 0;             // those before are forgotten
    std::vector<WriteBacks> write_backs_;  // what of it belongs together
    uint64_t renumbered_at_ = uses_.end_use(), renumber_after_ = uint64_t{1} << 30;
    size_t resident_ = 0, peak_resident_ = 0, brought_ahead_ = 0, cold_before_ = 0, last_count_ = 0, problem_ = 0;
    size_t peak_window_rows_ = 0, rows_needed_ = 0, rows_never_late_ = 0;
};

}  // namespace headrace::plan
