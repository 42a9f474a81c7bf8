// Random histories against a std::map, with memory that runs out now and then. For -fsanitize=address,undefined.
#include <cstdlib>
#include <map>
#include <new>
#include <tuple>

#include "workload.hpp"

static long allocations_left = -1;  // -1: never fails

static void* allocate(std::size_t size, std::size_t alignment) {
    if (allocations_left == 0) throw std::bad_alloc();
    if (allocations_left > 0) --allocations_left;
    void* memory =
        std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment + (size == 0) * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

[[gnu::noinline]] void* operator new(std::size_t size) { return allocate(size, 16); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
    return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace headrace {

using Key = std::tuple<std::uint32_t, bool, std::uint64_t>;
using Map = std::map<Key, std::uint64_t>;

// Every row of a batch is where the map says, and new ones where nothing was.
static void compare(const Indexed& out, Map& known, Map* brought) {
    std::size_t row = 0;
    for (const GroupArrays& group : out.groups) {
        for (std::size_t i = 0; i < group.ids.size(); ++i, ++row) {
            const Key key{out.tables[row], group.missing[i] != 0, group.ids[i]};
            const auto found = known.find(key);
            CHECK(group.is_new[i] == (brought != nullptr && found == known.end()));
            if (found != known.end()) CHECK(found->second == group.locations[i]);
            if (found == known.end() && brought == nullptr) CHECK(group.locations[i] == kAbsent);
            if (found == known.end() && brought != nullptr) (*brought)[key] = known[key] = group.locations[i];
        }
        for (const std::uint32_t query : group.query) CHECK(query < group.ids.size());
    }
}

struct History {
    std::mt19937_64 random;
    std::uint32_t num_shards;
    std::unique_ptr<Dit> dit;
    Map known;
    std::vector<std::pair<std::int64_t, Map>> open;
    int failures = 0, failures_in_shards = 0;

    History(std::uint64_t seed, std::uint32_t shards) : random(seed), num_shards(shards) { dit = make(); }

    std::unique_ptr<Dit> make() const {
        return std::make_unique<Dit>(make_tables(), kGroups, num_shards, 1, 5, kMultiplier);
    }

    // Memory runs out after a few allocations: of the whole batch, or of its way through the shards.
    void index(bool may_fail) {
        const auto columns = random_batch(random, 400, 3000);
        Indexed out;
        bool failed = false;
        static long allowed;
        const bool in_shards = random() % 2;
        allowed = static_cast<long>(random() % (in_shards ? 8 : 40));
        if (may_fail && !in_shards) allocations_left = allowed;
        const auto run_out = [] { allocations_left = allowed; };
        try {
            out = may_fail && in_shards ? run_batch(*dit, columns, true, run_out) : run_batch(*dit, columns, true);
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        allocations_left = -1;
        if (failed) {
            ++(in_shards ? failures_in_shards : failures);
            CHECK(dit->committed_rows() + dit->provisional_rows() == known.size());
            return;
        }
        Map brought;
        compare(out, known, &brought);
        open.emplace_back(out.ticket, std::move(brought));
    }

    void commit() {
        if (open.empty()) return;
        const std::size_t count = random() % open.size() + 1;
        dit->commit(open[count - 1].first);
        open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(count));
    }

    void undo() {
        const std::size_t keep = random() % (open.size() + 1);
        dit->undo_after(keep > 0 ? open[keep - 1].first : 0, keep == 0);
        while (open.size() > keep) {
            for (const auto& row : open.back().second) known.erase(row.first);
            open.pop_back();
        }
    }

    Map committed() const {
        Map rows = known;
        for (const auto& batch : open) {
            for (const auto& row : batch.second) rows.erase(row.first);
        }
        return rows;
    }

    // Go on with an index restored from a snapshot, after a restore that ran out of memory.
    void restart() {
        dit->undo_after(0, true);
        while (!open.empty()) {
            for (const auto& row : open.back().second) known.erase(row.first);
            open.pop_back();
        }
        const Rows rows = snapshot(*dit);
        CHECK(rows.locations.size() == known.size());
        std::vector<std::uint32_t> tables;
        for (const std::uint32_t uid : rows.uids) tables.push_back(uid - 11);
        auto fresh = make();
        for (const long allowed : {static_cast<long>(random() % 50), -1L}) {
            allocations_left = allowed;
            try {
                fresh->restore(rows.shape, tables.data(), rows.missing.data(), rows.ids.data(), rows.locations.data());
                allocations_left = -1;
                if (allowed >= 0) fresh = make();
            } catch (const std::bad_alloc&) {
                allocations_left = -1;
                CHECK(fresh->committed_rows() == 0);
            }
        }
        dit = std::move(fresh);
    }

    void step() {
        const auto pick = random() % 20;
        if (pick < 9) index(false);
        if (pick >= 9 && pick < 12) index(true);
        if (pick == 12 || pick == 13) commit();
        if (pick == 14 || pick == 15) undo();
        if (pick == 16) restart();
        if (pick > 16) {
            Map permanent = committed();
            compare(run_batch(*dit, random_batch(random, 400, 3000), false), permanent, nullptr);
        }
        std::size_t provisional = 0;
        for (const auto& batch : open) provisional += batch.second.size();
        CHECK(dit->provisional_rows() == provisional);
        CHECK(dit->committed_rows() == known.size() - provisional);
    }
};

// More rows than a chunk holds, committed, undone and taken again.
static void fill_chunks() {
    Dit dit(make_tables(), kGroups, 1, 1, 0, kMultiplier);
    Ids ids;
    for (std::uint64_t i = 0; i < 40'000; ++i) ids.wide.push_back(i << 40);
    const Indexed first = run_batch(dit, {ids}, true);
    dit.undo_after(0, true);
    CHECK(dit.chunk_group(0) == -1);
    const Indexed second = run_batch(dit, {ids}, true);
    CHECK(first.groups[0].locations == second.groups[0].locations);
    dit.commit(second.ticket);
    CHECK(snapshot(dit).locations.size() == 40'000);
    dit.close();
    dit.close();
}

// Outputs aside, which the caller brings.
static void warm_batch_allocates_nothing() {
    Dit dit(make_tables(), kGroups, 8, 1, 0, kMultiplier);
    constexpr std::size_t kIds = 1000;
    std::vector<std::uint64_t> values(kIds), ids(kIds), locations(kIds);
    std::vector<std::uint32_t> query(kIds);
    std::vector<std::uint8_t> missing(kIds), is_new(kIds);
    for (std::size_t i = 0; i < kIds; ++i) values[i] = i * i;
    for (int round = 0; round < 3; ++round) {
        allocations_left = round == 2 ? 0 : -1;
        Batch* batch = dit.engine().acquire();
        batch->add_column(0, true, values.data(), nullptr, kIds);
        batch->group(0).query = query.data();
        dit.engine().deduplicate(*batch);
        GroupOut& group = batch->group(0);
        group.ids = ids.data();
        group.missing = missing.data();
        group.locations = locations.data();
        group.is_new = is_new.data();
        dit.engine().write_unique(*batch);
        dit.commit(dit.insert(*batch));
        dit.engine().release(batch);
        allocations_left = -1;
    }
    CHECK(dit.committed_rows() == kIds);
}

}  // namespace headrace

int main() {
    int failures = 0, failures_in_shards = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        headrace::History history(seed, seed % 3 == 0 ? 1 : 8);
        for (int step = 0; step < 60; ++step) history.step();
        failures += history.failures;
        failures_in_shards += history.failures_in_shards;
    }
    std::printf("memory ran out %d times, %d of them in the shards\n", failures + failures_in_shards,
                failures_in_shards);
    CHECK(failures > 5 && failures_in_shards > 5);  // memory did run out
    headrace::fill_chunks();
    headrace::warm_batch_allocates_nothing();
    std::puts("ok");
}
