"""Native core of the window planner; the checked front is planner.py."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr

import numpy as np

from headrace.ingest.plan.capacity import CapacityError


cdef extern from "planner.hpp" namespace "headrace::plan" nogil:
    cdef cppclass HugeVector[T]:
        size_t size()
        T* data()
        void swap(HugeVector[T]&)

    cdef cppclass Movement:
        HugeVector[uint64_t] evict_locations
        HugeVector[int64_t] evict_slots
        HugeVector[uint64_t] fetch_locations
        HugeVector[int64_t] fetch_slots
        HugeVector[int64_t] fetch_unique
        HugeVector[int64_t] fetch_wait
        HugeVector[int64_t] slot_wait

    cdef cppclass Counters:
        size_t window_rows
        size_t peak_window_rows
        size_t peak_resident
        size_t tracked_rows
        size_t rows_needed
        size_t rows_never_late
        size_t nbytes

    enum PushResult:
        PUSHED
        DUPLICATE
        TOO_LARGE

    cdef cppclass WindowPlanner:
        WindowPlanner(uint32_t, uint32_t, uint32_t, uint32_t, cbool) except +
        size_t set_hot(const uint64_t*, size_t) except +
        PushResult push(const uint64_t*, size_t) except +
        void pop(int64_t*, uint8_t*, uint8_t*) except +
        void finish()
        cbool finished()
        cbool full()
        cbool ready()
        cbool exhausted()
        Movement late
        Movement ahead
        size_t hits
        size_t resident
        size_t problem()
        Counters counters()
        size_t window_steps()
        size_t window_size(size_t)


cdef class _Int64Memory:
    """Memory of the core that an array of NumPy has taken over, so that nothing is copied."""

    cdef HugeVector[int64_t] memory

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory.data(), self.memory.size() * sizeof(int64_t), False, flags)


cdef class _UInt64Memory:
    cdef HugeVector[uint64_t] memory

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory.data(), self.memory.size() * sizeof(uint64_t), False, flags)


cdef object _int64(HugeVector[int64_t]& source):
    cdef _Int64Memory taken
    if source.size() == 0:
        return np.empty(0, np.int64)
    taken = _Int64Memory()
    taken.memory.swap(source)
    return np.frombuffer(taken, np.int64)


cdef object _uint64(HugeVector[uint64_t]& source):
    cdef _UInt64Memory taken
    if source.size() == 0:
        return np.empty(0, np.uint64)
    taken = _UInt64Memory()
    taken.memory.swap(source)
    return np.frombuffer(taken, np.uint64)


cdef object _movement(Movement& source):
    return (
        _uint64(source.evict_locations),
        _int64(source.evict_slots),
        _uint64(source.fetch_locations),
        _int64(source.fetch_slots),
        _int64(source.fetch_unique),
        _int64(source.fetch_wait),
        _int64(source.slot_wait),
    )


cdef class PlannerCore:
    cdef unique_ptr[WindowPlanner] _core
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _pushed
    cdef bint _busy
    cdef Counters _counters  # as of the last call, so that another thread may read them at any time

    def __cinit__(self, *, uint32_t window, uint32_t capacity, uint32_t r_rows, uint32_t horizon, bint overlap):
        self._core.reset(new WindowPlanner(window, capacity, r_rows, horizon, overlap))
        self._capacity = capacity
        self._pushed = 0
        self._leave()

    cdef int _enter(self) except -1:
        # The GIL is held here, so that the flag is enough.
        if self._busy:
            raise RuntimeError("the planner is in use by another thread: one thread at a time")
        self._busy = True
        return 0

    cdef void _leave(self) noexcept:
        self._counters = self._core.get().counters()
        self._busy = False

    def set_hot(self, const uint64_t[::1] locations):
        cdef size_t count = locations.shape[0]
        cdef size_t done = 0
        if count == 0:
            return
        self._enter()
        try:
            with nogil:
                done = self._core.get().set_hot(&locations[0], count)
        finally:
            self._leave()
        if done < count:
            raise ValueError(f"hot location {locations[done]} occurs twice")

    def push(self, const uint64_t[::1] locations):
        cdef size_t count = locations.shape[0]
        cdef const uint64_t* first = &locations[0] if count else NULL
        cdef PushResult result
        self._enter()
        try:
            if self._core.get().exhausted():
                raise OverflowError("a run has at most 2**30 - 256 steps: start a new run")
            with nogil:
                result = self._core.get().push(first, count)
        finally:
            self._leave()
        if result == DUPLICATE:
            raise ValueError(f"step {self._pushed}: location {locations[self._core.get().problem()]} occurs twice")
        if result == TOO_LARGE:
            raise CapacityError(
                step=self._pushed,
                capacity=self._capacity,
                rows_needed=self._counters.rows_needed,
                rows_never_late=self._counters.rows_never_late,
            )
        self._pushed += 1

    def pop(self):
        cdef WindowPlanner* core = self._core.get()
        cdef int64_t[::1] slots
        cdef uint8_t[::1] hot, urgent
        cdef int64_t* slot = NULL
        cdef uint8_t* is_hot = NULL
        cdef uint8_t* is_urgent = NULL
        self._enter()
        try:
            if not core.ready():
                raise RuntimeError("no plan is ready")
            slots = np.empty(core.window_size(0), np.int64)
            hot = np.empty(slots.shape[0], np.uint8)
            urgent = np.empty(slots.shape[0], np.uint8)
            if slots.shape[0]:
                slot, is_hot, is_urgent = &slots[0], &hot[0], &urgent[0]
            with nogil:
                core.pop(slot, is_hot, is_urgent)
            return (
                slots.base,
                hot.base.view(np.bool_),
                urgent.base.view(np.bool_),
                _movement(core.late),
                _movement(core.ahead),
                core.hits,
                core.resident,
            )
        finally:
            self._leave()

    def finish(self):
        self._enter()
        try:
            self._core.get().finish()
        finally:
            self._leave()

    def ready(self):
        self._enter()
        try:
            return self._core.get().ready()
        finally:
            self._leave()

    @property
    def finished(self):
        return self._core.get().finished()

    @property
    def full(self):
        return self._core.get().full()

    @property
    def window_sizes(self):
        self._enter()
        try:
            return tuple([self._core.get().window_size(i) for i in range(self._core.get().window_steps())])
        finally:
            self._leave()

    @property
    def rows_needed(self):
        return self._counters.rows_needed

    @property
    def rows_never_late(self):
        return self._counters.rows_never_late

    @property
    def peak_resident(self):
        return self._counters.peak_resident

    @property
    def window_rows(self):
        return self._counters.window_rows

    @property
    def peak_window_rows(self):
        return self._counters.peak_window_rows

    @property
    def tracked_rows(self):
        return self._counters.tracked_rows

    @property
    def nbytes(self):
        return self._counters.nbytes
