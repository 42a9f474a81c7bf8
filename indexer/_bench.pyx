# Cython face of bench_baselines.hpp, for bench.py alone: arguments here are taken on trust.
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libcpp.memory cimport unique_ptr

import numpy as np


cdef extern from "bench_baselines.hpp" namespace "headrace" nogil:
    void c_stream_pass "headrace::stream_pass"(const uint32_t* ids, size_t size, uint32_t* out) noexcept

    cppclass CRandomReads "headrace::RandomReads":
        CRandomReads(size_t capacity) except +
        uint64_t read(const uint64_t* hashes, size_t size) noexcept
        size_t nbytes() noexcept

    cppclass CLockedMaps "headrace::LockedMaps":
        CLockedMaps(size_t num_shards) except +
        void index_batch(const uint64_t* hashes, size_t size, uint64_t* locations, size_t num_threads) except +
        void index_each(const uint64_t* hashes, size_t size, uint64_t* locations, size_t num_threads) except +


def stream_pass(const uint32_t[::1] ids, uint32_t[::1] out):
    with nogil:
        c_stream_pass(&ids[0] if ids.shape[0] else NULL, ids.shape[0], &out[0] if out.shape[0] else NULL)


cdef class RandomReads:
    cdef unique_ptr[CRandomReads] reads

    def __cinit__(self, size_t capacity):
        self.reads.reset(new CRandomReads(capacity))

    def read(self, const uint64_t[::1] hashes):
        cdef uint64_t total
        with nogil:
            total = self.reads.get().read(&hashes[0] if hashes.shape[0] else NULL, hashes.shape[0])
        return total

    @property
    def nbytes(self):
        return self.reads.get().nbytes()


cdef class LockedMaps:
    cdef unique_ptr[CLockedMaps] maps

    def __cinit__(self, size_t num_shards):
        self.maps.reset(new CLockedMaps(num_shards))

    def index_batch(self, const uint64_t[::1] hashes, size_t num_threads=1):
        locations = np.empty(hashes.shape[0], np.uint64)
        cdef uint64_t[::1] out = locations
        with nogil:
            self.maps.get().index_batch(&hashes[0] if hashes.shape[0] else NULL, hashes.shape[0],
                                        &out[0] if out.shape[0] else NULL, num_threads)
        return locations

    def index_each(self, const uint64_t[::1] hashes, size_t num_threads=1):
        locations = np.empty(hashes.shape[0], np.uint64)
        cdef uint64_t[::1] out = locations
        with nogil:
            self.maps.get().index_each(&hashes[0] if hashes.shape[0] else NULL, hashes.shape[0],
                                       &out[0] if out.shape[0] else NULL, num_threads)
        return locations
