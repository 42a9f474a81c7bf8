// Everything at once, closed in the middle. For -fsanitize=thread.
#include "workload.hpp"

namespace headrace {

template <class Call>
static void until_closed(Call&& call) {
    try {
        while (true) call();
    } catch (const std::runtime_error&) {
    }
}

static void hammer(std::uint64_t seed, unsigned num_threads) {
    Dit dit(make_tables(), kGroups, 8, num_threads, 0, kMultiplier);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        std::mt19937_64 random(seed);
        until_closed([&] { run_batch(dit, random_batch(random, 200, 5000), false); });
    });
    threads.emplace_back([&] {
        std::mt19937_64 random(seed + 1);
        until_closed([&] { run_batch(dit, random_batch(random, 200, 5000), false); });
    });
    threads.emplace_back([&] { until_closed([&] { snapshot(dit); }); });
    threads.emplace_back([&] {
        until_closed([&] {
            dit.stats();
            dit.committed_rows();
            dit.chunk_group(1);
        });
    });
    std::mt19937_64 random(seed + 2);
    std::atomic<std::int64_t> newest{-1};
    threads.emplace_back([&] {
        until_closed([&] {
            try {
                dit.commit(newest.load());
            } catch (const std::invalid_argument&) {  // none yet, or committed already, or undone
            }
        });
    });
    threads.emplace_back([&] {  // a second one that inserts: all but the shards side by side
        std::mt19937_64 random(seed + 3);
        until_closed([&] { run_batch(dit, random_batch(random, 300, 5000), true); });
    });
    for (int i = 0; i < 60; ++i) {
        const Indexed out = run_batch(dit, random_batch(random, 300, 5000), true);
        if (i % 4 != 3) newest.store(out.ticket);
        if (i % 4 == 3) dit.undo_after(0, true);
    }
    dit.close();
    for (std::thread& thread : threads) thread.join();
}

static void pool_errors() {
    ThreadPool pool(3);
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> sum{0};
        pool.run(100, [&](std::size_t i) { sum += static_cast<int>(i); });
        CHECK(sum == 4950);
        bool thrown = false;
        try {
            pool.run(100, [&](std::size_t i) {
                if (i == 40) throw std::invalid_argument("forty");
            });
        } catch (const std::invalid_argument&) {
            thrown = true;
        }
        CHECK(thrown);
    }
    pool.stop();
    pool.stop();
    int calls = 0;
    pool.run(5, [&](std::size_t) { ++calls; });  // by the caller alone
    CHECK(calls == 5);
}

}  // namespace headrace

int main() {
    headrace::pool_errors();
    headrace::hammer(1, 1);
    headrace::hammer(2, 3);
    std::puts("ok");
}
