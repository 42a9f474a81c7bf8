// Which resident row has to leave: dead rows by last use, then the row used farthest in the future.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "row_table.hpp"

namespace headrace::plan {

struct Victim {
    uint64_t location;
    uint32_t slot;
    uint32_t row;
};

// Each cached row that may leave is in one list: that of the step of its next use, or the dead list (no use in the
// window). Lists are circular and doubly linked through per-slot nodes, so a row changes lists in O(1) and nothing
// stale is ever left behind. The dead list is in order of last use. Order by location within one step is made only for
// what a movement takes out of it.
class VictimLists {
  public:
    explicit VictimLists(uint32_t window) : buckets_(window + 2), nodes_(buckets_ + 1) {
        for (uint32_t list = 0; list <= buckets_; ++list) reset(list);
    }

    size_t nbytes() const {
        return nodes_.capacity() * sizeof(Node) + (chosen_.capacity() + segment_.capacity()) * sizeof(Victim);
    }

    // Slot numbers here count from 0 and come in order: the first row of slot s may be placed once 0 .. s-1 have been.
    void place(uint32_t slot, uint64_t location, uint32_t row) {
        if (slot + buckets_ + 1 == nodes_.size()) nodes_.emplace_back();
        Node& node = at(slot);
        node.location = location;
        node.row = row;
    }

    void link_dead(uint32_t slot, uint32_t last_use) {
        at(slot).last_use = last_use;
        append(dead(), slot);
    }
    void link_used(uint32_t slot, uint32_t next_use) { append(next_use % buckets_, slot); }

    void unlink(uint32_t slot) {
        const Node& node = at(slot);
        nodes_[node.previous].next = node.next;
        nodes_[node.next].previous = node.previous;
    }

    void prefetch(uint32_t slot) const { HEADRACE_PREFETCH(&nodes_[slot + buckets_ + 1]); }

    // The rows used at `step` are no candidates any more; they are linked anew after their use.
    void drop_step(uint32_t step) { reset(step % buckets_); }

    // Up to `needed` victims, first to leave first, taken out of their lists; used ones from step `last` down to
    // `first`.
    const std::vector<Victim>& take(size_t needed, uint32_t first, uint32_t last) {
        chosen_.clear();
        while (chosen_.size() < needed && nodes_[dead()].next != dead()) {
            const uint32_t last_use = nodes_[nodes_[dead()].next].last_use;
            take_segment(dead(), last_use, needed);
        }
        for (uint32_t step = last + 1; step > first && chosen_.size() < needed; --step) {
            take_segment((step - 1) % buckets_, ANY, needed);
        }
        return chosen_;
    }

  private:
    static constexpr uint32_t ANY = 0xFFFFFFFFu;

    struct Node {
        uint64_t location = 0;
        uint32_t row = 0;
        uint32_t last_use = 0;
        uint32_t previous = 0;
        uint32_t next = 0;
    };

    uint32_t dead() const { return buckets_; }
    Node& at(uint32_t slot) { return nodes_[slot + buckets_ + 1]; }
    void reset(uint32_t list) { nodes_[list].previous = nodes_[list].next = list; }

    void append(uint32_t list, uint32_t slot) {
        const uint32_t number = slot + buckets_ + 1;
        Node& node = nodes_[number];
        node.previous = nodes_[list].previous;
        node.next = list;
        nodes_[node.previous].next = number;
        nodes_[list].previous = number;
    }

    // The rows at the head of `list` with this last use (or all of it): as many as are needed, smaller location first.
    void take_segment(uint32_t list, uint32_t last_use, size_t needed) {
        segment_.clear();
        for (uint32_t number = nodes_[list].next; number != list; number = nodes_[number].next) {
            const Node& node = nodes_[number];
            if (last_use != ANY && node.last_use != last_use) break;
            segment_.push_back({node.location, number - buckets_ - 1, node.row});
        }
        const auto by_location = [](const Victim& a, const Victim& b) { return a.location < b.location; };
        const size_t wanted = std::min(needed - chosen_.size(), segment_.size());
        const auto end = segment_.begin() + static_cast<std::ptrdiff_t>(wanted);
        if (wanted < segment_.size()) std::nth_element(segment_.begin(), end, segment_.end(), by_location);
        std::sort(segment_.begin(), end, by_location);
        for (auto victim = segment_.begin(); victim != end; ++victim) {
            unlink(victim->slot);
            chosen_.push_back(*victim);
        }
    }

    uint32_t buckets_;
    std::vector<Node> nodes_;  // list heads [0, buckets_], then one node a slot
    std::vector<Victim> chosen_, segment_;
};

}  // namespace headrace::plan
