// Transpose of a batch's query ids: where each unique row occurs, by a counting sort (two passes, stable).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// The sort over `kParts` runs of the ids, side by side, each with counts of its own: an id that occurs again at once,
// as the frequent ones do, waits for its count to be written and read back, while the other runs go on.
template <std::size_t kParts>
void transpose_parts(const std::uint32_t* query_ids, std::size_t nnz, std::size_t num_unique, std::int64_t* wide_ids,
                     std::int64_t* positions, std::int64_t* offsets, std::vector<std::uint32_t>& counts) {
    const std::size_t part = nnz / kParts;
    counts.assign(kParts * num_unique, 0);
    std::uint32_t* const of_last = counts.data() + (kParts - 1) * num_unique;
    for (std::size_t i = 0; i < part; ++i) {
        for (std::size_t k = 0; k < kParts; ++k) {
            const std::uint32_t u = query_ids[k * part + i];
            wide_ids[k * part + i] = u;
            ++counts[k * num_unique + u];
        }
    }
    for (std::size_t p = kParts * part; p < nnz; ++p) {
        wide_ids[p] = query_ids[p];
        ++of_last[query_ids[p]];
    }
    std::uint32_t next = 0;  // counts become places: of a row's ids those of the first run come first
    for (std::size_t u = 0; u < num_unique; ++u) {
        offsets[u] = next;
        for (std::size_t k = 0; k < kParts; ++k) {
            const std::uint32_t count = counts[k * num_unique + u];
            counts[k * num_unique + u] = next;
            next += count;
        }
    }
    offsets[num_unique] = next;
    for (std::size_t i = 0; i < part; ++i) {
        for (std::size_t k = 0; k < kParts; ++k) {
            const std::size_t p = k * part + i;
            positions[counts[k * num_unique + query_ids[p]]++] = static_cast<std::int64_t>(p);
        }
    }
    for (std::size_t p = kParts * part; p < nnz; ++p) {
        positions[of_last[query_ids[p]]++] = static_cast<std::int64_t>(p);
    }
}

// query_ids [nnz], less than 2^32 of them, with values in [0, num_unique); offsets [num_unique + 1] and positions [nnz]
// are outputs, wide_ids [nnz] the query ids as int64. Returns the first position whose id is out of range, or nnz when
// all are in range. Scratch is kept by each thread; may throw bad_alloc.
inline std::size_t transpose(const std::uint32_t* query_ids, std::size_t nnz, std::size_t num_unique,
                             std::int64_t* wide_ids, std::int64_t* positions, std::int64_t* offsets) {
    std::uint32_t largest = 0;
    for (std::size_t p = 0; p < nnz; ++p) largest = std::max(largest, query_ids[p]);
    if (nnz != 0 && largest >= num_unique) {
        const auto outside = [num_unique](std::uint32_t u) { return u >= num_unique; };
        return static_cast<std::size_t>(std::find_if(query_ids, query_ids + nnz, outside) - query_ids);
    }
    static thread_local std::vector<std::uint32_t> counts;
    if (num_unique <= nnz / 4) {
        transpose_parts<4>(query_ids, nnz, num_unique, wide_ids, positions, offsets, counts);
    } else {  // counts for each run would cost more than they save
        transpose_parts<1>(query_ids, nnz, num_unique, wide_ids, positions, offsets, counts);
    }
    return nnz;
}

}  // namespace headrace
