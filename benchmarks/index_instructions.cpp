// A fixed run of the index for callgrind: fills it, then goes through the same batches again. Only what happens inside
// `measured` is counted; the argument picks which part that is. Same work, same multiplier: the counts repeat.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "dit.hpp"

using namespace headrace;

namespace {

constexpr std::size_t kTables = 4, kBatch = 8192, kBatches = 40;

struct Arrays {
    std::vector<std::uint32_t> query;
    std::vector<std::uint64_t> ids, locations;
    std::vector<std::uint8_t> missing, is_new;

    Arrays()
        : query(kTables * kBatch),
          ids(kTables * kBatch),
          locations(kTables * kBatch),
          missing(kTables * kBatch),
          is_new(kTables * kBatch) {}
};

}  // namespace

template <class Call>
__attribute__((noinline)) void measured(Call&& call) {
    call();
}

int main(int, char** arguments) {
    const bool dedup = std::strcmp(arguments[1], "dedup") == 0, known = std::strcmp(arguments[1], "known") == 0;
    std::vector<TableInfo> tables;
    for (std::uint32_t t = 0; t < kTables; ++t) tables.push_back(make_table(t + 1, 0));
    Dit dit(tables, 1, 64, 1, 0, 0x9E37'79B9'7F4A'7C15u, 0);
    std::mt19937_64 random(1);
    std::vector<std::uint32_t> ids(kBatches * kTables * kBatch);
    for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(random() % (std::uint64_t{1} << (random() % 24 + 1)));
    Arrays out;
    std::size_t unique = 0, new_rows = 0;
    for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t b = 0; b < kBatches; ++b) {
            Batch* const batch = dit.engine().acquire();
            for (std::uint32_t t = 0; t < kTables; ++t) {
                batch->add_column(t, false, &ids[(b * kTables + t) * kBatch], nullptr, kBatch);
            }
            GroupOut& group = batch->group(0);
            group.query = out.query.data();
            const auto deduplicate = [&] { dit.engine().deduplicate(*batch); };
            pass == 0 && dedup ? measured(deduplicate) : deduplicate();
            group.ids = out.ids.data();
            group.missing = out.missing.data();
            group.locations = out.locations.data();
            group.is_new = out.is_new.data();
            dit.engine().write_unique(*batch);
            std::int64_t ticket = 0;
            const auto insert = [&] { ticket = dit.insert(*batch); };
            !dedup && (pass == 1) == known ? measured(insert) : insert();
            if (pass == 0) {
                unique += group.unique;
                new_rows = dit.committed_rows() + dit.provisional_rows();
            }
            dit.commit(ticket, {out.locations.data()}, {group.unique});
            dit.engine().release(batch);
        }
    }
    std::printf("%zu %zu %zu\n", ids.size(), unique, new_rows);
}
