// Rows brought by batches that are not committed yet, oldest first: committed from the front, undone from the back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "entry.hpp"

namespace headrace {

class Journal {
  public:
    // May throw, and then changes nothing. Tickets rise.
    void push(std::int64_t ticket, const Entry& row) {
        rows_.push_back(row);
        if (first_mark_ == marks_.size() || marks_.back().ticket != ticket) {
            try {
                marks_.push_back({ticket, 0});
            } catch (...) {
                rows_.pop_back();
                throw;
            }
        }
        ++marks_.back().rows;
    }

    // `on_row(entry)` for each row that came since this was last called, oldest first.
    template <class OnRow>
    void each_fresh(OnRow&& on_row) {
        for (; fresh_ < rows_.size(); ++fresh_) on_row(rows_[fresh_]);
    }

    // `on_row(entry)` for each row of the tickets up to `ticket`, oldest first; they leave the journal. After
    // each_fresh().
    template <class OnRow>
    void commit(std::int64_t ticket, OnRow&& on_row) {
        while (first_mark_ < marks_.size() && marks_[first_mark_].ticket <= ticket) {
            for (std::size_t left = marks_[first_mark_].rows; left > 0; --left) on_row(rows_[first_row_++]);
            ++first_mark_;
        }
        fresh_ -= drop_front(rows_, first_row_);
        drop_front(marks_, first_mark_);
    }

    // `on_row(entry)` for each row of the tickets after `ticket`, newest first; they leave the journal.
    template <class OnRow>
    void undo_after(std::int64_t ticket, OnRow&& on_row) {
        while (marks_.size() > first_mark_ && marks_.back().ticket > ticket) {
            for (std::size_t left = marks_.back().rows; left > 0; --left) {
                on_row(rows_.back());
                rows_.pop_back();
            }
            marks_.pop_back();
        }
        fresh_ = std::min(fresh_, rows_.size());
    }

    std::size_t rows() const { return rows_.size() - first_row_; }
    std::size_t nbytes() const { return rows_.capacity() * sizeof(Entry) + marks_.capacity() * sizeof(Mark); }

  private:
    struct Mark {
        std::int64_t ticket;
        std::size_t rows;
    };

    // Moves the rest down once the dead front is the larger half: constant cost a row, memory kept. Returns by how far.
    template <class T>
    static std::size_t drop_front(std::vector<T>& items, std::size_t& first) {
        if (first * 2 < items.size()) return 0;
        items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(first));
        return std::exchange(first, 0);
    }

    std::vector<Entry> rows_;
    std::vector<Mark> marks_;  // one a ticket that brought rows to this shard
    std::size_t first_row_ = 0, first_mark_ = 0;
    std::size_t fresh_ = 0;  // rows before it, each_fresh() has given out
};

}  // namespace headrace
