// Where each known row is: one word by row number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huge_pages.hpp"

namespace headrace::plan {

// The slot of a resident row; else AWAY and the move of its last write-back, + 1 (0: none that matters).
using RowState = uint32_t;
constexpr RowState AWAY = 0x80000000u;

// Numbers that are given back are used again before new ones, so that there are never more words than rows at once.
class RowStates {
  public:
    RowState& operator[](uint32_t row) { return states_[row]; }
    size_t nbytes() const { return (states_.capacity() + freed_.capacity()) * sizeof(uint32_t); }
    void prefetch(uint32_t row) const { HEADRACE_PREFETCH_WRITE(&states_[row]); }

    // Room for so many more rows: `add` and `remove` do not allocate then.
    void reserve(size_t more) {
        if (more <= freed_.size()) return;
        const size_t rows = states_.size() + more - freed_.size();
        if (rows > states_.capacity()) states_.reserve(rows > 2 * states_.capacity() ? rows : 2 * states_.capacity());
        if (states_.capacity() > freed_.capacity()) freed_.reserve(states_.capacity());
    }

    uint32_t add() {
        if (freed_.empty()) {
            states_.push_back(AWAY);
            return static_cast<uint32_t>(states_.size() - 1);
        }
        const uint32_t row = freed_.back();
        freed_.pop_back();
        states_[row] = AWAY;
        return row;
    }

    // Of the words that the next `count` calls of `add` write.
    void prefetch_added(size_t count) const {
        const size_t last = freed_.size() > count ? freed_.size() - count : 0;
        for (size_t i = freed_.size(); i > last; --i) prefetch(freed_[i - 1]);
    }

    void remove(uint32_t row) { freed_.push_back(row); }

  private:
    HugeVector<uint32_t> states_, freed_;
};

}  // namespace headrace::plan
