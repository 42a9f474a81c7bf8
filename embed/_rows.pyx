# Native rows: initial vectors, the chunk store, and the copies and updates of arena rows. Signatures: _rows.pyi.
"""Native part of the chunk store and of the arena; the checked fronts are `chunk_store.py` and `arena.py`."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "chunk_store.hpp" namespace "headrace" nogil:
    cdef cppclass Initializer:
        uint64_t seed
        int32_t kind
        double first
        double second

    cdef cppclass Rule:
        int32_t kind
        float lr
        float eps

    cdef cppclass Keys:
        const uint64_t* ids
        const uint32_t* tables
        const uint8_t* missing

    cdef cppclass CppRowStore "headrace::RowStore":
        CppRowStore(int64_t, int64_t, Initializer) except +
        @staticmethod
        int64_t first_invalid(const uint64_t*, int64_t, bint)
        void read(const uint64_t*, Keys, int64_t, const int64_t*, float*, int64_t, int64_t)
        void write(const uint64_t*, int64_t, const int64_t*, const float*) except +
        void update(const uint64_t*, Keys, int64_t, const float*, Rule) except +
        void is_written(const uint64_t*, int64_t, uint8_t*)
        void forget(const uint64_t*, int64_t)
        int64_t num_written()
        void written_locations(uint64_t*) except +
        void clear()
        int64_t reserved_bytes()

    void c_philox "headrace::philox4x32"(uint32_t*, uint32_t, uint32_t)
    void c_initial_vector "headrace::initial_vector"(const Initializer&, uint64_t, uint32_t, bint, int64_t, float*)
    void c_gather_slots "headrace::gather_slots"(const float*, int64_t, const int64_t*, int64_t, float*, int64_t)
    void c_update_row "headrace::update_row"(const Rule&, int64_t, float*, const float*)
    void c_update_slots "headrace::update_slots"(
        const Rule&, int64_t, float*, int64_t, const int64_t*, int64_t, const float*
    )


cdef extern from "pool.hpp" namespace "headrace" nogil:
    int64_t first_outside(const int64_t*, int64_t, int64_t)


cdef Initializer _initializer(uint64_t seed, int kind, double first, double second) noexcept:
    cdef Initializer init
    init.seed = seed
    init.kind = kind
    init.first = first
    init.second = second
    return init


cdef Rule _rule(int kind, float lr, float eps) noexcept:
    cdef Rule rule
    rule.kind = kind
    rule.lr = lr
    rule.eps = eps
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


def update_rows(float[:, ::1] rows, const float[:, ::1] grads, int kind, float lr, float eps):
    cdef Rule rule = _rule(kind, lr, eps)
    cdef int64_t i, n = rows.shape[0], dim = grads.shape[1]
    if grads.shape[0] != n or rows.shape[1] < dim + (kind != 0):
        raise ValueError("rows and grads do not fit each other")
    if dim == 0:
        return
    with nogil:
        for i in range(n):
            c_update_row(rule, dim, &rows[i, 0], &grads[i, 0])


cdef class SlotRows:
    @staticmethod
    def gather(const float[:, ::1] source, const int64_t[::1] slots, float[:, ::1] out):
        cdef int64_t n = slots.shape[0]
        _check_slots(slots, source.shape[0])
        if out.shape[0] != n or out.shape[1] > source.shape[1]:
            raise ValueError("out does not fit the slots")
        if n == 0 or out.shape[1] == 0:
            return
        with nogil:
            c_gather_slots(&source[0, 0], source.shape[1], &slots[0], n, &out[0, 0], out.shape[1])

    @staticmethod
    def update(
        float[:, ::1] arena, const int64_t[::1] slots, const float[:, ::1] grads, int kind, float lr, float eps
    ):
        cdef Rule rule = _rule(kind, lr, eps)
        cdef int64_t n = slots.shape[0], dim = grads.shape[1]
        _check_slots(slots, arena.shape[0])
        if grads.shape[0] != n or arena.shape[1] < dim + (kind != 0):
            raise ValueError("grads do not fit the slots")
        if n == 0 or dim == 0:
            return
        with nogil:
            c_update_slots(rule, dim, &arena[0, 0], arena.shape[1], &slots[0], n, &grads[0, 0])


cdef int _check_slots(const int64_t[::1] slots, int64_t capacity) except -1:
    cdef int64_t bad
    if slots.shape[0] == 0:
        return 0
    with nogil:
        bad = first_outside(&slots[0], slots.shape[0], capacity)
    if bad >= 0:
        raise IndexError(f"slot {slots[bad]} at position {bad} is outside an arena of {capacity} rows")
    return 0


cdef class RowStore:
    cdef CppRowStore* _store
    cdef int64_t _dim
    cdef int64_t _width
    cdef bint _busy

    def __cinit__(self, int64_t dim, int64_t state_floats, uint64_t seed, int kind, double first, double second):
        if not (1 <= dim <= 65536 and 0 <= state_floats <= 65536):
            raise ValueError(f"dim={dim} or state_floats={state_floats} is out of range")
        self._dim = dim
        self._width = dim + state_floats
        self._store = new CppRowStore(dim, state_floats, _initializer(seed, kind, first, second))

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
        const uint8_t[::1] missing, float[:, ::1] out, const int64_t[::1] slots=None,
    ):
        cdef int64_t n = locations.shape[0], width = out.shape[1]
        cdef const int64_t* at = NULL
        cdef Keys keys
        self._check_locations(locations, True)
        if ids.shape[0] != n or tables.shape[0] != n or missing.shape[0] != n:
            raise ValueError("locations, ids, tables and missing differ in length")
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
                self._store.read(&locations[0], keys, n, at, &out[0, 0], width, width)
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

    def update(
        self, const uint64_t[::1] locations, const uint64_t[::1] ids, const uint32_t[::1] tables,
        const uint8_t[::1] missing, const float[:, ::1] grads, int kind, float lr, float eps,
    ):
        cdef int64_t n = locations.shape[0]
        cdef Keys keys
        cdef Rule rule = _rule(kind, lr, eps)
        self._check_locations(locations, False)
        if ids.shape[0] != n or tables.shape[0] != n or missing.shape[0] != n or grads.shape[0] != n:
            raise ValueError("locations, ids, tables, missing and grads differ in length")
        if grads.shape[1] != self._dim or self._width < self._dim + (kind != 0):
            raise ValueError(f"gradients of {grads.shape[1]} floats for rows of {self._dim} and their state")
        if n == 0:
            return
        keys = _keys(ids, tables, missing)
        self._enter()
        try:
            with nogil:
                self._store.update(&locations[0], keys, n, &grads[0, 0], rule)
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

    cdef int _check_rows(self, int64_t n, int64_t rows, const int64_t[::1] slots) except -1:
        if slots is None:
            if rows != n:
                raise ValueError(f"{rows} rows for {n} locations")
            return 0
        if slots.shape[0] != n:
            raise ValueError(f"{slots.shape[0]} slots for {n} locations")
        return _check_slots(slots, rows)
