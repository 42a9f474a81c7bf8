// A planner whose memory runs out in set_hot and push, beside one whose memory does not. For
// -fsanitize=address,undefined.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "check.hpp"
#include "failing_memory.hpp"
#include "planner.hpp"

namespace headrace::plan {

static void same(const Movement& a, const Movement& b) {
    CHECK(a.evict_locations == b.evict_locations && a.evict_slots == b.evict_slots);
    CHECK(a.fetch_locations == b.fetch_locations && a.fetch_slots == b.fetch_slots);
    CHECK(a.fetch_unique == b.fetch_unique && a.fetch_wait == b.fetch_wait && a.slot_wait == b.slot_wait);
}

struct Rows {
    std::vector<int64_t> slots;
    std::vector<uint8_t> hot, urgent;
};
static Rows pop(WindowPlanner& planner) {
    const size_t count = planner.window_size(0);
    Rows rows{std::vector<int64_t>(count), std::vector<uint8_t>(count), std::vector<uint8_t>(count)};
    planner.pop(rows.slots.data(), rows.hot.data(), rows.urgent.data());
    return rows;
}

constexpr uint32_t HOT = 300;

// What a batch of `refused` rows has left free is used for hot rows, more or fewer of them. Returns how often memory
// ran out.
static int set_hot(WindowPlanner& failing, WindowPlanner& plain, size_t refused) {
    std::vector<uint64_t> batch(refused), hot(HOT);
    for (size_t i = 0; i < batch.size(); ++i) batch[i] = i * 997;
    batch.push_back(batch.front());
    for (size_t i = 0; i < hot.size(); ++i) hot[i] = (i * 7919 % HOT) * 977;
    for (WindowPlanner* planner : {&failing, &plain}) {
        CHECK(planner->push(batch.data(), batch.size()) == DUPLICATE);
        std::vector<uint64_t> twice(hot);
        twice[200] = twice[100];
        twice[250] = twice[3];
        CHECK(planner->set_hot(twice.data(), twice.size()) == 200);
        CHECK(planner->counters().tracked_rows == 0);
    }
    CHECK(plain.set_hot(hot.data(), hot.size()) == HOT);
    int failures = 0;
    for (long allowed = 0;; ++allowed) {
        allocations_left = allowed;
        try {
            const size_t done = failing.set_hot(hot.data(), hot.size());
            allocations_left = -1;
            CHECK(done == HOT);
            break;
        } catch (const std::bad_alloc&) {
            allocations_left = -1;
            ++failures;
        }
        CHECK(failing.counters().tracked_rows == 0);
    }
    return failures;
}

// Batches grow, so that every buffer has to; some are refused for a duplicate. Returns how often memory ran out.
static int run(std::uint64_t seed, uint32_t window) {
    std::mt19937_64 random(seed);
    WindowPlanner failing(window, 9000, HOT, 2 * (window + 2)), plain(window, 9000, HOT, 2 * (window + 2));
    failing.set_renumber_after(5000);  // often, beside a planner that never does
    int failures = set_hot(failing, plain, window == 0 ? 400 : 100);
    CHECK(failures >= 2);
    for (int step = 0; step < 60; ++step) {
        std::vector<uint64_t> batch(static_cast<size_t>(step) * 50 + 1);
        const uint64_t first = random() % 20000;
        for (size_t i = 0; i < batch.size(); ++i) batch[i] = (first + i) * 977;
        if (step % 7 == 3) batch.back() = batch.front();
        const PushResult expected = plain.push(batch.data(), batch.size());
        for (long allowed = 0;; ++allowed) {
            const Counters before = failing.counters();
            allocations_left = allowed;
            try {
                const PushResult result = failing.push(batch.data(), batch.size());
                allocations_left = -1;
                CHECK(result == expected);
                break;
            } catch (const std::bad_alloc&) {
                allocations_left = -1;
                ++failures;
            }
            const Counters after = failing.counters();
            CHECK(after.tracked_rows == before.tracked_rows && after.window_rows == before.window_rows);
            CHECK(after.rows_needed == before.rows_needed && after.peak_window_rows == before.peak_window_rows);
            CHECK(after.nbytes >= before.nbytes && after.nbytes < before.nbytes + 4'000'000);  // buffers are kept
            CHECK(failing.window_steps() + (expected == PUSHED) == plain.window_steps());
        }
        if (!plain.ready()) continue;
        const Rows expected_rows = pop(plain), rows = pop(failing);
        CHECK(expected_rows.slots == rows.slots && expected_rows.hot == rows.hot &&
              expected_rows.urgent == rows.urgent);
        CHECK(plain.hits == failing.hits && plain.resident == failing.resident);
        same(plain.late, failing.late);
        same(plain.ahead, failing.ahead);
    }
    CHECK(plain.counters().tracked_rows == failing.counters().tracked_rows);
    CHECK(failing.counters().nbytes < 20'000'000);
    return failures;
}

}  // namespace headrace::plan

int main() {
    int failures = 0;
    for (const uint32_t window : {0u, 1u, 5u}) failures += headrace::plan::run(window + 1, window);
    std::printf("memory ran out %d times\n", failures);
    CHECK(failures > 30);
    std::puts("ok");
}
