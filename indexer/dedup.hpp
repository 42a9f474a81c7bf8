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

// A slot of the scratch table: an id and its position + 1, 0 where empty. 8 bytes for 32-bit ids, 16 for 64-bit ones.
template <class Id>
struct ScratchSlot {
    Id id;
    std::uint32_t position_plus_1;
};

// Open addressing at a load of at most 1/2. Memory is kept between batches, but only the part that a batch needs is
// cleared and used: one giant batch does not slow the later ones down. Which unique row is where follows from the order
// of the ids alone, so a private multiplier may spread them here; the full hash is computed later, once for each unique
// id.
template <class Id>
class ScratchTable {
  public:
    explicit ScratchTable(std::uint64_t multiplier) : multiplier_(multiplier) {}

    // Room for `expected` ids before the first growth.
    void begin(std::size_t expected) {
        int bits = kFirstBits;
        while ((std::size_t{1} << bits) < expected * 4) ++bits;
        resize(bits);
        std::fill_n(slots_.begin(), mask_ + 1, ScratchSlot<Id>{});
    }

    // Whether `ids` more than `taken` may need more slots.
    bool lacks_room(std::size_t taken, std::size_t ids) const { return (taken + ids) * 2 > mask_; }

    std::size_t home(Id id) const { return static_cast<std::size_t>(scattered(id, multiplier_) >> shift_); }

    void prefetch(std::size_t home) const { __builtin_prefetch(&slots_[home]); }

    // Position of `id`, whose home is given, or `next` after taking it in.
    std::uint32_t find_or_add(Id id, std::size_t home, std::uint32_t next) {
        ScratchSlot<Id>* const slots = slots_.data();
        for (std::size_t i = home;; i = (i + 1) & mask_) {
            const ScratchSlot<Id> slot = slots[i];
            if (slot.id == id && slot.position_plus_1 != 0) return slot.position_plus_1 - 1;
            if (slot.position_plus_1 != 0) continue;
            slots[i] = {id, next + 1};
            return next;
        }
    }

    // Twice the slots for the first `count` of `ids`, whose order is their position; that at `skip` has no slot.
    void grow(const std::vector<std::uint64_t>& ids, std::size_t count, std::size_t skip) {
        resize(64 - shift_ + 1);
        std::fill_n(slots_.begin(), mask_ + 1, ScratchSlot<Id>{});
        for (std::size_t p = 0; p < count; ++p) {
            const auto id = static_cast<Id>(ids[p]);
            if (p != skip) find_or_add(id, home(id), static_cast<std::uint32_t>(p));
        }
    }

    std::size_t nbytes() const { return slots_.capacity() * sizeof(ScratchSlot<Id>); }

  private:
    static constexpr int kFirstBits = 9;

    void resize(int bits) {
        mask_ = (std::size_t{1} << bits) - 1;
        shift_ = 64 - bits;
        if (slots_.size() <= mask_) slots_.resize(mask_ + 1);
    }

    std::uint64_t multiplier_;
    std::vector<ScratchSlot<Id>> slots_;
    std::size_t mask_ = 0;
    int shift_ = 64;
};

// Unique ids of one table, in order of first appearance.
class TableDedup {
  public:
    explicit TableDedup(std::uint64_t multiplier) : narrow_slots_(multiplier), wide_slots_(multiplier) {}

    // `wide`: a column of the batch has 64-bit ids; `ids` are all that will be added.
    void begin(bool wide, std::size_t ids) {
        wide_ = wide;
        const std::size_t expected = std::min(ids, count_ + count_ / 8);  // as many as in the last batch
        if (wide) {
            wide_slots_.begin(expected);
        } else {
            narrow_slots_.begin(expected);
        }
        count_ = 0;
        missing_at_ = kNone;
    }

    template <class Id>
    void add(const Id* values, const std::uint8_t* missing, std::size_t size, std::uint32_t* query) {
        if (wide_) {
            add_to(wide_slots_, values, missing, size, query);
        } else {
            add_to(narrow_slots_, values, missing, size, query);
        }
    }

    std::size_t size() const { return count_; }
    const std::uint64_t* ids() const { return ids_.data(); }
    std::uint32_t missing_at() const { return missing_at_; }  // or kNone
    std::size_t nbytes() const { return narrow_slots_.nbytes() + wide_slots_.nbytes() + ids_.capacity() * 8; }

  private:
    static constexpr std::size_t kBlock = 128;

    // In blocks: first where each id's search begins, then the searches. So what a search must wait for, a slot of the
    // scratch table or a branch that nobody can foresee, does not hold up the hashing of the ids behind it.
    template <class SlotId, class Id>
    void add_to(ScratchTable<SlotId>& slots, const Id* values, const std::uint8_t* missing, std::size_t size,
                std::uint32_t* query) {
        std::array<std::uint32_t, kBlock> homes;
        for (std::size_t begin = 0; begin < size; begin += kBlock) {
            const std::size_t count = std::min(size - begin, kBlock);
            make_room(slots, count);
            for (std::size_t i = 0; i < count; ++i) {
                homes[i] = static_cast<std::uint32_t>(slots.home(static_cast<SlotId>(values[begin + i])));
                slots.prefetch(homes[i]);
            }
            if (missing == nullptr) {
                search(slots, values + begin, homes, count, query + begin);
            } else {
                search(slots, values + begin, missing + begin, homes, count, query + begin);
            }
        }
    }

    template <class SlotId>
    void make_room(ScratchTable<SlotId>& slots, std::size_t ids) {
        while (slots.lacks_room(count_, ids)) slots.grow(ids_, count_, missing_at_);
        if (ids_.size() < count_ + ids + 1) ids_.resize((count_ + ids) * 2 + 1);
    }

    template <class SlotId, class Id>
    void search(ScratchTable<SlotId>& slots, const Id* values, const std::array<std::uint32_t, kBlock>& homes,
                std::size_t size, std::uint32_t* query) {
        std::uint64_t* const ids = ids_.data();
        auto count = static_cast<std::uint32_t>(count_);
        for (std::size_t i = 0; i < size; ++i) {
            const auto id = static_cast<SlotId>(values[i]);
            const std::uint32_t position = slots.find_or_add(id, homes[i], count);
            query[i] = position;
            ids[count] = id;  // for nothing where the id is known
            count += position == count;
        }
        count_ = count;
    }

    template <class SlotId, class Id>
    void search(ScratchTable<SlotId>& slots, const Id* values, const std::uint8_t* missing,
                const std::array<std::uint32_t, kBlock>& homes, std::size_t size, std::uint32_t* query) {
        for (std::size_t i = 0; i < size; ++i) {
            if (missing[i]) {
                query[i] = position_of_missing();
                continue;
            }
            const auto id = static_cast<SlotId>(values[i]);
            query[i] = slots.find_or_add(id, homes[i], static_cast<std::uint32_t>(count_));
            ids_[count_] = id;
            count_ += query[i] == count_;
        }
    }

    // The missing key stands among the unique ids, with id 0, but has no slot.
    std::uint32_t position_of_missing() {
        if (missing_at_ == kNone) {
            missing_at_ = static_cast<std::uint32_t>(count_);
            ids_[count_++] = 0;
        }
        return missing_at_;
    }

    bool wide_ = false;
    ScratchTable<std::uint32_t> narrow_slots_;
    ScratchTable<std::uint64_t> wide_slots_;
    std::vector<std::uint64_t> ids_;  // the first count_ of them
    std::size_t count_ = 0;
    std::uint32_t missing_at_ = kNone;
};

}  // namespace headrace
