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
    uint32_t cell;
    uint32_t slot;
};

// All locations are different, so that every correct sort gives the same order. Long ones go by radix, BITS bits a
// pass, over the bits in which the locations differ.
template <unsigned BITS>
void radix_sort(std::vector<Victim>& victims, std::vector<Victim>& spare) {
    uint64_t differing = 0;
    for (const Victim& victim : victims) differing |= victim.location ^ victims.front().location;
    spare.resize(victims.size());
    constexpr uint64_t MASK = (1u << BITS) - 1;
    for (unsigned shift = 0; shift < 64; shift += BITS) {
        while (shift < 63 && (differing >> shift & 1) == 0) ++shift;
        if (differing >> shift == 0) return;
        std::array<uint32_t, MASK + 1> place{};
        for (const Victim& victim : victims) ++place[victim.location >> shift & MASK];
        uint32_t sum = 0;
        for (uint32_t& first : place) {
            const uint32_t count = first;
            first = sum;
            sum += count;
        }
        for (const Victim& victim : victims) spare[place[victim.location >> shift & MASK]++] = victim;
        victims.swap(spare);
    }
}

inline void sort_by_location(std::vector<Victim>& victims, std::vector<Victim>& spare) {
    if (victims.size() < 256) {
        std::sort(victims.begin(), victims.end(),
                  [](const Victim& a, const Victim& b) { return a.location < b.location; });
    } else if (victims.size() < 4096) {
        radix_sort<8>(victims, spare);
    } else {
        radix_sort<12>(victims, spare);
    }
}

}  // namespace headrace::plan
