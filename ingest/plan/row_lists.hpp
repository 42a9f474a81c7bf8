// Many lists of row numbers that grow and are emptied all the time, in chunks of one pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::plan {

class RowLists {
  public:
    static constexpr uint32_t NONE = 0xFFFFFFFFu;

    struct List {
        uint32_t first = NONE, last = NONE;  // chunks
        uint32_t filled = CHUNK_ROWS;        // of the last chunk
        uint32_t count = 0;
    };

    size_t nbytes() const { return chunks_.capacity() * sizeof(Chunk) + free_.capacity() * sizeof(uint32_t); }

    // Room for so many rows more in any of `lists` lists: `append` does not allocate then.
    void reserve(size_t rows, size_t lists) {
        const size_t needed = rows / CHUNK_ROWS + lists;
        if (needed <= free_.size()) return;
        const size_t before = chunks_.size(), least = before + needed - free_.size();
        const size_t after = least > 2 * before ? least : 2 * before;
        free_.reserve(after);
        chunks_.resize(after);
        for (size_t chunk = after; chunk > before; --chunk) free_.push_back(static_cast<uint32_t>(chunk - 1));
    }

    void append(List& list, uint32_t row) {
        if (list.filled == CHUNK_ROWS) {
            const uint32_t chunk = free_.back();
            free_.pop_back();
            if (list.last == NONE) {
                list.first = chunk;
            } else {
                chunks_[list.last].next = chunk;
            }
            list.last = chunk;
            list.filled = 0;
        }
        chunks_[list.last].rows[list.filled++] = row;
        ++list.count;
    }

    void clear(List& list) {
        if (list.last != NONE) {
            for (uint32_t chunk = list.first; chunk != list.last; chunk = chunks_[chunk].next) free_.push_back(chunk);
            free_.push_back(list.last);
        }
        list = List{};
    }

    template <class F>
    void for_each(const List& list, F&& visit) const {
        if (list.last == NONE) return;
        for (uint32_t chunk = list.first;; chunk = chunks_[chunk].next) {
            const uint32_t end = chunk == list.last ? list.filled : CHUNK_ROWS;
            for (uint32_t i = 0; i < end; ++i) visit(chunks_[chunk].rows[i]);
            if (chunk == list.last) return;
        }
    }

  private:
    static constexpr uint32_t CHUNK_ROWS = 63;
    struct Chunk {
        uint32_t rows[CHUNK_ROWS];
        uint32_t next;
    };

    HugeVector<Chunk> chunks_;
    HugeVector<uint32_t> free_;  // its capacity is that of chunks_, so that `clear` does not allocate
};

}  // namespace headrace::plan
