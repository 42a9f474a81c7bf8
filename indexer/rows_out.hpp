// Committed rows on their way out of the index: of a cut, shard by shard, or by route buckets.
#pragma once

#include <algorithm>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cut.hpp"
#include "engine.hpp"
#include "locked_shards.hpp"
#include "use_counts.hpp"

namespace headrace {

// Committed rows, all of equal length.
struct Rows {
    std::vector<std::uint32_t> tables;
    std::vector<std::uint8_t> missing;
    std::vector<std::uint64_t> ids, locations, hashes;
    std::vector<float> weights;  // see UseCounts; empty if nothing was counted

    void resize(std::size_t rows, bool counted) {
        tables.resize(rows);
        missing.resize(rows);
        ids.resize(rows);
        locations.resize(rows);
        hashes.resize(rows);
        weights.resize(counted ? rows : 0);
    }
};

// Lives while it is read: removals and close() wait for it, nothing else does.
class Cut {
  public:
    std::size_t rows() const {
        std::size_t total = 0;
        for (const ShardCut& shard : shards) total += shard.rows();
        return total;
    }

    std::vector<ShardCut> shards;
    std::uint64_t counted_batches = 0;
    std::vector<std::vector<std::vector<float>>> weights;  // by shard and chunk; empty if nothing was counted

  private:
    friend class Dit;
    std::shared_lock<Visitors> open_, stay_;
};

// The uses of the cut's rows, as they are stored: nobody counts meanwhile.
inline void copy_weights(Cut& cut, UseCounts& counts) {
    const std::size_t num_shards = cut.shards.size();
    for (std::size_t s = 0; s < num_shards; ++s) {
        cut.weights.emplace_back();
        const ShardCut& shard = cut.shards[s];
        for (std::size_t k = 0; k < shard.extents().size(); ++k) {
            const auto chunk = static_cast<std::uint32_t>(k * num_shards + s);
            cut.weights.back().push_back(counts.stored(chunk, shard.vacant(k) ? 0 : shard.extents()[k]));
        }
    }
}

class RowReader {
  public:
    RowReader(const Engine& engine, LockedShards& shards, std::uint64_t rank_bits)
        : engine_(engine), shards_(shards), rank_bits_(rank_bits) {}

    // The rows of one shard, in the order of their places.
    void cut_rows(const Cut& cut, std::size_t s, Rows& out) {
        const ShardCut& shard = cut.shards[s];
        out.resize(shard.rows(), !cut.weights.empty());
        const std::uint64_t inverse_multiplier = inverse(engine_.multiplier());
        const auto lock = shards_.lock(s);
        const Chunks& chunks = shards_[s].chunks();
        shards_[s].entries().each([&](const Entry& entry) {
            const std::size_t k = chunks.k_of(entry.place());
            const std::uint32_t offset = place_offset(entry.place());
            if (!shard.has(k, offset)) return;
            const std::size_t row = shard.position(k, offset);
            fill(out, row, entry, unpermuted(entry.hash, inverse_multiplier));
            if (!cut.weights.empty()) out.weights[row] = cut.weights[s][k][offset];
        });
    }

    // The committed rows whose keys' route buckets are in [first, last), in the order of (hash, table, missing). Beside
    // commits and removals each shard is seen before or after.
    Rows bucket_rows(std::uint32_t first, std::uint32_t last) {
        const std::uint64_t inverse_multiplier = inverse(engine_.multiplier());
        std::vector<std::pair<std::uint64_t, Entry>> found;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = shards_.lock(s);
            const Chunks& chunks = shards_[s].chunks();
            shards_[s].entries().each([&](const Entry& entry) {
                const std::uint64_t hash = unpermuted(entry.hash, inverse_multiplier);
                if (route_bucket(hash) < first || route_bucket(hash) >= last) return;
                if (chunks.committed(entry.place())) found.emplace_back(hash, entry);
            });
        }
        std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
            return std::make_pair(a.first, a.second.word & ~kPlaceMask) <
                   std::make_pair(b.first, b.second.word & ~kPlaceMask);
        });
        Rows out;
        out.resize(found.size(), false);
        for (std::size_t row = 0; row < found.size(); ++row) fill(out, row, found[row].second, found[row].first);
        return out;
    }

  private:
    void fill(Rows& out, std::size_t row, const Entry& entry, std::uint64_t hash) const {
        const TableInfo& table = engine_.tables()[entry.table()];
        out.tables[row] = entry.table();
        out.missing[row] = entry.missing();
        out.ids[row] = entry.missing() ? 0 : unmix64_seeded(table.seed, hash);
        out.locations[row] = rank_bits_ | entry.place();
        out.hashes[row] = hash;
    }

    const Engine& engine_;
    LockedShards& shards_;
    const std::uint64_t rank_bits_;
};

}  // namespace headrace
