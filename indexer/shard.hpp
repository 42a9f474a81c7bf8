// One lock's share of the index: its entries, its rows' places, and the journal of those not committed yet.
#pragma once

#include "chunks.hpp"
#include "entry_table.hpp"
#include "journal.hpp"

namespace headrace {

// A key on its way through a shard.
struct Probe {
    std::uint64_t hash;  // permuted, see entry.hpp
    std::uint64_t key;   // key_bits
};

// Not synchronised: the owner locks.
class Shard {
  public:
    // Shards begin at sizes spread over one growth factor, so that they do not all grow in the same batch.
    Shard(std::uint32_t number, std::uint32_t num_shards, std::size_t num_groups, PageArena& arena)
        : entries_(static_cast<double>(number) / num_shards, arena), chunks_(number, num_shards, num_groups) {}

    // --- batch operations

    const Entry* home_line(std::uint64_t hash) const { return entries_.home_line(hash); }

    // The place of a key; one not known yet gets the next of its group. Throws bad_alloc or overflow_error, and then
    // the shard is as before.
    std::uint64_t find_or_add(const Probe& probe, std::uint32_t group, std::int64_t ticket, ProbeCounts& counts,
                              bool& is_new) {
        std::size_t slot;
        is_new = !entries_.find(probe.hash, probe.key, slot, counts);
        return is_new ? add(probe, slot, group, ticket) : entries_[slot].place();
    }

    // kAbsent without a committed row: a provisional one may be undone, and its place taken by another key.
    std::uint64_t find_committed(const Probe& probe, ProbeCounts& counts) const {
        std::size_t slot;
        return entries_.find(probe.hash, probe.key, slot, counts) ? committed(entries_[slot]) : kAbsent;
    }
    std::uint64_t committed(const Entry& entry) const {
        return chunks_.committed(entry.place()) ? entry.place() : kAbsent;
    }

    // The place that the key's committed row had, or kAbsent. May throw bad_alloc, and then changes nothing.
    std::uint64_t remove_committed(const Probe& probe) {
        std::size_t slot;
        ProbeCounts counts;
        if (!entries_.find(probe.hash, probe.key, slot, counts)) return kAbsent;
        const std::uint64_t at = entries_[slot].place();
        if (!chunks_.committed(at)) return kAbsent;
        chunks_.free(at);
        entries_.remove(slot);
        return at;
    }

    // `on_fresh(place)` for each row that came since the last call, whatever its ticket.
    template <class OnFresh>
    void commit(std::int64_t ticket, OnFresh&& on_fresh) {
        journal_.each_fresh([&](const Entry& row) { on_fresh(row.place()); });
        journal_.commit(ticket, [&](const Entry& row) { chunks_.commit(row.place()); });
    }

    void undo_after(std::int64_t ticket) {
        journal_.undo_after(ticket, [this](const Entry& row) {
            std::size_t slot;
            ProbeCounts counts;
            if (!entries_.find(row.hash, row.word & ~kPlaceMask, slot, counts)) return;
            entries_.remove(slot);
            chunks_.give_back(row.place());
        });
    }

    // --- growth

    bool crowded() const { return entries_.crowded(); }
    void grow() {
        entries_.grow();
        ++growths_;
    }

    // --- restore: a shard's chunks first, then its rows in any order, all committed

    void restore_chunk(std::uint32_t group, std::uint32_t rows) { chunks_.restore_chunk(group, rows); }
    void restore_vacant_chunk(std::uint32_t group, std::uint32_t rows) { chunks_.restore_vacant_chunk(group, rows); }
    void restore_hole(std::uint64_t at) { chunks_.free(at); }
    void reserve(std::size_t rows) { entries_.reserve(rows); }

    // False if the key is there already.
    bool put(const Probe& probe, std::uint64_t at) {
        std::size_t slot;
        ProbeCounts counts;
        if (entries_.find(probe.hash, probe.key, slot, counts)) return false;
        if (entries_.full()) {
            entries_.grow();
            entries_.find(probe.hash, probe.key, slot, counts);
        }
        entries_.put(slot, {probe.hash, probe.key | at});
        return true;
    }

    // --- reading

    std::size_t rows() const { return entries_.rows(); }
    std::size_t provisional() const { return journal_.rows(); }
    std::size_t capacity() const { return entries_.capacity(); }
    std::uint64_t growths() const { return growths_; }
    std::size_t nbytes() const { return entries_.nbytes() + journal_.nbytes() + chunks_.nbytes(); }
    const Chunks& chunks() const { return chunks_; }
    const EntryTable& entries() const { return entries_; }

  private:
    // All that may throw comes first; after it the row is in the journal, its chunk and the entries, or in none.
    std::uint64_t add(const Probe& probe, std::size_t slot, std::uint32_t group, std::int64_t ticket) {
        if (entries_.full()) {
            grow();
            ProbeCounts counts;
            entries_.find(probe.hash, probe.key, slot, counts);
        }
        const std::uint64_t at = chunks_.take(group);
        const Entry entry{probe.hash, probe.key | at};
        try {
            journal_.push(ticket, entry);
        } catch (...) {
            chunks_.give_back(at);
            throw;
        }
        entries_.put(slot, entry);
        return at;
    }

    EntryTable entries_;
    Chunks chunks_;
    Journal journal_;
    std::uint64_t growths_ = 0;
};

}  // namespace headrace
