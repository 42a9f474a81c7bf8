"""Rows of one row layout in host memory, found by location.

A chunk (16,384 rows) is mapped when one of its rows is first written; pages that no row touches cost nothing. A row is
*written* from its first write-back or update on. Until then it is a formula: it reads as its initial vector and zero
state. Reads and prefetches never make a row written, because the place of a key that was looked up ahead but never
delivered may be given to another key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from headrace.embed._rows import RowSource, RowStore, StoreSource
from headrace.embed._threads import Threads
from headrace.embed.arrays import F32, I64, U32, U64, Bool
from headrace.embed.initializer import Initializer, Uniform, check_seed
from headrace.embed.optimizers import UpdateRule
from headrace.indexer.indexed import PLACE_BITS, TIER_SHIFT

PLACE_MASK = np.uint64((1 << PLACE_BITS) - 1)
"""Chunk and offset bits of a location; the owner rank is not looked at here."""


class ChunkStore:
    """Rows float32 [dim + state_floats] by location; one caller at a time (RuntimeError for a second).

    Locations are uint64 [n] with tier bits 0; in reads ABSENT stands for a row that nobody has. Keys are uint64 [n] raw
    ids, uint32 [n] table uids and bool [n] missing flags in the order of the locations. Inputs may be read-only. A bad
    location or shape raises ValueError before anything changes; out of memory is MemoryError.
    """

    def __init__(
        self,
        dim: int,
        state_floats: int,
        *,
        seed: int = 0,
        initializer: Initializer | None = None,
        table_initializers: Mapping[int, Initializer] | None = None,
    ) -> None:
        """`table_initializers` are those of single tables, by table uid; `initializer` is that of all others."""
        self.dim = dim
        self.width = dim + state_floats
        self.seed = check_seed(seed)
        self.initializer = initializer or Uniform()
        self._rows = RowStore(dim, state_floats, self.seed, *self.initializer.native())
        for uid, one in (table_initializers or {}).items():
            self._rows.add_initializer(uid, *one.native())

    def read(
        self,
        locations: U64,
        ids: U64,
        tables: U32,
        missing: Bool,
        out: F32,
        *,
        slots: I64 | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Read rows into out[i], or out[slots[i]]: vectors if `out` is [.., dim] wide, with state if [.., width]."""
        self._rows.read(locations, ids, tables, missing.view(np.uint8), out, slots, threads)

    def source(self, locations: U64, ids: U64, tables: U32, missing: Bool) -> RowSource:
        """The vectors of rows, found when they are pooled."""
        return StoreSource(self._rows, locations, ids, tables, missing.view(np.uint8))

    def write(self, locations: U64, rows: F32, *, slots: I64 | None = None) -> None:
        """Write rows[i], or rows[slots[i]], float32 [width]; the rows are then written."""
        self._rows.write(locations, rows, slots)

    def make_room(self, locations: U64) -> None:
        """What :meth:`write` and :meth:`update` of these rows need beside them: neither is out of memory after it.

        For steps over several stores, which must all fail before one has begun.
        """
        self._rows.make_room(locations)

    def update(
        self,
        locations: U64,
        ids: U64,
        tables: U32,
        missing: Bool,
        grads: F32,
        rule: UpdateRule,
        *,
        threads: Threads | None = None,
    ) -> None:
        """One optimizer step in place with grads float32 [n, dim]; locations must be unique."""
        self._rows.update(locations, ids, tables, missing.view(np.uint8), grads, rule.native, threads)

    def is_written(self, locations: U64) -> Bool:
        out = np.zeros(len(locations), np.bool_)
        self._rows.is_written(locations, out.view(np.uint8))
        return out

    def forget(self, locations: U64) -> None:
        """Make rows unwritten again, before their places are given to other keys."""
        self._rows.forget(locations)

    def export(self, locations: U64 | None = None) -> tuple[U64, F32]:
        """(locations uint64 [n] ascending, rows float32 [n, width]) of the written rows, rank bits 0.

        With `locations`, of those of them that are written.
        """
        if locations is None:
            wanted = np.empty(self.num_written, np.uint64)
            self._rows.written_locations(wanted)
        else:
            wanted = np.unique(locations & PLACE_MASK)
            wanted = wanted[self.is_written(wanted)]
        rows = np.empty((len(wanted), self.width), np.float32)
        nothing = np.zeros(len(wanted), np.uint64)  # every row is written, so no key is looked at
        self._rows.read(wanted, nothing, nothing.astype(np.uint32), nothing.astype(np.uint8), rows)
        return wanted, rows

    def load(self, locations: U64, rows: F32) -> None:
        """Replace the contents by what :meth:`export` gave; see :meth:`check_export` for what is refused.

        On any error the contents are as before.
        """
        self.prepare(locations, rows)()

    def prepare(self, locations: U64, rows: F32) -> Callable[[], None]:
        """All of :meth:`load` that may fail; the call that it gives, once and before another `prepare`, does the rest.

        Room for the rows is taken beside the present ones, as addresses: memory is used when those have been given
        back. :meth:`drop_prepared` is for who does not make the call.
        """
        self.check_export(locations, rows)
        places, rows = np.array(locations, order="C"), np.ascontiguousarray(rows)
        self._rows.make_room_beside(places)
        return partial(self._rows.replace, rows)

    def drop_prepared(self) -> None:
        """Give the room back that :meth:`prepare` took, if the call was not made."""
        self._rows.drop_room_beside()

    def check_export(self, locations: U64, rows: F32) -> None:
        """ValueError unless locations uint64 [n] are unique and in host memory, and rows are float32 [n, width]; in any
        memory layout."""
        for name, array in (("locations", locations), ("rows", rows)):
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} are a {type(array).__name__}, not an array")
        if locations.dtype != np.uint64 or rows.dtype != np.float32:
            raise ValueError(f"locations of {locations.dtype} and rows of {rows.dtype}, not uint64 and float32")
        if locations.ndim != 1 or rows.shape != (len(locations), self.width):
            raise ValueError(f"locations of shape {locations.shape}, rows of shape {rows.shape} of width {self.width}")
        places = np.sort(locations & PLACE_MASK)
        twice = places[1:][places[1:] == places[:-1]]
        if len(twice):
            raise ValueError(f"location {int(twice[0]):#x} occurs twice")
        if np.any(locations >> np.uint64(TIER_SHIFT)):
            raise ValueError("a location has tier bits that are not 0")

    def clear(self) -> None:
        """Forget every row and give its memory back."""
        self._rows.clear()

    @property
    def num_written(self) -> int:
        return self._rows.num_written()

    @property
    def nbytes(self) -> int:
        """Address space of the chunks in use, in bytes; memory is taken only by pages that rows have touched."""
        return self._rows.reserved_bytes()
