// Everything at once, closed in the middle. For -fsanitize=thread.
#include <cfenv>

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
    Dit dit(make_tables(), kGroups, 8, num_threads, 0, kMultiplier, 10);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        std::mt19937_64 random(seed);
        until_closed([&] { run_batch(dit, random_batch(random, 200, 5000), Call::kLookup); });
    });
    threads.emplace_back([&] {
        std::mt19937_64 random(seed + 1);
        until_closed([&] { run_batch(dit, random_batch(random, 200, 5000), Call::kLookup); });
    });
    threads.emplace_back([&] { until_closed([&] { snapshot(dit); }); });
    threads.emplace_back([&] {
        until_closed([&] {
            dit.stats();
            dit.committed_rows();
            dit.chunk_group(1);
            dit.bucket_rows(100, 5000);
        });
    });
    std::mt19937_64 random(seed + 2);
    std::atomic<std::int64_t> newest{-1};
    threads.emplace_back([&] {
        until_closed([&] {
            try {
                commit(dit, newest.load());
            } catch (const std::invalid_argument&) {  // none yet, or committed already, or undone
            }
        });
    });
    threads.emplace_back([&] {  // a second one that inserts: all but the shards side by side
        std::mt19937_64 random(seed + 3);
        until_closed([&] { run_batch(dit, random_batch(random, 300, 5000), Call::kInsert); });
    });
    std::atomic<int> removals{0}, refused{0};
    threads.emplace_back([&] {  // beside all of it: refused while tickets are open
        std::mt19937_64 random(seed + 4);
        until_closed([&] {
            if (dit.engine().closed()) throw std::runtime_error("closed");
            try {
                run_batch(dit, random_batch(random, 200, 5000), Call::kRemove);
                ++removals;
            } catch (const std::runtime_error&) {
                ++refused;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
    });
    for (int i = 0; i < 60; ++i) {
        const Indexed out = run_batch(dit, random_batch(random, 300, 5000), Call::kInsert);
        if (i % 4 == 2) {
            try {
                commit(dit, out.ticket, &out);
            } catch (const std::invalid_argument&) {  // another thread has committed or undone it
            }
        } else if (i % 4 == 3) {
            dit.undo_after(0, true);
        } else {
            newest.store(out.ticket);
        }
        std::vector<float> uses(out.groups[0].locations.size());
        try {
            dit.uses(out.groups[0].locations.data(), uses.size(), uses.data());
        } catch (const std::invalid_argument&) {  // undone, and so is the chunk
        }
    }
    dit.close();
    for (std::thread& thread : threads) thread.join();
    std::printf("%d removals, %d refused\n", removals.load(), refused.load());
    CHECK(removals > 0 || refused > 0);
}

// Rows come and go beside look-ups and cuts: what a cut holds, it holds to the end.
static void come_and_go() {
    Dit dit(make_tables(), kGroups, 8, 2, 0, kMultiplier, 0);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        std::mt19937_64 random(7);
        while (!done) run_batch(dit, random_batch(random, 300, 3000), Call::kLookup);
    });
    threads.emplace_back([&] {
        while (!done) {
            const auto cut = dit.open_cut();
            const Snapshot one = read_cut(dit, *cut), two = read_cut(dit, *cut);
            for (std::size_t s = 0; s < one.shards.size(); ++s) {
                CHECK(one.shards[s].locations == two.shards[s].locations && one.shards[s].ids == two.shards[s].ids);
            }
            dit.bucket_rows(0, 1000);
        }
    });
    std::mt19937_64 random(8);
    int removals = 0;
    for (int i = 0; i < 40; ++i) {
        const Indexed out = run_batch(dit, random_batch(random, 500, 3000), Call::kInsert);
        commit(dit, out.ticket, &out);
        run_batch(dit, random_batch(random, 500, 3000), Call::kRemove);
        ++removals;
    }
    done = true;
    for (std::thread& thread : threads) thread.join();
    CHECK(removals == 40 && dit.stats().free_places > 0);
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

// Whoever does an item rounds as the caller of the job does, who may have changed that since the threads were started.
static void pool_calculates_as_its_caller_does() {
    constexpr std::size_t kThreads = 4;
    ThreadPool pool(kThreads);
    const FloatMode nearest = float_mode();
    volatile float one = 1, three = 3;
    for (const int rounding : {FE_UPWARD, FE_TONEAREST, FE_DOWNWARD}) {
        CHECK(std::fesetround(rounding) == 0);
        const FloatMode mode = float_mode();
        const float third = one / three;
        std::atomic<std::size_t> begun{0}, same{0};
        pool.run(kThreads, [&](std::size_t) {
            ++begun;
            while (begun < kThreads) std::this_thread::yield();  // each thread has one item
            same += float_mode() == mode && (mode == nearest || one / three == third);
        });
        CHECK(same == kThreads && float_mode() == mode);
    }
    std::fesetround(FE_TONEAREST);
}

// A cut that is given up by another thread than the one that opened it: what waits for it goes on.
static void a_cut_may_end_anywhere() {
    Dit dit(make_tables(), kGroups, 8, 2, 0, kMultiplier, 0);
    std::mt19937_64 random(9);
    for (int round = 0; round < 20; ++round) {
        const std::vector<Ids> batch = random_batch(random, 50, 500);
        run_batch(dit, batch, Call::kInsert);
        dit.undo_after(0, true);
        std::unique_ptr<Dit::Cut> cut = dit.open_cut();
        std::thread waits([&] { run_batch(dit, batch, Call::kRemove); });
        std::thread ends([&] { cut.reset(); });
        ends.join();
        waits.join();
    }
    dit.close();
}

}  // namespace headrace

int main() {
    headrace::pool_errors();
    headrace::pool_calculates_as_its_caller_does();
    headrace::hammer(1, 1);
    headrace::hammer(2, 3);
    headrace::come_and_go();
    headrace::a_cut_may_end_anywhere();
    std::puts("ok");
}
