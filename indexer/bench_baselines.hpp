// What the index is measured against: the least that any index must do, and the published design with locks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "entry.hpp"

namespace headrace {

// --- the physical limit

// One sequential pass: reads each id, writes each query id.
inline void stream_pass(const std::uint32_t* ids, std::size_t size, std::uint32_t* out) noexcept {
    for (std::size_t i = 0; i < size; ++i) out[i] = ids[i] ^ 1u;
}

// Random 16-byte reads of a table, prefetched as far ahead as pays.
class RandomReads {
  public:
    // Every entry is written: memory that never was is one page of zeros, and reads of it come from the cache.
    explicit RandomReads(std::size_t capacity) : table_(capacity, arena_) {
        for (std::size_t i = 0; i < capacity; ++i) table_[i] = {i, i};
    }

    // One read for each hash; the sum of what was read, so that no read can be left out.
    std::uint64_t read(const std::uint64_t* hashes, std::size_t size) const noexcept {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < size; ++i) {
            if (i + kAhead < size) __builtin_prefetch(&table_[home(hashes[i + kAhead])]);
            const Entry& entry = table_[home(hashes[i])];
            sum += entry.order ^ entry.word;
        }
        return sum;
    }

    std::size_t nbytes() const noexcept { return table_.nbytes(); }

  private:
    static constexpr std::size_t kAhead = 32;
    std::size_t home(std::uint64_t hash) const noexcept { return probe_home(hash, table_.size()); }
    PageArena arena_;
    EntryArray table_;
};

// --- the published design: shards of a standard hash table, each with a lock

class LockedMaps {
  public:
    explicit LockedMaps(std::size_t num_shards) {
        for (std::size_t s = 0; s < num_shards; ++s) shards_.push_back(std::make_unique<Shard>());
        by_shard_.resize(num_shards);
    }

    // Locations of `size` keys, which one lock a shard guards for the whole batch; unseen keys get the next ones.
    void index_batch(const std::uint64_t* hashes, std::size_t size, std::uint64_t* locations) {
        for (auto& positions : by_shard_) positions.clear();
        for (std::size_t i = 0; i < size; ++i) by_shard_[shard_of(hashes[i])].push_back(static_cast<std::uint32_t>(i));
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const std::lock_guard<std::mutex> lock(shards_[s]->mutex);
            for (const std::uint32_t i : by_shard_[s]) locations[i] = shards_[s]->location_of(hashes[i]);
        }
    }

    // The same with one lock an id.
    void index_each(const std::uint64_t* hashes, std::size_t size, std::uint64_t* locations) {
        for (std::size_t i = 0; i < size; ++i) {
            Shard& shard = *shards_[shard_of(hashes[i])];
            const std::lock_guard<std::mutex> lock(shard.mutex);
            locations[i] = shard.location_of(hashes[i]);
        }
    }

  private:
    struct Shard {
        std::mutex mutex;
        std::unordered_map<std::uint64_t, std::uint64_t> map;

        std::uint64_t location_of(std::uint64_t hash) { return map.try_emplace(hash, map.size()).first->second; }
    };

    std::size_t shard_of(std::uint64_t hash) const { return shard_bits(hash) * shards_.size() >> kShardBits; }

    std::vector<std::unique_ptr<Shard>> shards_;
    std::vector<std::vector<std::uint32_t>> by_shard_;
};

}  // namespace headrace
