from libc.stdint cimport int64_t


cdef extern from "parallel.hpp" namespace "headrace" nogil:
    cdef cppclass CppThreadPool "headrace::ThreadPool":
        CppThreadPool(unsigned) except +

    cdef cppclass Workers:
        CppThreadPool* pool
        int64_t threads


cdef class Threads:
    cdef CppThreadPool* _pool
    cdef readonly int64_t num_threads
    cdef int64_t _pid

    cdef Workers workers(self) noexcept
