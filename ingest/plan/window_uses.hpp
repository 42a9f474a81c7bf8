// The batches of the window: the cells of their rows, and when each row is used next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

// Uses are numbered over the stream, batch after batch; those of the window are [first_use(), end_use()). They are kept
// in one ring, in which each batch is contiguous. Next to each use stands a code of the step of the row's next use,
// as far as that was noted.
class WindowUses {
    static constexpr uint32_t NARROW = 0xFF, WIDE = 0xFFFFFF;  // codes in 8 bits, or in 24

  public:
    static constexpr uint64_t MAX_USES = uint64_t{1} << 30;

    struct Batch {
        size_t place = 0;  // in the ring
        size_t count = 0;
        uint64_t first_use = 0;
    };

    explicit WindowUses(uint32_t window)
        : wide_(window >= NARROW), modulus_(wide_ ? WIDE : NARROW), batches_(size_t{1} << bits(window)) {}

    size_t nbytes() const {
        return cells_.capacity() * sizeof(uint32_t) + low_codes_.capacity() +
               high_codes_.capacity() * sizeof(uint16_t) + batches_.capacity() * sizeof(Batch);
    }
    uint32_t head() const { return head_; }
    uint32_t tail() const { return tail_; }
    uint64_t first_use() const { return head_ == tail_ ? end_use_ : batch(head_).first_use; }
    uint64_t end_use() const { return end_use_; }
    size_t size() const { return static_cast<size_t>(end_use_ - first_use()); }

    const Batch& batch(uint32_t step) const { return batches_[step & (batches_.size() - 1)]; }
    uint32_t* cells(const Batch& batch) { return cells_.data() + batch.place; }

    // Where the uses of a window that is not empty stand in the ring.
    struct Places {
        size_t head, wrap, back;  // uses from number `wrap` on (from the head) stand `back` places before
        size_t of(uint32_t use_from_head) const { return head + use_from_head - (use_from_head >= wrap ? back : 0); }
    };
    Places places() const {
        const size_t wrap = wrap_use_ == NO_WRAP ? SIZE_MAX : static_cast<size_t>(wrap_use_ - first_use());
        return {batch(head_).place, wrap, wrap_back_};
    }

    // How many uses, from the head on, are at least `steps` (at least 1) before the step that comes next.
    size_t uses_before(uint32_t steps) const {
        if (tail_ - head_ < steps) return 0;
        return static_cast<size_t>((steps == 1 ? end_use_ : batch(tail_ - steps + 1).first_use) - first_use());
    }
    // The step of a use of the window.
    uint32_t step_of(uint32_t use_from_head) const {
        uint32_t step = head_, end = tail_;
        while (end - step > 1) {
            const uint32_t middle = step + (end - step) / 2;
            (batch(middle).first_use - first_use() <= use_from_head ? step : end) = middle;
        }
        return step;
    }

    // The code of a step that is in the window, or comes next; never 0, which says "none known".
    uint32_t code_of(uint32_t step) const { return step % modulus_ + 1; }
    void set_code(size_t place, uint32_t code) {
        low_codes_[place] = static_cast<uint8_t>(code);
        if (wide_) high_codes_[place] = static_cast<uint16_t>(code >> 8);
    }
    void prefetch_code(size_t place) const {
        HEADRACE_PREFETCH_WRITE(&low_codes_[place]);
        if (wide_) HEADRACE_PREFETCH_WRITE(&high_codes_[place]);
    }
    // Those of these uses that are in the last batch get to know that the next one is in the step that comes next.
    void note_next_step(const uint32_t* uses, size_t count) {
        const Batch& last = batch(tail_ - 1);
        const uint32_t code = code_of(tail_);
        note(low_codes_, last, uses, count, static_cast<uint8_t>(code));
        if (wide_) note(high_codes_, last, uses, count, static_cast<uint16_t>(code >> 8));
    }

    // Steps until the next uses, as seen from a step of the window.
    class Gaps {
      public:
        Gaps(const WindowUses& uses, uint32_t step)
            : uses_(uses), now_(uses.code_of(step)), next_(uses.code_of(step + 1)) {}

        // Of the use at this place, which knows its next one.
        uint32_t at(size_t place) const {
            const uint32_t code = uses_.low_codes_[place] | (uses_.wide_ ? uint32_t{uses_.high_codes_[place]} << 8 : 0);
            return code > now_ ? code - now_ : code + uses_.modulus_ - now_;
        }
        // Whether the uses at these places know a next one, and whether it is one step later. Nothing overlaps, so that
        // compilers take several at once.
        void tell_next_step(size_t place, size_t count, uint8_t* __restrict known, uint8_t* __restrict soon) const {
            const uint8_t* __restrict low = uses_.low_codes_.data() + place;
            const auto next_low = static_cast<uint8_t>(next_);
            if (!uses_.wide_) {
                for (size_t i = 0; i < count; ++i) known[i] = low[i] != 0;
                for (size_t i = 0; i < count; ++i) soon[i] = low[i] == next_low;
                return;
            }
            const uint16_t* __restrict high = uses_.high_codes_.data() + place;
            const auto next_high = static_cast<uint16_t>(next_ >> 8);
            for (size_t i = 0; i < count; ++i) known[i] = (low[i] | high[i]) != 0;
            for (size_t i = 0; i < count; ++i) soon[i] = low[i] == next_low && high[i] == next_high;
        }

      private:
        const WindowUses& uses_;
        uint32_t now_, next_;
    };
    Gaps gaps(uint32_t step) const { return {*this, step}; }

    // Where a batch of `count` rows will stand; may throw, and changes nothing that can be seen.
    Batch prepare(size_t count) {
        if (size() + count > MAX_USES) throw std::overflow_error("the window holds more than 2^30 unique rows");
        if (!fits(count)) gather(count);
        return {place_for(count), count, end_use_};
    }

    // The prepared batch becomes the last one of the window; never throws.
    void append(const Batch& prepared) {
        if (!empty() && prepared.place < batch(tail_ - 1).place) {
            wrap_use_ = prepared.first_use;
            wrap_back_ = newest_end();
        }
        batches_[tail_ & (batches_.size() - 1)] = prepared;
        end_use_ += prepared.count;
        std::fill_n(low_codes_.data() + prepared.place, prepared.count, uint8_t{0});
        if (wide_) std::fill_n(high_codes_.data() + prepared.place, prepared.count, uint16_t{0});
        ++tail_;
    }

    void drop_first() {
        ++head_;
        if (empty() || !wrapped()) wrap_use_ = NO_WRAP;
    }

  private:
    static constexpr uint64_t NO_WRAP = UINT64_MAX;

    // The ring of batches has a place for each step of the window, window + 1, and 2^bits in all.
    static unsigned bits(uint32_t window) {
        unsigned b = 0;
        while ((uint64_t{1} << b) < uint64_t{window} + 1) ++b;
        return b;
    }
    bool empty() const { return head_ == tail_; }
    size_t newest_end() const { return batch(tail_ - 1).place + batch(tail_ - 1).count; }
    bool wrapped() const { return batch(tail_ - 1).place < batch(head_).place; }

    // What is written past the codes of the last batch, where nothing is, is thrown away: no branches, nobody could
    // foresee them.
    template <class Code>
    static void note(HugeVector<Code>& codes, const Batch& last, const uint32_t* uses, size_t count, Code code) {
        Code* const of_last = codes.data() + last.place;
        const auto first = static_cast<uint32_t>(last.first_use), size = static_cast<uint32_t>(last.count);
        for (size_t i = 0; i < count; ++i) of_last[std::min(uses[i] - first, size)] = code;
    }

    bool fits(size_t count) const {
        if (empty()) return count <= cells_.size();
        if (wrapped()) return newest_end() + count < batch(head_).place;  // never equal: see wrapped() and note()
        return newest_end() + count <= cells_.size() || count < batch(head_).place;
    }
    // Room beyond the window and the batch that comes: batches are not all of one size, so that the newest one comes
    // nearer to the head now and then. An eighth of the window, and two batches, since in a short window they are all.
    static size_t room(size_t size, size_t count) { return size / 8 + 2 * count; }

    // Back to the beginning not only at the end of the ring, but as soon as there is room enough: memory beyond that is
    // then never touched.
    size_t place_for(size_t count) const {
        if (empty()) return 0;
        const bool enough = batch(head_).place > count + room(size(), count);
        return wrapped() || (newest_end() + count <= cells_.size() && !enough) ? newest_end() : 0;
    }

    // All batches one after the other from the beginning on, in a larger ring only if the present one is too small for
    // the window: where the newest batch has come to the head, most of it may be free.
    void gather(size_t count) {
        const size_t wanted = size() + 2 * count + room(size(), count), now = cells_.size();
        const size_t larger = wanted <= now ? now : std::max(wanted, now + now / 2);
        HugeVector<uint32_t> cells(larger);
        HugeVector<uint8_t> low(larger + 1);
        HugeVector<uint16_t> high(wide_ ? larger + 1 : 0);
        size_t place = 0;
        for (uint32_t step = head_; step != tail_; ++step) {
            Batch& moved = batches_[step & (batches_.size() - 1)];
            std::copy_n(cells_.data() + moved.place, moved.count, cells.data() + place);
            std::copy_n(low_codes_.data() + moved.place, moved.count, low.data() + place);
            if (wide_) std::copy_n(high_codes_.data() + moved.place, moved.count, high.data() + place);
            moved.place = place;
            place += moved.count;
        }
        wrap_use_ = NO_WRAP;
        cells_.swap(cells);
        low_codes_.swap(low);
        high_codes_.swap(high);
    }

    bool wide_;
    uint32_t modulus_;
    std::vector<Batch> batches_;       // ring by step
    HugeVector<uint32_t> cells_;       // ring by use
    HugeVector<uint8_t> low_codes_;    // of the step of the row's next use: bits 0 to 7,
    HugeVector<uint16_t> high_codes_;  // and the others, where the window is long enough to need them
    uint32_t head_ = 0, tail_ = 0;
    uint64_t wrap_use_ = NO_WRAP;  // the first use that stands at the beginning of the ring again
    size_t wrap_back_ = 0;
    uint64_t end_use_ = (uint64_t{1} << 32) - 1000;  // so that every run passes the end of the 32 bits of a link
};

}  // namespace headrace::plan
