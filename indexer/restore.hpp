// Rows on their way back into an index: shard by shard into shards of their own.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "engine.hpp"
#include "locked_shards.hpp"

namespace headrace {

// Not synchronised.
class Restore {
  public:
    Restore(std::uint32_t num_shards, std::size_t num_groups, PageArena& arena, const Engine& engine)
        : engine_(engine), shards_(num_shards, num_groups, arena) {}

    bool begun() const { return shards_.size() > 0; }
    bool complete() const { return shards_.complete(); }
    void clear() { shards_.clear(); }

    // One shard: its chunks' groups and extents, and its rows in the order of their locations, which are checked by the
    // caller to be of those chunks; here that each key belongs to the shard and none comes twice.
    void add_shard(std::size_t s, const std::vector<std::uint32_t>& groups, const std::vector<std::uint32_t>& extents,
                   std::size_t rows, const std::uint32_t* tables, const std::uint8_t* missing, const std::uint64_t* ids,
                   const std::uint64_t* locations) {
        if (s != shards_.size() || shards_.complete()) throw std::invalid_argument("shards are restored in order");
        Shard& fresh = shards_.add();
        try {
            fresh.reserve(rows);
            std::size_t row = 0;
            for (std::size_t k = 0; k < groups.size(); ++k) {
                if (row == rows ||
                    place_chunk(locations[row] & kPlaceMask) != place_chunk(fresh.chunks().place(k, 0))) {
                    fresh.restore_vacant_chunk(groups[k], extents[k]);
                    continue;
                }
                fresh.restore_chunk(groups[k], extents[k]);
                for (std::uint32_t offset = 0; offset < extents[k]; ++offset) {
                    const std::uint64_t place = fresh.chunks().place(k, offset);
                    if (row == rows || (locations[row] & kPlaceMask) != place) {
                        fresh.restore_hole(place);
                    } else {
                        restore_row(fresh, s, row, tables[row], missing[row], ids[row], place);
                        ++row;
                    }
                }
            }
            if (row != rows) throw std::invalid_argument("snapshot rows are not in the order of their locations");
        } catch (...) {
            shards_.drop_last();
            throw;
        }
    }

    // The restored shards take the place of `live`, which go.
    void put_into(LockedShards& live) {
        live.swap(shards_);
        shards_.clear();
    }

  private:
    void restore_row(Shard& shard, std::size_t s, std::size_t row, std::uint32_t table_ordinal, bool missing,
                     std::uint64_t id, std::uint64_t place) {
        const TableInfo& table = engine_.tables()[table_ordinal];
        const std::uint64_t hash = missing ? table.missing_hash : mix64_seeded(table.seed, id);
        const auto refuse = [&](const char* why) {
            throw std::invalid_argument("snapshot row " + std::to_string(row) + " of shard " + std::to_string(s) + why);
        };
        if (shards_.shard_of(hash) != s) refuse(" has a key that does not belong there");
        const Probe key{permuted(hash, engine_.multiplier()), key_bits(table_ordinal, missing)};
        if (!shard.put(key, place)) refuse(" repeats the key of another row");
    }

    const Engine& engine_;
    LockedShards shards_;
};

}  // namespace headrace
