// Loops shared out over the threads of a pool. Who does which part changes no result: parts write to places of their
// own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../indexer/thread_pool.hpp"

namespace headrace {

// body(begin, end) over [0, n), in parts of at least `least` items; in the caller alone without a pool.
template <class Body>
inline void parallel_for(ThreadPool* pool, int64_t threads, int64_t n, int64_t least, const Body& body) {
    constexpr int64_t kPartsPerThread = 4;  // so that a thread that was held up does not hold up all
    const int64_t parts = std::min(threads * kPartsPerThread, n / std::max<int64_t>(least, 1));
    if (!pool || threads < 2 || parts < 2) {
        if (n > 0) body(int64_t{0}, n);
        return;
    }
    pool->run(static_cast<std::size_t>(parts), [&](std::size_t part) {
        const int64_t i = static_cast<int64_t>(part);
        body(n * i / parts, n * (i + 1) / parts);
    });
}

// A pool and the number of its threads; one thread without a pool.
struct Workers {
    ThreadPool* pool = nullptr;
    int64_t threads = 1;

    template <class Body>
    void run(int64_t n, int64_t least, const Body& body) const {
        parallel_for(pool, threads, n, least, body);
    }
};

}  // namespace headrace
