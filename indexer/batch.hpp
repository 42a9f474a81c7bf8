// Scratch and outputs of one batch on its way through deduplication and the shards; reused, so that a warm batch
// allocates nothing.
#pragma once

#include "dedup.hpp"

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

// One unique key on its way to its shard.
struct Item {
    std::uint64_t hash, id;
    std::uint32_t position;  // in its group's unique rows
    std::uint16_t table;
    std::uint8_t missing;
};

class Batch {
  public:
    Batch(const std::vector<TableInfo>& tables, std::size_t num_groups, std::size_t num_shards,
          std::uint64_t multiplier)
        : tables_(tables),
          multiplier_(multiplier),
          groups_(num_groups),
          shard_start_(num_shards + 1),
          job_of_table_(tables.size(), kNone) {
        dedups_.resize(tables.size());
        while ((num_shards << shard_shift_) < kMaxShards) ++shard_shift_;
    }

    // --- 1. columns, in the caller's order

    void clear() {
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
            jobs_.push_back({table, index, index, 0, wide, size});
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
        pool.run(jobs_.size(), [this](std::size_t j) { deduplicate_table(jobs_[j]); });
        for (Job& job : jobs_) {
            GroupOut& group = groups_[tables_[job.table].group];
            job.offset = static_cast<std::uint32_t>(group.unique);
            group.unique += dedups_[job.table]->size();
        }
    }

    // --- 3. with the other arrays set: unique rows out, query ids from table to group

    void write_unique(ThreadPool& pool) {
        pool.run(columns_.size(), [this](std::size_t c) { rebase(columns_[c]); });
        pool.run(jobs_.size(), [this](std::size_t j) { write_table(jobs_[j]); });
    }

    // --- 4. the unique keys, sorted by shard; within a shard in batch order (group, table, first appearance)

    void sort_by_shard(ThreadPool& pool) {
        order_jobs_by_group();
        const std::size_t num_shards = shard_start_.size() - 1;
        cursors_.assign(jobs_.size() * num_shards, 0);
        std::size_t start = 0;
        for (std::size_t s = 0; s < num_shards; ++s) {
            shard_start_[s] = start;
            for (const std::uint32_t j : group_order_) {
                cursors_[j * num_shards + s] = start;
                start += dedups_[jobs_[j].table]->in_shard(s);
            }
        }
        shard_start_[num_shards] = start;
        if (items_.size() < start) items_.resize(start);
        pool.run(jobs_.size(), [this, num_shards](std::size_t j) { scatter(jobs_[j], &cursors_[j * num_shards]); });
    }

    const Item* shard_begin(std::size_t shard) const { return items_.data() + shard_start_[shard]; }
    const Item* shard_end(std::size_t shard) const { return items_.data() + shard_start_[shard + 1]; }

    GroupOut& group(std::size_t g) { return groups_[g]; }
    const GroupOut* groups() const { return groups_.data(); }
    std::size_t num_jobs() const { return jobs_.size(); }
    std::uint32_t job_table(std::size_t j) const { return jobs_[j].table; }
    std::uint32_t job_offset(std::size_t j) const { return jobs_[j].offset; }
    double busy_ms = 0;  // time spent on this batch so far

    std::size_t nbytes() const {
        std::size_t bytes = items_.capacity() * sizeof(Item) + cursors_.capacity() * 8;
        for (const auto& dedup : dedups_) bytes += dedup ? dedup->nbytes() : 0;
        return bytes;
    }

  private:
    // One table that occurs in the batch.
    struct Job {
        std::uint32_t table, first, last;  // its columns, chained by Column::next
        std::uint32_t offset;              // of its unique rows in its group's
        bool wide;                         // has a column of 64-bit ids
        std::size_t size;                  // ids in its columns
    };

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
        dedup.begin(tables_[job.table], job.wide, job.size);
        for (std::uint32_t c = job.first; c != kNone; c = columns_[c].next) {
            const Column& column = columns_[c];
            if (column.wide) {
                dedup.add(static_cast<const std::uint64_t*>(column.values), column.missing, column.size, column.query);
            } else {
                dedup.add(static_cast<const std::uint32_t*>(column.values), column.missing, column.size, column.query);
            }
        }
        dedup.finish(shard_shift_);
    }

    void rebase(const Column& column) {
        const std::uint32_t offset = jobs_[column.job].offset;
        if (offset == 0) return;
        for (std::size_t i = 0; i < column.size; ++i) column.query[i] += offset;
    }

    void write_table(const Job& job) {
        const TableDedup& dedup = *dedups_[job.table];
        const GroupOut& out = groups_[tables_[job.table].group];
        for (std::size_t i = 0; i < dedup.size(); ++i) {
            out.ids[job.offset + i] = dedup.id(i);
            out.missing[job.offset + i] = i == dedup.missing_at();
        }
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

    void scatter(const Job& job, std::size_t* cursors) {
        const TableDedup& dedup = *dedups_[job.table];
        for (std::uint32_t i = 0; i < dedup.size(); ++i) {
            items_[cursors[dedup.shard(i)]++] = {dedup.hash(i), dedup.id(i), job.offset + i,
                                                 static_cast<std::uint16_t>(job.table), i == dedup.missing_at()};
        }
    }

    const std::vector<TableInfo>& tables_;
    const std::uint64_t multiplier_;
    std::vector<GroupOut> groups_;
    std::vector<Column> columns_;
    std::vector<Job> jobs_;
    std::vector<std::unique_ptr<TableDedup>> dedups_;  // by table ordinal, made on first use
    std::vector<Item> items_;
    std::vector<std::size_t> shard_start_, cursors_, group_cursor_;
    std::vector<std::uint32_t> job_of_table_, group_order_;
    int shard_shift_ = 0;
};

}  // namespace headrace
