// What deduplication needs between batches: tables, threads, reusable scratch, and whether it is still open.
#pragma once

#include <algorithm>
#include <atomic>
#include <shared_mutex>
#include <stdexcept>
#include <string>

#include "batch.hpp"
#include "clock.hpp"
#include "visitors.hpp"

namespace headrace {

class Engine {
  public:
    // `num_shards` 0: deduplication only. `multiplier`: odd, private to this instance; see hashing.hpp.
    Engine(std::vector<TableInfo> tables, std::size_t num_groups, std::size_t num_shards, unsigned num_threads,
           std::uint64_t multiplier)
        : tables_(std::move(tables)),
          num_groups_(num_groups),
          num_shards_(num_shards),
          num_lanes_(lanes(num_shards, at_once(num_threads))),
          shares_lanes_(at_once(num_threads) > 1),
          multiplier_(multiplier),
          pool_(at_once(num_threads)) {}

    // A scratch for one batch; give it back. Never waits for another batch.
    Batch* acquire() {
        std::lock_guard<std::mutex> lock(scratch_mutex_);
        if (free_.empty()) {
            all_.reserve(all_.size() + 1);
            free_.reserve(all_.size() + 1);
            all_.push_back(std::make_unique<Batch>(tables_, num_groups_, multiplier_));
            free_.push_back(all_.back().get());
        }
        Batch* batch = free_.back();
        free_.pop_back();
        // A thread that is alone takes the keys as they come: to deal them out costs it more than it gains.
        const bool alone = !shares_lanes_ && all_.size() - free_.size() == 1;
        batch->begin(alone ? std::min<std::size_t>(num_lanes_, 1) : num_lanes_);
        return batch;
    }

    void release(Batch* batch) {
        std::lock_guard<std::mutex> lock(scratch_mutex_);
        free_.push_back(batch);  // never allocates: room for all was reserved
    }

    void deduplicate(Batch& batch) {
        const auto open = enter();
        const auto begin = Clock::now();
        batch.deduplicate(pool_);
        batch.busy_ms = ms_since(begin);
    }

    void write_unique(Batch& batch) {
        const auto open = enter();
        const auto begin = Clock::now();
        batch.write_unique(pool_);
        batch.busy_ms += ms_since(begin);
    }

    // Held during every call; throws once closed, so that close() waits only for the calls in flight.
    std::shared_lock<Visitors> enter() {
        if (closing_.load()) throw std::runtime_error("the index is closed");
        std::shared_lock<Visitors> lock(life_);
        if (closing_.load()) throw std::runtime_error("the index is closed");
        return lock;
    }

    // Excludes every other call while it is held.
    std::unique_lock<Visitors> enter_alone() {
        if (closing_.load()) throw std::runtime_error("the index is closed");
        std::unique_lock<Visitors> lock(life_);
        if (closing_.load()) throw std::runtime_error("the index is closed");
        return lock;
    }

    // Joins the threads; `then()` runs with no call in flight.
    template <class Then>
    void close(Then&& then) {
        closing_.store(true);
        std::unique_lock<Visitors> lock(life_);
        pool_.stop();
        then();
    }

    bool closed() const { return closing_.load(); }
    const std::vector<TableInfo>& tables() const { return tables_; }
    std::size_t num_groups() const { return num_groups_; }
    std::size_t num_shards() const { return num_shards_; }
    std::size_t num_lanes() const { return num_lanes_; }  // of a batch that is dealt out
    bool shares_lanes() const { return shares_lanes_; }   // whether several threads work on one batch
    std::uint64_t multiplier() const { return multiplier_; }
    ThreadPool& pool() { return pool_; }

    // Of the scratch that no batch holds at this moment.
    std::size_t scratch_nbytes() {
        std::lock_guard<std::mutex> lock(scratch_mutex_);
        std::size_t bytes = 0;
        for (const Batch* batch : free_) bytes += batch->nbytes();
        return bytes;
    }

  private:
    // More threads than cores would only wait for each other: nothing here waits for anything else.
    static unsigned at_once(unsigned num_threads) {
        return std::min(num_threads, std::max(1u, std::thread::hardware_concurrency()));
    }

    // A few for each thread, so that one that comes late finds less to do, and batches can follow each other closely.
    static std::size_t lanes(std::size_t num_shards, unsigned num_threads) {
        std::size_t count = kLanesOfOne;
        while (count < 4 * std::size_t{num_threads}) count *= 2;
        return std::min(count, num_shards);
    }

    static constexpr std::size_t kLanesOfOne = 8;

    const std::vector<TableInfo> tables_;
    const std::size_t num_groups_, num_shards_, num_lanes_;
    const bool shares_lanes_;
    const std::uint64_t multiplier_;
    ThreadPool pool_;
    Visitors life_;
    std::atomic<bool> closing_{false};
    std::mutex scratch_mutex_;
    std::vector<std::unique_ptr<Batch>> all_;
    std::vector<Batch*> free_;
};

}  // namespace headrace
