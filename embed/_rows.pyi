"""Native part of the chunk store and of the arena; the checked fronts are `chunk_store.py` and `arena.py`.

Every function releases the GIL for its real work. Inputs may be read-only. One caller at a time for a store: a second
raises RuntimeError. `missing` is a bool array viewed as uint8. `kind`, `first`, `second` are those of
`initializer.Initializer.native`; `rule` is `optimizers.UpdateRule.native`. With `threads` the rows are shared out over
them; results do not depend on it.
"""

from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U8, U32, U64

Rule = tuple[int, float, float, float, float, float]

def philox4x32(words: U32, key0: int, key1: int) -> None:
    """Replace the counter `words` uint32 [4] by its 4 random words."""

def initial_vectors(
    ids: U64, tables: U32, missing: U8, seed: int, kind: int, first: float, second: float, out: F32
) -> None:
    """Fill out [n, dim] with the initial vectors of n keys."""

def update_rows(rows: F32, grads: F32, rule: Rule) -> None:
    """One optimizer step in place on rows [n, dim + state], grads [n, dim]."""

class SlotRows:
    """Arena rows by slot; a slot outside the arena raises IndexError before anything is done."""

    @staticmethod
    def gather(source: F32, slots: I64, out: F32, threads: Threads | None = None) -> None:
        """out[i] = source[slots[i], :out.shape[1]]."""

    @staticmethod
    def update(arena: F32, slots: I64, grads: F32, rule: Rule, threads: Threads | None = None) -> None:
        """One optimizer step on arena[slots[i]] with grads[i]; slots must be unique."""

class RowSource:
    """`count` row vectors of `dim` floats in native memory, whose addresses are found anew at each use."""

    count: int
    dim: int

    def read(self, out: F32, threads: Threads | None = None) -> None:
        """Copy the vectors to out [count, dim]."""

class SlotSource(RowSource):
    """The first `dim` floats of rows[slots[i]]; IndexError for a slot outside."""

    def __init__(self, rows: F32, slots: I64, dim: int) -> None: ...

class StoreSource(RowSource):
    """Rows of a store, read as :meth:`RowStore.read` does; the store is busy while they are used."""

    def __init__(self, store: RowStore, locations: U64, ids: U64, tables: U32, missing: U8) -> None: ...

class RowStore:
    """Rows by location: tier bits must be 0, rank bits are ignored. A bad location raises ValueError before any change."""

    def __init__(self, dim: int, state_floats: int, seed: int, kind: int, first: float, second: float) -> None: ...
    def add_initializer(self, table: int, kind: int, first: float, second: float) -> None:
        """What the rows of the table with this uid start from, instead of the store's own initialiser."""

    def read(
        self,
        locations: U64,
        ids: U64,
        tables: U32,
        missing: U8,
        out: F32,
        slots: I64 | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Row i (its vector, or vector and state, by the width of `out`) to out[i], or to out[slots[i]].

        A row never written, or ABSENT, reads as its initial vector and zero state. Nothing in the store changes.
        """

    def write(self, locations: U64, rows: F32, slots: I64 | None = None) -> None:
        """rows[i], or rows[slots[i]], with state, to row i, which is then written. MemoryError: no row was."""

    def make_room(self, locations: U64) -> None:
        """`write` and `update` of these locations do not run out of memory after it. MemoryError: nothing changed."""

    def make_room_beside(self, locations: U64) -> None:
        """Room for other contents, for `replace`; the present ones stay. MemoryError: nothing changed."""

    def drop_room_beside(self) -> None: ...
    def replace(self, rows: F32) -> None:
        """The contents are `rows` [n, width] at the locations of `make_room_beside`; out of memory it does not run."""

    def update(
        self,
        locations: U64,
        ids: U64,
        tables: U32,
        missing: U8,
        grads: F32,
        rule: Rule,
        threads: Threads | None = None,
    ) -> None:
        """One optimizer step in place; a row never written starts from its initial vector and is then written."""

    def is_written(self, locations: U64, out: U8) -> None: ...
    def forget(self, locations: U64) -> None:
        """Make rows unwritten again (their place may be given to another key)."""

    def num_written(self) -> int: ...
    def written_locations(self, out: U64) -> None:
        """Fill out [num_written()], ascending, rank bits 0."""

    def clear(self) -> None:
        """Forget every row and give its memory back."""

    def reserved_bytes(self) -> int:
        """Address space of the chunks in use; only touched pages take memory."""
