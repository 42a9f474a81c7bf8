// The window planner of one rank and one row layout. The rules are in README.md; the twin is _planner_py.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lot_flags.hpp"
#include "row_cells.hpp"
#include "victims.hpp"
#include "window_uses.hpp"

namespace headrace::plan {

constexpr int64_t NEVER = -1;

struct Movement {
    HugeVector<uint64_t> evict_locations;
    HugeVector<int64_t> evict_slots;
    HugeVector<uint64_t> fetch_locations;
    HugeVector<int64_t> fetch_slots, fetch_unique, fetch_wait, slot_wait;

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
          far_(std::max<uint32_t>(2, window / 2)),
          overlap_(overlap && window > 0),
          uses_(window),
          victims_(window) {}

    // The position of the first duplicate, or count. Hot rows have the first cells, but for those of pages that refused
    // batches have left free. Takes all of them or, with a duplicate or when memory runs out, none.
    size_t set_hot(const uint64_t* locations, size_t count) {
        const size_t pages = distinct_pages(locations, count);
        if (pages == 0) return first_duplicate(locations, count);
        cells_.reserve(pages);
        hot_slots_.resize(cells_.cells() + (pages << RowCells::PAGE_BITS), NOT_HOT);
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) cells_.prefetch_line(locations[i + NEAR]);
            const uint32_t cell = cells_.add(locations[i], outside());
            hot_slots_[cell] = static_cast<uint32_t>(i);
            cells_.track(cell);
        }
        hot_slots_.resize(cells_.cells());
        return count;
    }

    // Takes the batch whole, or leaves all as it was: all that may throw comes first. `problem()` says where the
    // duplicate is.
    PushResult push(const uint64_t* locations, size_t count) {
        const WindowUses::Batch batch = uses_.prepare(count);
        cells_.reserve(count);
        victims_.reserve(count);
        if (links_.size() < count) {
            links_.resize(count);
        }
        if (uses_.end_use() - renumbered_at_ > renumber_after_) renumber();
        const PushResult result = enter(locations, batch);
        if (result != PUSHED) return result;
        note_uses(batch);
        uses_.append(batch);
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

    // Plans step `head`: the slot of each row of its batch, whether it is hot, and whether it is urgent; all else stays
    // in the members below until the next call. Only when ready().
    void pop(int64_t* slots, uint8_t* hot, uint8_t* urgent) {
        const uint32_t step = uses_.head();
        const WindowUses::Batch batch = uses_.batch(step);
        late.clear();
        ahead.clear();
        victims_.reserve(batch.count);
        victims_.drop_step(step);
        if (!looked_up_) look_up(batch);
        const size_t missing = missing_count_;
        slots_.swap(next_slots_);
        final_.swap(next_final_);
        bring(batch, 2 * step, step + 1, slots_, late);
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
        release(batch, step, slots, hot, urgent);
        uses_.drop_first();
        if (finished_) forget_write_backs();
    }

    Movement late, ahead;
    size_t hits = 0, resident = 0;

    size_t problem() const { return problem_; }
    Counters counters() const {
        return {uses_.size(), peak_window_rows_, peak_resident_, cells_.tracked(),
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
    static constexpr uint32_t NOT_HOT = 0xFFFFFFFFu;
    // Rows ahead for which the memory is asked: by short loops, and by those that do more with each row.
    static constexpr size_t FAR = 160, NEAR = 40;

    size_t nbytes() const {
        return sizeof(*this) + cells_.nbytes() + uses_.nbytes() + victims_.nbytes() + late.nbytes() + ahead.nbytes() +
               (slots_.capacity() + next_slots_.capacity()) * 4 + final_.capacity() + next_final_.capacity() +
               (missing_.capacity() + links_.capacity() + written_.capacity() + hot_slots_.capacity()) * 4 +
               write_backs_.capacity() * sizeof(WriteBacks);
    }

    // A link that is that of no use of the window, nor of the last batch.
    uint32_t outside() const { return static_cast<uint32_t>(uses_.first_use()) - (1u << 30); }
    // Whether a link is that of a use of the last batch, which with a window of 0 is not in the window any more.
    bool in_last_batch(uint32_t link) const {
        return static_cast<uint32_t>(uses_.end_use()) - 1 - link < static_cast<uint32_t>(last_count_);
    }

    bool is_hot(uint32_t cell) const { return cell < hot_slots_.size() && hot_slots_[cell] != NOT_HOT; }

    // Cells and last uses of the batch; links_ keeps what the last uses were before. Changes nothing if it is refused.
    PushResult enter(const uint64_t* locations, const WindowUses::Batch& batch) {
        IndexLine* homes[2][LOT];  // lines of the page index, of one lot and of the next
        prefetch_lines(locations, batch, 0, homes[0]);
        // Lot by lot, each stage a lot behind the one before, when the memory has what it needs.
        for (size_t begin = 0; begin < batch.count + LOT; begin += LOT) {
            prefetch_lines(locations, batch, begin + LOT, homes[(begin / LOT + 1) % 2]);
            if (begin < batch.count) find_cells(locations, batch, begin, homes[begin / LOT % 2]);
            if (begin >= LOT) set_links(batch, begin - LOT);
        }
        return examine(locations, batch);
    }

    void prefetch_lines(const uint64_t* locations, const WindowUses::Batch& batch, size_t begin, IndexLine** homes) {
        const size_t end = std::min(begin + LOT, batch.count);
        for (size_t i = begin; i < end; ++i) homes[i - begin] = cells_.prefetch_line(locations[i]);
    }

    // Rows whose page is not where it nearly always is go after the others of their lot, so that these need no
    // branches.
    void find_cells(const uint64_t* locations, const WindowUses::Batch& batch, size_t begin, IndexLine** homes) {
        const size_t count = std::min(LOT, batch.count - begin);
        const uint64_t* const wanted = locations + begin;
        uint32_t* const cells = uses_.cells(batch) + begin;
        uint32_t others[LOT], other = 0;
        for (uint32_t i = 0; i < count; ++i) {
            bool there = false;
            cells[i] = RowCells::cell_in(*homes[i], wanted[i], there);
            cells_.prefetch(cells[i]);
            others[other] = i;
            other += !there;
        }
        for (uint32_t k = 0; k < other; ++k) {
            const uint32_t i = others[k];
            cells[i] = cells_.cell_from(homes[i], wanted[i], outside());
            cells_.prefetch(cells[i]);
        }
    }

    void set_links(const WindowUses::Batch& batch, size_t begin) {
        const uint32_t* const cells = uses_.cells(batch);
        const auto first = static_cast<uint32_t>(batch.first_use);
        const size_t end = std::min(begin + LOT, batch.count);
        for (size_t i = begin; i < end; ++i) {
            uint32_t& link = cells_.link(cells[i]);
            links_[i] = link;
            link = first + static_cast<uint32_t>(i);
        }
    }

    PushResult examine(const uint64_t* locations, const WindowUses::Batch& batch) {
        const uint32_t* const cells = uses_.cells(batch);
        const auto first = static_cast<uint32_t>(uses_.first_use()), size = static_cast<uint32_t>(uses_.size());
        const auto count = static_cast<uint32_t>(batch.count);
        uint32_t shared = 0, twice = 0, hot = 0;
        for (uint32_t i = 0; i < count; ++i) {
            shared += in_last_batch(links_[i]);
            twice += links_[i] - first - size < count;
        }
        if (!hot_slots_.empty()) {
            for (uint32_t i = 0; i < count; ++i) {
                const bool is = is_hot(cells[i]);
                hot += is;
                shared -= is & in_last_batch(links_[i]);
            }
        }
        if (twice > 0) {
            undo(locations, batch);
            problem_ = first_duplicate(cells, batch.count);
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

    // How many pages these locations are in; 0 if one of them occurs twice. Told by a sorted copy, which is gone before
    // room is taken for the pages.
    static size_t distinct_pages(const uint64_t* locations, size_t count) {
        std::vector<uint64_t> sorted(locations, locations + count);
        std::sort(sorted.begin(), sorted.end());
        size_t pages = std::min<size_t>(count, 1);
        for (size_t k = 1; k < count; ++k) {
            if (sorted[k] == sorted[k - 1]) return 0;
            pages += RowCells::key_of(sorted[k]) != RowCells::key_of(sorted[k - 1]);
        }
        return pages;
    }

    // The first position of which the value was there before, or count.
    template <class Value>
    static size_t first_duplicate(const Value* values, size_t count) {
        std::vector<uint32_t> order(count);
        std::iota(order.begin(), order.end(), 0u);
        std::sort(order.begin(), order.end(),
                  [&](uint32_t a, uint32_t b) { return values[a] != values[b] ? values[a] < values[b] : a < b; });
        size_t first = count;
        for (size_t k = 1; k < count; ++k) {
            if (values[order[k]] == values[order[k - 1]]) first = std::min<size_t>(first, order[k]);
        }
        return first;
    }

    // The rows of the batch get the links back that they had before it; pages that were new are forgotten.
    void undo(const uint64_t* locations, const WindowUses::Batch& batch) {
        const uint32_t* const cells = uses_.cells(batch);
        const auto first = static_cast<uint32_t>(batch.first_use);
        for (size_t i = 0; i < batch.count; ++i) {
            if (links_[i] - first >= batch.count) cells_.link(cells[i]) = links_[i];
        }
        for (size_t i = 0; i < batch.count; ++i) cells_.remove_unused(locations[i]);
    }

    // The last use of a row gets to know its next one if that is far away, or in the next step.
    void note_uses(const WindowUses::Batch& batch) {
        if (uses_.size() > 0) uses_.note_next_step(links_.data(), batch.count);
        const uint32_t* const cells = uses_.cells(batch);
        const auto first = static_cast<uint32_t>(uses_.first_use()), size = static_cast<uint32_t>(uses_.size());
        const auto far_size = static_cast<uint32_t>(uses_.uses_before(far_));
        const uint32_t code = uses_.code_of(uses_.tail());
        const WindowUses::Places places = uses_.places();
        // Lot by lot; what one lot needs comes from the memory while the next one is looked through.
        struct Lot {
            uint32_t known[LOT], others[LOT], known_count = 0, other = 0;
        } lots[2];
        const uint32_t* const links = links_.data();
        for (size_t begin = 0; begin < batch.count + LOT; begin += LOT) {
            Lot &lot = lots[begin / LOT % 2], &before = lots[(begin / LOT + 1) % 2];
            uint32_t known_count = 0, other = 0;
            for (size_t i = begin; i < std::min(begin + LOT, batch.count); ++i) {
                const uint32_t use = links[i] - first;
                lot.known[known_count] = use;
                lot.others[other] = static_cast<uint32_t>(i);
                known_count += use < far_size;
                other += use >= size;
            }
            for (size_t k = 0; k < known_count; ++k) uses_.prefetch_code(places.of(lot.known[k]));
            for (size_t k = 0; k < other; ++k) {
                cells_.prefetch(cells[lot.others[k]]);
                cells_.prefetch_tracking(cells[lot.others[k]]);
            }
            for (size_t k = 0; k < before.known_count; ++k) uses_.set_code(places.of(before.known[k]), code);
            for (size_t k = 0; k < before.other; ++k) note_first_use(cells[before.others[k]]);
            lot.known_count = known_count;
            lot.other = other;
        }
    }

    // The row was not in the window before: it is new, or was only remembered, or dead.
    void note_first_use(uint32_t cell) {
        const RowState state = cells_.state(cell);
        if (state == AWAY) {
            if (!is_hot(cell)) cells_.track(cell);
        } else if (state < AWAY && state >= r_rows_) {
            victims_.revive(cell, uses_.tail());
        }
    }
    static constexpr size_t LOT = LotFlags::LOT;

    // Links of cells outside the window move up to it, so that none is ever more than 2^31 uses behind.
    void renumber() {
        drop_used_write_backs();
        const auto first = static_cast<uint32_t>(uses_.first_use());
        const auto size = static_cast<uint32_t>(uses_.size());
        victims_.renumber(cells_, outside(), static_cast<uint32_t>(uses_.end_use() - last_count_),
                          static_cast<uint32_t>(last_count_));
        for (uint32_t cell = 0; cell < cells_.cells(); ++cell) {
            uint32_t& link = cells_.link(cell);
            if (link - first >= size && !in_last_batch(link)) link = outside();
        }
        renumbered_at_ = uses_.end_use();
    }

    // Rows that were used since they were written back are not forgotten for it; their links tell no longer.
    void drop_used_write_backs() {
        size_t begin = written_begin_, kept = written_begin_;
        for (WriteBacks& one : write_backs_) {
            const auto end_use = static_cast<uint32_t>(one.end_use);
            const uint32_t later = static_cast<uint32_t>(uses_.end_use()) - end_use;
            for (size_t i = begin; i < one.rows_end; ++i) {
                written_[kept] = written_[i];
                kept += cells_.link(written_[i]) - end_use >= later;
            }
            begin = one.rows_end;
            one.rows_end = kept;
        }
        written_.resize(kept);
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
    void forget_unused(const uint32_t* cells, size_t count, uint32_t end_use) {
        const uint32_t later = static_cast<uint32_t>(uses_.end_use()) - end_use;
        for (size_t i = 0; i < count; ++i) {
            if (i + NEAR < count) {
                cells_.prefetch(cells[i + NEAR]);
                cells_.prefetch_tracking(cells[i + NEAR]);
            }
            if (cells_.link(cells[i]) - end_use >= later) cells_.forget(cells[i]);
        }
    }

    // Slots of the batch's rows (states, as long as they have none), in next_slots_, and whether the window knows no
    // later use, in next_final_; missing_ has those that are not resident.
    void look_up(const WindowUses::Batch& batch) {
        const uint32_t* const cells = uses_.cells(batch);
        const auto first = static_cast<uint32_t>(batch.first_use);
        next_slots_.resize(batch.count);
        next_final_.resize(batch.count);
        if (missing_.size() < batch.count) missing_.resize(batch.count);
        // In locals, since a byte written could be one of anything else.
        uint32_t* const slots = next_slots_.data();
        uint8_t* const final = next_final_.data();
        uint32_t* const missing = missing_.data();
        size_t missing_count = 0;
        const auto look = [&](size_t i) {
            const RowCell& cell = cells_.at(cells[i]);
            slots[i] = cell.state;
            final[i] = cell.link == first + static_cast<uint32_t>(i);
            missing[missing_count] = static_cast<uint32_t>(i);
            missing_count += cell.state >= AWAY;
        };
        size_t i = 0;
        for (; i + FAR < batch.count; ++i) {
            cells_.prefetch(cells[i + FAR]);
            look(i);
        }
        for (; i < batch.count; ++i) look(i);
        missing_count_ = missing_count;
    }

    // All that is used at this step or later, and is not used before, is in the lists of the victims.
    uint32_t listed_from() const { return uses_.head() + far_ - 1; }

    // Victims are needed that are used sooner than the lists say: from now on, nearer uses are far ones.
    void look_nearer() {
        if (far_ == 2) return;
        victims_.reserve(resident_ + uses_.batch(uses_.head()).count);
        const uint32_t head = uses_.head(), tail = uses_.tail(), listed = std::min(listed_from(), tail);
        far_ = std::max<uint32_t>(2, far_ / 4);
        note_far_uses();
        for (uint32_t step = head + 1; step < listed; ++step) victims_.drop_step(step);
        // The links are those of the first uses in the window; back to the last ones.
        for (uint32_t step = head; step < tail; ++step) {
            each_use(step, [&](uint32_t index, RowCell& cell, uint32_t use) {
                const bool first = cell.link == use, listable = cell.state < AWAY && cell.state >= r_rows_;
                cell.link = use;
                if (first && listable && step > head && step < listed) victims_.use_next(index, step);
            });
        }
    }

    // The codes of all uses of the window whose next ones are far. Leaves links that are those of the first uses.
    void note_far_uses() {
        const auto window_first = static_cast<uint32_t>(uses_.first_use());
        const WindowUses::Places places = uses_.places();
        for (uint32_t step = uses_.tail(); step-- > uses_.head();) {
            const uint32_t far_step = step + far_;
            const bool any = far_step < uses_.tail();
            const auto far_use = static_cast<uint32_t>(uses_.batch(any ? far_step : step).first_use) - window_first;
            each_use(step, [&](uint32_t, RowCell& cell, uint32_t use) {
                const uint32_t next = cell.link - window_first;
                if (any && cell.link != use && next >= far_use) {
                    uses_.set_code(places.of(use - window_first), uses_.code_of(uses_.step_of(next)));
                }
                cell.link = use;
            });
        }
    }

    template <class Visit>
    void each_use(uint32_t step, const Visit& visit) {
        const WindowUses::Batch batch = uses_.batch(step);
        const uint32_t* const cells = uses_.cells(batch);
        for (size_t i = 0; i < batch.count; ++i) {
            if (i + NEAR < batch.count) cells_.prefetch(cells[i + NEAR]);
            visit(cells[i], cells_.at(cells[i]), static_cast<uint32_t>(batch.first_use) + static_cast<uint32_t>(i));
        }
    }

    // The missing rows of `batch`, as far as there is room; victims are used at `first_use` or later. What is brought
    // has its slot in `places`, and what is not stays missing.
    void bring(const WindowUses::Batch& batch, uint32_t move, uint32_t first_use, std::vector<uint32_t>& places,
               Movement& movement) {
        if (missing_count_ == 0) return;
        const uint32_t* const cells = uses_.cells(batch);
        size_t cold = missing_count_;
        if (!hot_slots_.empty()) {
            for (size_t k = 0; k < missing_count_; ++k) cold -= is_hot(cells[missing_[k]]);
        }
        const size_t unused = cache_capacity_ - used_slots_;
        const size_t victims = cold > unused ? cold - unused : 0;
        if (!victims_.enough(victims, listed_from(), uses_.tail() - 1)) look_nearer();
        size_t dead = 0;
        const auto& chosen = victims_.take(cells_, victims, first_use, uses_.tail() - 1, dead);
        evict(chosen, dead, move, movement);
        movement.resize_fetches(missing_count_ - cold + std::min(cold, unused + chosen.size()));
        size_t left = 0, done = 0;
        auto victim = chosen.begin();
        for (size_t k = 0; k < missing_count_; ++k) {
            if (k + NEAR < missing_count_) {
                cells_.prefetch(cells[missing_[k + NEAR]]);
                cells_.prefetch_location(cells[missing_[k + NEAR]]);
            }
            const uint32_t i = missing_[k], cell = cells[i];
            const uint32_t written = places[i] - AWAY;  // move of the row's last write-back, + 1; 0: none that matters
            uint32_t slot = 0;
            int64_t slot_wait = NEVER;
            if (is_hot(cell)) {
                slot = hot_slots_[cell];
            } else {
                if (used_slots_ < cache_capacity_) {
                    slot = r_rows_ + used_slots_++;
                } else if (victim != chosen.end()) {
                    slot = victim->slot;
                    slot_wait = move;
                    ++victim;
                } else {
                    missing_[left++] = missing_[k];
                    continue;
                }
            }
            const bool waits = written > 0 && move - (written - 1) <= horizon_;
            movement.fetch_locations[done] = cells_.location(cell);
            movement.fetch_slots[done] = slot;
            movement.fetch_unique[done] = i;
            movement.fetch_wait[done] = waits ? int64_t{written} - 1 : NEVER;
            movement.slot_wait[done++] = slot_wait;
            cells_.state(cell) = slot;
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
            if (k + NEAR < chosen.size()) cells_.prefetch(chosen[k + NEAR].cell);
            cells_.state(chosen[k].cell) = AWAY | (move + 1);
            movement.evict_locations[k] = chosen[k].location;
            movement.evict_slots[k] = chosen[k].slot;
        }
        resident_ -= chosen.size();
        if (dead > 0) {
            for (size_t k = 0; k < dead; ++k) written_.push_back(chosen[k].cell);
            write_backs_.push_back({move, uses_.end_use(), written_.size()});
        }
    }

    // What the step says of each of its rows; nothing overlaps, so that compilers take several at once.
    void tell(const uint32_t* __restrict places, size_t count, int64_t* __restrict slots,
              uint8_t* __restrict hot) const {
        const uint32_t r_rows = r_rows_;
        for (size_t i = 0; i < count; ++i) slots[i] = places[i];
        for (size_t i = 0; i < count; ++i) hot[i] = places[i] < r_rows;
    }

    // A row is dead if no use follows; one whose next use is known, and not in the next step, goes to that step's list.
    static void tell_apart(const uint8_t* __restrict finals, const uint8_t* __restrict known,
                           const uint8_t* __restrict urgent, size_t count, uint8_t* __restrict dead,
                           uint8_t* __restrict used) {
        for (size_t i = 0; i < count; ++i) dead[i] = finals[i] & (known[i] ^ 1);
        for (size_t i = 0; i < count; ++i) used[i] = known[i] & (urgent[i] ^ 1);
    }

    // The step is over: its cold rows may leave again, but for those that the next step needs. What the step says of
    // each of its rows is known by now.
    void release(const WindowUses::Batch& batch, uint32_t step, int64_t* slots, uint8_t* hot, uint8_t* urgent) {
        // The rows are told apart without branches, lot by lot. In locals, since a byte written could be one of
        // anything else.
        const uint32_t* const places = slots_.data();
        const uint8_t* const finals = final_.data();
        const uint32_t* const cells = uses_.cells(batch);
        const uint32_t r_rows = r_rows_;
        const WindowUses::Gaps gaps = uses_.gaps(step);
        tell(places, batch.count, slots, hot);
        victims_.open_dead(static_cast<uint32_t>(batch.first_use), static_cast<uint32_t>(batch.count));
        for (size_t begin = 0; begin < batch.count; begin += LOT) {
            const size_t count = std::min(LOT, batch.count - begin);
            uint8_t known[LOT];  // whether a next use is
            LotFlags dead, used;
            gaps.tell_next_step(batch.place + begin, count, known, urgent + begin);
            tell_apart(finals + begin, known, urgent + begin, count, dead.flag, used.flag);
            each_bit(used.bits(), [&](uint32_t i) {
                const size_t place = begin + i;
                if (places[place] >= r_rows) victims_.use_next(cells[place], step + gaps.at(batch.place + place));
            });
            each_bit(dead.bits(), [&](uint32_t i) {
                if (places[begin + i] >= r_rows) victims_.die(cells[begin + i]);
            });
        }
        if (window_ == 0) std::fill_n(urgent, batch.count, uint8_t{1});
        victims_.close_dead(cells_);
    }

    uint32_t window_, cache_capacity_, r_rows_, horizon_;
    uint32_t far_;  // uses that are so many steps apart are far from each other
    bool overlap_, finished_ = false, looked_up_ = false;
    std::vector<uint32_t> hot_slots_;  // by cell, of the first ones: the R slot of a hot row, or NOT_HOT
    WindowUses uses_;
    RowCells cells_;
    Victims victims_;
    std::vector<uint32_t> slots_, next_slots_;  // of the rows of the step, and of that which was looked up last
    std::vector<uint32_t> missing_;             // positions of those of them that are not resident
    size_t missing_count_ = 0;
    std::vector<uint8_t> final_, next_final_;  // of the same rows: whether no later use was known then
    std::vector<uint32_t> links_;              // scratch of push
    std::vector<uint32_t> written_;            // cells of dead rows that were written back, oldest first
    size_t written_begin_ = 0;                 // those before are forgotten
    std::vector<WriteBacks> write_backs_;      // what of it belongs together
    uint64_t renumbered_at_ = uses_.end_use(), renumber_after_ = uint64_t{1} << 30;
    uint32_t used_slots_ = 0;  // cold ones, the first of which are taken first
    size_t resident_ = 0, peak_resident_ = 0, brought_ahead_ = 0, cold_before_ = 0, last_count_ = 0, problem_ = 0;
    size_t peak_window_rows_ = 0, rows_needed_ = 0, rows_never_late_ = 0;
};

}  // namespace headrace::plan
