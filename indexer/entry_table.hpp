// Entries of one shard: ordered linear probing by cache lines, without tombstones, grown in small steps.
//
// The home of a key is a line of four entries. Entries stand in falling `order` (rising permuted hash), each in its
// home line or behind it with no empty entry between. So a search counts, without a branch, how many of a line's four
// come before, and goes on only where all do; an insertion moves the rest of its run up by one, a removal moves it
// back; and growth is one pass over both arrays from front to back, with neither hashes to compute nor runs to search.
// (Amble, Knuth 1974: Ordered hash tables.)
#pragma once

#include <algorithm>
#include <cmath>

#include "entry.hpp"

namespace headrace {

// Keys looked for, and cache lines that were read for them.
struct ProbeCounts {
    std::uint64_t keys = 0, lines = 0, longest = 0;

    void add(const ProbeCounts& other) {
        keys += other.keys;
        lines += other.lines;
        longest = std::max(longest, other.longest);
    }
};

// Not synchronised.
class EntryTable {
  public:
    // Tables that start with fractions `phase` spread over [0, 1) do not all grow at one size.
    EntryTable(double phase, PageArena& arena) : EntryTable(first_capacity(phase), 0, arena) {
        entries_.clear(0, entries_.size());
    }

    std::size_t rows() const { return rows_; }
    std::size_t capacity() const { return capacity_; }
    std::size_t nbytes() const { return entries_.nbytes(); }
    std::size_t slots() const { return entries_.size(); }
    const Entry& operator[](std::size_t slot) const { return entries_[slot]; }

    void prefetch(std::uint64_t order) const { __builtin_prefetch(&entries_[home(order)]); }

    // Later, when that line is there: the next one, if the run goes on.
    void prefetch_next(std::uint64_t order) const {
        const Entry* const last = &entries_[home(order)] + kLine - 1;
        __builtin_prefetch(last + last->occupied());
        __builtin_prefetch(last + last->occupied() * (kLine + 1));
    }

    // Sets `slot` to the entry of the key, or to where it would stand.
    bool find(std::uint64_t order, std::uint64_t key, std::size_t& slot, ProbeCounts& counts) const {
        const std::size_t start = home(order);
        std::size_t before = kLine;
        for (slot = start; before == kLine; slot += before) {
            const Entry* const line = &entries_[slot];
            before =
                (line[0].order > order) + (line[1].order > order) + (line[2].order > order) + (line[3].order > order);
        }
        bool found = false;
        for (; entries_[slot].order == order && entries_[slot].occupied(); ++slot) {  // more than one: crafted
            found = (entries_[slot].word & ~kPlaceMask) == key;
            if (found) break;
        }
        const std::size_t lines = (slot - start) / kLine + 1;
        ++counts.keys;
        counts.lines += lines;
        counts.longest = std::max<std::uint64_t>(counts.longest, lines);
        return found;
    }

    // No further put() before a grow().
    bool full() const { return rows_ >= most_rows_; }

    // Time to grow, when there is time for it.
    bool crowded() const { return rows_ > comfortable(capacity_); }

    // A new entry at the slot that find() has set; not when full().
    void put(std::size_t slot, const Entry& entry) noexcept {
        Entry* const line = &entries_[slot / kLine * kLine];
        if (line[kLine - 1].occupied()) {
            std::size_t empty = slot;
            while (entries_[empty].occupied()) ++empty;
            if (empty == end_) most_rows_ = 0;  // the tail is used up
            for (; empty > slot; --empty) entries_[empty] = entries_[empty - 1];
        } else {
            if (slot == end_) most_rows_ = 0;  // in the empty line behind the tail
            // Without a branch: where in the line nobody can foresee.
            for (std::size_t i = kLine - 1; i > 0; --i) {
                const bool moves = i > slot % kLine;
                line[i].order = moves ? line[i - 1].order : line[i].order;
                line[i].word = moves ? line[i - 1].word : line[i].word;
            }
        }
        entries_[slot] = entry;
        ++rows_;
    }

    void remove(std::size_t slot) noexcept {
        for (; entries_[slot + 1].occupied() && home(entries_[slot + 1].order) <= slot; ++slot) {
            entries_[slot] = entries_[slot + 1];
        }
        entries_[slot] = {0, 0};
        --rows_;
    }

    // By 1.3. May throw bad_alloc, and then changes nothing.
    void grow() { resize(grown(capacity_)); }

    // Room for `rows` rows, by the same steps as growth row by row.
    void reserve(std::size_t rows) {
        std::size_t capacity = capacity_;
        while (rows > comfortable(capacity)) capacity = grown(capacity);
        if (capacity != capacity_) resize(capacity);
    }

    template <class OnEntry>
    void each(OnEntry&& on_entry) const {
        for (std::size_t slot = 0; slot < entries_.size(); ++slot) {
            if (entries_[slot].occupied()) on_entry(entries_[slot]);
        }
    }

  private:
    static constexpr std::size_t kLine = 4;  // entries
    static constexpr std::size_t kFirstLines = 32;

    // Not filled yet. Behind the homes a tail, for the run that begins in the last of them: nothing wraps around. The
    // line after the tail's last is always empty, and ends every search.
    EntryTable(std::size_t capacity, std::size_t least_tail, PageArena& arena)
        : capacity_(capacity),
          end_(whole_lines(capacity + std::max(least_tail, std::min<std::size_t>(capacity / 8, 256)))),
          entries_(end_ + 2 * kLine, arena),
          arena_(&arena) {}

    static std::size_t whole_lines(std::size_t entries) { return (entries + kLine - 1) / kLine * kLine; }
    static std::size_t first_capacity(double phase) {
        return static_cast<std::size_t>(kFirstLines * std::pow(1.3, phase)) * kLine;
    }
    static std::size_t grown(std::size_t capacity) { return fitted(capacity / kLine * 13 / 10 * kLine); }

    // What fills whole huge pages, for an array that is mapped for itself: the nearest.
    static std::size_t fitted(std::size_t capacity) {
        constexpr std::size_t kPage = kHugePage / sizeof(Entry), kBehind = 256 + 2 * kLine;
        if ((capacity + kBehind) * sizeof(Entry) < PageArena::kMost) return capacity;
        return (capacity + kBehind + kPage / 2) / kPage * kPage - kBehind;
    }

    static std::size_t comfortable(std::size_t capacity) { return capacity * 83 / 100; }

    std::size_t home(std::uint64_t order) const { return probe_home(~order, capacity_ / kLine) * kLine; }

    void resize(std::size_t capacity) {
        EntryTable larger(capacity, 0, *arena_);
        const std::size_t end = copy_into(larger);
        if (end > larger.end_) {  // thousands of keys of one hash, at the very end
            larger = EntryTable(capacity, (end - capacity) * 2, *arena_);
            copy_into(larger);
        }
        larger.rows_ = rows_;
        *this = std::move(larger);
    }

    // The slot behind the last entry, `larger` being filled from front to back unless that is behind its `end_`.
    // Without branches on what is occupied: an empty entry is written where the next one will be.
    std::size_t copy_into(EntryTable& larger) const {
        std::size_t free = 0;
        for (std::size_t slot = 0; slot <= end_; ++slot) {
            const Entry entry = entries_[slot];
            const std::size_t home = larger.home(entry.order);
            const std::size_t to = entry.occupied() && home > free ? home : free;
            if (to < larger.end_) {
                for (; free < to; ++free) larger.entries_[free] = {0, 0};
                larger.entries_[to] = entry;
            }
            free = to + entry.occupied();
        }
        if (free <= larger.end_) larger.entries_.clear(free, larger.entries_.size());
        return free;
    }

    std::size_t capacity_, end_;
    EntryArray entries_;
    PageArena* arena_;
    std::size_t rows_ = 0;
    std::size_t most_rows_ = capacity_ / 10 * 9;  // 0 once the tail is used up
};

}  // namespace headrace
