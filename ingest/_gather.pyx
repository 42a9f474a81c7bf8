# distutils: language = c++
"""Native conversion of record batches to the arrays of a batch; the checked front is `headrace.ingest.row_arrays`."""

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "gather.hpp" namespace "headrace::gather" nogil:
    cdef struct ArrowArray:
        int64_t length, offset, n_children

    cdef struct Task:
        int role
        int64_t place, feature
        cbool log1p
        double fill

    cdef struct Target:
        int64_t rows, n_labels, n_dense
        float* labels
        float* dense
        uint32_t* ids32
        uint64_t* ids64
        uint8_t* missing
        int64_t* nulls

    cdef struct Faults:
        cbool label_missing, not_finite

    void gather_part(const ArrowArray& part, const vector[Task]& tasks, int64_t first, const Target& target,
                     Faults& faults)


cdef class Gatherer:
    cdef vector[Task] tasks
    cdef int64_t n_labels, n_dense, n_ids32, n_ids64

    def __init__(self, columns):
        cdef Task task
        self.n_labels = self.n_dense = self.n_ids32 = self.n_ids64 = 0
        for role, log1p, fill in columns:
            task.role = role
            task.log1p = log1p
            task.fill = fill
            task.feature = -1
            if role == 0:
                task.place = self.n_labels
                self.n_labels += 1
            elif role in (1, 2):
                task.place = self.n_dense
                self.n_dense += 1
            elif role in (3, 4):
                task.feature = self.n_ids32 + self.n_ids64
                task.place = self.n_ids32 if role == 3 else self.n_ids64
                self.n_ids32 += role == 3
                self.n_ids64 += role == 4
            else:
                raise ValueError(f"role {role} is unknown")
            self.tasks.push_back(task)

    def gather(self, list arrays not None, int64_t rows, pool not None):
        cdef vector[const ArrowArray*] parts
        cdef const ArrowArray* part
        cdef int64_t total = 0
        for capsule in arrays:
            part = <const ArrowArray*> PyCapsule_GetPointer(capsule, "arrow_array")
            if part.n_children != <int64_t> self.tasks.size() or part.offset != 0:
                raise ValueError("a part has other columns than were declared")
            total += part.length
            parts.push_back(part)
        if total != rows:
            raise ValueError(f"{total} rows in the parts, {rows} declared")

        features = self.n_ids32 + self.n_ids64
        labels = np.empty((rows, self.n_labels), np.float32)
        dense = np.empty((rows, self.n_dense), np.float32)
        ids32, ids64, missing = pool.take_arrays(
            [(np.uint32, self.n_ids32 * rows), (np.uint64, self.n_ids64 * rows), (np.bool_, features * rows)]
        )
        ids32, ids64 = ids32.reshape(self.n_ids32, rows), ids64.reshape(self.n_ids64, rows)
        missing = missing.reshape(features, rows)
        nulls = np.zeros(features, np.int64)
        cdef Target target
        cdef float[:, ::1] labels_view = labels
        cdef float[:, ::1] dense_view = dense
        cdef uint32_t[:, ::1] ids32_view = ids32
        cdef uint64_t[:, ::1] ids64_view = ids64
        cdef uint8_t[:, ::1] missing_view = missing.view(np.uint8)
        cdef int64_t[::1] nulls_view = nulls
        target.rows = rows
        target.n_labels = self.n_labels
        target.n_dense = self.n_dense
        # Nothing is written through the pointer of an empty array.
        target.labels = &labels_view[0, 0] if labels_view.size else NULL
        target.dense = &dense_view[0, 0] if dense_view.size else NULL
        target.ids32 = &ids32_view[0, 0] if ids32_view.size else NULL
        target.ids64 = &ids64_view[0, 0] if ids64_view.size else NULL
        target.missing = &missing_view[0, 0] if missing_view.size else NULL
        target.nulls = &nulls_view[0] if features else NULL

        cdef Faults faults
        faults.label_missing = faults.not_finite = False
        cdef int64_t first = 0
        with nogil:
            for part in parts:
                if part.length > 0:
                    gather_part(part[0], self.tasks, first, target, faults)
                first += part.length
        return labels, dense, ids32, ids64, missing, nulls, faults.label_missing or faults.not_finite
