// One lock's share of the index: entries by linear probing, its own chunks, its own journal.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "batch.hpp"
#include "journal.hpp"

namespace headrace {

// The k-th chunk that a shard takes has the number k * num_shards + shard. Rows fill it in order, so the first
// `committed` of its `rows` rows are permanent and the others provisional.
struct Chunk {
    std::uint32_t group;
    std::uint32_t rows;
    std::uint32_t committed;
    std::int64_t previous;  // this shard's last chunk of the same group, or -1
};

struct ProbeCounts {
    std::uint64_t keys = 0, steps = 0, longest = 0, growths = 0;
};

// Not synchronised: the owner locks.
class Shard {
  public:
    // Shards start at capacities spread over one growth factor, so that they do not all grow in the same batch.
    Shard(std::uint32_t number, std::uint32_t num_shards, std::size_t num_groups, std::uint64_t multiplier)
        : number_(number),
          num_shards_(num_shards),
          multiplier_(multiplier),
          entries_(kFirstCapacity + kFirstCapacity / 4 * number / num_shards),
          last_chunk_(num_groups, -1) {
        set_limit();
    }

    // --- batch operations

    // Locations of the keys [begin, end); keys not known yet get the next places, in order. Throws bad_alloc or
    // overflow_error part of the way through: the caller undoes the ticket.
    void insert(const Item* begin, const Item* end, const std::vector<TableInfo>& tables, const GroupOut* groups,
                std::int64_t ticket, std::uint64_t rank_bits) {
        for (const Item* item = begin; item != end; ++item) {
            if (end - item > kAhead) entries_.prefetch(permuted(item[kAhead].hash, multiplier_));
            const std::uint64_t key = key_bits(item->table, item->missing);
            std::size_t slot = home(item->hash);
            const bool found = find(item->id, key, slot);
            const std::uint32_t group = tables[item->table].group;
            const std::uint64_t word = found ? entries_[slot].word : add(*item, key, slot, group, tables, ticket);
            groups[group].locations[item->position] = rank_bits | (word & kPlaceMask);
            groups[group].is_new[item->position] = !found;
        }
    }

    // Committed rows only: a provisional one may be undone, and its place taken by another key.
    void lookup(const Item* begin, const Item* end, const std::vector<TableInfo>& tables, const GroupOut* groups,
                std::uint64_t rank_bits) const {
        for (const Item* item = begin; item != end; ++item) {
            if (end - item > kAhead) entries_.prefetch(permuted(item[kAhead].hash, multiplier_));
            const GroupOut& out = groups[tables[item->table].group];
            std::size_t slot = home(item->hash);
            std::uint64_t steps = 0;
            const bool found =
                probe(item->id, key_bits(item->table, item->missing), slot, steps) && committed(entries_[slot]);
            out.locations[item->position] = found ? rank_bits | (entries_[slot].word & kPlaceMask) : kAbsent;
            out.is_new[item->position] = 0;
        }
    }

    void commit(std::int64_t ticket) {
        journal_.commit(ticket, [this](const Entry& row) { ++chunks_[row.chunk() / num_shards_].committed; });
    }

    void undo_after(std::int64_t ticket, const std::vector<TableInfo>& tables) {
        journal_.undo_after(ticket, [&](const Entry& row) { remove(row, tables); });
    }

    // --- restore: a shard's chunks first, then its rows in any order, all committed

    void take_chunk(std::uint32_t group, std::uint32_t rows) {
        chunks_.push_back({group, rows, rows, last_chunk_[group]});
        last_chunk_[group] = static_cast<std::int64_t>(chunks_.size()) - 1;
    }

    // Room for `rows` rows, by the same steps as growth row by row.
    void reserve(std::size_t rows, const std::vector<TableInfo>& tables) {
        std::size_t capacity = entries_.capacity();
        while (limit_of(capacity) < rows) capacity = grown(capacity);
        if (capacity != entries_.capacity()) rehash(capacity, tables);
    }

    // False if the key is there already.
    bool put(std::uint64_t hash, std::uint64_t id, std::uint64_t word) {
        std::size_t slot = home(hash);
        std::uint64_t steps = 0;
        if (probe(id, word & ~kPlaceMask, slot, steps)) return false;
        entries_[slot] = {id, word};
        ++rows_;
        return true;
    }

    // --- reading

    std::size_t rows() const { return rows_; }
    std::size_t provisional() const { return journal_.rows(); }
    std::size_t capacity() const { return entries_.capacity(); }
    std::size_t nbytes() const {
        return entries_.capacity() * sizeof(Entry) + journal_.nbytes() + chunks_.capacity() * sizeof(Chunk);
    }
    const std::vector<Chunk>& chunks() const { return chunks_; }
    const ProbeCounts& probes() const { return probes_; }

    // `on_row(k, entry)` for each committed row, in no order; k is the position of its chunk in chunks().
    template <class OnRow>
    void each_committed(OnRow&& on_row) const {
        for (std::size_t i = 0; i < entries_.capacity(); ++i) {
            const Entry& entry = entries_[i];
            if (!entry.occupied()) continue;
            if (committed(entry)) on_row(std::size_t{entry.chunk() / num_shards_}, entry);
        }
    }

  private:
    static constexpr std::size_t kFirstCapacity = 64;
    static constexpr std::ptrdiff_t kAhead = 24;  // keys whose entry is being fetched while one is compared

    static std::size_t grown(std::size_t capacity) { return capacity + capacity / 4; }
    static std::size_t limit_of(std::size_t capacity) { return capacity / 5 * 4; }
    std::size_t home(std::uint64_t hash) const { return entries_.home(permuted(hash, multiplier_)); }
    bool committed(const Entry& entry) const { return entry.offset() < chunks_[entry.chunk() / num_shards_].committed; }
    void set_limit() { limit_ = limit_of(entries_.capacity()); }

    // From the key's home to the key, or to the empty entry that ends its run; one always exists, load <= 0.8.
    bool probe(std::uint64_t id, std::uint64_t key, std::size_t& slot, std::uint64_t& steps) const {
        for (;; slot = entries_.next(slot)) {
            ++steps;
            const Entry& entry = entries_[slot];
            if (!entry.occupied()) return false;
            if (entry.id == id && (entry.word & ~kPlaceMask) == key) return true;
        }
    }

    bool find(std::uint64_t id, std::uint64_t key, std::size_t& slot) {
        std::uint64_t steps = 0;
        const bool found = probe(id, key, slot, steps);
        ++probes_.keys;
        probes_.steps += steps;
        probes_.longest = std::max(probes_.longest, steps);
        return found;
    }

    // All that may throw comes first; after it the row is in the journal, its chunk and the entries, or in none.
    std::uint64_t add(const Item& item, std::uint64_t key, std::size_t slot, std::uint32_t group,
                      const std::vector<TableInfo>& tables, std::int64_t ticket) {
        if (rows_ >= limit_) {
            rehash(grown(entries_.capacity()), tables);
            ++probes_.growths;
            slot = empty_slot(item.hash);
        }
        std::int64_t k = last_chunk_[group];
        const bool full = k < 0 || chunks_[static_cast<std::size_t>(k)].rows == kChunkRows;
        if (full) {
            k = static_cast<std::int64_t>(chunks_.size());
            if (static_cast<std::uint64_t>(k) > (0xFFFF'FFFFu - number_) / num_shards_) {
                throw std::overflow_error("all 2^32 chunk numbers of the index are in use");
            }
            chunks_.push_back({group, 0, 0, last_chunk_[group]});
        }
        Chunk& chunk = chunks_[static_cast<std::size_t>(k)];
        const auto number = static_cast<std::uint32_t>(k) * num_shards_ + number_;
        const Entry entry{item.id, key | place_bits(number, chunk.rows)};
        try {
            journal_.push(ticket, entry);
        } catch (...) {
            if (full) chunks_.pop_back();
            throw;
        }
        last_chunk_[group] = k;
        ++chunk.rows;
        entries_[slot] = entry;
        ++rows_;
        return entry.word;
    }

    // The newest row of its group leaves; a chunk that becomes empty is the last one taken.
    void remove(const Entry& row, const std::vector<TableInfo>& tables) {
        std::size_t slot = home(hash_of(row, tables));
        std::uint64_t steps = 0;
        if (!probe(row.id, row.word & ~kPlaceMask, slot, steps)) return;
        close_gap(slot, tables);
        --rows_;
        const std::size_t k = row.chunk() / num_shards_;
        if (--chunks_[k].rows == 0) {
            last_chunk_[chunks_[k].group] = chunks_[k].previous;
            chunks_.pop_back();
        }
    }

    // Empties `hole` and moves later entries of the run back where that brings them no nearer than their home: no
    // tombstones, so a run never outlives its rows.
    void close_gap(std::size_t hole, const std::vector<TableInfo>& tables) {
        for (std::size_t i = entries_.next(hole); entries_[i].occupied(); i = entries_.next(i)) {
            const std::size_t start = home(hash_of(entries_[i], tables));
            if (entries_.distance(start, i) < entries_.distance(hole, i)) continue;
            entries_[hole] = entries_[i];
            hole = i;
        }
        entries_[hole] = {0, 0};
    }

    void rehash(std::size_t capacity, const std::vector<TableInfo>& tables) {
        EntryArray old(capacity);
        old.swap(entries_);
        set_limit();
        for (std::size_t i = 0; i < old.capacity(); ++i) {
            if (old[i].occupied()) entries_[empty_slot(hash_of(old[i], tables))] = old[i];
        }
    }

    std::size_t empty_slot(std::uint64_t hash) const {
        std::size_t slot = home(hash);
        while (entries_[slot].occupied()) slot = entries_.next(slot);
        return slot;
    }

    static std::uint64_t hash_of(const Entry& entry, const std::vector<TableInfo>& tables) {
        const TableInfo& table = tables[entry.table()];
        return entry.missing() ? table.missing_hash : mix64_seeded(table.seed, entry.id);
    }

    std::uint32_t number_, num_shards_;
    std::uint64_t multiplier_;
    EntryArray entries_;
    std::size_t rows_ = 0, limit_ = 0;
    std::vector<Chunk> chunks_;
    std::vector<std::int64_t> last_chunk_;  // by group
    Journal journal_;
    ProbeCounts probes_;
};

}  // namespace headrace
