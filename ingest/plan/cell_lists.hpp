// Many lists of cells that grow and are emptied all the time, in chunks of one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

// The pool is one array of words, a chunk CHUNK of them (four lines of the cache). Which chunk follows which stands in
// a small array of its own, so that nobody waits for the memory to learn it, and the chunks of a list go back in O(1).
class CellLists {
  public:
    struct List {
        uint32_t first = NONE;  // chunk
        uint32_t cursor = 0;    // the word to write next; at the beginning of a chunk: a new one is needed first
        uint32_t chunks = 0;
    };

    size_t nbytes() const { return (words_.capacity() + next_.capacity()) * sizeof(uint32_t); }
    static bool empty(const List& list) { return list.first == NONE; }
    static size_t size(const List& list) {
        return empty(list) ? 0 : (list.chunks - 1) * size_t{CHUNK} + list.cursor - last_of(list) * size_t{CHUNK};
    }

    // Room for so many cells more in any of `lists` lists: `append` does not allocate then.
    void reserve(size_t cells, size_t lists) {
        const size_t needed = cells / CHUNK + lists;
        if (needed <= free_count_) return;
        const size_t before = next_.size(), least = before + needed - free_count_;
        const size_t after = least > 2 * before ? least : 2 * before;
        words_.resize(after * CHUNK);
        next_.reserve(after);
        for (size_t chunk = before; chunk < after; ++chunk) {
            next_.push_back(first_free_);
            first_free_ = static_cast<uint32_t>(chunk);
        }
        free_count_ += after - before;
    }

    void append(List& list, uint32_t cell) {
        if (list.cursor % CHUNK == 0) extend(list);
        words_[list.cursor++] = cell;
    }

    // Empties the list into `out`; returns how many there were.
    size_t take(List& list, std::vector<uint32_t>& out) {
        if (empty(list)) return 0;
        const uint32_t last = last_of(list);
        size_t count = 0;
        for (uint32_t chunk = list.first;; chunk = next_[chunk]) {
            const size_t held = chunk == last ? list.cursor - size_t{last} * CHUNK : CHUNK;
            if (out.size() < count + held) out.resize(2 * (count + held));
            const uint32_t* const words = &words_[size_t{chunk} * CHUNK];
            for (size_t i = 0; i < held; ++i) out[count + i] = words[i];
            count += held;
            if (chunk == last) break;
        }
        clear(list);
        return count;
    }

    void clear(List& list) {
        if (empty(list)) return;
        next_[last_of(list)] = first_free_;
        first_free_ = list.first;
        free_count_ += list.chunks;
        list = List{};
    }

  private:
    static constexpr uint32_t NONE = 0xFFFFFFFFu;
    static constexpr uint32_t CHUNK = 64;

    static uint32_t last_of(const List& list) { return (list.cursor - 1) / CHUNK; }

    void extend(List& list) {
        const uint32_t chunk = first_free_;
        first_free_ = next_[chunk];
        --free_count_;
        if (empty(list)) {
            list.first = chunk;
        } else {
            next_[last_of(list)] = chunk;
        }
        list.cursor = chunk * CHUNK;
        ++list.chunks;
    }

    HugeVector<uint32_t> words_;
    std::vector<uint32_t> next_;  // of each chunk, in its list or among the free ones
    uint32_t first_free_ = NONE;
    size_t free_count_ = 0;
};

}  // namespace headrace::plan
