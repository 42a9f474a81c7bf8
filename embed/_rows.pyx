# Native rows: initial vectors, the chunk store, and the copies and updates of arena rows. Signatures: _rows.pyi.
"""Native part of the chunk store and of the arena; the checked fronts are `chunk_store.py` and `arena.py`."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from headrace.embed._threads cimport Threads, Workers

cdef extern from "chunk_store.hpp" namespace "headrace" nogil:
    void c_philox "headrace::philox4x32"(uint32_t*, uint32_t, uint32_t)
    void c_initial_vector "headrace::initial_vector"(const Initializer&, uint64_t, uint32_t, bint, int64_t, float*)
    int64_t state_floats(int32_t, int64_t)
    void c_gather_slots "headrace::gather_slots"(
        const float*, int64_t, const int64_t*, int64_t, float*, int64_t, const Workers&
    ) except +
    void c_copy_rows "headrace::copy_rows"(const float**, int64_t, int64_t, float*, const Workers&) except +
    void c_update_slots "headrace::update_slots"(
        const Rule&, int64_t, float*, int64_t, const int64_t*, int64_t, const float*, const Workers&
    ) except +


cdef extern from "bag_checks.hpp" namespace "headrace" nogil:
    int64_t first_outside(const int64_t*, int64_t, int64_t, const Workers&) except +


cdef Workers _workers(Threads threads) noexcept:
    cdef Workers alone
    if threads is not None:
        return threads.workers()
    alone.pool = NULL
    alone.threads = 1
    return alone


cdef Initializer _initializer(uint64_t seed, int kind, double first, double second) noexcept:
    cdef Initializer init
    init.seed = seed
    init.kind = kind
    init.first = first
    init.second = second
    return init


cdef Rule _rule(tuple numbers) except *:
    cdef Rule rule
    rule.kind, rule.lr, rule.eps, rule.weight_decay, rule.keep1, rule.keep2 = numbers
    return rule


cdef Keys _keys(const uint64_t[::1] ids, const uint32_t[::1] tables, const uint8_t[::1] missing) noexcept:
    cdef Keys keys
    keys.ids = &ids[0]
    keys.tables = &tables[0]
    keys.missing = &missing[0]
    return keys


def philox4x32(uint32_t[::1] words, uint32_t key0, uint32_t key1):
    if words.shape[0] != 4:
        raise ValueError(f"a counter is 4 words, got {words.shape[0]}")
    c_philox(&words[0], key0, key1)


def initial_vectors(
    const uint64_t[::1] ids, const uint32_t[::1] tables, const uint8_t[::1] missing,
    uint64_t seed, int kind, double first, double second, float[:, ::1] out,
):
    cdef Initializer init = _initializer(seed, kind, first, second)
    cdef int64_t i, n = ids.shape[0], dim = out.shape[1]
    if tables.shape[0] != n or missing.shape[0] != n or out.shape[0] != n:
        raise ValueError("ids, tables, missing and out differ in length")
    if dim == 0:
        return
    with nogil:
        for i in range(n):
            c_initial_vector(init, ids[i], tables[i], missing[i] != 0, dim, &out[i, 0])


def update_rows(float[:, ::1] rows, const float[:, ::1] grads, tuple rule):
    SlotRows.update(rows, _every(rows.shape[0]), grads, rule)


cdef int64_t[::1] _every(int64_t n):
    import numpy
    return numpy.arange(n)


cdef class SlotRows:
    @staticmethod
    def gather(
        const float[:, ::1] source, const int64_t[::1] slots, float[:, ::1] out, Threads threads=None
    ):
        cdef int64_t n = slots.shape[0]
        cdef Workers workers = _workers(threads)
        _check_slots(slots, source.shape[0])
        if out.shape[0] != n or out.shape[1] > source.shape[1]:
            raise ValueError("out does not fit the slots")
        if n == 0 or out.shape[1] == 0:
            return
        with nogil:
            c_gather_slots(&source[0, 0], source.shape[1], &slots[0], n, &out[0, 0], out.shape[1], workers)

    @staticmethod
    def update(
        float[:, ::1] arena, const int64_t[::1] slots, const float[:, ::1] grads, tuple rule, Threads threads=None
    ):
        cdef Rule native = _rule(rule)
        cdef Workers workers = _workers(threads)
        cdef int64_t n = slots.shape[0], dim = grads.shape[1]
        _check_slots(slots, arena.shape[0])
        if grads.shape[0] != n or arena.shape[1] < dim + state_floats(native.kind, dim):
            raise ValueError("rows and grads do not fit each other")
        if n == 0 or dim == 0:
            return
        with nogil:
            c_update_slots(native, dim, &arena[0, 0], arena.shape[1], &slots[0], n, &grads[0, 0], workers)


cdef int _check_slots(const int64_t[::1] slots, int64_t capacity) except -1:
    cdef int64_t bad
    cdef Workers alone = _workers(None)
    if slots.shape[0] == 0:
        return 0
    with nogil:
        bad = first_outside(&slots[0], slots.shape[0], capacity, alone)
    if bad >= 0:
        raise IndexError(f"slot {slots[bad]} at position {bad} is outside an arena of {capacity} rows")
    return 0


cdef class RowSource:
    cdef const float** begin(self, Workers workers) except? NULL:
        raise NotImplementedError

    cdef void end(self) noexcept:
        pass

    def read(self, float[:, ::1] out, Threads threads=None):
        cdef Workers workers = _workers(threads)
        cdef const float** rows
        if out.shape[0] != self.count or out.shape[1] != self.dim:
            raise ValueError(f"out is not [{self.count}, {self.dim}]")
        if self.count == 0:
            return
        rows = self.begin(workers)
        try:
            with nogil:
                c_copy_rows(rows, self.count, self.dim, &out[0, 0], workers)
        finally:
            self.end()


cdef class SlotSource(RowSource):
    def __init__(self, const float[:, ::1] rows, const int64_t[::1] slots, int64_t dim):
        if not 1 <= dim <= max(rows.shape[1], 1):
            raise ValueError(f"vectors of {dim} floats in rows of {rows.shape[1]}")
        _check_slots(slots, rows.shape[0])
        self.count = slots.shape[0]
        self.dim = dim
        self._rows = rows
        self._slots = slots

    cdef const float** begin(self, Workers workers) except? NULL:
        cdef int64_t i
        self._addresses.resize(self.count)
        for i in range(self.count):
            self._addresses[i] = &self._rows[self._slots[i], 0]
        return self._addresses.data()


cdef class StoreSource(RowSource):
    def __init__(
        self, RowStore store not None, const uint64_t[::1] locations, const uint64_t[::1] ids,
        const uint32_t[::1] tables, const uint8_t[::1] missing,
    ):
        store._check_locations(locations, True)
        store._check_keys(locations.shape[0], ids, tables, missing)
        self.count = locations.shape[0]
        self.dim = store._dim
        self._store = store
        self._locations = locations
        self._ids = ids
        self._tables = tables
        self._missing = missing

    cdef const float** begin(self, Workers workers) except? NULL:
        cdef const float** found = NULL
        cdef Keys keys
        self._store._enter()
        try:
            if self.count:
                keys = _keys(self._ids, self._tables, self._missing)
                with nogil:
                    found = self._store._store.locate(&self._locations[0], keys, self.count, workers)
        except BaseException:
            self._store._busy = False
            raise
        return found

    cdef void end(self) noexcept:
        self._store._busy = False


cdef class RowStore:
    def __cinit__(self, int64_t dim, int64_t state_floats, uint64_t seed, int kind, double first, double second):
        if not (1 <= dim <= 65536 and 0 <= state_floats <= 2 * 65536):
            raise ValueError(f"dim={dim} or state_floats={state_floats} is out of range")
        self._dim = dim
        self._width = dim + state_floats
        self._seed = seed
        self._store = new CppRowStore(dim, state_floats, _initializer(seed, kind, first, second))

    def add_initializer(self, uint32_t table, int kind, double first, double second):
        cdef TableInitializer one
        one.table = table
        one.init = _initializer(self._seed, kind, first, second)
        self._enter()
        try:
            self._store.add_initializer(one)
        finally:
            self._busy = False

    def __dealloc__(self):
        del self._store

    cdef int _enter(self) except -1:
        # The GIL is held here, so that the flag is enough. A reader would meet pages that `clear` has given back.
        if self._busy:
            raise RuntimeError("the rows are in use by another thread: one caller at a time")
        self._busy = True
        return 0

    def read(
        self, const uint64_t[::1] locations, const uint64_t[::1] ids, const uint32_t[::1] tables,
        const uint8_t[::1] missing, float[:, ::1] out, const int64_t[::1] slots=None, Threads threads=None,
    ):
        cdef int64_t n = locations.shape[0], width = out.shape[1]
        cdef const int64_t* at = NULL
        cdef Workers workers = _workers(threads)
        cdef Keys keys
        self._check_locations(locations, True)
        self._check_keys(n, ids, tables, missing)
        if width != self._dim and width != self._width:
            raise ValueError(f"out has rows of {width} floats, not {self._dim} or {self._width}")
        self._check_rows(n, out.shape[0], slots)
        if n == 0:
            return
        keys = _keys(ids, tables, missing)
        if slots is not None:
            at = &slots[0]
        self._enter()
        try:
            with nogil:
                self._store.read(&locations[0], keys, n, at, &out[0, 0], width, width, workers)
        finally:
            self._busy = False

    def write(self, const uint64_t[::1] locations, const float[:, ::1] rows, const int64_t[::1] slots=None):
        cdef int64_t n = locations.shape[0]
        cdef const int64_t* at = NULL
        self._check_locations(locations, False)
        if rows.shape[1] != self._width:
            raise ValueError(f"rows of {rows.shape[1]} floats, not {self._width}")
        self._check_rows(n, rows.shape[0], slots)
        if n == 0:
            return
        if slots is not None:
            at = &slots[0]
        self._enter()
        try:
            with nogil:
                self._store.write(&locations[0], n, at, &rows[0, 0])
        finally:
            self._busy = False

    def make_room(self, const uint64_t[::1] locations):
        self._check_locations(locations, False)
        if locations.shape[0]:
            self._enter()
            try:
                with nogil:
                    self._store.make_room(&locations[0], locations.shape[0])
            finally:
                self._busy = False

    def make_room_beside(self, const uint64_t[::1] locations):
        cdef const uint64_t* first = &locations[0] if locations.shape[0] else NULL
        self._check_locations(locations, False)
        self._enter()
        try:
            with nogil:
                self._store.make_room_beside(first, locations.shape[0])
            self._room_beside = locations
        finally:
            self._busy = False

    def drop_room_beside(self):
        self._enter()
        self._room_beside = None
        self._store.drop_room_beside()
        self._busy = False

    def replace(self, const float[:, ::1] rows):
        cdef const uint64_t[::1] locations = self._room_beside
        cdef int64_t n
        if locations is None:
            raise RuntimeError("replace() without room for the rows")
        n = locations.shape[0]
        if rows.shape[0] != n or rows.shape[1] != self._width:
            raise ValueError(f"rows [{rows.shape[0]}, {rows.shape[1]}], not [{n}, {self._width}]")
        self._enter()
        try:
            with nogil:
                if n:
                    self._store.replace(&locations[0], n, &rows[0, 0])
                else:
                    self._store.replace(NULL, 0, NULL)
            self._room_beside = None
        finally:
            self._busy = False

    def update(
        self, const uint64_t[::1] locations, const uint64_t[::1] ids, const uint32_t[::1] tables,
        const uint8_t[::1] missing, const float[:, ::1] grads, tuple rule, Threads threads=None,
    ):
        cdef int64_t n = locations.shape[0]
        cdef Keys keys
        cdef Rule native = _rule(rule)
        cdef Workers workers = _workers(threads)
        self._check_locations(locations, False)
        self._check_keys(n, ids, tables, missing)
        if grads.shape[0] != n:
            raise ValueError(f"{grads.shape[0]} gradients for {n} locations")
        if grads.shape[1] != self._dim or self._width < self._dim + state_floats(native.kind, self._dim):
            raise ValueError(f"gradients of {grads.shape[1]} floats for rows of {self._dim} and their state")
        if n == 0:
            return
        keys = _keys(ids, tables, missing)
        self._enter()
        try:
            with nogil:
                self._store.update(&locations[0], keys, n, &grads[0, 0], native, workers)
        finally:
            self._busy = False

    def is_written(self, const uint64_t[::1] locations, uint8_t[::1] out):
        self._check_locations(locations, False)
        if out.shape[0] != locations.shape[0]:
            raise ValueError("locations and out differ in length")
        if locations.shape[0]:
            self._enter()
            try:
                with nogil:
                    self._store.is_written(&locations[0], locations.shape[0], &out[0])
            finally:
                self._busy = False

    def forget(self, const uint64_t[::1] locations):
        self._check_locations(locations, False)
        if locations.shape[0]:
            self._enter()
            try:
                with nogil:
                    self._store.forget(&locations[0], locations.shape[0])
            finally:
                self._busy = False

    def num_written(self):
        self._enter()
        try:
            return self._store.num_written()
        finally:
            self._busy = False

    def written_locations(self, uint64_t[::1] out):
        cdef int64_t written
        self._enter()
        try:
            written = self._store.num_written()
            if out.shape[0] != written:
                raise ValueError(f"out has {out.shape[0]} places for {written} rows")
            if written:
                with nogil:
                    self._store.written_locations(&out[0])
        finally:
            self._busy = False

    def clear(self):
        self._enter()
        try:
            with nogil:
                self._store.clear()
        finally:
            self._busy = False

    def reserved_bytes(self):
        self._enter()
        try:
            return self._store.reserved_bytes()
        finally:
            self._busy = False

    cdef int _check_locations(self, const uint64_t[::1] locations, bint allow_absent) except -1:
        cdef int64_t bad
        if locations.shape[0] == 0:
            return 0
        bad = CppRowStore.first_invalid(&locations[0], locations.shape[0], allow_absent)
        if bad >= 0:
            raise ValueError(f"location {locations[bad]:#x} at position {bad} is not in host memory (tier 0)")
        return 0

    cdef int _check_keys(
        self, int64_t n, const uint64_t[::1] ids, const uint32_t[::1] tables, const uint8_t[::1] missing
    ) except -1:
        if ids.shape[0] != n or tables.shape[0] != n or missing.shape[0] != n:
            raise ValueError("locations, ids, tables and missing differ in length")
        return 0

    cdef int _check_rows(self, int64_t n, int64_t rows, const int64_t[::1] slots) except -1:
        if slots is None:
            if rows != n:
                raise ValueError(f"{rows} rows for {n} locations")
            return 0
        if slots.shape[0] != n:
            raise ValueError(f"{slots.shape[0]} slots for {n} locations")
        return _check_slots(slots, rows)
