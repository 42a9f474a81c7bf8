// The rows of one shard: chunks of 16,384 that fill in order, and the places in them that removed rows have left.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#include "entry.hpp"

namespace headrace {

using PlaceBits = std::array<std::uint64_t, kChunkRows / 64>;

inline bool test_bit(const PlaceBits& bits, std::uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
inline void set_bit(PlaceBits& bits, std::uint32_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
inline void clear_bit(PlaceBits& bits, std::uint32_t i) { bits[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }

// Of a chunk from which rows have been removed.
struct Holes {
    PlaceBits free{};         // no row is there
    PlaceBits provisional{};  // a row that is not committed yet has taken the place again
    std::uint32_t num_free = 0;
};

// The k-th chunk that a shard takes has the number k * num_shards + shard. Rows fill it in order: its first `committed`
// of `rows` places are permanent and the others provisional; holes are among the permanent ones.
struct Chunk {
    std::uint32_t group;
    std::uint32_t rows;
    std::uint32_t committed;
    bool vacant;            // restored without a row: all its places are free, and holes come when the first is taken
    std::int64_t previous;  // this shard's last chunk of the same group, or -1
    std::unique_ptr<Holes> holes;
};

// Not synchronised. A new row takes the lowest free place of its group, or else the next one of its group's last chunk:
// where it goes follows from which places are taken, not from the order in which they became free.
class Chunks {
  public:
    Chunks(std::uint32_t shard, std::uint32_t num_shards, std::size_t num_groups)
        : shard_(shard), num_shards_(num_shards), groups_(num_groups) {
        while ((1u << shift_) < num_shards) ++shift_;
    }

    // The place of a new row, provisional. May throw, and then changes nothing.
    std::uint64_t take(std::uint32_t group) {
        Group& own = groups_[group];
        if (own.num_free > 0) return take_hole(own);
        std::int64_t k = own.last;
        if (k < 0 || chunks_[static_cast<std::size_t>(k)].rows == kChunkRows) k = append(group);
        return place(static_cast<std::size_t>(k), chunks_[static_cast<std::size_t>(k)].rows++);
    }

    // Takes back the newest of the provisional rows. A chunk that becomes empty is the last one taken.
    void give_back(std::uint64_t at) noexcept {
        const std::uint32_t offset = place_offset(at);
        Chunk& chunk = chunks_[k_of(at)];
        if (chunk.holes && test_bit(chunk.holes->provisional, offset)) {
            clear_bit(chunk.holes->provisional, offset);
            open_hole(k_of(at), offset);
        } else if (--chunk.rows == 0) {
            groups_[chunk.group].last = chunk.previous;
            chunks_.pop_back();
        }
    }

    void commit(std::uint64_t at) noexcept {
        Chunk& chunk = chunks_[k_of(at)];
        if (chunk.holes && test_bit(chunk.holes->provisional, place_offset(at))) {
            clear_bit(chunk.holes->provisional, place_offset(at));
        } else {
            ++chunk.committed;
        }
    }

    bool committed(std::uint64_t at) const {
        const Chunk& chunk = chunks_[k_of(at)];
        return place_offset(at) < chunk.committed &&
               !(chunk.holes && test_bit(chunk.holes->provisional, place_offset(at)));
    }

    // Frees the place of a committed row. May throw bad_alloc, and then changes nothing.
    void free(std::uint64_t at) {
        Chunk& chunk = chunks_[k_of(at)];
        if (!chunk.holes) {
            chunk.holes = std::make_unique<Holes>();
            ++with_holes_;
        }
        open_hole(k_of(at), place_offset(at));
    }

    // --- restore: chunks in the order in which they were taken, all committed, all their places free until taken

    void restore_chunk(std::uint32_t group, std::uint32_t rows) {
        const std::int64_t k = append(group);
        chunks_[static_cast<std::size_t>(k)].rows = chunks_[static_cast<std::size_t>(k)].committed = rows;
    }

    // One of whose places none will be taken: it costs no memory but its own line, so that a snapshot that names many
    // costs no more than it takes itself.
    void restore_vacant_chunk(std::uint32_t group, std::uint32_t rows) {
        restore_chunk(group, rows);
        chunks_.back().vacant = true;
        groups_[group].num_free += rows;
        groups_[group].first_hole = std::min(groups_[group].first_hole, chunks_.size() - 1);
    }

    std::uint64_t place(std::size_t k, std::uint32_t offset) const {
        return static_cast<std::uint64_t>((static_cast<std::uint32_t>(k) << shift_) + shard_) << kOffsetBits | offset;
    }
    std::size_t k_of(std::uint64_t at) const { return place_chunk(at) >> shift_; }

    std::uint64_t num_free() const {
        std::uint64_t total = 0;
        for (const Group& group : groups_) total += group.num_free;
        return total;
    }

    std::size_t size() const { return chunks_.size(); }
    const Chunk& operator[](std::size_t k) const { return chunks_[k]; }
    std::size_t nbytes() const {
        return chunks_.capacity() * sizeof(Chunk) + with_holes_ * sizeof(Holes) + groups_.capacity() * sizeof(Group);
    }

  private:
    struct Group {
        std::int64_t last = -1;      // its last chunk
        std::uint64_t num_free = 0;  // holes in its chunks
        std::size_t first_hole = 0;  // no chunk before has one
    };

    std::int64_t append(std::uint32_t group) {
        const std::size_t k = chunks_.size();
        if (k > (0xFFFF'FFFFu - shard_) / num_shards_) {
            throw std::overflow_error("all 2^32 chunk numbers of the index are in use");
        }
        chunks_.push_back({group, 0, 0, false, groups_[group].last, nullptr});
        groups_[group].last = static_cast<std::int64_t>(k);
        return groups_[group].last;
    }

    std::uint64_t take_hole(Group& group) {
        const auto own = static_cast<std::uint32_t>(&group - groups_.data());
        std::size_t& k = group.first_hole;
        while (chunks_[k].group != own || !has_hole(chunks_[k])) ++k;
        if (chunks_[k].vacant) open_all_holes(chunks_[k]);
        Holes& holes = *chunks_[k].holes;
        std::size_t word = 0;
        while (holes.free[word] == 0) ++word;
        const auto offset =
            static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(holes.free[word])));
        clear_bit(holes.free, offset);
        set_bit(holes.provisional, offset);
        --holes.num_free;
        --group.num_free;
        return place(k, offset);
    }

    static bool has_hole(const Chunk& chunk) {
        return chunk.vacant || (chunk.holes != nullptr && chunk.holes->num_free > 0);
    }

    // May throw bad_alloc, and then changes nothing.
    void open_all_holes(Chunk& chunk) {
        chunk.holes = std::make_unique<Holes>();
        chunk.holes->num_free = chunk.rows;
        for (std::uint32_t offset = 0; offset < chunk.rows; ++offset) set_bit(chunk.holes->free, offset);
        chunk.vacant = false;
        ++with_holes_;
    }

    void open_hole(std::size_t k, std::uint32_t offset) noexcept {
        Group& group = groups_[chunks_[k].group];
        set_bit(chunks_[k].holes->free, offset);
        ++chunks_[k].holes->num_free;
        ++group.num_free;
        group.first_hole = std::min(group.first_hole, k);
    }

    const std::uint32_t shard_, num_shards_;
    int shift_ = 0;
    std::vector<Chunk> chunks_;
    std::vector<Group> groups_;
    std::size_t with_holes_ = 0;
};

}  // namespace headrace
