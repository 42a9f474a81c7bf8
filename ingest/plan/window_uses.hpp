// The batches of the window: row numbers, and how many steps each use is before the row's next one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

// Uses are numbered over the stream, batch after batch; those of the window are [first_use(), end_use()). They are kept
// in one ring, in which each batch is contiguous.
class WindowUses {
  public:
    static constexpr uint64_t MAX_USES = uint64_t{1} << 31;

    struct Batch {
        size_t place = 0;  // in the ring
        size_t count = 0;
        uint64_t first_use = 0;
    };

    explicit WindowUses(uint32_t window) : wide_(window > 0xFF), batches_(size_t{1} << bits(window)) {}

    size_t nbytes() const {
        return rows_.capacity() * sizeof(uint32_t) + low_gaps_.capacity() + high_gaps_.capacity() * sizeof(uint16_t) +
               batches_.capacity() * sizeof(Batch) + block_steps_.capacity() * sizeof(uint32_t);
    }
    uint32_t head() const { return head_; }
    uint32_t tail() const { return tail_; }
    uint64_t first_use() const { return head_ == tail_ ? end_use_ : batch(head_).first_use; }
    uint64_t end_use() const { return end_use_; }
    size_t size() const { return static_cast<size_t>(end_use_ - first_use()); }

    const Batch& batch(uint32_t step) const { return batches_[step & (batches_.size() - 1)]; }
    uint32_t* rows(const Batch& batch) { return rows_.data() + batch.place; }

    // Steps until the row's next use known so far, for the use at this place of the ring; 0: none.
    uint32_t gap(size_t place) const { return low_gaps_[place] | (wide_ ? uint32_t{high_gaps_[place]} << 8 : 0); }
    void set_gap(size_t place, uint32_t gap) {
        low_gaps_[place] = static_cast<uint8_t>(gap);
        if (wide_) high_gaps_[place] = static_cast<uint16_t>(gap >> 8);
    }
    void prefetch_gap(size_t place) const {
        HEADRACE_PREFETCH_WRITE(&low_gaps_[place]);
        if (wide_) HEADRACE_PREFETCH_WRITE(&high_gaps_[place]);
    }

    // Where a batch of `count` rows will stand; may throw, and changes nothing that can be seen.
    Batch prepare(size_t count) {
        if (size() + count > MAX_USES) throw std::overflow_error("the window holds more than 2^31 unique rows");
        if (!fits(count)) grow(count);
        reserve_blocks(count);
        return {place_for(count), count, end_use_};
    }

    // The prepared batch becomes the last one of the window; never throws.
    void append(const Batch& prepared) {
        batches_[tail_ & (batches_.size() - 1)] = prepared;
        end_use_ += prepared.count;
        std::fill_n(low_gaps_.data() + prepared.place, prepared.count, uint8_t{0});
        if (wide_) std::fill_n(high_gaps_.data() + prepared.place, prepared.count, uint16_t{0});
        for (uint64_t b = (prepared.first_use + BLOCK - 1) / BLOCK; b * BLOCK < end_use_; ++b) {
            block_steps_[b & (block_steps_.size() - 1)] = tail_;
        }
        ++tail_;
    }

    void drop_first() { ++head_; }

    // The step of a use of the window.
    uint32_t step_of(uint64_t use) const {
        const uint64_t block = use / BLOCK, mask = block_steps_.size() - 1;
        uint32_t low = block * BLOCK >= first_use() ? block_steps_[block & mask] : head_;
        uint32_t high = (block + 1) * BLOCK < end_use_ ? block_steps_[(block + 1) & mask] : tail_ - 1;
        while (low < high) {  // most often once or never
            const uint32_t middle = low + (high - low + 1) / 2;
            if (batch(middle).first_use <= use) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

  private:
    static constexpr uint64_t BLOCK = 4096;  // uses

    // The ring of batches has a place for each step of the window, window + 1, and 2^bits in all.
    static unsigned bits(uint32_t window) {
        unsigned b = 0;
        while ((uint64_t{1} << b) < uint64_t{window} + 1) ++b;
        return b;
    }
    bool empty() const { return head_ == tail_; }
    size_t newest_end() const { return batch(tail_ - 1).place + batch(tail_ - 1).count; }
    bool wrapped() const { return batch(tail_ - 1).place < batch(head_).place; }

    bool fits(size_t count) const {
        if (empty()) return count <= rows_.size();
        if (wrapped()) return newest_end() + count < batch(head_).place;  // never equal: see wrapped()
        return newest_end() + count <= rows_.size() || count <= batch(head_).place;
    }
    size_t place_for(size_t count) const {
        if (empty()) return 0;
        return wrapped() || newest_end() + count <= rows_.size() ? newest_end() : 0;
    }

    void grow(size_t count) {
        const size_t size_now = size(), least = size_now + count;
        const size_t larger = std::max(least + least / 8, rows_.size() + rows_.size() / 2);
        HugeVector<uint32_t> rows(larger);
        HugeVector<uint8_t> low(larger);
        HugeVector<uint16_t> high(wide_ ? larger : 0);
        size_t place = 0;
        for (uint32_t step = head_; step != tail_; ++step) {
            Batch& moved = batches_[step & (batches_.size() - 1)];
            std::copy_n(rows_.data() + moved.place, moved.count, rows.data() + place);
            std::copy_n(low_gaps_.data() + moved.place, moved.count, low.data() + place);
            if (wide_) std::copy_n(high_gaps_.data() + moved.place, moved.count, high.data() + place);
            moved.place = place;
            place += moved.count;
        }
        rows_.swap(rows);
        low_gaps_.swap(low);
        high_gaps_.swap(high);
    }

    void reserve_blocks(size_t count) {
        const uint64_t needed = (size() + count) / BLOCK + 2;
        if (needed <= block_steps_.size()) return;
        size_t larger = std::max<size_t>(block_steps_.size(), 16);
        while (larger < needed) larger *= 2;
        std::vector<uint32_t> steps(larger);
        for (uint64_t b = (first_use() + BLOCK - 1) / BLOCK; b * BLOCK < end_use_; ++b) {
            steps[b & (larger - 1)] = block_steps_[b & (block_steps_.size() - 1)];
        }
        block_steps_.swap(steps);
    }

    bool wide_;
    std::vector<Batch> batches_;  // ring by step
    HugeVector<uint32_t> rows_;   // ring by use
    HugeVector<uint8_t> low_gaps_;    // the gaps of these uses: bits 0 to 7,
    HugeVector<uint16_t> high_gaps_;  // and the others, where the window is long enough to need them
    std::vector<uint32_t> block_steps_;  // ring by block of uses: the step of the block's first use
    uint32_t head_ = 0, tail_ = 0;
    uint64_t end_use_ = (uint64_t{1} << 32) - 1000;  // so that every run passes the end of the 32 bits of a link
};

}  // namespace headrace::plan
