# Cython face of dit.hpp. Checked by dit.py and dedup.py, which alone call it: arguments here are taken on trust.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr, unique_ptr
from libcpp.vector cimport vector
from posix.unistd cimport getpid

import numpy as np

from cpython.buffer cimport PyBuffer_FillInfo

from headrace.indexer.core import RowArrays


cdef extern from "hashing.hpp" namespace "headrace" nogil:
    uint64_t c_mix64 "headrace::mix64"(uint32_t uid, cbool missing, uint64_t id) noexcept
    uint64_t c_scattered "headrace::scattered"(uint64_t x, uint64_t multiplier) noexcept
    uint64_t c_permuted "headrace::permuted"(uint64_t x, uint64_t multiplier) noexcept
    uint64_t c_probe_home "headrace::probe_home"(uint64_t position, uint64_t capacity) noexcept


cdef extern from "block_pool.hpp" namespace "headrace" nogil:
    cppclass Block:
        void* memory
        size_t capacity

    cppclass BlockPool:
        Block take(size_t size) except +
        void give_back(const Block& block) noexcept


cdef extern from "batch.hpp" namespace "headrace" nogil:
    cppclass TableInfo:
        uint32_t group

    TableInfo make_table(uint32_t uid, uint32_t group) noexcept

    cppclass GroupOut:
        size_t nnz
        size_t unique
        uint32_t* query
        uint64_t* ids
        uint8_t* missing
        uint64_t* locations
        uint8_t* is_new

    cppclass Batch:
        void add_column(
            uint32_t table, cbool wide, const void* values, const uint8_t* missing, size_t size
        ) except +
        GroupOut& group(size_t g) noexcept
        size_t num_jobs() noexcept
        uint32_t job_table(size_t j) noexcept
        uint32_t job_offset(size_t j) noexcept


cdef extern from "engine.hpp" namespace "headrace" nogil:
    cppclass Engine:
        Engine(
            vector[TableInfo] tables, size_t num_groups, size_t num_shards, unsigned num_threads, uint64_t multiplier
        ) except +
        Batch* acquire() except +
        void release(Batch* batch) noexcept
        void deduplicate(Batch& batch) except +
        void write_unique(Batch& batch) except +
        void close_engine "close"(void (*then)() noexcept) except +
        const vector[TableInfo]& tables() noexcept
        size_t num_groups() noexcept


cdef extern from "dit.hpp" namespace "headrace" nogil:
    cppclass Stats:
        uint64_t rows, provisional, free_places, capacity, nbytes, counts_nbytes, scratch_nbytes
        uint64_t keys, probe_lines, longest_probe, growths, fullest_shard
        double longest_call_ms, lock_wait_ms

    cppclass Rows:
        vector[uint32_t] tables
        vector[uint8_t] missing
        vector[uint64_t] ids
        vector[uint64_t] locations
        vector[uint64_t] hashes
        vector[float] weights

    cppclass ShardCut:
        size_t rows() noexcept
        const vector[uint32_t]& groups() noexcept
        const vector[uint32_t]& extents() noexcept

    cppclass Cut "headrace::Dit::Cut":
        size_t rows() noexcept
        vector[ShardCut] shards
        uint64_t counted_batches

    cppclass Dit:
        Dit(
            vector[TableInfo] tables, size_t num_groups, uint32_t num_shards, unsigned num_threads,
            uint32_t owner_rank, uint64_t multiplier, double half_life
        ) except +
        Engine& engine() noexcept
        int64_t insert(Batch& batch) except +
        void lookup(Batch& batch) except +
        void remove(Batch& batch) except +
        void commit(int64_t ticket, const vector[const uint64_t*]& used, const vector[size_t]& sizes) except +
        void uses(const uint64_t* locations, size_t size, float* out) except +
        void undo_after(int64_t ticket, cbool none) except +
        uint64_t open_tickets() except +
        uint64_t committed_rows() except +
        uint64_t provisional_rows() except +
        uint64_t nbytes() except +
        int64_t chunk_group(uint64_t chunk) except +
        Stats stats() except +
        unique_ptr[Cut] open_cut() except +
        void cut_rows(const Cut& cut, size_t shard, Rows& out) except +
        Rows bucket_rows(uint32_t first, uint32_t last) except +
        void restore_shard(
            size_t shard, const vector[uint32_t]& groups, const vector[uint32_t]& extents, size_t rows,
            const uint32_t* tables, const uint8_t* missing, const uint64_t* ids, const uint64_t* locations
        ) except +
        void finish_restore(
            uint64_t counted_batches, const uint64_t* locations, const float* weights, size_t size
        ) except +
        void drop_restore() except +
        void close() except +


cdef void _nothing() noexcept nogil:
    pass


cdef class OfProcess:
    """What may wait for other threads when it goes: in a forked child, which has not the threads, it is left alone."""

    cdef int64_t pid

    def __cinit__(self):
        self.pid = getpid()

    cdef bint is_here(self) noexcept:
        return getpid() == self.pid


cdef vector[TableInfo] _tables(tables) except *:
    cdef vector[TableInfo] out
    for table in tables:
        out.push_back(make_table(table.uid, table.group))
    return out


cdef void _add_column(Batch* batch, column) except *:
    """`column`: table ordinal, contiguous uint32 or uint64 ids, uint8 missing flags or None."""
    cdef const uint32_t[::1] narrow
    cdef const uint64_t[::1] wide
    cdef const uint8_t[::1] flags
    cdef const uint8_t* missing = NULL
    cdef const void* ids = NULL
    table, values, mask = column
    cdef size_t size = len(values)
    if mask is not None and size:
        flags = mask
        missing = &flags[0]
    if values.itemsize == 8:
        wide = values
        if size:
            ids = &wide[0]
        batch.add_column(table, True, ids, missing, size)
    else:
        narrow = values
        if size:
            ids = &narrow[0]
        batch.add_column(table, False, ids, missing, size)


cdef void _add_packed(Batch* batch, packed) except *:
    """`packed`: a CheckedPacked, which stays as it is until the batch is done."""
    cdef const int64_t[::1] tables = packed.tables
    cdef const int64_t[:, ::1] counts = packed.counts, missing_at = packed.missing_at
    cdef const uint64_t[::1] ids
    cdef const uint8_t[::1] flags
    cdef const uint8_t* missing
    cdef Py_ssize_t sender, t
    cdef size_t at, size
    for sender in range(counts.shape[0]):
        ids, flags, at = packed.ids[sender], packed.flags[sender], 0
        for t in range(counts.shape[1]):
            size = counts[sender, t]
            missing = &flags[at] if missing_at[sender, t] >= 0 else NULL
            if size or sender == 0:
                batch.add_column(tables[t], True, &ids[at] if size else NULL, missing, size)
            at += size


cdef class ResultBlock(OfProcess):
    """Memory of one batch's arrays, which goes back to its pool when the last of them is gone."""

    cdef shared_ptr[BlockPool] pool
    cdef Block block
    cdef size_t size, used

    def __dealloc__(self):
        if self.block.memory != NULL and self.is_here():
            self.pool.get().give_back(self.block)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.block.memory, self.size, 0, flags)

    cdef void* next(self, size_t bytes) noexcept:
        """Where the next array begins: cache lines of its own."""
        cdef void* begin = <char*> self.block.memory + self.used
        self.used += _lines(bytes)
        return begin

    cdef array(self, void* begin, dtype, size_t count):
        return np.frombuffer(self, dtype, count, <char*> begin - <char*> self.block.memory)


cdef size_t _lines(size_t bytes) noexcept nogil:
    return (bytes + 63) // 64 * 64


cdef ResultBlock _block(shared_ptr[BlockPool] pool, size_t size):
    cdef ResultBlock block = ResultBlock.__new__(ResultBlock)
    block.pool = pool
    block.size = size if size else 64
    block.block = pool.get().take(block.size)
    return block


cdef list _deduplicate(Engine* engine, Batch* batch, shared_ptr[BlockPool] pool, columns):
    """Arrays of each group (query_ids, unique_ids, missing, locations, is_new, tables, table_offsets).

    Of deduplication alone, locations are ABSENT, nothing is new; else the batch's outputs point into them, to be set.
    """
    cdef size_t g, j, size, num_groups = engine.num_groups()
    cdef GroupOut* group
    cdef ResultBlock queries, rows
    if isinstance(columns, list):
        for column in columns:
            _add_column(batch, column)
    else:
        _add_packed(batch, columns)
    size = 0
    for g in range(num_groups):
        size += _lines(batch.group(g).nnz * sizeof(uint32_t))
    queries = _block(pool, size)
    for g in range(num_groups):
        batch.group(g).query = <uint32_t*> queries.next(batch.group(g).nnz * sizeof(uint32_t))
    with nogil:
        engine.deduplicate(batch[0])
    size = 0
    for g in range(num_groups):
        size += 2 * (_lines(batch.group(g).unique * sizeof(uint64_t)) + _lines(batch.group(g).unique))
    rows = _block(pool, size)
    for g in range(num_groups):
        group = &batch.group(g)
        group.ids = <uint64_t*> rows.next(group.unique * sizeof(uint64_t))
        group.locations = <uint64_t*> rows.next(group.unique * sizeof(uint64_t))
        group.missing = <uint8_t*> rows.next(group.unique)
        group.is_new = <uint8_t*> rows.next(group.unique)
    with nogil:
        engine.write_unique(batch[0])
    tables = [[] for _ in range(num_groups)]
    offsets = [[] for _ in range(num_groups)]
    for j in range(batch.num_jobs()):
        g = engine.tables()[batch.job_table(j)].group
        tables[g].append(batch.job_table(j))
        offsets[g].append(batch.job_offset(j))
    groups = []
    for g in range(num_groups):
        group = &batch.group(g)
        groups.append((
            queries.array(group.query, np.uint32, group.nnz),
            rows.array(group.ids, np.uint64, group.unique),
            rows.array(group.missing, np.bool_, group.unique),
            rows.array(group.locations, np.uint64, group.unique),
            rows.array(group.is_new, np.bool_, group.unique),
            tuple(tables[g]),
            np.array(offsets[g] + [group.unique], np.int64),
        ))
    return groups


cdef uint32_t* _u32(uint32_t[::1] array) noexcept:
    return &array[0] if array.shape[0] else NULL


cdef uint64_t* _u64(uint64_t[::1] array) noexcept:
    return &array[0] if array.shape[0] else NULL


cdef uint8_t* _u8(uint8_t[::1] array) noexcept:
    return &array[0] if array.shape[0] else NULL


cdef class NativeDedup(OfProcess):
    """Unique rows of batches, without an index."""

    cdef unique_ptr[Engine] engine
    cdef shared_ptr[BlockPool] pool

    def __cinit__(self, tables, size_t num_groups, unsigned num_threads, uint64_t multiplier):
        self.pool = make_shared[BlockPool]()
        self.engine.reset(new Engine(_tables(tables), num_groups, 0, num_threads, multiplier))

    def __dealloc__(self):
        if not self.is_here():
            self.engine.release()

    def deduplicate(self, columns):
        cdef Batch* batch = self.engine.get().acquire()
        try:
            return _deduplicate(self.engine.get(), batch, self.pool, columns)
        finally:
            self.engine.get().release(batch)

    def close(self):
        with nogil:
            self.engine.get().close_engine(_nothing)


cdef enum class Pass:
    insert, lookup, remove


cdef class NativeIndex(OfProcess):
    """The index; see dit.py for what its methods promise."""

    cdef unique_ptr[Dit] dit
    cdef shared_ptr[BlockPool] pool

    def __cinit__(
        self,
        tables,
        size_t num_groups,
        uint32_t num_shards,
        unsigned num_threads,
        uint32_t owner_rank,
        uint64_t multiplier,
        double half_life,
    ):
        self.pool = make_shared[BlockPool]()
        self.dit.reset(new Dit(_tables(tables), num_groups, num_shards, num_threads, owner_rank, multiplier, half_life))

    def __dealloc__(self):
        if not self.is_here():
            self.dit.release()

    def index(self, columns):
        return self._pass(columns, Pass.insert)

    def lookup(self, columns):
        return self._pass(columns, Pass.lookup)[0]

    def remove(self, columns):
        return self._pass(columns, Pass.remove)[0]

    cdef _pass(self, columns, Pass kind):
        cdef Dit* dit = self.dit.get()
        cdef Batch* batch = dit.engine().acquire()
        cdef int64_t ticket = -1
        try:
            groups = _deduplicate(&dit.engine(), batch, self.pool, columns)
            with nogil:
                if kind == Pass.insert:
                    ticket = dit.insert(batch[0])
                elif kind == Pass.lookup:
                    dit.lookup(batch[0])
                else:
                    dit.remove(batch[0])
            return groups, ticket
        finally:
            dit.engine().release(batch)

    def commit(self, int64_t ticket, used):
        cdef vector[const uint64_t*] places
        cdef vector[size_t] sizes
        cdef const uint64_t[::1] view
        for locations in used:
            view = locations
            places.push_back(&view[0] if view.shape[0] else NULL)
            sizes.push_back(view.shape[0])
        with nogil:
            self.dit.get().commit(ticket, places, sizes)

    def uses(self, const uint64_t[::1] locations):
        out = np.empty(locations.shape[0], np.float32)
        cdef float[::1] view = out
        if locations.shape[0]:
            with nogil:
                self.dit.get().uses(&locations[0], locations.shape[0], &view[0])
        return out

    def undo_after(self, ticket):
        cdef cbool none = ticket is None
        cdef int64_t after = 0 if none else ticket
        with nogil:
            self.dit.get().undo_after(after, none)

    def open_tickets(self):
        cdef uint64_t count
        with nogil:
            count = self.dit.get().open_tickets()
        return count

    def committed_rows(self):
        cdef uint64_t rows
        with nogil:
            rows = self.dit.get().committed_rows()
        return rows

    def provisional_rows(self):
        cdef uint64_t rows
        with nogil:
            rows = self.dit.get().provisional_rows()
        return rows

    def nbytes(self):
        cdef uint64_t count
        with nogil:
            count = self.dit.get().nbytes()
        return count

    def chunk_group(self, uint64_t chunk):
        cdef int64_t group
        with nogil:
            group = self.dit.get().chunk_group(chunk)
        return None if group < 0 else group

    def stats(self):
        cdef Stats stats
        with nogil:
            stats = self.dit.get().stats()
        return {
            "rows": stats.rows,
            "provisional": stats.provisional,
            "free_places": stats.free_places,
            "capacity": stats.capacity,
            "nbytes": stats.nbytes,
            "counts_nbytes": stats.counts_nbytes,
            "scratch_nbytes": stats.scratch_nbytes,
            "keys": stats.keys,
            "probe_lines": stats.probe_lines,
            "longest_probe": stats.longest_probe,
            "growths": stats.growths,
            "fullest_shard": stats.fullest_shard,
            "longest_call_ms": stats.longest_call_ms,
            "lock_wait_ms": stats.lock_wait_ms,
        }

    def open_cut(self):
        cdef NativeCut cut = NativeCut.__new__(NativeCut)
        with nogil:
            cut.cut = self.dit.get().open_cut()
        cut.index = self
        return cut

    def bucket_rows(self, uint32_t first, uint32_t last):
        cdef Rows rows
        with nogil:
            rows = self.dit.get().bucket_rows(first, last)
        return _row_arrays(rows)

    def restore_shard(
        self,
        size_t shard,
        groups,
        extents,
        const uint32_t[::1] tables,
        const uint8_t[::1] missing,
        const uint64_t[::1] ids,
        const uint64_t[::1] locations,
    ):
        cdef vector[uint32_t] groups_in = groups, extents_in = extents
        cdef size_t rows = tables.shape[0]
        cdef const uint32_t* tables_in = NULL
        cdef const uint8_t* missing_in = NULL
        cdef const uint64_t* ids_in = NULL
        cdef const uint64_t* locations_in = NULL
        if rows:
            tables_in, missing_in = &tables[0], &missing[0]
            ids_in, locations_in = &ids[0], &locations[0]
        with nogil:
            self.dit.get().restore_shard(
                shard, groups_in, extents_in, rows, tables_in, missing_in, ids_in, locations_in
            )

    def finish_restore(self, uint64_t counted_batches, const uint64_t[::1] locations, const float[::1] weights):
        cdef size_t size = weights.shape[0]
        cdef const uint64_t* locations_in = &locations[0] if size else NULL
        cdef const float* weights_in = &weights[0] if size else NULL
        with nogil:
            self.dit.get().finish_restore(counted_batches, locations_in, weights_in, size)

    def drop_restore(self):
        with nogil:
            self.dit.get().drop_restore()

    def close(self):
        with nogil:
            self.dit.get().close()


cdef _row_arrays(Rows& rows):
    """Copies: tables, missing, ids, locations, hashes, weights or None."""
    cdef size_t size = rows.tables.size()
    tables, missing, ids = np.empty(size, np.uint32), np.empty(size, np.bool_), np.empty(size, np.uint64)
    locations, hashes = np.empty(size, np.uint64), np.empty(size, np.uint64)
    weights = np.empty(size, np.float32) if rows.weights.size() else None
    cdef float[::1] weights_out
    if size:
        memcpy(_u32(tables), rows.tables.data(), size * 4)
        memcpy(_u8(missing.view(np.uint8)), rows.missing.data(), size)
        memcpy(_u64(ids), rows.ids.data(), size * 8)
        memcpy(_u64(locations), rows.locations.data(), size * 8)
        memcpy(_u64(hashes), rows.hashes.data(), size * 8)
        if weights is not None:
            weights_out = weights
            memcpy(&weights_out[0], rows.weights.data(), size * 4)
    return RowArrays(tables, missing, ids, locations, hashes, weights)


cdef class NativeCut(OfProcess):
    """What was committed at one moment. Give it up with `close`: removals and the index's close wait for it."""

    cdef NativeIndex index
    cdef unique_ptr[Cut] cut

    def __dealloc__(self):
        if not self.is_here():
            self.cut.release()

    def num_rows(self, size_t shard):
        return self.cut.get().shards[shard].rows()

    @property
    def counted_batches(self):
        return self.cut.get().counted_batches

    def chunks(self, size_t shard):
        """(groups, extents) of the shard's chunks."""
        cdef ShardCut* cut = &self.cut.get().shards[shard]
        return list(cut.groups()), list(cut.extents())

    def shard_rows(self, size_t shard):
        cdef Rows rows
        with nogil:
            self.index.dit.get().cut_rows(self.cut.get()[0], shard, rows)
        return _row_arrays(rows)

    def close(self):
        with nogil:
            self.cut.reset()


def mix64(uint32_t table_uid, bint missing, const uint64_t[::1] ids):
    out = np.empty(ids.shape[0], np.uint64)
    cdef uint64_t[::1] view = out
    cdef Py_ssize_t i
    with nogil:
        for i in range(ids.shape[0]):
            view[i] = c_mix64(table_uid, missing, ids[i])
    return out


def scattered(const uint64_t[::1] numbers, uint64_t multiplier):
    out = np.empty(numbers.shape[0], np.uint64)
    cdef uint64_t[::1] view = out
    cdef Py_ssize_t i
    with nogil:
        for i in range(numbers.shape[0]):
            view[i] = c_scattered(numbers[i], multiplier)
    return out


def permuted(const uint64_t[::1] numbers, uint64_t multiplier):
    out = np.empty(numbers.shape[0], np.uint64)
    cdef uint64_t[::1] view = out
    cdef Py_ssize_t i
    with nogil:
        for i in range(numbers.shape[0]):
            view[i] = c_permuted(numbers[i], multiplier)
    return out


def probe_home(const uint64_t[::1] positions, uint64_t capacity):
    out = np.empty(positions.shape[0], np.int64)
    cdef int64_t[::1] view = out
    cdef Py_ssize_t i
    with nogil:
        for i in range(positions.shape[0]):
            view[i] = <int64_t> c_probe_home(positions[i], capacity)
    return out
