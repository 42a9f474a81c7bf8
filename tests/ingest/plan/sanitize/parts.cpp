// The planner's page index against a map, and its flags against a loop. For -fsanitize=address,undefined; built with
// and without what processors of x86 have.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <unordered_map>
#include <vector>

#include "check.hpp"
#include "lot_flags.hpp"
#include "page_index.hpp"

namespace headrace::plan {

static void flags(std::mt19937_64& random) {
    for (int share = 0; share <= 4; ++share) {
        for (int round = 0; round < 200; ++round) {
            LotFlags flags;
            std::vector<uint32_t> expected, visited;
            uint64_t bits = 0;
            for (uint32_t i = 0; i < LotFlags::LOT; ++i) {
                flags.flag[i] = static_cast<int>(random() % 4) < share;
                if (flags.flag[i] == 0) continue;
                bits |= uint64_t{1} << i;
                expected.push_back(i);
            }
            CHECK(flags.bits() == bits);
            each_bit(flags.bits(), [&](uint32_t i) { visited.push_back(i); });
            CHECK(visited == expected);
        }
    }
}

// Keys come in runs of neighbours, so that lines overflow and entries are displaced; `spread` keeps them apart.
static void pages(std::mt19937_64& random, uint64_t spread) {
    PageIndex index;
    std::unordered_map<uint64_t, uint32_t> model;
    std::vector<uint64_t> keys;
    for (uint32_t round = 0; round < 20000; ++round) {
        const uint64_t key = random() % 1500 * spread;
        const PageIndex::Place found = index.find(key);
        const auto known = model.find(key);
        CHECK((found.line != nullptr) == (known != model.end()));
        if (known != model.end()) {
            CHECK(found.page() == known->second);
            if (random() % 2 == 0) continue;
            index.remove(key);
            model.erase(known);
        } else {
            index.reserve(1);
            index.add(key, round);
            model.emplace(key, round);
        }
        CHECK(index.size() == model.size());
    }
    for (const auto& [key, page] : model) CHECK(index.find(key).page() == page);
}

}  // namespace headrace::plan

int main() {
    std::mt19937_64 random(7);
    headrace::plan::flags(random);
    for (const uint64_t spread : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 20, uint64_t{1} << 40}) {
        headrace::plan::pages(random, spread);
    }
    std::puts("ok");
}
