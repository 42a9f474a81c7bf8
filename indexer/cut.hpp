// What is committed at one moment, to be read shard by shard while batches, commits and undos go on.
#pragma once

#include <map>

#include "shard.hpp"

namespace headrace {

// Of one shard. A place of the cut keeps its row until the row is removed, which waits for the cut: rows of later
// batches go behind the cut's in each chunk, or into its holes, which are noted.
class ShardCut {
  public:
    explicit ShardCut(const Chunks& chunks) {
        for (std::size_t k = 0; k < chunks.size(); ++k) {
            const Chunk& chunk = chunks[k];
            if (chunk.committed == 0) break;  // later chunks hold later rows
            groups_.push_back(chunk.group);
            extents_.push_back(chunk.committed);
            firsts_.push_back(rows_);
            if (!chunk.vacant) rows_ += chunk.committed;
            if (chunk.holes) rows_ -= note_holes(k, *chunk.holes);
        }
        firsts_.push_back(rows_);
    }

    std::size_t rows() const { return rows_; }
    const std::vector<std::uint32_t>& groups() const { return groups_; }
    const std::vector<std::uint32_t>& extents() const { return extents_; }  // places up to the last committed row

    // Whether it has no row of the k-th chunk.
    bool vacant(std::size_t k) const { return firsts_[k] == firsts_[k + 1]; }

    bool has(std::size_t k, std::uint32_t offset) const {
        if (k >= extents_.size() || offset >= extents_[k] || vacant(k)) return false;
        const auto holes = holes_.find(k);
        return holes == holes_.end() || !test_bit(holes->second.bits, offset);
    }

    // Position of a place that it has among its rows, which are in the order of their places.
    std::size_t position(std::size_t k, std::uint32_t offset) const {
        const auto holes = holes_.find(k);
        const std::size_t before = holes == holes_.end() ? 0 : holes->second.before(offset);
        return firsts_[k] + offset - before;
    }

  private:
    struct NotedHoles {
        PlaceBits bits;
        std::array<std::uint32_t, kChunkRows / 64> up_to{};  // holes before each word

        std::size_t before(std::uint32_t offset) const {
            const std::uint64_t below = bits[offset / 64] & ((std::uint64_t{1} << (offset % 64)) - 1);
            return up_to[offset / 64] + static_cast<std::size_t>(__builtin_popcountll(below));
        }
    };

    std::size_t note_holes(std::size_t k, const Holes& holes) {
        NotedHoles noted;
        std::uint32_t count = 0;
        for (std::size_t word = 0; word < noted.bits.size(); ++word) {
            noted.bits[word] = holes.free[word] | holes.provisional[word];
            noted.up_to[word] = count;
            count += static_cast<std::uint32_t>(__builtin_popcountll(noted.bits[word]));
        }
        if (count > 0) holes_.emplace(k, noted);
        return count;
    }

    std::vector<std::uint32_t> groups_, extents_;
    std::vector<std::size_t> firsts_;  // of each chunk the number of rows before it; then that of all
    std::map<std::size_t, NotedHoles> holes_;
    std::size_t rows_ = 0;
};

}  // namespace headrace
