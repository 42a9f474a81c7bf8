from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from headrace.embed._threads cimport Workers


cdef extern from "chunk_store.hpp" namespace "headrace" nogil:
    cdef cppclass Initializer:
        uint64_t seed
        int32_t kind
        double first
        double second

    cdef cppclass TableInitializer:
        uint32_t table
        Initializer init

    cdef cppclass Rule:
        int32_t kind
        float lr
        float eps
        float weight_decay
        float keep1
        float keep2

    cdef cppclass Keys:
        const uint64_t* ids
        const uint32_t* tables
        const uint8_t* missing

    cdef cppclass CppRowStore "headrace::RowStore":
        CppRowStore(int64_t, int64_t, Initializer) except +

        @staticmethod
        int64_t first_invalid(const uint64_t*, int64_t, bint)
        void add_initializer(TableInitializer) except +
        void read(
            const uint64_t*, Keys, int64_t, const int64_t*, float*, int64_t, int64_t, const Workers&
        ) except +
        const float** locate(const uint64_t*, Keys, int64_t, const Workers&) except +
        void write(const uint64_t*, int64_t, const int64_t*, const float*) except +
        void make_room(const uint64_t*, int64_t) except +
        void make_room_beside(const uint64_t*, int64_t) except +
        void drop_room_beside()
        void replace(const uint64_t*, int64_t, const float*)
        void update(const uint64_t*, Keys, int64_t, const float*, Rule, const Workers&) except +
        void is_written(const uint64_t*, int64_t, uint8_t*)
        void forget(const uint64_t*, int64_t)
        int64_t num_written()
        void written_locations(uint64_t*) except +
        void clear()
        int64_t reserved_bytes()


cdef class RowSource:
    cdef readonly int64_t count
    cdef readonly int64_t dim

    cdef const float** begin(self, Workers workers) except? NULL
    cdef void end(self) noexcept


cdef class SlotSource(RowSource):
    cdef const float[:, ::1] _rows
    cdef const int64_t[::1] _slots
    cdef vector[const float*] _addresses


cdef class RowStore:
    cdef CppRowStore* _store
    cdef int64_t _dim
    cdef int64_t _width
    cdef uint64_t _seed
    cdef bint _busy
    cdef const uint64_t[::1] _room_beside

    cdef int _enter(self) except -1
    cdef int _check_locations(self, const uint64_t[::1] locations, bint allow_absent) except -1
    cdef int _check_keys(
        self, int64_t n, const uint64_t[::1] ids, const uint32_t[::1] tables, const uint8_t[::1] missing
    ) except -1
    cdef int _check_rows(self, int64_t n, int64_t rows, const int64_t[::1] slots) except -1


cdef class StoreSource(RowSource):
    cdef RowStore _store
    cdef const uint64_t[::1] _locations
    cdef const uint64_t[::1] _ids
    cdef const uint32_t[::1] _tables
    cdef const uint8_t[::1] _missing
