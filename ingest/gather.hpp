// Record batches of plain columns -> the arrays of a batch, in one pass over each column.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace headrace::gather {

// The Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html).
struct ArrowArray {
    std::int64_t length, null_count, offset, n_buffers, n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

enum Role : int { kLabel = 0, kDenseInt64 = 1, kDenseFloat32 = 2, kId32 = 3, kId64 = 4 };

// What becomes of a column: its place among the labels, dense values, or ids of its width; `feature` among all ids.
struct Task {
    int role;
    std::int64_t place, feature;
    bool log1p;
    double fill;
};

// B rows: labels [B, n_labels], dense [B, n_dense], ids32 [n, B], ids64 [n, B], missing [features, B] of 0 and 1, nulls
// [features].
struct Target {
    std::int64_t rows, n_labels, n_dense;
    float* labels;
    float* dense;
    std::uint32_t* ids32;
    std::uint64_t* ids64;
    std::uint8_t* missing;
    std::int64_t* nulls;
};

// What makes the rows unfit for a batch.
struct Faults {
    bool label_missing, not_finite;
};

// log1p(max(x, 0)) of small integers, which most values are.
class SmallLogs {
  public:
    static constexpr std::int64_t kCount = 1 << 14;

    static const SmallLogs& get() {
        static const SmallLogs logs;
        return logs;
    }

    float of(std::int64_t x) const {
        const std::int64_t at = x < 0 ? 0 : x;  // no branch: which values are 0 nobody can foresee
        if (at < kCount) return values_[static_cast<std::size_t>(at)];
        return static_cast<float>(std::log1p(static_cast<double>(at)));
    }

  private:
    SmallLogs() : values_(kCount) {
        for (std::int64_t i = 0; i < kCount; ++i) {
            values_[static_cast<std::size_t>(i)] = static_cast<float>(std::log1p(static_cast<double>(i)));
        }
    }
    std::vector<float> values_;
};

inline double log1p_of(double x) { return std::log1p(x > 0.0 ? x : (x == x ? 0.0 : x)); }

// Rows of a column go through a buffer of flags, so many at a time.
constexpr std::int64_t kFlagRows = 512;

inline const std::uint8_t* validity_of(const ArrowArray& column) {
    return column.null_count == 0 || column.n_buffers < 1 ? nullptr
                                                          : static_cast<const std::uint8_t*>(column.buffers[0]);
}

// out[i] = 1 where bit first + i of the bitmap is 0; how many there are.
inline std::int64_t flag_nulls(const std::uint8_t* bits, std::int64_t first, std::int64_t count, std::uint8_t* out) {
    constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
    const std::uint8_t* byte = bits + (first >> 3);
    const int shift = static_cast<int>(first & 7);
    std::int64_t nulls = 0, i = 0;
    for (; i + 8 <= count; i += 8, ++byte) {
        // With a shift the last of these bits are in the next byte, which is there.
        const unsigned eight = shift == 0 ? *byte : (*byte | unsigned{byte[1]} << 8) >> shift & 0xFFU;
        const std::uint64_t apart = eight * kOnes & 0x8040201008040201ULL;
        const std::uint64_t flags = ((apart + 0x7F * kOnes) >> 7 & kOnes) ^ kOnes;
        for (int j = 0; j < 8; ++j) out[i + j] = static_cast<std::uint8_t>(flags >> (8 * j));
        nulls += __builtin_popcountll(flags);
    }
    for (; i < count; ++i) {
        out[i] = (bits[(first + i) >> 3] >> ((first + i) & 7) & 1) == 0;
        nulls += out[i];
    }
    return nulls;
}

template <typename T>
const T* values_of(const ArrowArray& column) {
    return static_cast<const T*>(column.buffers[1]) + column.offset;
}

// A run of rows of a column.
struct Rows {
    const ArrowArray& column;
    std::int64_t first, count;  // count at most kFlagRows
};

// out[i * stride] for each row; `missing` under a null.
template <typename T, typename Function>
void spread(const Rows& rows, float* out, std::int64_t stride, float missing, Function function) {
    const T* const values = values_of<T>(rows.column) + rows.first;
    const std::uint8_t* const bits = validity_of(rows.column);
    if (bits == nullptr) {
        for (std::int64_t i = 0; i < rows.count; ++i) out[i * stride] = function(values[i]);
        return;
    }
    std::uint8_t null[kFlagRows];
    flag_nulls(bits, rows.column.offset + rows.first, rows.count, null);
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const float value = function(values[i]);
        out[i * stride] = null[i] != 0 ? missing : value;
    }
}

inline void gather_dense(const Rows& rows, const Task& task, float* out, std::int64_t stride) {
    const float missing = static_cast<float>(task.log1p ? log1p_of(task.fill) : task.fill);
    if (task.role == kDenseFloat32) {
        if (task.log1p) {
            spread<float>(rows, out, stride, missing, [](float x) { return static_cast<float>(log1p_of(x)); });
        } else {
            spread<float>(rows, out, stride, missing, [](float x) { return x; });
        }
    } else if (task.log1p) {
        const SmallLogs& logs = SmallLogs::get();
        spread<std::int64_t>(rows, out, stride, missing, [&](std::int64_t x) { return logs.of(x); });
    } else {
        spread<std::int64_t>(rows, out, stride, missing,
                             [](std::int64_t x) { return static_cast<float>(static_cast<double>(x)); });
    }
}

// out[row] = 1 where the column is null; their number.
inline std::int64_t gather_nulls(const ArrowArray& column, std::uint8_t* out) {
    const std::uint8_t* const bits = validity_of(column);
    if (bits != nullptr) return flag_nulls(bits, column.offset, column.length, out);
    std::memset(out, 0, static_cast<std::size_t>(column.length));
    return 0;
}

inline bool all_finite(const float* values, std::int64_t count) {
    bool finite = true;
    for (std::int64_t i = 0; i < count; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        finite &= (bits & 0x7F800000U) != 0x7F800000U;
    }
    return finite;
}

inline bool any_null(const Rows& rows) {
    const std::uint8_t* const bits = validity_of(rows.column);
    std::uint8_t null[kFlagRows];
    return bits != nullptr && flag_nulls(bits, rows.column.offset + rows.first, rows.count, null) > 0;
}

// Labels and dense values, which lie side by side in a row: some rows of all columns, then the next ones.
inline void gather_floats(const ArrowArray& part, const std::vector<Task>& tasks, std::int64_t from, std::int64_t count,
                          std::int64_t to, const Target& target, Faults& faults) {
    for (std::size_t c = 0; c < tasks.size(); ++c) {
        const Task& task = tasks[c];
        const Rows rows{*part.children[c], from, count};
        if (task.role == kLabel) {
            float* const out = target.labels + to * target.n_labels + task.place;
            spread<float>(rows, out, target.n_labels, NAN, [](float x) { return x; });
            faults.label_missing |= any_null(rows);
        } else if (task.feature < 0) {
            gather_dense(rows, task, target.dense + to * target.n_dense + task.place, target.n_dense);
        }
    }
    faults.not_finite |= !all_finite(target.dense + to * target.n_dense, count * target.n_dense) ||
                         !all_finite(target.labels + to * target.n_labels, count * target.n_labels);
}

// The rows of `part`, a struct of one child a task, into rows [first, first + part.length) of `target`.
inline void gather_part(const ArrowArray& part, const std::vector<Task>& tasks, std::int64_t first,
                        const Target& target, Faults& faults) {
    for (std::int64_t r = 0; r < part.length; r += kFlagRows) {
        const std::int64_t count = part.length - r < kFlagRows ? part.length - r : kFlagRows;
        gather_floats(part, tasks, r, count, first + r, target, faults);
    }
    const std::size_t rows = static_cast<std::size_t>(part.length);
    for (std::size_t c = 0; c < tasks.size(); ++c) {
        const ArrowArray& column = *part.children[c];
        const Task& task = tasks[c];
        const std::int64_t to = task.place * target.rows + first;
        if (task.role == kId32) {
            std::memcpy(target.ids32 + to, values_of<std::uint32_t>(column), rows * 4);
        } else if (task.role == kId64) {
            std::memcpy(target.ids64 + to, values_of<std::uint64_t>(column), rows * 8);
        }
        if (task.feature >= 0) {
            target.nulls[task.feature] += gather_nulls(column, target.missing + task.feature * target.rows + first);
        }
    }
}

}  // namespace headrace::gather
