// Many visitors or one who is alone, where the one who leaves need not be the thread that came.
//
// std::shared_mutex would do but for that: what reads a snapshot may be given up by a garbage collector in any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace headrace {

// Who wants to be alone is given way to for a moment, and no longer: a visitor may be the one that is waited for, and come
// in again.
class Visitors {
  public:
    void lock_shared() {
        std::unique_lock<std::mutex> lock(mutex_);
        // By the system's clock, since thread sanitizers know that wait alone.
        if (waiting_ > 0) {
            changed_.wait_until(lock, std::chrono::system_clock::now() + kMoment, [this] { return waiting_ == 0; });
        }
        changed_.wait(lock, [this] { return !alone_; });
        ++inside_;
    }
    void unlock_shared() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (--inside_ == 0) changed_.notify_all();
    }
    void lock() {
        std::unique_lock<std::mutex> lock(mutex_);
        ++waiting_;
        changed_.wait(lock, [this] { return inside_ == 0 && !alone_; });
        --waiting_;
        alone_ = true;
    }
    void unlock() {
        const std::lock_guard<std::mutex> lock(mutex_);
        alone_ = false;
        changed_.notify_all();
    }

  private:
    static constexpr std::chrono::milliseconds kMoment{10};

    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t inside_ = 0, waiting_ = 0;
    bool alone_ = false;
};

}  // namespace headrace
