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
        if (x <= 0) return 0.0F;
        if (x < kCount) return values_[static_cast<std::size_t>(x)];
        return static_cast<float>(std::log1p(static_cast<double>(x)));
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

class Validity {
  public:
    explicit Validity(const ArrowArray& column)
        : bits_(column.null_count == 0 || column.n_buffers < 1 ? nullptr
                                                               : static_cast<const std::uint8_t*>(column.buffers[0])),
          offset_(column.offset) {}

    bool all() const { return bits_ == nullptr; }
    bool operator[](std::int64_t row) const {
        const std::int64_t at = offset_ + row;
        return (bits_[at >> 3] >> (at & 7) & 1) != 0;
    }

  private:
    const std::uint8_t* bits_;
    std::int64_t offset_;
};

template <typename T>
const T* values_of(const ArrowArray& column) {
    return static_cast<const T*>(column.buffers[1]) + column.offset;
}

// out[row * stride] for each row; `missing` under a null.
template <typename T, typename Function>
void spread(const ArrowArray& column, float* out, std::int64_t stride, float missing, Function function) {
    const T* const values = values_of<T>(column);
    const Validity valid(column);
    if (valid.all()) {
        for (std::int64_t r = 0; r < column.length; ++r) out[r * stride] = function(values[r]);
    } else {
        for (std::int64_t r = 0; r < column.length; ++r) out[r * stride] = valid[r] ? function(values[r]) : missing;
    }
}

inline void gather_dense(const ArrowArray& column, const Task& task, float* out, std::int64_t stride) {
    const float missing = static_cast<float>(task.log1p ? log1p_of(task.fill) : task.fill);
    if (task.role == kDenseFloat32) {
        if (task.log1p) {
            spread<float>(column, out, stride, missing, [](float x) { return static_cast<float>(log1p_of(x)); });
        } else {
            spread<float>(column, out, stride, missing, [](float x) { return x; });
        }
    } else if (task.log1p) {
        const SmallLogs& logs = SmallLogs::get();
        spread<std::int64_t>(column, out, stride, missing, [&](std::int64_t x) { return logs.of(x); });
    } else {
        spread<std::int64_t>(column, out, stride, missing,
                             [](std::int64_t x) { return static_cast<float>(static_cast<double>(x)); });
    }
}

// out[row] = 1 where the column is null; their number.
inline std::int64_t gather_nulls(const ArrowArray& column, std::uint8_t* out) {
    const Validity valid(column);
    if (valid.all()) {
        std::memset(out, 0, static_cast<std::size_t>(column.length));
        return 0;
    }
    std::int64_t nulls = 0;
    for (std::int64_t r = 0; r < column.length; ++r) {
        out[r] = !valid[r];
        nulls += out[r];
    }
    return nulls;
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

// The rows of `part`, a struct of one child a task, into rows [first, first + part.length) of `target`.
inline void gather_part(const ArrowArray& part, const std::vector<Task>& tasks, std::int64_t first,
                        const Target& target, Faults& faults) {
    for (std::size_t c = 0; c < tasks.size(); ++c) {
        const ArrowArray& column = *part.children[c];
        const Task& task = tasks[c];
        const std::size_t bytes = static_cast<std::size_t>(column.length);
        switch (task.role) {
            case kLabel: {
                float* const out = target.labels + first * target.n_labels + task.place;
                spread<float>(column, out, target.n_labels, NAN, [](float x) { return x; });
                const Validity valid(column);
                for (std::int64_t r = 0; !valid.all() && r < column.length; ++r) faults.label_missing |= !valid[r];
                break;
            }
            case kDenseInt64:
            case kDenseFloat32:
                gather_dense(column, task, target.dense + first * target.n_dense + task.place, target.n_dense);
                break;
            case kId32:
                std::memcpy(target.ids32 + task.place * target.rows + first, values_of<std::uint32_t>(column),
                            bytes * 4);
                break;
            default:
                std::memcpy(target.ids64 + task.place * target.rows + first, values_of<std::uint64_t>(column),
                            bytes * 8);
        }
        if (task.feature >= 0) {
            target.nulls[task.feature] += gather_nulls(column, target.missing + task.feature * target.rows + first);
        }
    }
    faults.not_finite |= !all_finite(target.dense + first * target.n_dense, part.length * target.n_dense) ||
                         !all_finite(target.labels + first * target.n_labels, part.length * target.n_labels);
}

}  // namespace headrace::gather
