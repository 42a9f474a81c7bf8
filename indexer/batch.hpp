// Scratch and outputs of one batch on its way through deduplication and the shards; reused, so that a warm batch
// allocates nothing.
//
// The unique keys are dealt to lanes of shards, one lane a thread at a time. A single lane takes the keys as they come:
// sorting them first costs one thread more than it gains.
#pragma once

#include <array>

#include "dedup.hpp"
#include "entry.hpp"

namespace headrace {

struct Column {
    std::uint32_t table;
    bool wide;  // uint64 ids, else uint32
    const void* values;
    const std::uint8_t* missing;  // or null
    std::size_t size;
    std::size_t job;
    std::uint32_t next;  // next column of the same table, or kNone
    std::uint32_t* query;
};

// Arrays of one row layout; the caller owns them.
struct GroupOut {
    std::size_t nnz = 0, unique = 0;
    std::uint32_t* query = nullptr;  // [nnz]
    std::uint64_t* ids = nullptr;    // [unique], and so the following
    std::uint8_t* missing = nullptr;
    std::uint64_t* locations = nullptr;
    std::uint8_t* is_new = nullptr;
};

class Batch {
    // One table that occurs in the batch.
    struct Job {
        std::uint32_t table, first, last;  // its columns, chained by Column::next
        bool wide;                         // has a column of 64-bit ids
        std::size_t size;                  // ids in its columns
        std::uint32_t unique = 0, missing_at = kNone;
        std::uint32_t offset = 0;  // of its unique rows in its group's
        std::size_t start = 0;     // of its keys in hashes_ and dealt_
        std::array<std::uint32_t, kMaxShards + 1> begins{};

        // Where the keys of a lane begin among the table's.
        std::uint32_t lane_begin(std::size_t lane) const { return begins[lane]; }
    };

  public:
    Batch(const std::vector<TableInfo>& tables, std::size_t num_groups, std::uint64_t multiplier)
        : tables_(tables), multiplier_(multiplier), groups_(num_groups), job_of_table_(tables.size(), kNone) {
        dedups_.resize(tables.size());
    }

    // --- 1. columns, in the caller's order

    // Keys will be dealt out to `num_lanes` runs of shards, a power of two; none: unique rows only.
    void begin(std::size_t num_lanes) {
        num_lanes_ = num_lanes;
        lane_shift_ = 0;
        while (num_lanes > 0 && (num_lanes << lane_shift_) < kMaxShards) ++lane_shift_;
        for (const Job& job : jobs_) job_of_table_[job.table] = kNone;
        jobs_.clear();
        columns_.clear();
        std::fill(groups_.begin(), groups_.end(), GroupOut{});
    }

    void add_column(std::uint32_t table, bool wide, const void* values, const std::uint8_t* missing, std::size_t size) {
        const auto index = static_cast<std::uint32_t>(columns_.size());
        std::uint32_t& job = job_of_table_[table];
        if (job == kNone) {
            if (!dedups_[table]) dedups_[table] = std::make_unique<TableDedup>(multiplier_);
            jobs_.push_back(Job{table, index, index, wide, size});
            job = static_cast<std::uint32_t>(jobs_.size() - 1);
        } else {
            columns_[jobs_[job].last].next = index;
            jobs_[job].last = index;
            jobs_[job].wide |= wide;
            jobs_[job].size += size;
        }
        columns_.push_back({table, wide, values, missing, size, job, kNone, nullptr});
        groups_[tables_[table].group].nnz += size;
    }

    // --- 2. with `query` of every group set: unique ids of each table, then of each group

    void deduplicate(ThreadPool& pool) {
        place_columns();
        order_jobs_by_cost();
        pool.run(jobs_.size(), [this](std::size_t i) { deduplicate_table(jobs_[cost_order_[i]]); });
        std::size_t keys = 0;
        for (Job& job : jobs_) {
            GroupOut& group = groups_[tables_[job.table].group];
            job.unique = static_cast<std::uint32_t>(dedups_[job.table]->size());
            job.missing_at = dedups_[job.table]->missing_at();
            job.offset = static_cast<std::uint32_t>(group.unique);
            job.start = keys;
            group.unique += job.unique;
            keys += job.unique;
        }
        if (num_lanes_ > 0 && hashes_.size() < keys) hashes_.resize(keys);
        if (num_lanes_ > 1 && dealt_.size() < keys) dealt_.resize(keys);
    }

    // --- 3. with the other arrays set: unique rows out, query ids from table to group, keys hashed and dealt to lanes

    void write_unique(ThreadPool& pool) {
        order_jobs_by_group();
        pool.run(jobs_.size(), [this](std::size_t i) {
            Job& job = jobs_[cost_order_[i]];
            rebase(job);
            write_table(job);
            if (num_lanes_ == 0) return;
            hash_table(job);
            if (num_lanes_ > 1) deal(job);
        });
    }

    // --- 4. the unique keys of a lane, in batch order (group, table, first appearance)

    // Some of one table's.
    struct Keys {
        std::uint64_t key = 0;  // key_bits of those that are not missing
        std::uint32_t group = 0, first_row = 0, missing_at = kNone;
        const std::uint64_t* hashes = nullptr;     // of all of the table's, by position
        const std::uint32_t* positions = nullptr;  // of these; null: they follow each other
        std::uint32_t first = 0;                   // position, where they do
        std::size_t size = 0;

        std::uint32_t position(std::size_t i) const {
            return positions == nullptr ? first + static_cast<std::uint32_t>(i) : positions[i];
        }
        std::uint64_t key_at(std::uint32_t position) const {
            return key | static_cast<std::uint64_t>(position == missing_at) << kMissingBit;
        }
    };

    class Cursor {
      public:
        Cursor(const Batch& batch, std::size_t lane) : batch_(batch), lane_(lane) {}

        // The next ones, at most `most`; none at the end.
        void next(Keys& keys, std::size_t most) {
            keys.size = 0;
            while (i_ == end_) {
                if (ordinal_ == batch_.group_order_.size()) return;
                job_ = &batch_.jobs_[batch_.group_order_[ordinal_++]];
                i_ = job_->lane_begin(lane_);
                end_ = job_->lane_begin(lane_ + 1);
            }
            keys.key = key_bits(job_->table, false);
            keys.group = batch_.tables_[job_->table].group;
            keys.first_row = job_->offset;
            keys.missing_at = job_->missing_at;
            keys.hashes = batch_.hashes_.data() + job_->start;
            keys.positions = batch_.num_lanes_ == 1 ? nullptr : batch_.dealt_.data() + job_->start + i_;
            keys.first = i_;
            keys.size = std::min<std::size_t>(most, end_ - i_);
            i_ += static_cast<std::uint32_t>(keys.size);
        }

      private:
        const Batch& batch_;
        const std::size_t lane_;
        const Job* job_ = nullptr;
        std::size_t ordinal_ = 0;
        std::uint32_t i_ = 0, end_ = 0;
    };

    // As if no key were new, for who inserts the batch once more.
    void forget_new() {
        for (const GroupOut& group : groups_) std::fill_n(group.is_new, group.unique, std::uint8_t{0});
    }

    std::size_t num_lanes() const { return num_lanes_; }
    std::uint64_t multiplier() const { return multiplier_; }
    GroupOut& group(std::size_t g) { return groups_[g]; }
    const GroupOut* groups() const { return groups_.data(); }
    std::size_t num_jobs() const { return jobs_.size(); }
    std::uint32_t job_table(std::size_t j) const { return jobs_[j].table; }
    std::uint32_t job_offset(std::size_t j) const { return jobs_[j].offset; }
    double busy_ms = 0;  // time spent on this batch so far

    std::size_t nbytes() const {
        std::size_t bytes = hashes_.capacity() * 8 + dealt_.capacity() * 4;
        for (const auto& dedup : dedups_) bytes += dedup ? dedup->nbytes() : 0;
        return bytes;
    }

  private:
    void place_columns() {
        group_cursor_.assign(groups_.size(), 0);
        for (Column& column : columns_) {
            const std::uint32_t group = tables_[column.table].group;
            column.query = groups_[group].query + group_cursor_[group];
            group_cursor_[group] += column.size;
        }
    }

    void deduplicate_table(const Job& job) {
        TableDedup& dedup = *dedups_[job.table];
        dedup.begin(job.wide, job.size);
        for (std::uint32_t c = job.first; c != kNone; c = columns_[c].next) {
            const Column& column = columns_[c];
            if (column.wide) {
                dedup.add(static_cast<const std::uint64_t*>(column.values), column.missing, column.size, column.query);
            } else {
                dedup.add(static_cast<const std::uint32_t*>(column.values), column.missing, column.size, column.query);
            }
        }
    }

    void rebase(const Job& job) {
        if (job.offset == 0) return;
        for (std::uint32_t c = job.first; c != kNone; c = columns_[c].next) {
            const Column& column = columns_[c];
            for (std::size_t i = 0; i < column.size; ++i) column.query[i] += job.offset;
        }
    }

    void write_table(const Job& job) {
        const GroupOut& out = groups_[tables_[job.table].group];
        std::copy_n(dedups_[job.table]->ids(), job.unique, out.ids + job.offset);
        std::fill_n(out.missing + job.offset, job.unique, std::uint8_t{0});
        if (job.missing_at != kNone) out.missing[job.offset + job.missing_at] = 1;
        std::fill_n(out.is_new + job.offset, job.unique, std::uint8_t{0});
        if (num_lanes_ == 0) std::fill_n(out.locations + job.offset, job.unique, kAbsent);  // else the lanes will say
    }

    void hash_table(Job& job) {
        const TableInfo& table = tables_[job.table];
        const std::uint64_t* const ids = dedups_[job.table]->ids();
        std::uint64_t* const hashes = hashes_.data() + job.start;
        for (std::uint32_t i = 0; i < job.unique; ++i) hashes[i] = mix64_seeded(table.seed, ids[i]);
        if (job.missing_at != kNone) hashes[job.missing_at] = table.missing_hash;
        job.begins[0] = 0;
        job.begins[1] = job.unique;
    }

    // Positions of the table's keys, lane by lane, in order.
    void deal(Job& job) {
        const std::uint64_t* const hashes = hashes_.data() + job.start;
        std::uint32_t* const dealt = dealt_.data() + job.start;
        std::array<std::uint32_t, kMaxShards> next{};
        for (std::uint32_t i = 0; i < job.unique; ++i) ++next[shard_bits(hashes[i]) >> lane_shift_];
        std::uint32_t begin = 0;
        for (std::size_t lane = 0; lane < num_lanes_; ++lane) {
            job.begins[lane] = begin;
            begin += next[lane];
            next[lane] = job.begins[lane];
        }
        job.begins[num_lanes_] = begin;
        for (std::uint32_t i = 0; i < job.unique; ++i) dealt[next[shard_bits(hashes[i]) >> lane_shift_]++] = i;
    }

    // The tables that will take longest first, by the unique ids that they had in the last batch: so that no thread is
    // left with one when the others are done.
    void order_jobs_by_cost() {
        cost_order_.resize(jobs_.size());
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) cost_order_[j] = j;
        std::sort(cost_order_.begin(), cost_order_.end(), [this](std::uint32_t a, std::uint32_t b) {
            return dedups_[jobs_[a].table]->size() + jobs_[a].size > dedups_[jobs_[b].table]->size() + jobs_[b].size;
        });
    }

    void order_jobs_by_group() {
        group_cursor_.assign(groups_.size() + 1, 0);
        for (const Job& job : jobs_) ++group_cursor_[tables_[job.table].group + 1];
        for (std::size_t g = 1; g < group_cursor_.size(); ++g) group_cursor_[g] += group_cursor_[g - 1];
        group_order_.resize(jobs_.size());
        for (std::uint32_t j = 0; j < jobs_.size(); ++j) {
            group_order_[group_cursor_[tables_[jobs_[j].table].group]++] = j;
        }
    }

    const std::vector<TableInfo>& tables_;
    const std::uint64_t multiplier_;
    std::size_t num_lanes_ = 0;
    std::vector<GroupOut> groups_;
    std::vector<Column> columns_;
    std::vector<Job> jobs_;
    std::vector<std::unique_ptr<TableDedup>> dedups_;  // by table ordinal, made on first use
    std::vector<std::uint64_t> hashes_;                // of the unique keys, table after table
    std::vector<std::uint32_t> dealt_;
    std::vector<std::size_t> group_cursor_;
    std::vector<std::uint32_t> job_of_table_, group_order_, cost_order_;
    int lane_shift_ = 0;
};

}  // namespace headrace
