// A planner that renews the links of old uses often, beside one that never does: the same plans. For
// -fsanitize=address,undefined.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "check.hpp"
#include "planner.hpp"

namespace headrace::plan {

static void same(const Movement& a, const Movement& b) {
    CHECK(a.evict_locations == b.evict_locations && a.evict_slots == b.evict_slots);
    CHECK(a.fetch_locations == b.fetch_locations && a.fetch_slots == b.fetch_slots);
    CHECK(a.fetch_unique == b.fetch_unique && a.fetch_wait == b.fetch_wait && a.slot_wait == b.slot_wait);
}

static void pop_same(WindowPlanner& often, WindowPlanner& never) {
    const size_t count = never.window_size(0);
    std::vector<int64_t> slots[2] = {std::vector<int64_t>(count), std::vector<int64_t>(count)};
    std::vector<uint8_t> hot[2] = {std::vector<uint8_t>(count), std::vector<uint8_t>(count)},
                         urgent[2] = {hot[0], hot[1]};
    often.pop(slots[0].data(), hot[0].data(), urgent[0].data());
    never.pop(slots[1].data(), hot[1].data(), urgent[1].data());
    CHECK(slots[0] == slots[1] && hot[0] == hot[1] && urgent[0] == urgent[1]);
    CHECK(often.hits == never.hits && often.resident == never.resident);
    same(often.late, never.late);
    same(often.ahead, never.ahead);
    CHECK(often.counters().tracked_rows == never.counters().tracked_rows);
}

// Rows die, are written back, and come again while it matters that they were: few locations, little room.
static void run(std::uint64_t seed, uint32_t window, bool overlap, uint32_t hot_rows) {
    std::mt19937_64 random(seed);
    const auto domain = static_cast<uint32_t>(8 + random() % 120);
    const auto most = static_cast<uint32_t>(1 + random() % (domain / 2));
    const uint32_t capacity = hot_rows + 2 * most + static_cast<uint32_t>(random() % 8), horizon = 2 * (window + 2);
    WindowPlanner often(window, capacity, hot_rows, horizon, overlap),
        never(window, capacity, hot_rows, horizon, overlap);
    often.set_renumber_after(random() % 60);
    std::vector<uint64_t> all(domain);
    for (size_t i = 0; i < domain; ++i) all[i] = i * (seed % 3 == 0 ? 1 : 32);
    if (hot_rows > 0) {
        CHECK(often.set_hot(all.data(), hot_rows) == hot_rows && never.set_hot(all.data(), hot_rows) == hot_rows);
    }
    for (int step = 0; step < 250; ++step) {
        std::shuffle(all.begin() + hot_rows, all.end(), random);
        const auto size = static_cast<long>(random() % (std::min(most, domain - hot_rows) + 1));
        std::vector<uint64_t> batch(all.begin() + hot_rows, all.begin() + hot_rows + size);
        if (hot_rows > 0) batch.push_back(all[random() % hot_rows]);
        if (step % 11 == 5 && !batch.empty()) {  // one that is refused leaves all as it was
            std::vector<uint64_t> twice(batch);
            twice.push_back(batch[0]);
            CHECK(often.push(twice.data(), twice.size()) == DUPLICATE);
            CHECK(never.push(twice.data(), twice.size()) == DUPLICATE);
        }
        CHECK(often.push(batch.data(), batch.size()) == PUSHED && never.push(batch.data(), batch.size()) == PUSHED);
        while (never.ready()) pop_same(often, never);
    }
    often.finish();
    never.finish();
    while (never.ready()) pop_same(often, never);
    CHECK(often.counters().tracked_rows == never.counters().tracked_rows);
}

}  // namespace headrace::plan

int main() {
    for (std::uint64_t seed = 1; seed <= 80; ++seed) {
        for (const uint32_t window : {0u, 1u, 2u, 3u, 6u, 20u})
            headrace::plan::run(seed * 100 + window, window, seed % 4 != 0, seed % 3 == 1 ? 5 : 0);
    }
    std::puts("ok");
}
