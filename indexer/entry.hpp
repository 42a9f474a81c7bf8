// The 16-byte entry of the index, and the memory that holds a shard's entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "hashing.hpp"
#include "page_arena.hpp"

namespace headrace {

constexpr int kOffsetBits = 14;
constexpr int kChunkBits = 32;
constexpr int kPlaceBits = kOffsetBits + kChunkBits;
constexpr std::uint32_t kChunkRows = 1u << kOffsetBits;
constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kPlaceBits) - 1;
constexpr int kMissingBit = 62;
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

// hash = the key's permuted hash, which stands for its id: both can be had back, see hashing.hpp.
// word = occupied 1 | missing 1 | table ordinal 16 | chunk 32 | offset 14. A location has the owner's rank where the
// ordinal stands here and the tier in the two top bits. An empty entry is all zeros: no id is taken for it.
struct Entry {
    std::uint64_t hash, word;

    bool occupied() const { return word >> 63; }
    bool missing() const { return word >> kMissingBit & 1; }
    std::uint32_t table() const { return static_cast<std::uint32_t>(word >> kPlaceBits) & 0xFFFF; }
    std::uint64_t place() const { return word & kPlaceMask; }
    bool is(std::uint64_t of_hash, std::uint64_t key) const { return hash == of_hash && (word & ~kPlaceMask) == key; }
};

inline std::uint32_t place_chunk(std::uint64_t place) { return static_cast<std::uint32_t>(place >> kOffsetBits); }
inline std::uint32_t place_offset(std::uint64_t place) { return static_cast<std::uint32_t>(place) & (kChunkRows - 1); }

// The bits of `word` that belong to the key.
inline std::uint64_t key_bits(std::uint32_t table, bool missing) {
    return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(missing) << kMissingBit |
           static_cast<std::uint64_t>(table) << kPlaceBits;
}

inline std::uint64_t place_bits(std::uint32_t chunk, std::uint32_t offset) {
    return static_cast<std::uint64_t>(chunk) << kOffsetBits | offset;
}

// Entries aligned to cache lines, so that four share one; large arrays are of the arena. Not zeroed.
class EntryArray {
  public:
    EntryArray() = default;
    EntryArray(std::size_t size, PageArena& arena) : size_(size), arena_(&arena) {
        if (wanted() >= PageArena::kLeast) entries_ = static_cast<Entry*>(arena.allocate(wanted()));
        if (entries_ == nullptr && wanted() >= PageArena::kMost) throw std::bad_alloc();
        if (entries_ == nullptr) entries_ = static_cast<Entry*>(::operator new(wanted(), kAlignment));
    }
    EntryArray(EntryArray&& other) noexcept { swap(other); }
    EntryArray& operator=(EntryArray&& other) noexcept {
        swap(other);
        return *this;
    }
    ~EntryArray() {
        if (entries_ == nullptr) return;
        if (is_arenas()) {
            arena_->release(entries_, wanted());
        } else {
            ::operator delete(entries_, kAlignment);
        }
    }

    void swap(EntryArray& other) noexcept {
        std::swap(entries_, other.entries_);
        std::swap(size_, other.size_);
        std::swap(arena_, other.arena_);
    }

    void clear(std::size_t begin, std::size_t end) {
        std::memset(static_cast<void*>(entries_ + begin), 0, (end - begin) * sizeof(Entry));
    }

    Entry& operator[](std::size_t i) { return entries_[i]; }
    const Entry& operator[](std::size_t i) const { return entries_[i]; }
    std::size_t size() const { return size_; }
    // Bytes allocated, those that the arena counts itself aside.
    std::size_t nbytes() const {
        if (wanted() >= PageArena::kMost) return PageArena::whole_pages(wanted());
        return is_arenas() ? 0 : wanted();
    }

  private:
    static constexpr std::align_val_t kAlignment{64};

    std::size_t wanted() const { return size_ * sizeof(Entry); }
    bool is_arenas() const { return wanted() >= PageArena::kMost || (entries_ != nullptr && arena_->owns(entries_)); }

    Entry* entries_ = nullptr;
    std::size_t size_ = 0;
    PageArena* arena_ = nullptr;
};

}  // namespace headrace
