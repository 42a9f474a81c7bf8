// All shards of an index, each under its lock.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "clock.hpp"
#include "shard.hpp"

namespace headrace {

class LockedShards {
  public:
    // `num_shards`: a power of two.
    LockedShards(std::uint32_t num_shards, std::size_t num_groups, PageArena& arena)
        : num_shards_(num_shards), num_groups_(num_groups), arena_(arena) {
        while ((num_shards_ << shard_shift_) < kMaxShards) ++shard_shift_;
    }

    // The next one; all must be there before anything else is asked for.
    Shard& add() {
        auto shard = std::make_unique<Locked>(static_cast<std::uint32_t>(shards_.size()),
                                              static_cast<std::uint32_t>(num_shards_), num_groups_, arena_);
        shards_.push_back(std::move(shard));
        return shards_.back()->shard;
    }
    void add_all() {
        while (shards_.size() < num_shards_) add();
    }
    void drop_last() { shards_.pop_back(); }
    void clear() { shards_.clear(); }
    void swap(LockedShards& other) { shards_.swap(other.shards_); }

    std::size_t size() const { return shards_.size(); }
    bool complete() const { return shards_.size() == num_shards_; }
    std::size_t shard_of(std::uint64_t hash) const { return shard_bits(hash) >> shard_shift_; }

    // To be used under its lock, or where nobody else can change what is read.
    Shard& operator[](std::size_t s) { return shards_[s]->shard; }
    const Shard& operator[](std::size_t s) const { return shards_[s]->shard; }

    std::unique_lock<std::mutex> lock(std::size_t s) {
        Locked& shard = *shards_[s];
        std::unique_lock<std::mutex> lock(shard.mutex, std::try_to_lock);
        if (!lock.owns_lock()) {
            const auto begin = Clock::now();
            lock.lock();
            shard.wait_ms += ms_since(begin);
        }
        return lock;
    }

    // Those of [first, last), locked one after the other in rising order, as everybody does who locks more than one.
    class RangeLock {
      public:
        RangeLock(LockedShards& shards, std::size_t first, std::size_t last)
            : shards_(shards), first_(first), last_(last) {
            for (std::size_t s = first_; s < last_; ++s) shards_.lock(s).release();
        }
        RangeLock(const RangeLock&) = delete;
        RangeLock& operator=(const RangeLock&) = delete;
        ~RangeLock() {
            for (std::size_t s = first_; s < last_; ++s) shards_.shards_[s]->mutex.unlock();
        }

      private:
        LockedShards& shards_;
        const std::size_t first_, last_;
    };

    // `visit(shard)` for one after the other, each under its lock.
    template <class Visit>
    void each(Visit&& visit) {
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            visit(shards_[s]->shard);
        }
    }

    template <class Of>
    std::uint64_t sum(Of&& of) {
        std::uint64_t total = 0;
        each([&](Shard& shard) { total += of(shard); });
        return total;
    }

    // Under the lock of shard `s`: what was looked for there, or in the lane that begins there.
    void count(std::size_t s, const ProbeCounts& probes) { shards_[s]->probes.add(probes); }
    const ProbeCounts& probes(std::size_t s) const { return shards_[s]->probes; }
    double wait_ms(std::size_t s) const { return shards_[s]->wait_ms; }

    // Shards grow between batches, the fullest first, so that hardly one must in the middle: one a batch, or as many as
    // the batch's new rows have earned. Which ones follows from the rows alone, where no other batch adds any.
    void grow_crowded(std::size_t new_rows) {
        std::size_t moved = 0;
        while (moved == 0 || moved < kMovesEarned * new_rows) {
            const std::size_t s = fullest_crowded();
            if (s == shards_.size()) return;
            const auto lock = this->lock(s);
            try {
                shards_[s]->shard.grow();
            } catch (const std::bad_alloc&) {
                return;  // there is time: a shard that has no room left says so itself
            }
            moved += shards_[s]->shard.rows();
        }
    }

  private:
    static constexpr std::size_t kMovesEarned = 4;  // by a new row; growth takes 1 / (1 - 1 / 1.35) = 3.9 at most

    struct Locked {
        Locked(std::uint32_t number, std::uint32_t num_shards, std::size_t num_groups, PageArena& arena)
            : shard(number, num_shards, num_groups, arena) {}
        std::mutex mutex;
        Shard shard;
        ProbeCounts probes;
        double wait_ms = 0;
    };

    std::size_t fullest_crowded() {
        std::size_t fullest = shards_.size();
        double most = 0;
        for (std::size_t s = 0; s < shards_.size(); ++s) {
            const auto lock = this->lock(s);
            const Shard& shard = shards_[s]->shard;
            const double load = static_cast<double>(shard.rows()) / static_cast<double>(shard.capacity());
            if (shard.crowded() && load > most) {
                most = load;
                fullest = s;
            }
        }
        return fullest;
    }

    const std::size_t num_shards_, num_groups_;
    PageArena& arena_;
    int shard_shift_ = 0;
    std::vector<std::unique_ptr<Locked>> shards_;
};

}  // namespace headrace
