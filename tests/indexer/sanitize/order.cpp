// Batches of several threads among the shards at once, and memory that runs out now and then: what each of them gets is
// what it gets where they come one after the other, by their tickets. For -fsanitize=thread, and address.
#include <map>
#include <thread>

#include "failing_memory.hpp"
#include "workload.hpp"

namespace headrace {

struct Done {
    std::vector<Ids> columns;
    Indexed out;
};

static thread_local long allowed = -1;

static int insert_all(Dit& dit, std::uint64_t seed, std::vector<Done>& all) {
    std::mt19937_64 random(seed);
    int failures = 0;
    for (int i = 0; i < 25; ++i) {
        const std::vector<Ids> columns = random_batch(random, 400, 1 << 14);
        while (true) {
            allowed = random() % 3 == 0 ? static_cast<long>(random() % 4) : -1;
            try {
                Indexed out = run_batch(dit, columns, Call::kInsert, [] { allocations_left = allowed; });
                allocations_left = -1;
                all.push_back({columns, std::move(out)});
                break;
            } catch (const std::bad_alloc&) {
                allocations_left = -1;
                ++failures;
            }
        }
    }
    return failures;
}

static bool same(const Indexed& a, const Indexed& b) {
    for (std::size_t g = 0; g < kGroups; ++g) {
        if (a.groups[g].locations != b.groups[g].locations || a.groups[g].is_new != b.groups[g].is_new) return false;
    }
    return true;
}

static int one_after_the_other(std::uint64_t seed, unsigned num_threads) {
    constexpr std::size_t kCallers = 4;
    Dit dit(make_tables(), kGroups, 8, num_threads, 0, kMultiplier, 0);
    std::vector<std::vector<Done>> done(kCallers);
    std::vector<int> failures(kCallers);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kCallers; ++t) {
        threads.emplace_back([&, t] { failures[t] = insert_all(dit, seed * kCallers + t, done[t]); });
    }
    for (std::thread& thread : threads) thread.join();

    std::map<std::int64_t, Done*> by_ticket;
    for (auto& of_caller : done) {
        for (Done& one : of_caller) CHECK(by_ticket.emplace(one.out.ticket, &one).second);
    }
    CHECK(by_ticket.begin()->first == 0 && by_ticket.rbegin()->first + 1 == std::int64_t{kCallers * 25});
    Dit again(make_tables(), kGroups, 8, 1, 0, kMultiplier, 0);
    for (const auto& [ticket, one] : by_ticket) {
        const Indexed out = run_batch(again, one->columns, Call::kInsert);
        CHECK(out.ticket == ticket && same(out, one->out));
    }
    CHECK(dit.provisional_rows() == again.provisional_rows() && dit.open_tickets() == again.open_tickets());
    for (Dit* each : {&dit, &again}) {
        commit(*each, 30);
        each->undo_after(60, false);
    }
    CHECK(dit.committed_rows() == again.committed_rows() && dit.provisional_rows() == again.provisional_rows());
    const std::vector<Ids>& columns = by_ticket.rbegin()->second->columns;
    CHECK(same(run_batch(dit, columns, Call::kInsert), run_batch(again, columns, Call::kInsert)));
    int total = 0;
    for (const int count : failures) total += count;
    return total;
}

static void who_is_behind_begins_again() {
    using End = BatchOrder::End;
    BatchOrder order(2);
    const auto nothing = [] {};
    const auto pass_both = [&](const BatchOrder::Way& way) {
        for (std::size_t lane = 0; lane < 2; ++lane) {
            order.await(way, lane);
            order.pass(way, lane);
        }
    };
    const BatchOrder::Way first = order.enter(), failing = order.enter();
    CHECK(first.ticket() == 0 && failing.ticket() == 1);
    std::atomic<int> undone{0}, again{0};
    std::vector<std::thread> behind;
    for (int t = 0; t < 2; ++t) {
        behind.emplace_back([&] {
            End end = End::kAgain;
            while (end == End::kAgain) {
                const BatchOrder::Way way = order.enter();
                CHECK(way.ticket() > 0 && undone <= 1);
                pass_both(way);
                end = order.leave(way, nothing, [] { CHECK(false); });
                again += end == End::kAgain;
            }
            CHECK(end == End::kDone && undone == 1);
        });
    }
    while (order.next_ticket() < 4) std::this_thread::yield();  // both are inside
    pass_both(first);
    CHECK(order.await(failing, 0));
    order.pass(failing, 0);
    CHECK(order.await(failing, 1));
    order.fail(failing);
    order.pass(failing, 1);
    CHECK(order.leave(first, nothing, [] { CHECK(false); }) == End::kDone);  // it was before
    CHECK(order.leave(failing, [] { CHECK(false); }, [&] { ++undone; }) == End::kFailed);
    for (std::thread& thread : behind) thread.join();
    CHECK(again == 2 && order.next_ticket() == 3);
}

}  // namespace headrace

int main() {
    headrace::who_is_behind_begins_again();
    int failures = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed)
        failures += headrace::one_after_the_other(seed, seed % 3 == 2 ? 2 : 1);
    std::printf("%d failures\n", failures);
    CHECK(failures > 20);
    std::puts("ok");
}
