// Unique rows of a batch: per table one pass over its columns with a scratch hash table that is kept between batches.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hashing.hpp"
#include "thread_pool.hpp"

namespace headrace {

struct TableInfo {
    std::uint32_t uid;
    std::uint32_t group;
    std::uint64_t seed;          // of keys with an id
    std::uint64_t missing_hash;  // of the key of a missing value
};

inline TableInfo make_table(std::uint32_t uid, std::uint32_t group) {
    return {uid, group, key_seed(uid, false), mix64(uid, true, 0)};
}

constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

// Unique ids of one table, in order of first appearance. `slots_` holds positions + 1 and is indexed by the low bits of
// the hash: all keys of an owner share a route, those of a shard the shard bits, none the probe bits.
class TableDedup {
  public:
    void begin(const TableInfo& table, int shard_shift) {
        table_ = &table;
        shard_shift_ = shard_shift;
        if (slots_.empty()) slots_.resize(64);
        std::fill(slots_.begin(), slots_.end(), 0u);
        ids_.clear();
        hashes_.clear();
        per_shard_.fill(0);
        missing_at_ = kNone;
    }

    template <class Id>
    void add(const Id* values, const std::uint8_t* missing, std::size_t size, std::uint32_t* query) {
        for (std::size_t i = 0; i < size; ++i) {
            query[i] = missing != nullptr && missing[i] ? position_of_missing() : position_of(values[i]);
        }
    }

    std::size_t size() const { return ids_.size(); }
    std::uint64_t id(std::size_t i) const { return ids_[i]; }
    std::uint64_t hash(std::size_t i) const { return hashes_[i]; }
    std::uint32_t missing_at() const { return missing_at_; }
    std::uint32_t in_shard(std::size_t shard) const { return per_shard_[shard]; }
    std::uint32_t shard(std::size_t i) const { return shard_bits(hashes_[i]) >> shard_shift_; }
    std::size_t nbytes() const { return slots_.capacity() * 4 + (ids_.capacity() + hashes_.capacity()) * 8; }

  private:
    std::uint32_t position_of(std::uint64_t id) {
        const std::uint64_t hash = mix64_seeded(table_->seed, id);
        const std::size_t mask = slots_.size() - 1;
        std::size_t slot = hash & mask;
        for (std::uint32_t found; (found = slots_[slot]) != 0; slot = (slot + 1) & mask) {
            // The missing key has id 0 in `ids_` but never a slot of its own.
            if (ids_[found - 1] == id) return found - 1;
        }
        const std::uint32_t position = append(id, hash);
        slots_[slot] = position + 1;
        if (ids_.size() * 2 > slots_.size()) grow();
        return position;
    }

    std::uint32_t position_of_missing() {
        if (missing_at_ == kNone) missing_at_ = append(0, table_->missing_hash);
        return missing_at_;
    }

    std::uint32_t append(std::uint64_t id, std::uint64_t hash) {
        ids_.push_back(id);
        hashes_.push_back(hash);
        ++per_shard_[shard_bits(hash) >> shard_shift_];
        return static_cast<std::uint32_t>(ids_.size() - 1);
    }

    void grow() {
        const std::size_t mask = slots_.size() * 2 - 1;
        slots_.assign(mask + 1, 0u);
        for (std::uint32_t i = 0; i < ids_.size(); ++i) {
            if (i == missing_at_) continue;
            std::size_t slot = hashes_[i] & mask;
            while (slots_[slot] != 0) slot = (slot + 1) & mask;
            slots_[slot] = i + 1;
        }
    }

    const TableInfo* table_ = nullptr;
    int shard_shift_ = 0;
    std::vector<std::uint32_t> slots_;  // power of two, load at most 1/2
    std::vector<std::uint64_t> ids_, hashes_;
    std::array<std::uint32_t, kMaxShards> per_shard_{};
    std::uint32_t missing_at_ = kNone;
};

}  // namespace headrace
