// The parts of a shard by themselves, against plain models. For -fsanitize=address,undefined.
#include <map>
#include <set>

#include "use_counts.hpp"
#include "workload.hpp"

namespace headrace {

// --- EntryTable

using Model = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;  // (hash, key) -> place

static bool insert(EntryTable& table, std::uint64_t hash, std::uint64_t key, std::uint64_t place) {
    std::size_t slot;
    ProbeCounts counts;
    if (table.find(hash, key, slot, counts)) return false;
    if (table.full()) {
        table.grow();
        CHECK(!table.full());
        CHECK(!table.find(hash, key, slot, counts));
    }
    table.put(slot, {hash, key | place});
    return true;
}

static bool remove(EntryTable& table, std::uint64_t hash, std::uint64_t key) {
    std::size_t slot;
    ProbeCounts counts;
    if (!table.find(hash, key, slot, counts)) return false;
    table.remove(slot);
    return true;
}

// All are found, nothing else is there, and no line has a gap.
static void check(const EntryTable& table, const Model& model) {
    CHECK(table.rows() == model.size());
    std::size_t seen = 0;
    table.each([&](const Entry& entry) {
        const auto found = model.find({entry.hash, entry.word & ~kPlaceMask});
        CHECK(found != model.end() && found->second == entry.place());
        ++seen;
    });
    CHECK(seen == model.size());
    for (std::size_t line = 0; line < table.slots(); line += kLine) {
        const std::size_t rows = line_bits(&table[line], 0).rows();
        for (std::size_t i = 0; i < kLine; ++i) CHECK(table[line + i].occupied() == (i < rows));
    }
    for (const auto& row : model) {
        std::size_t slot;
        ProbeCounts counts;
        CHECK(table.find(row.first.first, row.first.second, slot, counts));
        CHECK(table[slot].place() == row.second && counts.lines >= 1 && counts.longest == counts.lines);
        CHECK(table.home_line(row.first.first) + (counts.lines - 1) * kLine == &table[slot / kLine * kLine]);
    }
}

// `kind`: 0 any hashes; 1 those at the very beginning, 0 among them; 2 at the very end; 3 a few, of many keys each.
static std::uint64_t draw_hash(std::mt19937_64& random, unsigned kind) {
    if (kind == 1) return random() % 300;
    if (kind == 2) return ~(random() % 300);
    constexpr std::uint64_t kFew[] = {0, kAbsent, 1, kAbsent - 1, std::uint64_t{1} << 63, 0x1234'5678'9ABC'DEF0};
    if (kind == 3) return kFew[random() % 6];
    return random();
}

static std::uint64_t draw_key(std::mt19937_64& random, unsigned kind) {
    const auto tables = static_cast<std::uint32_t>(kind == 3 ? 700 : 3);
    return key_bits(static_cast<std::uint32_t>(random()) % tables + (random() % 50 == 0) * (65'535 - tables),
                    random() % 2);
}

static void entries_are_a_map(std::uint64_t seed, unsigned kinds) {
    std::mt19937_64 random(seed);
    PageArena arena;
    EntryTable table(static_cast<double>(seed % 8) / 8, arena);
    Model model;
    std::size_t most = 0;
    for (int phase = 0; phase < 8; ++phase) {
        const bool growing = phase % 2 == 0;  // then mostly insertions, else mostly removals
        for (int step = 0; step < 1500; ++step) {
            const unsigned kind = kinds < 4 ? kinds : static_cast<unsigned>(random() % 4);
            std::uint64_t hash = draw_hash(random, kind), key = draw_key(random, kind);
            if (random() % 10 < (growing ? 8 : 1)) {
                const std::uint64_t place = random() & kPlaceMask;
                const bool is_new = model.emplace(std::make_pair(hash, key), place).second;
                CHECK(insert(table, hash, key, place) == is_new);
            } else {
                if (!model.empty() && random() % 8 != 0) {  // one that is there
                    auto found = model.lower_bound({hash, key});
                    if (found == model.end()) found = model.begin();
                    std::tie(hash, key) = found->first;
                }
                CHECK(remove(table, hash, key) == (model.erase({hash, key}) == 1));
            }
            if (table.crowded() && random() % 20 == 0) table.grow();
        }
        most = std::max(most, model.size());
        check(table, model);
    }
    CHECK(most > 200);
    const std::size_t capacity = table.capacity();
    for (auto row = model.begin(); row != model.end(); row = model.erase(row)) {
        CHECK(remove(table, row->first.first, row->first.second));
    }
    check(table, {});
    CHECK(table.capacity() == capacity);
    for (std::size_t slot = 0; slot < table.slots(); ++slot) CHECK(table[slot].hash == 0 && table[slot].word == 0);
}

// One hash of thousands of tables: a run longer than the tail, at the end of the array, at its beginning, and between.
static void one_hash_of_thousands_of_tables(std::uint64_t hash) {
    PageArena arena;
    EntryTable table(0, arena);
    Model model;
    for (std::uint32_t ordinal = 0; ordinal < 6'000; ++ordinal) {
        const std::uint64_t key = key_bits(ordinal, ordinal % 2);
        CHECK(insert(table, hash, key, ordinal));
        model[{hash, key}] = ordinal;
    }
    check(table, model);
    while (model.size() > 3'000) {
        const auto row = std::next(model.begin(), static_cast<std::ptrdiff_t>(model.size() / 2));
        CHECK(remove(table, row->first.first, row->first.second));
        model.erase(row);
    }
    check(table, model);
    table.reserve(20'000);
    check(table, model);
}

// Both ways to look at a line say the same, of any line: gaps and equal halves among them.
static void lines_are_seen_as_wholes() {
    std::mt19937_64 random(4);
    const auto draw = [&random] {
        return random() % 3 << 32 | (random() % 3 == 0 ? random() & 0xFFFF'FFFF : random() % 2);
    };
    for (int i = 0; i < 20'000; ++i) {
        alignas(64) Entry line[kLine];
        for (Entry& entry : line) entry = {draw(), random() % 2 << 63 | (random() & kPlaceMask)};
        const std::uint64_t hash = draw(), key = line[random() % kLine].word & ~kPlaceMask;
        const LineBits bits = line_bits(line, hash), expected = portable_line_bits(line, hash);
        CHECK(bits.occupied == expected.occupied && bits.alike == expected.alike);
        unsigned alike = 0;
        const Entry* first = nullptr;
        for (unsigned j = 0; j < kLine; ++j) {
            alike |= static_cast<unsigned>((line[j].hash & 0xFFFF'FFFF) == (hash & 0xFFFF'FFFF)) << j;
            CHECK((bits.occupied >> j & 1) == (line[j].word >> 63));
            if (first == nullptr && line[j].is(hash, key)) first = &line[j];
        }
        CHECK(bits.alike == alike && bits.occupied <= kFullLine);
        CHECK(line_find(line, alike, hash, key) == first);
        CHECK(line_full(line) == line[kLine - 1].occupied());
    }
}

// Through memory of the allocator, of the arena, and of its own mapping.
static void a_large_table() {
    PageArena arena;
    EntryTable table(0.5, arena);
    std::mt19937_64 random(3);
    std::vector<std::uint64_t> hashes;
    std::set<int> kinds;
    for (std::uint64_t i = 0; i < 600'000; ++i) {
        hashes.push_back(random());
        CHECK(insert(table, hashes.back(), key_bits(0, false), i));
        if (table.crowded()) table.grow();
        const std::size_t bytes = table.slots() * sizeof(Entry);
        kinds.insert(bytes < PageArena::kLeast ? 0 : bytes < PageArena::kMost ? 1 : 2);
        CHECK(table.nbytes() + arena.nbytes() >= bytes);
    }
    CHECK(kinds.size() == 3);
    CHECK(arena.nbytes() <= 2 * kHugePage + table.nbytes());  // a few pages and the spare one
    for (std::uint64_t i = 0; i < hashes.size(); ++i) {
        std::size_t slot;
        ProbeCounts counts;
        CHECK(table.find(hashes[i], key_bits(0, false), slot, counts) && table[slot].place() == i);
    }
    for (const std::uint64_t hash : hashes) CHECK(remove(table, hash, key_bits(0, false)));
    CHECK(table.rows() == 0);
}

// --- PageArena

struct Held {
    unsigned char* begin;
    std::size_t bytes;
    unsigned char tag;
};

// Its edges and a byte of each page, which is enough to see a neighbour's.
template <class OnByte>
static void each_sample(const Held& block, OnByte&& on_byte) {
    for (std::size_t i = 0; i < block.bytes; i += 509) on_byte(block.begin[i]);
    on_byte(block.begin[block.bytes - 1]);
}

static void arena_gives_memory_that_does_not_overlap() {
    PageArena arena;
    std::mt19937_64 random(1);
    std::vector<Held> held;
    CHECK(arena.nbytes() == 0 && !arena.owns(&arena));
    std::size_t in_use = 0;
    for (int step = 0; step < 600; ++step) {
        const bool more = step % 200 < 120;
        if (held.empty() || random() % 10 < (more ? 7 : 2)) {
            const std::size_t least = PageArena::kLeast / (random() % 4 == 0 ? 256 : 1);
            const std::size_t bytes = least + random() % (std::size_t{2} << 20);
            const Held block{static_cast<unsigned char*>(arena.allocate(bytes)), bytes,
                             static_cast<unsigned char>(step % 255 + 1)};
            CHECK(block.begin != nullptr && arena.owns(block.begin) && arena.owns(block.begin + bytes - 1));
            CHECK(reinterpret_cast<std::uintptr_t>(block.begin) % kSmallPage == 0);
            for (const Held& other : held) {
                CHECK(block.begin + bytes <= other.begin || other.begin + other.bytes <= block.begin);
            }
            each_sample(block, [&](unsigned char& byte) { byte = block.tag; });
            held.push_back(block);
            in_use += bytes;
        } else {
            const std::size_t i = random() % held.size();
            each_sample(held[i], [&](unsigned char byte) { CHECK(byte == held[i].tag); });
            arena.release(held[i].begin, held[i].bytes);
            in_use -= held[i].bytes;
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        }
        CHECK(arena.nbytes() >= in_use);
    }
    for (const Held& block : held) arena.release(block.begin, block.bytes);
#ifdef __linux__
    CHECK(arena.nbytes() <= 2 * kHugePage);
#endif
}

static void arena_says_when_it_is_full() {
    PageArena arena;
    std::vector<void*> blocks;
    constexpr std::size_t kSize = PageArena::kMost / 2;
    while (void* block = arena.allocate(kSize)) blocks.push_back(block);
    CHECK(blocks.size() == 256);
    CHECK(arena.allocate(PageArena::kLeast) == nullptr);
    arena.release(blocks[77], kSize);
    CHECK(arena.allocate(kSize + 1) == nullptr);
    CHECK(arena.allocate(kSize) == blocks[77]);
}

// Mapped for themselves; the one given back last becomes a part of the next, if that is not smaller.
static void arena_maps_large_arrays() {
    PageArena arena;
    std::vector<Held> held;
    std::mt19937_64 random(2);
    for (int step = 0; step < 60; ++step) {
        const std::size_t bytes = PageArena::kMost + random() % PageArena::kMost;
        const Held block{static_cast<unsigned char*>(arena.allocate(bytes)), bytes, static_cast<unsigned char>(step)};
        CHECK(block.begin != nullptr && !arena.owns(block.begin));
        CHECK(reinterpret_cast<std::uintptr_t>(block.begin) % kHugePage == 0);
        each_sample(block, [&](unsigned char& byte) { byte = block.tag; });
        held.push_back(block);
        if (held.size() < 4) continue;
        const std::size_t i = random() % held.size();
        each_sample(held[i], [&](unsigned char byte) { CHECK(byte == held[i].tag); });
        arena.release(held[i].begin, held[i].bytes);
        CHECK(arena.nbytes() == PageArena::whole_pages(held[i].bytes));
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Held& block : held) arena.release(block.begin, block.bytes);
}

// The smallest hole that is large enough is taken.
static void arena_fits_best() {
    PageArena arena;
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    std::vector<void*> blocks;
    for (const std::size_t size : {3, 1, 2, 1, 4, 1}) blocks.push_back(arena.allocate(size * kMiB));
    arena.release(blocks[0], 3 * kMiB);
    arena.release(blocks[2], 2 * kMiB);
    arena.release(blocks[4], 4 * kMiB);
    CHECK(arena.allocate(2 * kMiB) == blocks[2]);
    CHECK(arena.allocate(4 * kMiB) == blocks[4]);
    CHECK(arena.allocate(2 * kMiB) == blocks[0]);
    CHECK(arena.allocate(kMiB) == static_cast<char*>(blocks[0]) + 2 * kMiB);
}

// --- UseCounts

class UsesModel {
  public:
    explicit UsesModel(double half_life) : half_life_(half_life) {}

    void add(const std::vector<std::uint64_t>& places) {
        ++now_;
        for (const std::uint64_t place : places) {
            if (place != kAbsent) uses_[place & kPlaceMask] = {read(place) + 1, now_};
        }
    }
    double read(std::uint64_t place) const {
        const auto found = uses_.find(place & kPlaceMask);
        if (found == uses_.end() || place == kAbsent) return 0;
        const double age = static_cast<double>(now_ - found->second.second);
        return found->second.first * (half_life_ > 0 ? std::exp2(-age / half_life_) : 1);
    }
    void forget(std::uint64_t place) { uses_.erase(place & kPlaceMask); }

  private:
    const double half_life_;
    long now_ = 0;
    std::map<std::uint64_t, std::pair<double, long>> uses_;
};

// As an index of 4 shards with 11, 11, 10 and 10 chunks has them: numbers 0 to 41.
constexpr std::uint32_t kCountedShards = 4;
static const std::vector<std::size_t> kCountedChunks{11, 11, 10, 10};

static void uses_are_counted(double half_life, unsigned num_threads) {
    ThreadPool pool(num_threads);
    std::mt19937_64 random(5);
    UseCounts counts(half_life, kCountedShards);
    UsesModel model(half_life);
    // of four chunks in two slabs, with the bits of a rank above the place
    const auto draw = [&] {
        const std::uint64_t chunk = random() % 2 * 40 + random() % 2;
        return std::uint64_t{9} << kPlaceBits | chunk << kOffsetBits | (random() % 30 * 500);
    };
    const auto read = [](UseCounts& from, std::uint64_t place) {
        float out = -1;
        from.read(&place, 1, &out);
        return out;
    };
    CHECK(read(counts, draw()) == 0 && counts.nbytes() == 0);
    for (int batch = 0; batch < 400; ++batch) {
        const int idle = batch % 100 == 99 ? 200 : 0;  // more than 32 half-lives, with nothing used
        for (int i = 0; i < idle; ++i) {
            counts.add({}, {}, {}, pool);
            model.add({});
        }
        std::set<std::uint64_t> used{kAbsent};
        for (std::uint64_t i = random() % (batch % 8 == 0 ? 400 : 40); i > 0; --i) used.insert(draw());
        const std::vector<std::uint64_t> places(used.begin(), used.end());
        const std::size_t half = places.size() / 2;
        counts.add({places.data(), places.data() + half, nullptr}, {half, places.size() - half, 0}, kCountedChunks,
                   pool);
        model.add(places);
        const std::uint64_t gone = draw();
        counts.forget(gone);
        model.forget(gone);
        CHECK(read(counts, gone) == 0 && read(counts, kAbsent) == 0);
        for (int i = 0; i < 20; ++i) {
            const std::uint64_t place = draw();
            const double expected = model.read(place), got = static_cast<double>(read(counts, place));
            if (half_life == 0) CHECK(got == expected);
            CHECK(std::abs(got - expected) <= 1e-5 * expected + 1e-9);
        }
    }
    CHECK(counts.nbytes() > 0);

    UseCounts copy(half_life, kCountedShards);  // by way of a snapshot
    std::vector<std::uint64_t> places;
    std::vector<float> weights;
    for (const std::uint32_t chunk : {0u, 1u, 40u, 41u}) {
        const std::vector<float> stored = counts.stored(chunk, 15'000);
        CHECK(stored.size() == 15'000);
        for (std::uint32_t offset = 0; offset < 15'000; ++offset) places.push_back(place_bits(chunk, offset));
        weights.insert(weights.end(), stored.begin(), stored.end());
    }
    copy.restore(counts.batches(), places.data(), weights.data(), places.size());
    CHECK(copy.batches() == counts.batches());
    for (int batch = 0; batch < 100; ++batch) {
        for (const std::uint64_t place : places) {
            if (batch % 50 == 0 && place % 100 == 0) CHECK(read(copy, place) == read(counts, place));
        }
        const std::uint64_t place = places[random() % places.size()];
        for (UseCounts* each : {&counts, &copy}) each->add({&place}, {1}, kCountedChunks, pool);
        CHECK(read(copy, place) == read(counts, place));
    }
}

// One shard of 64 has nearly all chunks: numbers up to 2.6 M, as of 40,000 chunks in each. A slab for each number on
// the way there would take 160 GiB of addresses and more mappings than the system allows.
static void room_is_made_for_the_chunks_that_are_there() {
    constexpr std::size_t kChunks = 40'000, kChunkBytes = kChunkRows * sizeof(float);
    ThreadPool pool(1);
    UseCounts counts(0, 64);
    std::vector<std::size_t> num_chunks(64, 1);
    num_chunks[5] = kChunks;
    const auto last = place_bits(static_cast<std::uint32_t>((kChunks - 1) * 64 + 5), 7), other = place_bits(6, 7);
    const std::vector<std::uint64_t> places{last, other};
    counts.make_room(num_chunks);
    counts.add({places.data()}, {places.size()}, num_chunks, pool);
    CHECK(counts.nbytes() < kChunks * kChunkBytes / 50 * 51);
    float uses[2];
    counts.read(places.data(), 2, uses);
    CHECK(uses[0] == 1 && uses[1] == 1);

    UseCounts grown(0, 64);  // chunk by chunk, as an index grows: no place is another's
    std::vector<std::size_t> so_far(64);
    for (std::uint32_t chunk = 0; chunk < 6400; ++chunk) {
        ++so_far[chunk % 64];
        const auto place = place_bits(chunk, chunk % kChunkRows);
        grown.add({&place}, {1}, so_far, pool);
    }
    for (std::uint32_t chunk = 0; chunk < 6400; ++chunk) {
        const std::uint64_t at[] = {place_bits(chunk, chunk % kChunkRows), place_bits(chunk, (chunk + 1) % kChunkRows)};
        grown.read(at, 2, uses);
        CHECK(uses[0] == 1 && uses[1] == 0);
    }
    CHECK(grown.nbytes() < 6400 * kChunkBytes / 50 * 51);
}

// --- hashes, there and back

static void hashes_can_be_inverted() {
    std::mt19937_64 random(6);
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t x = i % 4 != 0 ? random() : i % 8 != 0 ? std::uint64_t{1} << (i / 8 % 64) : ~random() >> 60;
        const std::uint64_t multiplier = random() | 1, seed = key_seed(static_cast<std::uint32_t>(random()), i % 2);
        CHECK(inverse(multiplier) * multiplier == 1);
        CHECK(unpermuted(permuted(x, multiplier), inverse(multiplier)) == x);
        CHECK(unmix64_seeded(seed, mix64_seeded(seed, x)) == x);
        for (const int shift : {1, 27, 30, 31, 32, 33, 63}) CHECK(unfold(x ^ (x >> shift), shift) == x);
    }
}

}  // namespace headrace

int main() {
    headrace::hashes_can_be_inverted();
    headrace::lines_are_seen_as_wholes();
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        headrace::entries_are_a_map(seed, static_cast<unsigned>(seed));
    }
    for (const std::uint64_t hash : {std::uint64_t{0}, headrace::kAbsent, std::uint64_t{1} << 63}) {
        headrace::one_hash_of_thousands_of_tables(hash);
    }
    headrace::a_large_table();
    headrace::arena_gives_memory_that_does_not_overlap();
    headrace::arena_says_when_it_is_full();
    headrace::arena_fits_best();
    headrace::arena_maps_large_arrays();
    for (const double half_life : {0.0, 1.0, 2.5, 1000.0}) {
        for (const unsigned num_threads : {1u, 3u}) headrace::uses_are_counted(half_life, num_threads);
    }
    headrace::room_is_made_for_the_chunks_that_are_there();
    std::puts("ok");
}
