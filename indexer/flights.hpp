// The unique keys of a batch on their way to their entries, some dozens at a time, so that nobody waits for memory.
//
// While one flight's home lines are on their way, the one before is compared with its lines, and what the one before
// that has left over is dealt with.
#pragma once

#include <array>

#include "batch.hpp"
#include "locked_shards.hpp"

namespace headrace {

struct Flight {
    static constexpr std::size_t kMost = 32;

    std::size_t size = 0, num_left = 0;
    std::array<std::uint64_t, kMost> hashes;      // permuted
    std::array<std::uint64_t, kMost> keys;        // key_bits
    std::array<const Entry*, kMost> lines;        // home lines
    std::array<std::uint64_t*, kMost> locations;  // to be set; and so:
    std::array<std::uint8_t*, kMost> is_new;      // 0 until set
    std::array<std::uint32_t, kMost> groups, shards;
    std::array<std::uint32_t, kMost> left;  // the numbers of those that the home line did not settle

    Probe probe(std::size_t i) const { return {hashes[i], keys[i]}; }
};

// All keys of a lane, whose shards the caller has locked. `on_compared(flight, i, entry, found)`: the home line
// has the key as `entry`, or, not `found`, has it not, and then `entry` is any of the line's; whether that is all for
// this key. If not, `on_left(flight, i, counts)` comes later, in batch order; it may add rows and remove them, and says
// whether the shard has grown.
template <class OnCompared, class OnLeft>
void each_key(Batch& batch, std::size_t lane, ProbeCounts& counts, const LockedShards& shards, OnCompared&& on_compared,
              OnLeft&& on_left) {
    std::array<Flight, 3> flights;
    Batch::Cursor cursor(batch, lane);
    const std::uint64_t multiplier = batch.multiplier();

    const auto fetch_lines = [&](Flight& flight) {
        for (std::size_t i = 0; i < flight.size; ++i) {
            flight.lines[i] = shards[flight.shards[i]].home_line(flight.hashes[i]);
            __builtin_prefetch(flight.lines[i]);
        }
    };
    const auto add = [&](Flight& flight, const Batch::Keys& keys) {
        const GroupOut& out = batch.group(keys.group);
        for (std::size_t k = 0; k < keys.size; ++k) {
            const std::size_t i = flight.size + k;
            const std::uint32_t position = keys.position(k);
            const std::uint64_t hash = keys.hashes[position];
            flight.hashes[i] = permuted(hash, multiplier);
            flight.keys[i] = keys.key_at(position);
            flight.locations[i] = out.locations + keys.first_row + position;
            flight.is_new[i] = out.is_new + keys.first_row + position;
            flight.groups[i] = keys.group;
            flight.shards[i] = static_cast<std::uint32_t>(shards.shard_of(hash));
        }
        flight.size += keys.size;
    };
    const auto start = [&](Flight& flight) {
        Batch::Keys keys;
        flight.size = 0;
        while (flight.size < Flight::kMost) {
            cursor.next(keys, Flight::kMost - flight.size);
            if (keys.size == 0) break;
            add(flight, keys);
        }
        fetch_lines(flight);
    };
    const auto compare = [&](Flight& flight) {
        std::size_t num_left = 0;
        for (std::size_t i = 0; i < flight.size; ++i) {
            const Entry* const line = flight.lines[i];
            const std::uint64_t hash = flight.hashes[i];
            const Entry& entry = line[first_alike(line_bits(line, hash).alike)];
            const bool found = entry.is(hash, flight.keys[i]);
            flight.left[num_left] = static_cast<std::uint32_t>(i);
            num_left += !on_compared(flight, i, entry, found);
        }
        for (std::size_t j = 0; j < num_left; ++j) {
            const Entry* const line = flight.lines[flight.left[j]];
            const std::size_t step = line_full(line) ? kLine : 0;
            for (std::size_t ahead = 1; ahead <= kLinesAhead; ++ahead) __builtin_prefetch(line + ahead * step);
        }
        flight.num_left = num_left;
        counts.keys += flight.size;
        counts.lines += flight.size - num_left;
    };

    start(flights[0]);
    for (std::size_t now = 0, next = 1, last = 2;; std::swap(last, now), std::swap(now, next)) {
        start(flights[next]);
        compare(flights[now]);
        bool grown = false;
        const Flight& flight = flights[last];
        for (std::size_t j = 0; j < flight.num_left; ++j) grown |= on_left(flight, flight.left[j], counts);
        if (grown) fetch_lines(flights[next]);
        if (flights[now].size == 0) return;
    }
}

}  // namespace headrace
