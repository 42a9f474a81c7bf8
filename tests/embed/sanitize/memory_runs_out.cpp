// A chunk store whose memory runs out in any call, beside a map of its rows. For -fsanitize=address,undefined.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "check.hpp"
#include "failing_memory.hpp"

static long mappings = 0;

static void* counted_mmap(void* at, size_t bytes, int rights, int flags, int file, off_t offset) {
    if (runs_out()) return MAP_FAILED;
    ++mappings;
    return mmap(at, bytes, rights, flags, file, offset);
}
static int counted_munmap(void* at, size_t bytes) {
    --mappings;
    return munmap(at, bytes);
}
#define mmap counted_mmap
#define munmap counted_munmap
#include "chunk_store.hpp"
#undef mmap
#undef munmap

namespace headrace {

constexpr int64_t kDim = 2, kState = 1, kWidth = kDim + kState;
using Row = std::vector<float>;
using Model = std::map<uint64_t, Row>;

static void check_same(const RowStore& store, const Model& model) {
    CHECK(store.num_written() == static_cast<int64_t>(model.size()));
    std::vector<uint64_t> places(model.size());
    store.written_locations(places.data());
    const std::vector<uint64_t> nothing(model.size());
    const std::vector<uint32_t> tables(model.size());
    const std::vector<uint8_t> missing(model.size());
    std::vector<float> rows(model.size() * kWidth);
    store.read(places.data(), Keys{nothing.data(), tables.data(), missing.data()}, static_cast<int64_t>(model.size()),
               nullptr, rows.data(), kWidth, kWidth, Workers{});
    size_t i = 0;
    for (const auto& [place, row] : model) {
        CHECK(places[i] == place);
        CHECK(Row(rows.begin() + static_cast<long>(i) * kWidth, rows.begin() + static_cast<long>(i + 1) * kWidth) ==
              row);
        ++i;
    }
}

// Calls `action` with ever more allocations until it succeeds; each failure must leave the store as the model says.
template <class Action>
static int until_it_succeeds(const RowStore& store, const Model& model, const Action& action) {
    for (long allowed = 0;; ++allowed) {
        allocations_left = allowed;
        try {
            action();
            allocations_left = -1;
            return static_cast<int>(allowed);
        } catch (const std::bad_alloc&) {
            allocations_left = -1;
            check_same(store, model);
        }
    }
}

static int run(uint64_t seed) {
    std::mt19937_64 random(seed);
    Initializer constant{};
    constant.kind = 2;
    RowStore store(kDim, kState, constant);
    Model model;
    int failures = 0;
    for (int step = 0; step < 40; ++step) {
        std::map<uint64_t, Row> batch;
        for (uint64_t n = random() % 30; n > 0; --n) {
            const uint64_t chunk = (random() % 3 << 16) + random() % 3;
            batch[chunk << kOffsetBits | random() % 50] = Row(kWidth, static_cast<float>(random() % 100));
        }
        std::vector<uint64_t> places;
        std::vector<float> rows;
        for (const auto& [place, row] : batch) {
            places.push_back(place);
            rows.insert(rows.end(), row.begin(), row.end());
        }
        const int64_t n = static_cast<int64_t>(places.size());
        const std::vector<uint64_t> ids(places.size());
        const std::vector<uint32_t> tables(places.size());
        const std::vector<uint8_t> missing(places.size());
        const Keys keys{ids.data(), tables.data(), missing.data()};
        const std::vector<float> zeros(places.size() * kDim);
        const auto write = [&] { store.write(places.data(), n, nullptr, rows.data()); };
        const auto update = [&] { store.update(places.data(), keys, n, zeros.data(), Rule{}, Workers{}); };
        switch (random() % 5) {
            case 0:
                failures += until_it_succeeds(store, model, write);
                for (const auto& [place, row] : batch) model[place] = row;
                break;
            case 1:  // gradients of zero: rows that are not there start, the others stay
                failures += until_it_succeeds(store, model, update);
                for (const auto& [place, row] : batch) model.emplace(place, Row(kWidth, 0.0f));
                break;
            case 2:
                failures += until_it_succeeds(store, model, [&] { store.make_room(places.data(), n); });
                allocations_left = 0;
                if (step % 2) {
                    write();
                    allocations_left = -1;
                    for (const auto& [place, row] : batch) model[place] = row;
                } else {
                    update();
                    allocations_left = -1;
                    for (const auto& [place, row] : batch) model.emplace(place, Row(kWidth, 0.0f));
                }
                break;
            case 3:
                failures += until_it_succeeds(store, model, [&] { store.make_room_beside(places.data(), n); });
                check_same(store, model);
                if (random() % 3 == 0) {
                    store.drop_room_beside();
                    break;
                }
                allocations_left = 0;
                store.replace(places.data(), n, rows.data());
                allocations_left = -1;
                model = batch;
                break;
            default:
                store.forget(places.data(), n);
                for (const auto& [place, row] : batch) model.erase(place);
        }
        check_same(store, model);
    }
    return failures;
}

}  // namespace headrace

int main() {
    int failures = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
        failures += headrace::run(seed);
        CHECK(mappings == 0);  // all are given back
    }
    CHECK(failures > 500);
    std::puts("ok");
}
