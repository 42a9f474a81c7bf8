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
// Thread-safe. Memory comes when a place is first counted; a place that was never counted has been used 0 times.
class UseCounts {
  public:
    // `half_life` 0: no decay.
    explicit UseCounts(double half_life) : half_life_(half_life) {}
    UseCounts(const UseCounts&) = delete;
    UseCounts& operator=(const UseCounts&) = delete;
    ~UseCounts() {
        for (float* const slab : slabs_) unmap_huge(slab, kSlabBytes);
    }

    // Memory for the chunks numbered below `num_chunks`, so that add() does not fail. May throw bad_alloc, and then
    // nothing has changed.
    void make_room(std::uint64_t num_chunks) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reserve(num_chunks);
    }

    // One batch used the rows at `sizes[i]` `places[i]`, in chunks numbered below `num_chunks`; kAbsent is no row. The
    // threads of `pool` share the chunks, so that each count has one writer, whoever that is, and adds in one order.
    // May throw bad_alloc, and then nothing is counted.
    void add(const std::vector<const std::uint64_t*>& places, const std::vector<std::size_t>& sizes,
             std::uint64_t num_chunks, ThreadPool& pool) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reserve(num_chunks);
        ++batches_;
        const std::size_t shares = pool.shares();
        pool.run(shares, [&](std::size_t share) {
            Blocks blocks{*this, share, shares - 1, weight_of_now()};
            for (std::size_t i = 0; i < places.size(); ++i) blocks.add(places[i], sizes[i]);
            blocks.finish();
        });
    }

    // Uses of each place, decayed to now: NaN-free, 0 for kAbsent.
    void read(const std::uint64_t* places, std::size_t size, float* out) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const float weight = weight_of_now();
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t place = places[i] & kPlaceMask;
            out[i] = 0;
            if (places[i] == kAbsent || !has(place)) continue;
            refresh(place_chunk(place));
            out[i] = at(place) / weight;
        }
    }

    // The row at the place is gone.
    void forget(std::uint64_t place) noexcept { Forgetting (*this)(place); }

    // forget() for many, under one lock.
    class Forgetting {
      public:
        explicit Forgetting(UseCounts& counts) : counts_(counts), lock_(counts.mutex_) {}
        void operator()(std::uint64_t place) noexcept {
            if (counts_.has(place)) counts_.at(place) = 0;
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
        if (rows == 0 || !has(static_cast<std::uint64_t>(chunk) << kOffsetBits)) return out;
        refresh(chunk);
        const float* const first = &at(static_cast<std::uint64_t>(chunk) << kOffsetBits);
        std::copy(first, first + rows, out.begin());
        return out;
    }

    // Takes over what stored() gave; other places have been used 0 times. Memory is touched where a row was used alone.
    // May throw bad_alloc, and then nothing has changed but that there is room.
    void restore(std::uint64_t batches, const std::uint64_t* places, const float* weights, std::size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::uint64_t num_chunks = 0;
        for (std::size_t i = 0; i < size; ++i) {
            if (weights[i] > 0)
                num_chunks = std::max(num_chunks, std::uint64_t{place_chunk(places[i] & kPlaceMask)} + 1);
        }
        const std::size_t slabs_before = slabs_.size();
        reserve(num_chunks);
        // Of batches that were counted while the index was empty, or were undone.
        for (std::size_t s = 0; s < slabs_before; ++s) std::fill_n(slabs_[s], kChunks * kChunkRows, 0.0f);
        batches_ = batches;
        std::fill(divided_.begin(), divided_.end(), divisions());
        for (std::size_t i = 0; i < size; ++i) {
            if (weights[i] > 0) at(places[i] & kPlaceMask) = weights[i];
        }
    }

    std::size_t nbytes() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return slabs_.size() * kSlabBytes + (slabs_.capacity() + chunks_.capacity() + divided_.capacity()) * 8;
    }

  private:
    static constexpr std::size_t kChunks = 32;  // of a slab: a huge page
    static constexpr std::size_t kSlabBytes = kChunks * kChunkRows * sizeof(float);
    static constexpr double kHalfLives = 32;

    // The uses of one share's chunks, some dozens at a time: while the counts of one block are on their way from
    // memory, those of the one before are added to.
    class Blocks {
      public:
        Blocks(UseCounts& counts, std::size_t share, std::size_t mask, float weight)
            : counts_(counts), share_(share), mask_(mask), weight_(weight) {}

        void add(const std::uint64_t* places, std::size_t size) {
            for (std::size_t begin = 0; begin < size; begin += kBlock) {
                const std::size_t end = std::min(begin + kBlock, size);
                std::size_t own = 0;
                for (std::size_t j = begin; j < end; ++j) {
                    fetched_[own] = places[j] & kPlaceMask;
                    // Looked at once more, in case that another thread has written to the caller's array.
                    const std::uint32_t chunk = place_chunk(fetched_[own]);
                    own += (places[j] != kAbsent) & ((chunk & mask_) == share_) & (chunk < counts_.chunks_.size());
                }
                for (std::size_t j = 0; j < own; ++j) __builtin_prefetch(&counts_.at(fetched_[j]), 1);
                finish();
                fetched_.swap(arrived_);
                num_arrived_ = own;
            }
        }

        void finish() {
            for (std::size_t j = 0; j < num_arrived_; ++j) {
                if (counts_.half_life_ > 0) counts_.refresh(place_chunk(arrived_[j]));
                counts_.at(arrived_[j]) += weight_;
            }
            num_arrived_ = 0;
        }

      private:
        static constexpr std::size_t kBlock = 32;

        UseCounts& counts_;
        const std::size_t share_, mask_;
        const float weight_;
        std::array<std::uint64_t, kBlock> fetched_, arrived_;
        std::size_t num_arrived_ = 0;
    };

    bool has(std::uint64_t place) const { return place_chunk(place) < chunks_.size(); }
    float& at(std::uint64_t place) { return chunks_[place_chunk(place)][place_offset(place)]; }

    std::uint64_t divisions() const {
        return half_life_ > 0 ? static_cast<std::uint64_t>(static_cast<double>(batches_) / half_life_ / kHalfLives) : 0;
    }

    float weight_of_now() const {
        if (half_life_ <= 0) return 1;
        const double half_lives = static_cast<double>(batches_) / half_life_;
        return static_cast<float>(std::exp2(half_lives - static_cast<double>(divisions()) * kHalfLives));
    }

    void refresh(std::uint32_t chunk) {
        const std::uint64_t now = divisions();
        if (divided_[chunk] == now) return;
        // A double: 2^-160 is no float, but a weight of 2^32 times it is, as it would be after five divisions.
        const double factor = std::exp2(-kHalfLives * static_cast<double>(now - divided_[chunk]));
        float* const weights = chunks_[chunk];
        for (std::uint32_t i = 0; i < kChunkRows; ++i) weights[i] = static_cast<float>(weights[i] * factor);
        divided_[chunk] = now;
    }

    // Slabs for the chunks numbered below `num_chunks`.
    void reserve(std::uint64_t num_chunks) {
        const std::size_t slabs = (num_chunks + kChunks - 1) / kChunks;
        make_room_in(slabs_, slabs);
        make_room_in(chunks_, slabs * kChunks);
        make_room_in(divided_, slabs * kChunks);
        while (slabs_.size() < slabs) {
            auto* const slab = static_cast<float*>(map_huge(kSlabBytes));
            if (slab == nullptr) throw std::bad_alloc();
            slabs_.push_back(slab);
            for (std::size_t i = 0; i < kChunks; ++i) {
                chunks_.push_back(slab + i * kChunkRows);
                divided_.push_back(divisions());
            }
        }
    }

    // All that is wanted at once, and twice as much as before at least: to grow slab by slab would copy all each time.
    template <class T>
    static void make_room_in(std::vector<T>& values, std::size_t wanted) {
        if (wanted > values.capacity()) values.reserve(std::max(wanted, values.capacity() * 2));
    }

    const double half_life_;
    std::mutex mutex_;
    std::vector<float*> slabs_, chunks_;  // chunks_ by number, in the slabs
    std::vector<std::uint64_t> divided_;  // by chunk: how often by 2^32
    std::uint64_t batches_ = 0;
};

}  // namespace headrace
