// What the planner knows of each row that is in the arena, in the window, or was written back a short while ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__GNUC__) || defined(__clang__)
#define HEADRACE_PREFETCH(address) __builtin_prefetch(address)
#else
#define HEADRACE_PREFETCH(address) ((void)(address))
#endif

namespace headrace::plan {

// Step and move numbers are held one higher in 32 bits, so that 0 says "never".
struct Row {
    uint64_t location = 0;
    int32_t slot = -1;         // arena slot; -1: not resident; FREED: this record is not in use
    int32_t hot_rank = -1;     // position in the hot set = R slot; -1: not hot
    uint32_t uses_end = 0;     // last step in which it was pushed, + 1
    uint32_t position = 0;     // where it stands in that step's unique rows; of a record not in use: the next such
    uint32_t written_end = 0;  // move of the last write-back that may be under way, + 1
    uint32_t mark = 0;         // scratch of the search for duplicates
};
static_assert(sizeof(Row) == 32, "two rows share a cache line");

constexpr int32_t FREED = -2;

// Open addressing, linear probing, deletion by shifting back (no tombstones, so it never degrades).
// A bucket holds the upper half of the hash and the row's number. The home of a bucket is the top bits of that half, so
// growth and deletion need not touch the rows.
class RowTable {
  public:
    RowTable() : buckets_(size_t{1} << START_BITS), bits_(START_BITS) {}

    Row& operator[](uint32_t row) { return rows_[row]; }
    size_t size() const { return size_; }
    size_t nbytes() const { return buckets_.capacity() * sizeof(Bucket) + rows_.capacity() * sizeof(Row); }

    // The row number of each location; rows that are not known yet are added. May throw, and then adds none.
    void find_or_add(const uint64_t* locations, size_t count, uint32_t* out) {
        reserve_rows(size_ + count);
        reserve_buckets(size_ + count);
        for (size_t i = 0; i < count; ++i) {
            if (i + FAR < count) HEADRACE_PREFETCH(&buckets_[home(tag_of(locations[i + FAR]))]);
            if (i + NEAR < count) {
                const Bucket& ahead = buckets_[home(tag_of(locations[i + NEAR]))];
                if (ahead.row != EMPTY) HEADRACE_PREFETCH(&rows_[ahead.row]);
            }
            out[i] = find_or_add(locations[i]);
        }
    }

    void remove(uint32_t row) {
        size_t hole = home(tag_of(rows_[row].location));
        while (buckets_[hole].row != row) hole = next(hole);
        for (size_t probe = next(hole); buckets_[probe].row != EMPTY; probe = next(probe)) {
            const size_t wanted = home(buckets_[probe].tag);
            if (((probe - wanted) & mask()) >= ((probe - hole) & mask())) {
                buckets_[hole] = buckets_[probe];
                hole = probe;
            }
        }
        buckets_[hole].row = EMPTY;
        rows_[row].slot = FREED;
        rows_[row].position = freed_;
        freed_ = row;
        --size_;
    }

  private:
    static constexpr uint32_t EMPTY = 0xFFFFFFFFu;
    static constexpr unsigned START_BITS = 10;
    static constexpr size_t FAR = 16, NEAR = 8;  // how far ahead buckets and rows are prefetched

    struct Bucket {
        uint32_t tag = 0;
        uint32_t row = EMPTY;
    };

    static uint32_t tag_of(uint64_t location) {
        location ^= location >> 32;
        location *= 0x9E3779B97F4A7C15ull;
        location ^= location >> 29;
        location *= 0xBF58476D1CE4E5B9ull;
        return static_cast<uint32_t>(location >> 32);
    }
    size_t mask() const { return buckets_.size() - 1; }
    size_t home(uint32_t tag) const { return tag >> (32 - bits_); }
    size_t next(size_t bucket) const { return (bucket + 1) & mask(); }

    uint32_t find_or_add(uint64_t location) {
        const uint32_t tag = tag_of(location);
        size_t bucket = home(tag);
        for (; buckets_[bucket].row != EMPTY; bucket = next(bucket)) {
            const Bucket& there = buckets_[bucket];
            if (there.tag == tag && rows_[there.row].location == location) return there.row;
        }
        const uint32_t row = new_row(location);
        buckets_[bucket].tag = tag;
        buckets_[bucket].row = row;
        ++size_;
        return row;
    }

    uint32_t new_row(uint64_t location) {
        Row fresh;
        fresh.location = location;
        if (freed_ == EMPTY) {
            rows_.push_back(fresh);  // never allocates: room was reserved
            return static_cast<uint32_t>(rows_.size() - 1);
        }
        const uint32_t row = freed_;
        freed_ = rows_[row].position;
        rows_[row] = fresh;
        return row;
    }

    // Freed records are used before new ones, so that there are never more records than rows at once.
    void reserve_rows(size_t rows) {
        if (rows > rows_.capacity()) rows_.reserve(rows > 2 * rows_.capacity() ? rows : 2 * rows_.capacity());
    }

    void reserve_buckets(size_t rows) {
        unsigned bits = bits_;
        while (rows * 10 > (size_t{7} << bits)) ++bits;  // at most 70 % full
        if (bits == bits_) return;
        std::vector<Bucket> old(size_t{1} << bits);
        old.swap(buckets_);
        bits_ = bits;
        for (const Bucket& bucket : old) {
            if (bucket.row == EMPTY) continue;
            size_t place = home(bucket.tag);
            while (buckets_[place].row != EMPTY) place = next(place);
            buckets_[place] = bucket;
        }
    }

    std::vector<Bucket> buckets_;
    std::vector<Row> rows_;
    uint32_t freed_ = EMPTY;  // first of the records not in use, chained by `position`
    size_t size_ = 0;
    unsigned bits_;
};

}  // namespace headrace::plan
