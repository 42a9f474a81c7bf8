// In how many delivered batches each row was used, by place: four bytes a row, decayed if so wished.
#pragma once

#include <cmath>
#include <mutex>
#include <new>
#include <vector>

#include "entry.hpp"

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
        for (const Slab& slab : slabs_) {
            if (slab.counts != nullptr) unmap_huge(slab.counts, kSlabBytes);
        }
    }

    // One batch used the rows at `sizes[i]` `places[i]`, each of them once; kAbsent is no row. May throw bad_alloc, and
    // then nothing is counted.
    void add(const std::vector<const std::uint64_t*>& places, const std::vector<std::size_t>& sizes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (std::size_t i = 0; i < places.size(); ++i) reserve(places[i], sizes[i]);
        ++batches_;
        const float weight = scale(static_cast<double>(batches_));
        for (std::size_t i = 0; i < places.size(); ++i) {
            for (std::size_t j = 0; j < sizes[i]; ++j) {
                if (j + kAhead < sizes[i] && places[i][j + kAhead] != kAbsent) {
                    __builtin_prefetch(&at(places[i][j + kAhead] & kPlaceMask), 1);
                }
                if (places[i][j] == kAbsent) continue;
                const std::uint64_t place = places[i][j] & kPlaceMask;
                refresh(place_chunk(place));
                at(place) += weight;
            }
        }
    }

    // Uses of each place, decayed to now: NaN-free, 0 for kAbsent.
    void read(const std::uint64_t* places, std::size_t size, float* out) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const float weight = scale(static_cast<double>(batches_));
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t place = places[i] & kPlaceMask;
            out[i] = 0;
            if (places[i] == kAbsent || !has(place)) continue;
            refresh(place_chunk(place));
            out[i] = at(place) / weight;
        }
    }

    // The row at the place is gone.
    void forget(std::uint64_t place) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (has(place)) at(place) = 0;
    }

    // --- snapshots: weights as they are stored

    std::uint64_t batches() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return batches_;
    }

    // Of the chunk's first `rows` places.
    std::vector<float> stored(std::uint32_t chunk, std::uint32_t rows) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<float> out(rows);
        if (!has(static_cast<std::uint64_t>(chunk) << kOffsetBits)) return out;
        refresh(chunk);
        const float* const first = &at(static_cast<std::uint64_t>(chunk) << kOffsetBits);
        std::copy(first, first + rows, out.begin());
        return out;
    }

    // Takes over what stored() gave; places not in `places` are as before. May throw bad_alloc.
    void restore(std::uint64_t batches, const std::uint64_t* places, const float* weights, std::size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reserve(places, size);
        batches_ = batches;
        for (std::size_t i = 0; i < size; ++i) {
            refresh(place_chunk(places[i] & kPlaceMask));
            at(places[i] & kPlaceMask) = weights[i];
        }
    }

    std::size_t nbytes() {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::size_t bytes = slabs_.capacity() * sizeof(Slab);
        for (const Slab& slab : slabs_) bytes += slab.counts != nullptr ? kSlabBytes : 0;
        return bytes;
    }

  private:
    static constexpr std::size_t kChunks = 32;  // of a slab: a huge page
    static constexpr std::size_t kSlabBytes = kChunks * kChunkRows * sizeof(float);
    static constexpr std::size_t kAhead = 16;
    static constexpr double kHalfLives = 32;

    struct Slab {
        float* counts = nullptr;
        std::uint64_t divided[kChunks] = {};  // how often by 2^32
    };

    bool has(std::uint64_t place) const {
        const std::size_t s = place_chunk(place) / kChunks;
        return s < slabs_.size() && slabs_[s].counts != nullptr;
    }

    float& at(std::uint64_t place) {
        return slabs_[place_chunk(place) / kChunks]
            .counts[place_chunk(place) % kChunks * kChunkRows + place_offset(place)];
    }

    std::uint64_t divisions() const {
        return half_life_ > 0 ? static_cast<std::uint64_t>(static_cast<double>(batches_) / half_life_ / kHalfLives) : 0;
    }

    float scale(double batch) const {
        if (half_life_ <= 0) return 1;
        return static_cast<float>(std::exp2(batch / half_life_ - static_cast<double>(divisions()) * kHalfLives));
    }

    void refresh(std::uint32_t chunk) {
        Slab& slab = slabs_[chunk / kChunks];
        std::uint64_t& divided = slab.divided[chunk % kChunks];
        const std::uint64_t now = divisions();
        if (divided == now) return;
        const auto factor = static_cast<float>(std::exp2(-kHalfLives * static_cast<double>(now - divided)));
        float* const first = slab.counts + chunk % kChunks * kChunkRows;
        for (std::uint32_t i = 0; i < kChunkRows; ++i) first[i] *= factor;
        divided = now;
    }

    void reserve(const std::uint64_t* places, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) {
            if (places[i] == kAbsent || has(places[i] & kPlaceMask)) continue;
            const std::size_t s = place_chunk(places[i] & kPlaceMask) / kChunks;
            if (s >= slabs_.size()) slabs_.resize(s + 1);
            slabs_[s].counts = static_cast<float*>(map_huge(kSlabBytes));
            if (slabs_[s].counts == nullptr) throw std::bad_alloc();
            std::fill(std::begin(slabs_[s].divided), std::end(slabs_[s].divided), divisions());
        }
    }

    const double half_life_;
    std::mutex mutex_;
    std::vector<Slab> slabs_;
    std::uint64_t batches_ = 0;
};

}  // namespace headrace
