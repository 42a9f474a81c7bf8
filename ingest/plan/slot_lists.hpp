// Many lists of slots that grow and are emptied all the time, in chunks of one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

// The pool is one array of words; a chunk is CHUNK of them, its last one the number of the next chunk.
class SlotLists {
  public:
    struct List {
        uint32_t first = NONE;  // chunk
        uint32_t cursor = END;  // the word to write next; END of a chunk: a new one is needed first
    };

    size_t nbytes() const { return (words_.capacity() + free_.capacity()) * sizeof(uint32_t); }
    static bool empty(const List& list) { return list.first == NONE; }

    // Room for so many slots more in any of `lists` lists: `append` does not allocate then.
    void reserve(size_t slots, size_t lists) {
        const size_t needed = slots / END + lists;
        if (needed <= free_.size()) return;
        const size_t before = words_.size() / CHUNK, least = before + needed - free_.size();
        const size_t after = least > 2 * before ? least : 2 * before;
        free_.reserve(after);
        words_.resize(after * CHUNK);
        for (size_t chunk = after; chunk > before; --chunk) free_.push_back(static_cast<uint32_t>(chunk - 1));
    }

    void append(List& list, uint32_t slot) {
        if (list.cursor % CHUNK == END) extend(list);
        words_[list.cursor++] = slot;
    }

    // Empties the list into `out`; returns how many there were.
    size_t take(List& list, std::vector<uint32_t>& out) {
        size_t count = 0;
        const uint32_t last = list.cursor / CHUNK;
        for (uint32_t chunk = list.first; chunk != NONE;) {
            const size_t held = chunk == last ? list.cursor % CHUNK : END;
            if (out.size() < count + held) out.resize(2 * (count + held));
            const uint32_t* const words = &words_[size_t{chunk} * CHUNK];
            for (size_t i = 0; i < held; ++i) out[count + i] = words[i];
            count += held;
            free_.push_back(chunk);
            chunk = chunk == last ? NONE : words[END];
        }
        list = List{};
        return count;
    }

    void clear(List& list) {
        const uint32_t last = list.cursor / CHUNK;
        for (uint32_t chunk = list.first; chunk != NONE;) {
            free_.push_back(chunk);
            chunk = chunk == last ? NONE : words_[size_t{chunk} * CHUNK + END];
        }
        list = List{};
    }

  private:
    static constexpr uint32_t NONE = 0xFFFFFFFFu;
    static constexpr uint32_t CHUNK = 64, END = CHUNK - 1;

    void extend(List& list) {
        const uint32_t chunk = free_.back();
        free_.pop_back();
        if (list.first == NONE) {
            list.first = chunk;
        } else {
            words_[list.cursor] = chunk;
        }
        list.cursor = chunk * CHUNK;
    }

    HugeVector<uint32_t> words_;
    HugeVector<uint32_t> free_;  // chunks; room for all of them, so that `clear` does not allocate
};

}  // namespace headrace::plan
