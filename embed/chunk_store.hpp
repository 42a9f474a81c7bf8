// Rows of one row layout in host memory, by location: sparse chunk numbers -> lazily mapped blocks of 16,384 rows.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "init_rows.hpp"
#include "parallel.hpp"
#include "update.hpp"

namespace headrace {

// Fields of a location, as in headrace/indexer/indexed.py.
constexpr int kOffsetBits = 14;
constexpr int kTierShift = 62;
constexpr int64_t kChunkRows = 1 << kOffsetBits;
constexpr uint64_t kAbsent = ~uint64_t{0};
constexpr int64_t kAhead = 8;        // rows looked ahead by the software prefetch
constexpr int64_t kLeastRows = 512;  // of one thread's part: below, waking a thread costs more than it saves

// Zeroed pages that cost memory only once touched.
inline void* map_pages(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return at;
}

// Header of a block; its rows follow it in the same mapping.
struct alignas(64) Block {
    int64_t num_written;
    uint64_t written[kChunkRows / 64];

    float* row(uint64_t offset, int64_t width) noexcept {
        return reinterpret_cast<float*>(this + 1) + offset * static_cast<uint64_t>(width);
    }
    bool has(uint64_t offset) const noexcept { return written[offset >> 6] >> (offset & 63) & 1; }
    void set(uint64_t offset) noexcept {
        num_written += !has(offset);
        written[offset >> 6] |= uint64_t{1} << (offset & 63);
    }
    void unset(uint64_t offset) noexcept {
        num_written -= has(offset);
        written[offset >> 6] &= ~(uint64_t{1} << (offset & 63));
    }
};

// 32-bit chunk number -> block, a page table of two levels of 16 bits each.
class ChunkTable {
  public:
    explicit ChunkTable(int64_t width)
        : block_bytes_(sizeof(Block) + static_cast<size_t>(kChunkRows * width) * sizeof(float)),
          top_(static_cast<Block***>(map_pages(kLeafBytes))) {}
    ~ChunkTable() {
        clear();
        munmap(top_, kLeafBytes);
    }
    ChunkTable(const ChunkTable&) = delete;
    ChunkTable& operator=(const ChunkTable&) = delete;

    Block* find(uint32_t chunk) const noexcept {
        Block** leaf = top_[chunk >> 16];
        return leaf ? leaf[chunk & 0xFFFF] : nullptr;
    }

    // std::bad_alloc: then nothing has changed.
    Block* ensure(uint32_t chunk) {
        if (Block* found = find(chunk)) return found;
        chunks_.push_back(chunk);
        Block** const before = top_[chunk >> 16];
        Block** leaf = before;
        try {
            if (!leaf) leaf = static_cast<Block**>(map_pages(kLeafBytes));
            leaf[chunk & 0xFFFF] = static_cast<Block*>(map_pages(block_bytes_));
        } catch (...) {
            if (leaf != before) munmap(leaf, kLeafBytes);
            chunks_.pop_back();
            throw;
        }
        top_[chunk >> 16] = leaf;
        return leaf[chunk & 0xFFFF];
    }

    void swap(ChunkTable& other) noexcept {
        std::swap(block_bytes_, other.block_bytes_);
        std::swap(top_, other.top_);
        chunks_.swap(other.chunks_);
    }

    void clear() noexcept {
        for (uint32_t chunk : chunks_) munmap(top_[chunk >> 16][chunk & 0xFFFF], block_bytes_);
        for (uint32_t chunk : chunks_) {
            Block**& leaf = top_[chunk >> 16];
            if (leaf) munmap(leaf, kLeafBytes);
            leaf = nullptr;
        }
        chunks_.clear();
    }

    const std::vector<uint32_t>& chunks() const noexcept { return chunks_; }
    int64_t reserved_bytes() const noexcept { return static_cast<int64_t>(chunks_.size() * block_bytes_); }

  private:
    static constexpr size_t kLeafBytes = 65536 * sizeof(void*);
    size_t block_bytes_;
    Block*** top_;
    std::vector<uint32_t> chunks_;
};

// What the keys of the rows are, in the order of the locations.
struct Keys {
    const uint64_t* ids;
    const uint32_t* tables;
    const uint8_t* missing;
};

// What the rows of a table start from, where it is not the store's own initialiser.
struct TableInitializer {
    uint32_t table;
    Initializer init;
};

class RowStore {
  public:
    RowStore(int64_t dim, int64_t state, Initializer init)
        : dim_(dim), width_(dim + state), init_(init), table_(dim + state), next_(dim + state) {}

    void add_initializer(TableInitializer one) {
        by_table_.push_back(one);
        std::sort(by_table_.begin(), by_table_.end(),
                  [](const TableInitializer& a, const TableInitializer& b) { return a.table < b.table; });
    }

    // Position of the first location whose tier bits are not 0 (ABSENT aside, if allowed), or -1.
    static int64_t first_invalid(const uint64_t* locations, int64_t n, bool allow_absent) noexcept {
        uint64_t bits = 0;
        for (int64_t i = 0; i < n; ++i) bits |= locations[i];
        if (!(bits >> kTierShift)) return -1;
        for (int64_t i = 0; i < n; ++i)
            if (locations[i] >> kTierShift && !(allow_absent && locations[i] == kAbsent)) return i;
        return -1;
    }

    // Row i -> out + (slots ? slots[i] : i) * stride, `width` floats (dim, or dim + state); unwritten rows are made.
    void read(const uint64_t* locations, Keys keys, int64_t n, const int64_t* slots, float* out, int64_t stride,
              int64_t width, const Workers& workers) const {
        workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (i + kAhead < end) prefetch(locations[i + kAhead]);
                float* to = out + (slots ? slots[i] : i) * stride;
                if (const float* row = written_row(locations[i]))
                    std::memcpy(to, row, static_cast<size_t>(width) * sizeof(float));
                else
                    initial_row(keys, i, width, to);
            }
        });
    }

    // Addresses of the vectors of n rows, valid until the next call; unwritten rows are made on the side.
    const float** locate(const uint64_t* locations, Keys keys, int64_t n, const Workers& workers) {
        find_written(locations, n, workers);
        made_.resize(unwritten_.size() * static_cast<size_t>(dim_));
        workers.run(static_cast<int64_t>(unwritten_.size()), kLeastRows, [&](int64_t begin, int64_t end) {
            for (int64_t k = begin; k < end; ++k) {
                const int64_t i = unwritten_[static_cast<size_t>(k)];
                float* to = made_.data() + k * dim_;
                initial_row(keys, i, dim_, to);
                addresses_[static_cast<size_t>(i)] = to;
            }
        });
        return addresses_.data();
    }

    // Whatever `write` and `update` of these rows need beside the rows that are there: neither runs out of memory after
    // it. std::bad_alloc: then no row has changed.
    void make_room(const uint64_t* locations, int64_t n) {
        addresses_.reserve(static_cast<size_t>(n));
        found_.reserve(static_cast<size_t>(n));
        unwritten_.reserve(static_cast<size_t>(n));
        ensure_all(table_, locations, n);
    }

    // rows + (slots ? slots[i] : i) * width -> row i, with its state; marks it as written. std::bad_alloc: no row has
    // changed.
    void write(const uint64_t* locations, int64_t n, const int64_t* slots, const float* rows) {
        ensure_all(table_, locations, n);
        for (int64_t i = 0; i < n; ++i) {
            if (i + kAhead < n) prefetch(locations[i + kAhead]);
            Block* block = table_.find(chunk_of(locations[i]));
            std::memcpy(block->row(offset_of(locations[i]), width_), rows + (slots ? slots[i] : i) * width_,
                        static_cast<size_t>(width_) * sizeof(float));
            block->set(offset_of(locations[i]));
        }
    }

    // Chunks for other contents, beside the present ones, which stay until `replace`. They are address space only.
    // std::bad_alloc: then nothing has changed.
    void make_room_beside(const uint64_t* locations, int64_t n) {
        ChunkTable next(width_);
        ensure_all(next, locations, n);
        next_.clear();
        next_.swap(next);
    }

    void drop_room_beside() noexcept { next_.clear(); }

    // Forget all rows for rows [n, width], after `make_room_beside` of the same locations: cannot fail.
    void replace(const uint64_t* locations, int64_t n, const float* rows) noexcept {
        clear();
        table_.swap(next_);
        write(locations, n, nullptr, rows);
    }

    // One optimizer step on each row, in place; a row that was never written starts from its initial vector.
    // Rows are written in parallel; marking new ones, which may map a chunk, is done by one thread.
    void update(const uint64_t* locations, Keys keys, int64_t n, const float* grads, Rule rule,
                const Workers& workers) {
        if (!are_found(locations, n, workers)) find_written(locations, n, workers);
        for (int64_t i : unwritten_) table_.ensure(chunk_of(locations[i]));  // may throw: nothing is marked yet
        for (int64_t i : unwritten_) {
            Block* block = table_.find(chunk_of(locations[i]));
            block->set(offset_of(locations[i]));
            addresses_[static_cast<size_t>(i)] = block->row(offset_of(locations[i]), width_);
        }
        workers.run(static_cast<int64_t>(unwritten_.size()), kLeastRows, [&](int64_t begin, int64_t end) {
            for (int64_t k = begin; k < end; ++k) {
                const int64_t i = unwritten_[static_cast<size_t>(k)];
                initial_row(keys, i, width_, const_cast<float*>(addresses_[static_cast<size_t>(i)]));
            }
        });
        workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
            update_many(rule, dim_, width_, end - begin, grads + begin * dim_,
                        [&](int64_t i) { return const_cast<float*>(addresses_[static_cast<size_t>(begin + i)]); });
        });
    }

    void is_written(const uint64_t* locations, int64_t n, uint8_t* out) const noexcept {
        for (int64_t i = 0; i < n; ++i) {
            Block* block = table_.find(chunk_of(locations[i]));
            out[i] = block && block->has(offset_of(locations[i]));
        }
    }

    void forget(const uint64_t* locations, int64_t n) noexcept {
        all_found_ = false;
        for (int64_t i = 0; i < n; ++i)
            if (Block* block = table_.find(chunk_of(locations[i]))) block->unset(offset_of(locations[i]));
    }

    int64_t num_written() const noexcept {
        int64_t total = 0;
        for (uint32_t chunk : table_.chunks()) total += table_.find(chunk)->num_written;
        return total;
    }

    // Locations of the written rows, ascending; `out` has room for num_written().
    void written_locations(uint64_t* out) const {
        std::vector<uint32_t> chunks = table_.chunks();
        std::sort(chunks.begin(), chunks.end());
        for (uint32_t chunk : chunks) {
            const Block* block = table_.find(chunk);
            for (uint64_t offset = 0; offset < static_cast<uint64_t>(kChunkRows); ++offset)
                if (block->has(offset)) *out++ = uint64_t{chunk} << kOffsetBits | offset;
        }
    }

    void clear() noexcept {
        all_found_ = false;
        table_.clear();
    }
    int64_t reserved_bytes() const noexcept { return table_.reserved_bytes(); }

  private:
    static uint32_t chunk_of(uint64_t location) noexcept { return static_cast<uint32_t>(location >> kOffsetBits); }
    static uint64_t offset_of(uint64_t location) noexcept { return location & (kChunkRows - 1); }

    static void ensure_all(ChunkTable& table, const uint64_t* locations, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
            if (i == 0 || chunk_of(locations[i]) != chunk_of(locations[i - 1])) table.ensure(chunk_of(locations[i]));
    }

    const float* written_row(uint64_t location) const noexcept {
        if (location == kAbsent) return nullptr;
        Block* block = table_.find(chunk_of(location));
        return block && block->has(offset_of(location)) ? block->row(offset_of(location), width_) : nullptr;
    }

    // Whether addresses_ has these rows, all of them written, as after the forward of the batch that is updated now.
    // It is their values that count: the caller may have put others into the same array since.
    bool are_found(const uint64_t* locations, int64_t n, const Workers& workers) const {
        if (!all_found_ || static_cast<size_t>(n) != found_.size()) return false;
        std::atomic<bool> all{true};
        workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
            if (!std::equal(locations + begin, locations + end, found_.begin() + begin)) all = false;
        });
        return all;
    }

    // addresses_ of n rows, nullptr: never written; unwritten_ = those, ascending.
    void find_written(const uint64_t* locations, int64_t n, const Workers& workers) {
        all_found_ = false;
        addresses_.resize(static_cast<size_t>(n));
        found_.resize(static_cast<size_t>(n));
        std::atomic<bool> all{true};
        workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
            bool all_here = true;
            for (int64_t i = begin; i < end; ++i) {
                if (i + kAhead < end) prefetch_bit(locations[i + kAhead]);
                const float* row = written_row(locations[i]);
                addresses_[static_cast<size_t>(i)] = row;
                found_[static_cast<size_t>(i)] = locations[i];
                all_here &= row != nullptr;
            }
            if (!all_here) all = false;
        });
        unwritten_.clear();
        all_found_ = all;
        if (all) return;
        for (int64_t i = 0; i < n; ++i)
            if (!addresses_[static_cast<size_t>(i)]) unwritten_.push_back(i);
    }

    const Initializer& initializer_of(uint32_t table) const noexcept {
        const auto at = std::lower_bound(by_table_.begin(), by_table_.end(), table,
                                         [](const TableInitializer& one, uint32_t uid) { return one.table < uid; });
        return at != by_table_.end() && at->table == table ? at->init : init_;
    }

    void initial_row(Keys keys, int64_t i, int64_t width, float* to) const noexcept {
        initial_vector(initializer_of(keys.tables[i]), keys.ids[i], keys.tables[i], keys.missing[i] != 0, dim_, to);
        for (int64_t j = dim_; j < width; ++j) to[j] = 0.0f;
    }

    void prefetch_bit(uint64_t location) const noexcept {
        if (Block* block = table_.find(chunk_of(location)))
            __builtin_prefetch(&block->written[offset_of(location) >> 6]);
    }

    void prefetch(uint64_t location) const noexcept {
        Block* block = table_.find(chunk_of(location));
        if (!block) return;
        const uint64_t offset = offset_of(location);
        __builtin_prefetch(&block->written[offset >> 6]);
        prefetch_row<0>(block->row(offset, width_), width_);
    }

    int64_t dim_;
    int64_t width_;
    Initializer init_;
    std::vector<TableInitializer> by_table_;
    ChunkTable table_;
    ChunkTable next_;                      // room for other contents, without rows
    std::vector<const float*> addresses_;  // of one call; kept, so that the next one allocates nothing
    std::vector<uint64_t> found_;          // locations of the rows that these are the addresses of
    bool all_found_ = false;               // all of them were written, and none was forgotten since
    std::vector<int64_t> unwritten_;
    std::vector<float> made_;
};

// out[i] = source[slots[i]], the first `width` floats of each row.
inline void gather_slots(const float* source, int64_t stride, const int64_t* slots, int64_t n, float* out,
                         int64_t width, const Workers& workers) {
    workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) prefetch_row<0>(source + slots[i + kAhead] * stride, width);
            std::memcpy(out + i * width, source + slots[i] * stride, static_cast<size_t>(width) * sizeof(float));
        }
    });
}

// out[i] = rows[i], `dim` floats each.
inline void copy_rows(const float* const* rows, int64_t n, int64_t dim, float* out, const Workers& workers) {
    workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) prefetch_row<0>(rows[i + kAhead], dim);
            std::memcpy(out + i * dim, rows[i], static_cast<size_t>(dim) * sizeof(float));
        }
    });
}

// Rows of an arena by slot (each at most once); grads [n, dim] in the order of the slots.
inline void update_slots(const Rule& rule, int64_t dim, float* arena, int64_t width, const int64_t* slots, int64_t n,
                         const float* grads, const Workers& workers) {
    workers.run(n, kLeastRows, [&](int64_t begin, int64_t end) {
        update_many(rule, dim, width, end - begin, grads + begin * dim,
                    [&](int64_t i) { return arena + slots[begin + i] * width; });
    });
}

}  // namespace headrace
