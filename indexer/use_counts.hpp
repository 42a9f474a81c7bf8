// In how many delivered batches each row was used, by place: four bytes a row, decayed if so wished.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <new>
#include <vector>

#include "entry.hpp"
#include "thread_pool.hpp"

namespace headrace {

// With a half-life of H batches a use in batch t weighs 2^(t / H), and what is read is divided by the weight of now: so
// no count changes but those of the rows that are used. Weights stay within floats because all of a chunk are divided
// by 2^32 once 32 half-lives have passed, when the chunk is next touched; the division is exact.
//
// Thread-safe. Memory comes for chunks that are there, when something is first counted; a place that was never counted
// has been used 0 times.
class UseCounts {
  public:
    // Of an index of `num_shards`, a power of two: chunk number n is the (n / num_shards)-th of shard n % num_shards.
    // `half_life` 0: no decay.
    UseCounts(double half_life, std::uint32_t num_shards) : half_life_(half_life), shards_(num_shards) {
        while ((1u << shift_) < num_shards) ++shift_;
    }
    UseCounts(const UseCounts&) = delete;
    UseCounts& operator=(const UseCounts&) = delete;
    ~UseCounts() {
        for (const Mapping& mapping : mappings_) unmap_huge(mapping.memory, mapping.slabs * kSlabBytes);
    }

    // Room for the first `num_chunks[s]` chunks of each shard s, so that add() with the same numbers asks the system
    // for no addresses; pages come when they are first written to. May throw bad_alloc: then no count has changed.
    void make_room(const std::vector<std::size_t>& num_chunks) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reserve(num_chunks);
    }

    // One batch used the rows at `sizes[i]` `places[i]`, in the first `num_chunks[s]` chunks of each shard s; kAbsent
    // is no row. The threads of `pool` share the chunks, so that each count has one writer, whoever that is, and adds
    // in one order. May throw bad_alloc, and then nothing is counted.
    void add(const std::vector<const std::uint64_t*>& places, const std::vector<std::size_t>& sizes,
             const std::vector<std::size_t>& num_chunks, ThreadPool& pool) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reserve(num_chunks);
        ++batches_;
        const std::size_t shares = pool.shares();
        pool.run(shares, [&](std::size_t share) {
            Blocks blocks{*this, share, shares - 1};
            for (std::size_t i = 0; i < places.size(); ++i) blocks.add(places[i], sizes[i]);
            blocks.finish();
        });
    }

    // Uses of each place, decayed to now: NaN-free, 0 for kAbsent.
    void read(const std::uint64_t* places, std::size_t size, float* out) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const float weight = weight_of_now();
        const std::uint64_t divisions = this->divisions();
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t place = places[i] & kPlaceMask;
            Counted* const chunk = places[i] == kAbsent ? nullptr : find(place_chunk(place));
            out[i] = chunk == nullptr ? 0 : refreshed(*chunk, divisions)[place_offset(place)] / weight;
        }
    }

    // The row at the place is gone.
    void forget(std::uint64_t place) noexcept { Forgetting (*this)(place); }

    // forget() for many, under one lock.
    class Forgetting {
      public:
        explicit Forgetting(UseCounts& counts) : counts_(counts), lock_(counts.mutex_) {}
        void operator()(std::uint64_t place) noexcept {
            if (Counted* const chunk = counts_.find(place_chunk(place))) chunk->weights[place_offset(place)] = 0;
        }

      private:
        UseCounts& counts_;
        const std::lock_guard<std::mutex> lock_;
    };

    // --- snapshots: weights as they are stored

    std::uint64_t batches() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return batches_;
    }

    // Of the chunk's first `rows` places.
    std::vector<float> stored(std::uint32_t chunk, std::uint32_t rows) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<float> out(rows);
        Counted* const counted = find(chunk);
        if (rows == 0 || counted == nullptr) return out;
        const float* const first = refreshed(*counted, divisions());
        std::copy(first, first + rows, out.begin());
        return out;
    }

    // Takes over what stored() gave; other places have been used 0 times. Memory is touched where a row was used alone.
    // May throw bad_alloc, and then nothing has changed but that there is room.
    void restore(std::uint64_t batches, const std::uint64_t* places, const float* weights, std::size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<std::size_t> num_chunks(shards_.size()), chunks_before;
        for (std::size_t i = 0; i < size; ++i) {
            if (!(weights[i] > 0)) continue;
            const std::uint32_t chunk = place_chunk(places[i] & kPlaceMask);
            std::size_t& of_shard = num_chunks[shard_of(chunk)];
            of_shard = std::max(of_shard, std::size_t{chunk >> shift_} + 1);
        }
        for (const auto& chunks : shards_) chunks_before.push_back(chunks.size());
        reserve(num_chunks);
        // Of batches that were counted while the index was empty, or were undone.
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            for (std::size_t k = 0; k < chunks_before[s]; ++k) std::fill_n(shards_[s][k].weights, kChunkRows, 0.0f);
        }
        batches_ = batches;
        for (auto& chunks : shards_) {
            for (Counted& chunk : chunks) chunk.divided = divisions();
        }
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t place = places[i] & kPlaceMask;
            if (weights[i] > 0) find(place_chunk(place))->weights[place_offset(place)] = weights[i];
        }
    }

    // Of addresses asked for, the pages that were never written to among them.
    std::size_t nbytes() {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::size_t total = num_slabs_ * kSlabBytes + mappings_.capacity() * sizeof(Mapping);
        for (const auto& chunks : shards_) total += chunks.capacity() * sizeof(Counted);
        return total;
    }

  private:
    static constexpr std::size_t kChunks = 32;  // of a slab: a huge page
    static constexpr std::size_t kSlabBytes = kChunks * kChunkRows * sizeof(float);
    static constexpr double kHalfLives = 32;

    struct Counted {
        float* weights;         // by offset
        std::uint64_t divided;  // how often by 2^32
    };

    struct Mapping {
        float* memory;
        std::size_t slabs;
    };

    // The uses of one share's chunks, some dozens at a time: while the counts of one block are on their way from
    // memory, those of the one before are added to.
    class Blocks {
      public:
        Blocks(UseCounts& counts, std::size_t share, std::size_t mask)
            : counts_(counts),
              share_(share),
              mask_(mask),
              divisions_(counts.divisions()),
              weight_(counts.weight_of_now()) {}

        void add(const std::uint64_t* places, std::size_t size) {
            // In registers: for all that the compiler knows, what is written below might be their members.
            const std::size_t share = share_, mask = mask_, last_shard = counts_.shards_.size() - 1;
            const std::uint64_t divisions = divisions_;
            std::vector<Counted>* const shards = counts_.shards_.data();
            const int shift = counts_.shift_;
            for (std::size_t begin = 0; begin < size; begin += kBlock) {
                const std::size_t end = std::min(begin + kBlock, size);
                std::size_t own = 0;
                for (std::size_t j = begin; j < end; ++j) {
                    own_[own] = places[j] & kPlaceMask;
                    own += (places[j] != kAbsent) & ((place_chunk(own_[own]) & mask) == share);
                }
                std::size_t num_fetched = 0;
                for (std::size_t j = 0; j < own; ++j) {
                    const std::uint32_t chunk = place_chunk(own_[j]);
                    std::vector<Counted>& chunks = shards[chunk & last_shard];
                    if (chunk >> shift >= chunks.size()) continue;  // another thread has written to the caller's array
                    fetched_[num_fetched] = refreshed(chunks[chunk >> shift], divisions) + place_offset(own_[j]);
                    __builtin_prefetch(fetched_[num_fetched++], 1);
                }
                finish();
                fetched_.swap(arrived_);
                num_arrived_ = num_fetched;
            }
        }

        void finish() {
            for (std::size_t j = 0; j < num_arrived_; ++j) *arrived_[j] += weight_;
            num_arrived_ = 0;
        }

      private:
        static constexpr std::size_t kBlock = 32;

        UseCounts& counts_;
        const std::size_t share_, mask_;
        const std::uint64_t divisions_;
        const float weight_;
        std::array<std::uint64_t, kBlock> own_;
        std::array<float*, kBlock> fetched_, arrived_;
        std::size_t num_arrived_ = 0;
    };

    std::size_t shard_of(std::uint32_t chunk) const { return chunk & (shards_.size() - 1); }

    // Null where there is no room, since nothing was counted.
    Counted* find(std::uint32_t chunk) {
        std::vector<Counted>& chunks = shards_[shard_of(chunk)];
        const std::size_t k = chunk >> shift_;
        return k < chunks.size() ? &chunks[k] : nullptr;
    }

    std::uint64_t divisions() const {
        return half_life_ > 0 ? static_cast<std::uint64_t>(static_cast<double>(batches_) / half_life_ / kHalfLives) : 0;
    }

    float weight_of_now() const {
        if (half_life_ <= 0) return 1;
        const double half_lives = static_cast<double>(batches_) / half_life_;
        return static_cast<float>(std::exp2(half_lives - static_cast<double>(divisions()) * kHalfLives));
    }

    // The chunk's weights, divided as often as `divisions` says.
    static float* refreshed(Counted& chunk, std::uint64_t divisions) {
        if (chunk.divided != divisions) divide(chunk, divisions);
        return chunk.weights;
    }

    static void divide(Counted& chunk, std::uint64_t divisions) {
        // A double: 2^-160 is no float, but a weight of 2^32 times it is, as it would be after five divisions.
        const double factor = std::exp2(-kHalfLives * static_cast<double>(divisions - chunk.divided));
        for (std::uint32_t i = 0; i < kChunkRows; ++i) {
            chunk.weights[i] = static_cast<float>(chunk.weights[i] * factor);
        }
        chunk.divided = divisions;
    }

    // Chunks share slabs in the order in which they were first asked for, whatever their numbers: few rows spread over
    // many numbers take no more addresses than the chunks that there are.
    void reserve(const std::vector<std::size_t>& num_chunks) {
        std::size_t missing = 0;
        for (std::size_t s = 0; s < num_chunks.size(); ++s) {
            if (num_chunks[s] <= shards_[s].size()) continue;
            missing += num_chunks[s] - shards_[s].size();
            make_room_in(shards_[s], num_chunks[s]);
        }
        if (missing > num_spare_) map(missing - num_spare_);
        for (std::size_t s = 0; s < num_chunks.size(); ++s) {
            while (shards_[s].size() < num_chunks[s]) shards_[s].push_back({take(), divisions()});
        }
    }

    // Slabs for so many chunks in one mapping, of which the system allows each process some ten thousands: so each is a
    // 64th of all at least.
    void map(std::size_t chunks) {
        const std::size_t slabs = std::max((chunks + kChunks - 1) / kChunks, num_slabs_ / 64);
        make_room_in(mappings_, mappings_.size() + 1);
        auto* const memory = static_cast<float*>(map_huge(slabs * kSlabBytes));
        if (memory == nullptr) throw std::bad_alloc();
        mappings_.push_back({memory, slabs});
        num_slabs_ += slabs;
        num_spare_ += slabs * kChunks;
    }

    // Zeroed; one is spare.
    float* take() {
        if (num_taken_ == mappings_[taken_from_].slabs * kChunks) {
            ++taken_from_;
            num_taken_ = 0;
        }
        --num_spare_;
        return mappings_[taken_from_].memory + num_taken_++ * kChunkRows;
    }

    // All that is wanted at once, and twice as much as before at least: to grow chunk by chunk would copy all each
    // time.
    template <class T>
    static void make_room_in(std::vector<T>& values, std::size_t wanted) {
        if (wanted > values.capacity()) values.reserve(std::max(wanted, values.capacity() * 2));
    }

    const double half_life_;
    int shift_ = 0;
    std::mutex mutex_;
    std::vector<std::vector<Counted>> shards_;  // by shard, then in the order in which the shard took them
    std::vector<Mapping> mappings_;
    std::size_t num_slabs_ = 0;                   // of all mappings
    std::size_t num_spare_ = 0;                   // chunks in them that are nobody's yet
    std::size_t taken_from_ = 0, num_taken_ = 0;  // where the next of them is
    std::uint64_t batches_ = 0;
};

}  // namespace headrace
