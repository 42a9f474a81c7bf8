// Entries of one shard: linear probing by cache lines, without tombstones, grown in small steps.
//
// The home of a key is a line of four entries. A key stands in its home line or, where that was full, in the next that
// was not; a line fills from its front. So most searches compare the four entries of one line, without a branch; a
// search ends at the first line with room, and that is where a new key goes: nothing moves. A removal fills the gap
// with the last entry of the line, and that with one of a later line that has passed this one by. Homes rise with the
// hash, so growth reads and writes both arrays from front to back.
// (Knuth, The Art of Computer Programming 3, 6.4: linear probing with buckets.)
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "entry_line.hpp"

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

// Lines behind a full one that are fetched at once: neighbours cost little, to wait for the memory costs much.
constexpr std::size_t kLinesAhead = 4;

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

    // The line where a search begins. Valid until the next grow().
    const Entry* home_line(std::uint64_t hash) const { return &entries_[home(hash)]; }

    // Sets `slot` to the entry of the key, or to where put() would let it stand.
    bool find(std::uint64_t hash, std::uint64_t key, std::size_t& slot, ProbeCounts& counts) const {
        const Entry* const start = home_line(hash);
        const Entry* line = start;
        const Entry* found = nullptr;
        LineBits bits;
        while (true) {
            bits = line_bits(line, hash);
            if (bits.alike != 0) found = line_find(line, bits.alike, hash, key);
            if (found != nullptr || bits.occupied != kFullLine) break;
            line += kLine;
            __builtin_prefetch(line + kLinesAhead * kLine);
        }
        slot = static_cast<std::size_t>((found != nullptr ? found : line + bits.rows()) - &entries_[0]);
        const auto lines = static_cast<std::size_t>(line - start) / kLine + 1;
        counts.lines += lines;
        counts.longest = std::max<std::uint64_t>(counts.longest, lines);
        return found != nullptr;
    }

    // No further put() before a grow().
    bool full() const { return rows_ >= most_rows_; }

    // Time to grow, when there is time for it.
    bool crowded() const { return rows_ > comfortable(capacity_); }

    // A new entry at the slot that find() has set; not when full().
    void put(std::size_t slot, const Entry& entry) noexcept {
        if (slot >= end_) most_rows_ = 0;  // the tail is used up
        entries_[slot] = entry;
        ++rows_;
    }

    // Others may move to where it was, and out of lines behind.
    void remove(std::size_t slot) noexcept {
        --rows_;
        std::size_t gap_line = slot / kLine * kLine;
        bool was_full = take_out(slot);
        for (std::size_t line = gap_line + kLine; was_full; line += kLine) {
            const bool goes_on = line_full(&entries_[line]);
            const std::size_t passed = passed_by(line, gap_line);
            if (passed < line + kLine) {
                entries_[gap_line + kLine - 1] = entries_[passed];
                take_out(passed);
                gap_line = line;
            }
            was_full = goes_on;
        }
    }

    // May throw bad_alloc, and then changes nothing.
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
    static constexpr std::size_t kFirstLines = 32;
    // Loads from 0.62 to 0.84.
    static constexpr std::size_t kGrowthPercent = 135, kComfortablePercent = 84, kMostPercent = 88;

    // Not filled yet. Behind the homes a tail, for what does not fit into the last of them: nothing wraps around. The
    // line after the tail's last never fills, and ends every search.
    EntryTable(std::size_t capacity, std::size_t least_tail, PageArena& arena)
        : capacity_(capacity),
          end_(whole_lines(capacity + std::max(least_tail, std::min<std::size_t>(capacity / 8, 256)))),
          entries_(end_ + 2 * kLine, arena),
          arena_(&arena) {}

    static std::size_t whole_lines(std::size_t entries) { return (entries + kLine - 1) / kLine * kLine; }
    static std::size_t first_capacity(double phase) {
        return static_cast<std::size_t>(kFirstLines * std::pow(kGrowthPercent / 100.0, phase)) * kLine;
    }
    static std::size_t grown(std::size_t capacity) { return fitted(capacity / kLine * kGrowthPercent / 100 * kLine); }

    // What fills whole huge pages, for an array that is mapped for itself: the nearest.
    static std::size_t fitted(std::size_t capacity) {
        constexpr std::size_t kPage = kHugePage / sizeof(Entry), kBehind = 256 + 2 * kLine;
        if ((capacity + kBehind) * sizeof(Entry) < PageArena::kMost) return capacity;
        return (capacity + kBehind + kPage / 2) / kPage * kPage - kBehind;
    }

    static std::size_t comfortable(std::size_t capacity) { return capacity * kComfortablePercent / 100; }

    std::size_t home(std::uint64_t hash) const { return probe_home(hash, capacity_ / kLine) * kLine; }

    // The last entry of the line goes to `slot`. Whether the line was full.
    bool take_out(std::size_t slot) noexcept {
        const std::size_t line = slot / kLine * kLine;
        const std::size_t last = line + line_bits(&entries_[line], 0).rows() - 1;
        entries_[slot] = entries_[last];
        entries_[last] = {0, 0};
        return last == line + kLine - 1;
    }

    // An entry of the line whose home is `gap_line` or before, or else the line's end.
    std::size_t passed_by(std::size_t line, std::size_t gap_line) const {
        for (std::size_t slot = line; slot < line + kLine && entries_[slot].occupied(); ++slot) {
            if (home(entries_[slot].hash) <= gap_line) return slot;
        }
        return line + kLine;
    }

    void resize(std::size_t capacity) {
        EntryTable larger(capacity, 0, *arena_);
        if (!copy_into(larger)) {  // thousands of keys of one hash, at the very end
            larger = EntryTable(capacity, rows_ * 2, *arena_);
            copy_into(larger);
        }
        larger.rows_ = rows_;
        *this = std::move(larger);
    }

    // Whether all have found room. Clears the larger array as it goes, so that it is touched once. Without branches on
    // what is occupied: an empty entry is written to the last slot, which is nobody's. How full the lines are is
    // counted beside them: to read it off their entries would have each entry wait until the last one's place is known.
    bool copy_into(EntryTable& larger) const {
        std::vector<std::uint16_t> filled(larger.end_ / kLine + 1);
        const Entry* const from = &entries_[0];
        Entry* const to = &larger.entries_[0];
        const std::size_t homes = larger.capacity_ / kLine, lines = larger.end_ / kLine, end = end_;
        const std::size_t spare = larger.entries_.size() - 1;
        std::size_t cleared = 0;
        for (std::size_t slot = 0; slot <= end; ++slot) {
            const Entry entry = from[slot];
            const std::size_t occupied = entry.occupied(), all = ~std::size_t{0} * occupied;
            std::size_t line = probe_home(entry.hash, homes) & all;
            while (filled[line] + occupied > kLine) ++line;
            if (line >= lines) return false;
            if (line >= cleared) cleared = larger.clear_ahead(cleared, line);
            to[((line * kLine + filled[line]) & all) | (spare & ~all)] = entry;
            filled[line] = static_cast<std::uint16_t>(filled[line] + occupied);
        }
        larger.entries_.clear(cleared * kLine, larger.entries_.size());
        return true;
    }

    // Clears lines from `cleared` on, to some way behind `line`. How far.
    std::size_t clear_ahead(std::size_t cleared, std::size_t line) noexcept {
        constexpr std::size_t kAhead = 32;
        const std::size_t end = std::min(line + 1 + kAhead, entries_.size() / kLine);
        entries_.clear(cleared * kLine, end * kLine);
        return end;
    }

    std::size_t capacity_, end_;
    EntryArray entries_;
    PageArena* arena_;
    std::size_t rows_ = 0;
    std::size_t most_rows_ = capacity_ * kMostPercent / 100;  // 0 once the tail is used up
};

}  // namespace headrace
