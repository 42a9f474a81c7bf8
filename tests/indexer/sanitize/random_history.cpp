// Random histories against a std::map, with memory that runs out now and then. For -fsanitize=address,undefined.
#include <cstdlib>
#include <map>
#include <new>
#include <tuple>

#include "failing_memory.hpp"
#include "workload.hpp"

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

static std::vector<Key> keys_of(const Indexed& out) {
    std::vector<Key> keys;
    for (const GroupArrays& group : out.groups) {
        for (std::size_t i = 0; i < group.ids.size(); ++i) {
            keys.emplace_back(out.tables[keys.size()], group.missing[i] != 0, group.ids[i]);
        }
    }
    return keys;
}

static Map rows_of(const Rows& rows) {
    Map out;
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        out[{rows.tables[i], rows.missing[i] != 0, rows.ids[i]}] = rows.locations[i];
    }
    CHECK(out.size() == rows.ids.size());
    return out;
}

static Map rows_of(const Snapshot& snapshot) {
    Map out;
    for (const Rows& shard : snapshot.shards) out.merge(rows_of(shard));
    CHECK(out.size() == snapshot.rows());
    return out;
}

struct History {
    std::mt19937_64 random;
    std::uint32_t num_shards;
    std::unique_ptr<Dit> dit;
    Map known;
    struct Open {
        std::int64_t ticket;
        Map rows;
        Indexed out;
    };
    std::vector<Open> open;
    std::map<Key, int> used;  // rows' uses; without an entry: none
    int failures = 0, failures_in_shards = 0, failures_of_removal = 0, failures_of_commit = 0, removed = 0;

    History(std::uint64_t seed, std::uint32_t shards) : random(seed), num_shards(shards) { dit = make(); }

    std::unique_ptr<Dit> make() const {
        return std::make_unique<Dit>(make_tables(), kGroups, num_shards, 1, 5, kMultiplier, 0);
    }

    // Memory runs out after a few allocations: of the whole batch, or of its way through the shards.
    void index(bool may_fail) {
        const auto columns = random_batch(random, 400, 3000);
        Indexed out;
        bool failed = false;
        static long allowed;
        const bool in_shards = random() % 2;
        allowed = static_cast<long>(random() % (in_shards ? 2 : 40));
        if (may_fail && !in_shards) allocations_left = allowed;
        const auto run_out = [] { allocations_left = allowed; };
        try {
            out = may_fail && in_shards ? run_batch(*dit, columns, Call::kInsert, run_out)
                                        : run_batch(*dit, columns, Call::kInsert);
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
        open.push_back({out.ticket, std::move(brought), std::move(out)});
    }

    void commit() {
        if (open.empty()) return;
        const std::size_t count = random() % open.size() + 1;
        const Open& last = open[count - 1];
        const bool counts = random() % 2;
        const Open& delivered = random() % 4 == 0 ? open[random() % open.size()] : last;  // of a later ticket, too
        allocations_left = static_cast<long>(random() % 6);
        try {
            headrace::commit(*dit, last.ticket, counts ? &delivered.out : nullptr);
        } catch (const std::bad_alloc&) {
            allocations_left = -1;
            ++failures_of_commit;
            headrace::commit(*dit, last.ticket, counts ? &delivered.out : nullptr);
        }
        allocations_left = -1;
        if (counts) {
            for (const Key& key : keys_of(delivered.out)) ++used[key];
        }
        open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(count));
    }

    void undo() {
        const std::size_t keep = random() % (open.size() + 1);
        dit->undo_after(keep > 0 ? open[keep - 1].ticket : 0, keep == 0);
        forget_after(keep);
    }

    void forget_after(std::size_t keep) {
        while (open.size() > keep) {
            for (const auto& row : open.back().rows) {
                known.erase(row.first);
                used.erase(row.first);
            }
            open.pop_back();
        }
    }

    // Refused while tickets are open; now and then memory runs out in the middle of it.
    void remove() {
        const auto columns = random_batch(random, 400, 3000);
        if (!open.empty()) {
            bool refused = false;
            try {
                run_batch(*dit, columns, Call::kRemove);
            } catch (const std::runtime_error&) {
                refused = true;
            }
            CHECK(refused);
            return;
        }
        const Map before = known;
        static long allowed;
        allowed = static_cast<long>(random() % 3);
        const bool may_fail = random() % 2;
        try {
            const Indexed out =
                run_batch(*dit, columns, Call::kRemove, may_fail ? [] { allocations_left = allowed; } : nothing);
            allocations_left = -1;
            Map permanent = before;
            compare(out, permanent, nullptr);
            for (const Key& key : keys_of(out)) removed += static_cast<int>(known.erase(key));
        } catch (const std::bad_alloc&) {
            allocations_left = -1;
            ++failures_of_removal;
            known = rows_of(snapshot(*dit));
            for (const auto& row : known) CHECK(before.at(row.first) == row.second);
        }
        for (auto row = used.begin(); row != used.end();)
            row = known.count(row->first) ? std::next(row) : used.erase(row);
    }

    void uses() {
        std::vector<std::uint64_t> locations{kAbsent};
        std::vector<float> expected{0}, got;
        for (const auto& row : known) {
            locations.push_back(row.second);
            const auto found = used.find(row.first);
            expected.push_back(found == used.end() ? 0 : static_cast<float>(found->second));
        }
        got.resize(locations.size(), -1);
        dit->uses(locations.data(), locations.size(), got.data());
        CHECK(got == expected);
    }

    void buckets() {
        const auto first = static_cast<std::uint32_t>(random() % 65'537);
        const std::uint32_t last = first + static_cast<std::uint32_t>(random() % (65'537 - first));
        Map expected;
        for (const auto& row : committed()) {
            const auto& [table, missing, id] = row.first;
            const std::uint32_t bucket = route_bucket(mix64(11 + table, missing, id));
            if (bucket >= first && bucket < last) expected.insert(row);
        }
        const Rows rows = dit->bucket_rows(first, last);
        CHECK(std::is_sorted(rows.hashes.begin(), rows.hashes.end()));
        CHECK(rows_of(rows) == expected);
    }

    // What is committed when it is taken, whatever comes before it is read.
    void cut() {
        const auto cut = dit->open_cut();
        const Map expected = committed();
        for (int i = 0; i < 3; ++i) {
            index(false);
            if (random() % 2) commit();
            if (random() % 2) undo();
        }
        CHECK(rows_of(read_cut(*dit, *cut)) == expected);
    }

    Map committed() const {
        Map rows = known;
        for (const auto& batch : open) {
            for (const auto& row : batch.rows) rows.erase(row.first);
        }
        return rows;
    }

    // Go on with an index restored from a snapshot, after a restore that ran out of memory.
    void restart() {
        dit->undo_after(0, true);
        forget_after(0);
        const Snapshot taken = snapshot(*dit);
        CHECK(rows_of(taken) == known);
        const std::uint64_t free_places = dit->stats().free_places;
        auto fresh = make();
        allocations_left = static_cast<long>(random() % 50);
        try {
            restore(*fresh, taken);
            allocations_left = -1;
        } catch (const std::bad_alloc&) {
            allocations_left = -1;
            fresh->drop_restore();
            CHECK(fresh->committed_rows() == 0);
            restore(*fresh, taken);
        }
        CHECK(fresh->stats().free_places == free_places);
        dit = std::move(fresh);
    }

    void step() {
        const auto pick = random() % 26;
        if (pick < 7) index(false);
        if (pick >= 7 && pick < 12) index(true);
        if (pick == 12 || pick == 13) commit();
        if (pick == 14 || pick == 15) undo();
        if (pick == 16) restart();
        if (pick == 17 || pick == 18) {
            Map permanent = committed();
            compare(run_batch(*dit, random_batch(random, 400, 3000), Call::kLookup), permanent, nullptr);
        }
        if (pick == 19) remove();
        if (pick == 20 || pick == 21) {
            undo();
            while (!open.empty()) commit();
            remove();
        }
        if (pick == 22) uses();
        if (pick == 23) buckets();
        if (pick > 23) cut();
        std::size_t provisional = 0;
        for (const auto& batch : open) provisional += batch.rows.size();
        CHECK(dit->provisional_rows() == provisional);
        CHECK(dit->committed_rows() == known.size() - provisional);
    }
};

// More rows than a chunk holds, committed, undone and taken again.
static void fill_chunks() {
    Dit dit(make_tables(), kGroups, 1, 1, 0, kMultiplier, 0);
    Ids ids;
    for (std::uint64_t i = 0; i < 40'000; ++i) ids.wide.push_back(i << 40);
    const Indexed first = run_batch(dit, {ids}, Call::kInsert);
    dit.undo_after(0, true);
    CHECK(dit.chunk_group(0) == -1);
    const Indexed second = run_batch(dit, {ids}, Call::kInsert);
    CHECK(first.groups[0].locations == second.groups[0].locations);
    commit(dit, second.ticket, &second);
    CHECK(snapshot(dit).rows() == 40'000);
    const Indexed gone = run_batch(dit, {ids}, Call::kRemove);
    CHECK(gone.groups[0].locations == first.groups[0].locations);
    CHECK(dit.stats().free_places == 40'000);
    const Indexed third = run_batch(dit, {ids}, Call::kInsert);  // the lowest place first
    CHECK(third.groups[0].locations == first.groups[0].locations);
    std::vector<float> uses(40'000, -1);
    dit.uses(third.groups[0].locations.data(), uses.size(), uses.data());
    CHECK(std::count(uses.begin(), uses.end(), 0.0f) == 40'000);
    dit.close();
    dit.close();
}

// Outputs aside, which the caller brings.
static void warm_batch_allocates_nothing() {
    Dit dit(make_tables(), kGroups, 8, 1, 0, kMultiplier, 0);
    constexpr std::size_t kIds = 1000;
    std::vector<std::uint64_t> values(kIds), ids(kIds), locations(kIds);
    std::vector<std::uint32_t> query(kIds);
    std::vector<std::uint8_t> missing(kIds), is_new(kIds);
    const std::vector<const std::uint64_t*> used{locations.data()};
    const std::vector<std::size_t> sizes{kIds};
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
        const std::int64_t ticket = dit.insert(*batch);
        dit.engine().release(batch);
        allocations_left = -1;
        dit.commit(ticket, used, sizes);
    }
    CHECK(dit.committed_rows() == kIds);
}

}  // namespace headrace

int main() {
    int failures = 0, failures_in_shards = 0, failures_of_removal = 0, failures_of_commit = 0, removed = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        headrace::History history(seed, seed % 3 == 0 ? 1 : 8);
        for (int step = 0; step < 60; ++step) history.step();
        failures += history.failures;
        failures_in_shards += history.failures_in_shards;
        failures_of_removal += history.failures_of_removal;
        failures_of_commit += history.failures_of_commit;
        removed += history.removed;
    }
    std::printf(
        "memory ran out %d times in batches, %d in their shards, %d in removals, %d in commits; %d rows removed\n",
        failures, failures_in_shards, failures_of_removal, failures_of_commit, removed);
    CHECK(failures > 5 && failures_in_shards > 5);  // memory did run out
    CHECK(failures_of_removal > 0 && failures_of_commit > 0 && removed > 1000);
    headrace::fill_chunks();
    headrace::warm_batch_allocates_nothing();
    std::puts("ok");
}
