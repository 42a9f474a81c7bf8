// What the arrays of a batch's bags must be, so that the kernels stay inside them; one pass each, in parallel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "parallel.hpp"
#include "vector_clones.hpp"

namespace headrace {

// F features of B bags each, feature-major. column[f] is where feature f starts in an output row, -1: not pooled.
struct Bags {
    const int64_t* query_ids;
    const int64_t* offsets;
    const float* weights;
    const int64_t* columns;
    const uint8_t* mean;
    int64_t features;
    int64_t rows;
};

// Whether rows are read several times over: then the rows of one feature are worked on before those of the next, since
// they may stay in cache.
inline bool has_many_ids(const Bags& bags) noexcept {
    constexpr int64_t kMany = 3;  // ids a bag
    const int64_t count = bags.rows * bags.features;
    return bags.offsets[count] >= kMany * count;
}

// Sign bits tell what is wrong: SSE2 has no comparisons of 64 bits.
HEADRACE_VECTOR_CLONES
static bool ascends(const int64_t* offsets, int64_t begin, int64_t end) noexcept {
    uint64_t wrong = 0;
    for (int64_t i = begin; i < end; ++i) {
        const uint64_t low = static_cast<uint64_t>(offsets[i]), high = static_cast<uint64_t>(offsets[i + 1]);
        wrong |= low | high | (high - low);
    }
    return !(wrong >> 63);
}

// [low, high), of numbers from 0 on.
struct Range {
    int64_t low;
    int64_t high;
};

HEADRACE_VECTOR_CLONES
static bool all_within(const int64_t* values, int64_t begin, int64_t end, const Range& range) noexcept {
    const uint64_t low = static_cast<uint64_t>(range.low), last = static_cast<uint64_t>(range.high) - 1;
    uint64_t wrong = 0;
    for (int64_t i = begin; i < end; ++i) {
        const uint64_t value = static_cast<uint64_t>(values[i]);
        wrong |= (value - low) | (last - value);
    }
    return !(wrong >> 63);
}

HEADRACE_VECTOR_CLONES
static bool all_one_apart(const int64_t* offsets, int64_t begin, int64_t end) noexcept {
    uint64_t wrong = 0;
    for (int64_t i = begin; i < end; ++i)
        wrong |= (static_cast<uint64_t>(offsets[i + 1]) - static_cast<uint64_t>(offsets[i])) ^ 1;
    return !wrong;
}

constexpr int64_t kLeastChecks = 1 << 15;  // values of one thread's part of a check

// Whether `sound(begin, end)` is true of every part of [0, n).
template <class Sound>
inline bool all_parts(int64_t n, const Workers& workers, const Sound& sound) {
    std::atomic<bool> all{true};
    workers.run(n, kLeastChecks, [&](int64_t begin, int64_t end) {
        if (!sound(begin, end)) all = false;
    });
    return all;
}

// What runs from 0 to `nnz` without falling is sound; kOneHot: by 1 each time.
enum OffsetsKind { kUnsound, kSound, kOneHot };

inline OffsetsKind kind_of_offsets(const int64_t* offsets, int64_t bags, int64_t nnz, const Workers& workers) {
    if (offsets[0] != 0 || offsets[bags] != nnz) return kUnsound;
    if (bags == nnz &&
        all_parts(bags, workers, [&](int64_t begin, int64_t end) { return all_one_apart(offsets, begin, end); }))
        return kOneHot;
    return all_parts(bags, workers, [&](int64_t begin, int64_t end) { return ascends(offsets, begin, end); })
               ? kSound
               : kUnsound;
}

// Position of the first value that is not of [0, limit), or -1.
inline int64_t first_outside(const int64_t* values, int64_t n, int64_t limit, const Workers& workers) {
    if (all_parts(n, workers, [&](int64_t begin, int64_t end) { return all_within(values, begin, end, {0, limit}); }))
        return -1;
    return std::find_if(values, values + n, [limit](int64_t v) { return v < 0 || v >= limit; }) - values;
}

inline int64_t first_above(const int64_t* values, int64_t n, int64_t limit) noexcept {
    int64_t highest = limit;
    for (int64_t i = 0; i < n; ++i) highest = std::max(highest, values[i]);
    if (highest <= limit) return -1;
    return std::find_if(values, values + n, [limit](int64_t v) { return v > limit; }) - values;
}

// Ids of features, feature after feature, whose offsets are sound: feature f has those from offsets[f * rows] on.
struct FeatureIds {
    const int64_t* query_ids;
    const int64_t* offsets;
    int64_t features;
    int64_t rows;
    const uint32_t* feature_tables;  // [features]
    const uint32_t* unique_tables;   // [unique]
    int64_t unique;

    // Calls part(feature, first, last) for the ids [begin, end) of each feature that has any there.
    template <class Part>
    void each_feature(int64_t begin, int64_t end, const Part& part) const {
        for (int64_t f = 0; f < features; ++f) {
            const int64_t first = std::max(begin, offsets[f * rows]), last = std::min(end, offsets[(f + 1) * rows]);
            if (first < last) part(f, first, last);
        }
    }
};

// Where the unique rows of each feature's table are, if those of a table stand side by side, as the index gives them
// unless features of one table are apart. At most `features` ranges are noted.
class TableRanges {
  public:
    explicit TableRanges(const FeatureIds& ids) : ranges_(static_cast<size_t>(ids.features), Range{0, 0}) {
        for (int64_t begin = 0, end; begin < ids.unique && known_; begin = end) {
            end = run_end(ids, begin);
            note(ids, ids.unique_tables[begin], {begin, end});
        }
    }
    bool known() const noexcept { return known_; }
    const Range& of(int64_t feature) const noexcept { return ranges_[static_cast<size_t>(feature)]; }

  private:
    static int64_t run_end(const FeatureIds& ids, int64_t begin) noexcept {
        const uint32_t* const tables = ids.unique_tables;
        constexpr int64_t kBlock = 64;
        const uint32_t table = tables[begin];
        int64_t end = begin;
        for (uint32_t other = 0; end + kBlock <= ids.unique; end += kBlock) {
            for (int64_t i = 0; i < kBlock; ++i) other |= tables[end + i] ^ table;
            if (other) break;
        }
        while (end < ids.unique && tables[end] == table) ++end;
        return end;
    }
    void note(const FeatureIds& ids, uint32_t table, const Range& run) noexcept {
        for (int64_t f = 0; f < ids.features; ++f) {
            if (ids.feature_tables[f] != table) continue;
            Range& range = ranges_[static_cast<size_t>(f)];
            known_ = known_ && range.low == range.high;
            range = run;
        }
    }

    std::vector<Range> ranges_;
    bool known_ = true;
};

// Whether ids [begin, end) are within their features' ranges.
inline bool ids_are_within(const FeatureIds& ids, const TableRanges& ranges, int64_t begin, int64_t end) noexcept {
    bool sound = true;
    ids.each_feature(begin, end, [&](int64_t f, int64_t first, int64_t last) {
        sound = sound && all_within(ids.query_ids, first, last, ranges.of(f));
    });
    return sound;
}

// Whether ids [begin, end) are unique rows of their feature's tables. A block of ids is looked at twice while it is
// near.
inline bool ids_are_sound(const FeatureIds& ids, int64_t begin, int64_t end) noexcept {
    constexpr int64_t kBlock = 1024;
    bool sound = true;
    ids.each_feature(begin, end, [&](int64_t f, int64_t first, int64_t last) {
        for (int64_t from = first; sound && from < last; from += kBlock) {
            const int64_t to = std::min(from + kBlock, last);
            sound = all_within(ids.query_ids, from, to, {0, ids.unique});
            if (!sound) return;
            uint32_t wrong = 0;
            for (int64_t p = from; p < to; ++p) wrong |= ids.unique_tables[ids.query_ids[p]] ^ ids.feature_tables[f];
            sound = wrong == 0;
        }
    });
    return sound;
}

inline bool all_ids_are_sound(const FeatureIds& ids, int64_t nnz, const Workers& workers) {
    const TableRanges ranges(ids);
    if (ranges.known())
        return all_parts(nnz, workers,
                         [&](int64_t begin, int64_t end) { return ids_are_within(ids, ranges, begin, end); });
    return all_parts(nnz, workers, [&](int64_t begin, int64_t end) { return ids_are_sound(ids, begin, end); });
}

// Position of the first id that is a row of another table than its feature's, or -1; all are unique rows.
inline int64_t first_of_other_table(const FeatureIds& ids, int64_t nnz) noexcept {
    int64_t bad = -1;
    ids.each_feature(0, nnz, [&](int64_t f, int64_t first, int64_t last) {
        for (int64_t p = first; bad < 0 && p < last; ++p)
            if (ids.unique_tables[ids.query_ids[p]] != ids.feature_tables[f]) bad = p;
    });
    return bad;
}

}  // namespace headrace
