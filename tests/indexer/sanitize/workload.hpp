// Batches for the sanitized runs: the calls that the Cython face makes, with buffers of exactly the right size.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

#include "check.hpp"
#include "dit.hpp"

namespace headrace {

constexpr std::size_t kGroups = 3;
constexpr std::uint64_t kMultiplier = 0x9E37'79B9'7F4A'7C15u;

inline std::vector<TableInfo> make_tables() {
    return {make_table(11, 0), make_table(12, 1), make_table(13, 0), make_table(14, 2)};
}

struct Ids {
    std::uint32_t table = 0;
    std::vector<std::uint64_t> wide;
    std::vector<std::uint32_t> narrow;
    std::vector<std::uint8_t> missing;  // empty: none is
    std::size_t size() const { return wide.size() + narrow.size(); }
};

inline std::vector<Ids> random_batch(std::mt19937_64& random, std::size_t most_ids, std::uint64_t id_range) {
    std::vector<Ids> batch(random() % 6);
    for (Ids& ids : batch) {
        ids.table = static_cast<std::uint32_t>(random() % 4);
        const std::size_t size = random() % (most_ids + 1);
        const bool wide = random() % 2;
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t id = random() % id_range;
            if (wide) ids.wide.push_back(id % 7 == 0 ? ~id : id);
            if (!wide) ids.narrow.push_back(static_cast<std::uint32_t>(id));
            if (ids.table != 1) ids.missing.push_back(random() % 50 == 0);
        }
    }
    return batch;
}

struct GroupArrays {
    std::vector<std::uint32_t> query;
    std::vector<std::uint64_t> ids, locations;
    std::vector<std::uint8_t> missing, is_new;
};

struct Indexed {
    std::vector<GroupArrays> groups{kGroups};
    std::vector<std::uint32_t> tables;  // of the unique rows, group after group
    std::int64_t ticket = -1;
};

inline void nothing() {}

enum class Call { kInsert, kLookup, kRemove };

inline Indexed run_batch(Dit& dit, const std::vector<Ids>& columns, Call call, void (*before_call)() = nothing) {
    Engine& engine = dit.engine();
    struct Held {
        Engine& engine;
        Batch* batch;
        ~Held() { engine.release(batch); }
    } held{engine, engine.acquire()};
    Batch& batch = *held.batch;
    Indexed out;
    for (const Ids& ids : columns) {
        const bool wide = !ids.wide.empty();
        const void* values = wide ? static_cast<const void*>(ids.wide.data()) : ids.narrow.data();
        batch.add_column(ids.table, wide, values, ids.missing.empty() ? nullptr : ids.missing.data(), ids.size());
    }
    for (std::size_t g = 0; g < kGroups; ++g) {
        out.groups[g].query.resize(batch.group(g).nnz);
        batch.group(g).query = out.groups[g].query.data();
    }
    engine.deduplicate(batch);
    for (std::size_t g = 0; g < kGroups; ++g) {
        GroupOut& group = batch.group(g);
        GroupArrays& arrays = out.groups[g];
        arrays.ids.resize(group.unique);
        arrays.locations.resize(group.unique);
        arrays.missing.resize(group.unique);
        arrays.is_new.resize(group.unique);
        group.ids = arrays.ids.data();
        group.locations = arrays.locations.data();
        group.missing = arrays.missing.data();
        group.is_new = arrays.is_new.data();
    }
    engine.write_unique(batch);
    for (std::size_t g = 0; g < kGroups; ++g) {
        std::size_t rows = 0;
        for (std::size_t j = 0; j < batch.num_jobs(); ++j) {
            if (engine.tables()[batch.job_table(j)].group != g) continue;
            std::size_t end = batch.group(g).unique;
            for (std::size_t after = j + 1; after < batch.num_jobs(); ++after) {
                if (engine.tables()[batch.job_table(after)].group != g) continue;
                end = batch.job_offset(after);
                break;
            }
            for (; rows < end; ++rows) out.tables.push_back(batch.job_table(j));
        }
    }
    before_call();
    if (call == Call::kInsert) out.ticket = dit.insert(batch);
    if (call == Call::kLookup) dit.lookup(batch);
    if (call == Call::kRemove) dit.remove(batch);
    return out;
}

// The batch's rows count as used.
inline void commit(Dit& dit, std::int64_t ticket, const Indexed* used = nullptr) {
    std::vector<const std::uint64_t*> locations;
    std::vector<std::size_t> sizes;
    for (std::size_t g = 0; used != nullptr && g < kGroups; ++g) {
        locations.push_back(used->groups[g].locations.data());
        sizes.push_back(used->groups[g].locations.size());
    }
    dit.commit(ticket, locations, sizes);
}

// The committed rows, as a snapshot takes them: of each shard in the order of the locations.
struct Snapshot {
    std::vector<Rows> shards;
    std::vector<std::vector<std::uint32_t>> groups, extents;
    std::uint64_t counted_batches = 0;

    std::size_t rows() const {
        std::size_t total = 0;
        for (const Rows& shard : shards) total += shard.ids.size();
        return total;
    }
};

inline Snapshot read_cut(Dit& dit, const Dit::Cut& cut) {
    Snapshot out;
    out.counted_batches = cut.counted_batches;
    for (std::size_t s = 0; s < cut.shards.size(); ++s) {
        out.groups.push_back(cut.shards[s].groups());
        out.extents.push_back(cut.shards[s].extents());
        out.shards.emplace_back();
        Rows& rows = out.shards.back();
        dit.cut_rows(cut, s, rows);
        for (std::size_t i = 1; i < rows.locations.size(); ++i) CHECK(rows.locations[i - 1] < rows.locations[i]);
        CHECK(rows.ids.size() == cut.shards[s].rows());
    }
    CHECK(out.rows() == cut.rows());
    return out;
}

inline Snapshot snapshot(Dit& dit) {
    const auto cut = dit.open_cut();
    return read_cut(dit, *cut);
}

inline void restore(Dit& dit, const Snapshot& from) {
    std::vector<std::uint64_t> locations;
    std::vector<float> weights;
    for (std::size_t s = 0; s < from.shards.size(); ++s) {
        const Rows& rows = from.shards[s];
        dit.restore_shard(s, from.groups[s], from.extents[s], rows.ids.size(), rows.tables.data(), rows.missing.data(),
                          rows.ids.data(), rows.locations.data());
        locations.insert(locations.end(), rows.locations.begin(), rows.locations.end());
        weights.insert(weights.end(), rows.weights.begin(), rows.weights.end());
    }
    if (from.counted_batches == 0) locations.clear();
    dit.finish_restore(from.counted_batches, locations.data(), weights.data(), locations.size());
}

}  // namespace headrace
