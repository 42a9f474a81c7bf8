// What the index is measured against: the least that any index must do, and the published design with locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
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
            sum += entry.hash ^ entry.word;
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

// Calls one after the other; each shares its keys among `num_threads` threads, the calling one among them. Threads are
// started by each call: tens of microseconds of a batch that takes tens of milliseconds.
class LockedMaps {
  public:
    explicit LockedMaps(std::size_t num_shards) {
        for (std::size_t s = 0; s < num_shards; ++s) shards_.push_back(std::make_unique<Shard>());
    }

    // Locations of `size` keys, which one lock a shard guards for the whole batch; unseen keys get the next ones.
    void index_batch(const std::uint64_t* hashes, std::size_t size, std::uint64_t* locations, std::size_t num_threads) {
        while (parts_.size() < num_threads) parts_.emplace_back(shards_.size());
        share(num_threads, [&](std::size_t thread) {
            Positions& by_shard = parts_[thread];
            for (auto& positions : by_shard) positions.clear();
            const std::size_t end = size * (thread + 1) / num_threads;
            for (std::size_t i = size * thread / num_threads; i < end; ++i)
                by_shard[shard_of(hashes[i])].push_back(static_cast<std::uint32_t>(i));
        });
        std::atomic<std::size_t> next{0};
        share(num_threads, [&](std::size_t) {
            for (std::size_t s = next++; s < shards_.size(); s = next++) {
                const std::lock_guard<std::mutex> lock(shards_[s]->mutex);
                for (std::size_t part = 0; part < num_threads; ++part)
                    for (const std::uint32_t i : parts_[part][s]) locations[i] = shards_[s]->location_of(hashes[i]);
            }
        });
    }

    // The same with one lock an id.
    void index_each(const std::uint64_t* hashes, std::size_t size, std::uint64_t* locations, std::size_t num_threads) {
        share(num_threads, [&](std::size_t thread) {
            const std::size_t end = size * (thread + 1) / num_threads;
            for (std::size_t i = size * thread / num_threads; i < end; ++i) {
                Shard& shard = *shards_[shard_of(hashes[i])];
                const std::lock_guard<std::mutex> lock(shard.mutex);
                locations[i] = shard.location_of(hashes[i]);
            }
        });
    }

  private:
    struct Shard {
        std::mutex mutex;
        std::unordered_map<std::uint64_t, std::uint64_t> map;

        std::uint64_t location_of(std::uint64_t hash) { return map.try_emplace(hash, map.size()).first->second; }
    };
    using Positions = std::vector<std::vector<std::uint32_t>>;

    std::size_t shard_of(std::uint64_t hash) const { return shard_bits(hash) * shards_.size() >> kShardBits; }

    // work(0) .. work(num_threads - 1), each in a thread; the first error is thrown once all have ended.
    template <class Work>
    static void share(std::size_t num_threads, const Work& work) {
        std::vector<std::exception_ptr> errors(num_threads);
        const auto guarded = [&](std::size_t thread) noexcept {
            try {
                work(thread);
            } catch (...) {
                errors[thread] = std::current_exception();
            }
        };
        std::vector<std::thread> threads;
        threads.reserve(num_threads);
        try {
            for (std::size_t thread = 1; thread < num_threads; ++thread) threads.emplace_back(guarded, thread);
        } catch (...) {
            errors[0] = std::current_exception();
        }
        if (!errors[0]) guarded(0);
        for (std::thread& thread : threads) thread.join();
        for (const std::exception_ptr& error : errors)
            if (error) std::rethrow_exception(error);
    }

    std::vector<std::unique_ptr<Shard>> shards_;
    std::vector<Positions> parts_;
};

}  // namespace headrace
