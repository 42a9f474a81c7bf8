// The order of batches that are among the shards at the same time: they follow each other through the lanes, and none
// overtakes another. So each shard meets the batches in the order of their tickets, as if there were one at a time.
//
// If one fails, those behind it may have met its rows, or taken the places after theirs: all that are behind stop where
// they are, the failed one undoes what it and they have done, and they begin again with new tickets.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "hashing.hpp"

namespace headrace {

class BatchOrder {
  public:
    // A batch on its way. By who made it: enter(); for each lane of [0, num_lanes) await() and pass(); leave().
    class Way {
      public:
        std::int64_t ticket() const { return ticket_; }

      private:
        friend class BatchOrder;
        std::int64_t ticket_ = -1;
        std::uint64_t epoch_ = 0;
    };

    explicit BatchOrder(std::size_t num_lanes) : num_lanes_(num_lanes) {
        for (auto& turn : turns_) turn.store(0);
    }

    std::size_t num_lanes() const { return num_lanes_; }

    Way enter() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return broken_ < 0; });
        ++inside_;
        Way way;
        way.ticket_ = next_ticket_++;
        way.epoch_ = epoch_;
        return way;
    }

    // Until the batches before have passed the lane. False: one of them has failed, there is nothing to be done here.
    bool await(const Way& way, std::size_t lane) {
        for (int i = 0; i < kSpins && turns_[lane].load(std::memory_order_acquire) != way.ticket_; ++i) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return turns_[lane].load(std::memory_order_relaxed) == way.ticket_; });
        return broken_ < 0 || way.ticket_ < broken_;
    }

    void pass(const Way& way, std::size_t lane) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            turns_[lane].store(way.ticket_ + 1, std::memory_order_release);
        }
        changed_.notify_all();
    }

    void fail(const Way& way) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (broken_ < 0 || way.ticket_ < broken_) broken_ = way.ticket_;
    }

    enum class End { kDone, kFailed, kAgain };

    // After the last lane, and after all batches before. `done()` for a batch that may stay; or else `undo()`, once, by
    // the first that has failed, while all behind it wait here: those are told to begin again. Neither may throw.
    template <class Done, class Undo>
    End leave(const Way& way, Done&& done, Undo&& undo) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++at_the_end_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return epoch_ != way.epoch_ || left_ == way.ticket_; });
        if (epoch_ != way.epoch_) return End::kAgain;
        const bool failed = broken_ == way.ticket_;
        if (failed) changed_.wait(lock, [this] { return at_the_end_ == inside_; });
        lock.unlock();
        if (failed) {
            undo();
        } else {
            done();
        }
        lock.lock();
        if (failed) {
            begin_again(way.ticket_);
        } else {
            left_ = way.ticket_ + 1;
            --inside_;
            --at_the_end_;
        }
        lock.unlock();
        changed_.notify_all();
        return failed ? End::kFailed : End::kDone;
    }

    // The ticket of the batch that enters next.
    std::int64_t next_ticket() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return next_ticket_;
    }

  private:
    static constexpr int kSpins = 1000;  // some 10 to 40 microseconds: a lane takes as long

    // From `ticket` on, with nobody inside.
    void begin_again(std::int64_t ticket) {
        for (auto& turn : turns_) turn.store(ticket, std::memory_order_relaxed);
        next_ticket_ = left_ = ticket;
        inside_ = at_the_end_ = 0;
        broken_ = -1;
        ++epoch_;
    }

    const std::size_t num_lanes_;
    std::mutex mutex_;  // guards what follows, but for looks at the turns
    std::condition_variable changed_;
    std::array<std::atomic<std::int64_t>, kMaxShards> turns_;  // by lane: the ticket that may come
    std::int64_t next_ticket_ = 0, left_ = 0;                  // left_: the ticket that may leave
    std::int64_t broken_ = -1;                                 // the first ticket that has failed, if any
    std::size_t inside_ = 0, at_the_end_ = 0;
    std::uint64_t epoch_ = 0;  // how often batches had to begin again
};

}  // namespace headrace
