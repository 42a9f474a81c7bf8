// Transpose of a batch's query ids: where each unique row occurs, by a counting sort (two passes, stable).
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// query_ids [nnz] with values in [0, num_unique); offsets [num_unique + 1] and positions [nnz] are outputs, wide_ids
// [nnz] the query ids as int64. Returns the first position whose id is out of range, or nnz when all are in range.
inline std::size_t transpose(const std::uint32_t* query_ids, std::size_t nnz, std::size_t num_unique,
                             std::int64_t* wide_ids, std::int64_t* positions, std::int64_t* offsets) noexcept {
    for (std::size_t u = 0; u <= num_unique; ++u) offsets[u] = 0;
    for (std::size_t p = 0; p < nnz; ++p) {
        const std::uint32_t u = query_ids[p];
        if (u >= num_unique) return p;
        wide_ids[p] = u;
        ++offsets[u + 1];
    }
    for (std::size_t u = 0; u < num_unique; ++u) offsets[u + 1] += offsets[u];
    // offsets[u] is used as the cursor of row u, then shifted back by one.
    for (std::size_t p = 0; p < nnz; ++p) positions[offsets[query_ids[p]]++] = static_cast<std::int64_t>(p);
    for (std::size_t u = num_unique; u > 0; --u) offsets[u] = offsets[u - 1];
    offsets[0] = 0;
    return nnz;
}

}  // namespace headrace
