// A few threads that share the items of one job at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "float_mode.hpp"

namespace headrace {

class ThreadPool {
  public:
    // `num_threads` counts the caller of run(); 1 starts no thread.
    explicit ThreadPool(unsigned num_threads)
        : spins_(num_threads <= std::thread::hardware_concurrency() ? kSpins : 0) {
        try {
            workers_.reserve(num_threads > 0 ? num_threads - 1 : 0);
            for (unsigned i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
        } catch (...) {
            stop();
            throw;
        }
    }

    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    ~ThreadPool() { stop(); }

    // Calls body(0) .. body(count - 1), in any order, and waits for all. The first exception cancels the items not yet
    // begun and is thrown here. A caller that finds the pool busy does its job alone: it never waits for another's. All
    // calls are made in the floating-point mode that the caller has now, whoever makes them.
    template <class Body>
    void run(std::size_t count, Body&& body) {
        std::unique_lock<std::mutex> job(job_mutex_, std::try_to_lock);
        if (count < 2 || !job.owns_lock() || workers_.empty()) {
            for (std::size_t i = 0; i < count; ++i) body(i);
            return;
        }
        using Plain = std::remove_reference_t<Body>;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            call_ = [](void* context, std::size_t i) { (*static_cast<Plain*>(context))(i); };
            context_ = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
            count_ = count;
            float_mode_ = float_mode();
            next_.store(0, std::memory_order_relaxed);
            active_.store(workers_.size(), std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        start_.notify_all();
        drain();
        spin([this] { return active_.load(std::memory_order_acquire) == 0; });
        std::exception_ptr error;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, [this] { return active_.load(std::memory_order_acquire) == 0; });
            error = error_;
            error_ = nullptr;
        }
        if (error) std::rethrow_exception(error);
    }

    // As many items as a job should have that costs each of them a look at all of the input: the largest power of two
    // not above the number of threads.
    std::size_t shares() const {
        std::size_t shares = 1;
        while (shares * 2 <= workers_.size() + 1) shares *= 2;
        return shares;
    }

    // Waits for a running job, then joins. Later jobs run in their caller. Safe to call twice.
    void stop() noexcept {
        std::lock_guard<std::mutex> job(job_mutex_);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        start_.notify_all();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
    }

  private:
    static constexpr int kSpins = 2000;  // some 20 to 80 microseconds

    void work() {
        std::uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            start_.wait(lock, [&] { return stopping_ || generation_.load(std::memory_order_relaxed) != seen; });
            if (stopping_) return;
            seen = generation_.load(std::memory_order_relaxed);
            const FloatMode mode = float_mode_;
            lock.unlock();
            set_float_mode(mode);
            drain();
            lock.lock();
            if (active_.fetch_sub(1, std::memory_order_release) == 1) done_.notify_one();
            lock.unlock();
            spin([&] { return generation_.load(std::memory_order_acquire) != seen; });
            lock.lock();
        }
    }

    // Looks for a while before it sleeps: a batch is a few jobs of a millisecond, one after the other, and to be woken
    // takes a twentieth of that. Not with more threads than cores, where who looks takes the time of who works.
    template <class Until>
    void spin(Until&& until) const {
        for (int i = 0; i < spins_ && !until(); ++i) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
    }

    void drain() {
        for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
            try {
                call_(context_, i);
            } catch (...) {
                next_.store(count_, std::memory_order_relaxed);
                std::lock_guard<std::mutex> lock(mutex_);
                if (!error_) error_ = std::current_exception();
            }
        }
    }

    const int spins_;
    std::vector<std::thread> workers_;
    std::mutex job_mutex_;  // one job at a time
    std::mutex mutex_;      // guards what follows
    std::condition_variable start_, done_;
    void (*call_)(void*, std::size_t) = nullptr;
    void* context_ = nullptr;
    std::size_t count_ = 0;
    FloatMode float_mode_ = 0;  // of the job's caller
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> active_{0};
    std::atomic<std::uint64_t> generation_{0};
    bool stopping_ = false;
    std::exception_ptr error_;
};

}  // namespace headrace
