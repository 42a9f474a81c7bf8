// Victims in the order of their locations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::plan {

struct Victim {
    uint64_t location;
    uint32_t row;
    uint32_t slot;
};

// All locations are different, so that every correct sort gives the same order. Long ones go by radix, 8 bits a pass, over
// the bits in which the locations differ.
inline void sort_by_location(std::vector<Victim>& victims, std::vector<Victim>& spare) {
    constexpr size_t SHORT = 256;
    if (victims.size() < SHORT) {
        std::sort(victims.begin(), victims.end(),
                  [](const Victim& a, const Victim& b) { return a.location < b.location; });
        return;
    }
    uint64_t differing = 0;
    for (const Victim& victim : victims) differing |= victim.location ^ victims.front().location;
    spare.resize(victims.size());
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if ((differing >> shift & 0xFF) == 0) continue;
        std::array<size_t, 256> place{};
        for (const Victim& victim : victims) ++place[victim.location >> shift & 0xFF];
        size_t sum = 0;
        for (size_t& first : place) {
            const size_t count = first;
            first = sum;
            sum += count;
        }
        for (const Victim& victim : victims) spare[place[victim.location >> shift & 0xFF]++] = victim;
        victims.swap(spare);
    }
}

}  // namespace headrace::plan
