"""Python twin of the chunk store: a dictionary of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from headrace.embed._initializer_py import initial_vectors
from headrace.embed._optimizers_py import update_rows
from headrace.embed.arrays import F32, I64, U32, U64, Bool
from headrace.embed.initializer import Initializer, Uniform
from headrace.embed.optimizers import UpdateRule
from headrace.indexer.indexed import PLACE_BITS, TIER_SHIFT

_PLACE = (1 << PLACE_BITS) - 1


class ChunkStore:
    """Same methods as :class:`headrace.embed.chunk_store.ChunkStore`, without its checks."""

    def __init__(
        self,
        dim: int,
        state_floats: int,
        *,
        seed: int = 0,
        initializer: Initializer | None = None,
        table_initializers: Mapping[int, Initializer] | None = None,
    ) -> None:
        self.dim = dim
        self.width = dim + state_floats
        self.seed = seed
        self.initializer = initializer or Uniform()
        self._of_tables = dict(table_initializers or {})
        self._rows: dict[int, F32] = {}

    def _row(self, location: int, key: U64, table: U32, missing: Bool) -> F32:
        row = self._rows.get(location & _PLACE) if location >> TIER_SHIFT == 0 else None
        if row is None:
            row = np.zeros(self.width, np.float32)
            own = self._of_tables.get(int(table[0]), self.initializer)
            row[: self.dim] = initial_vectors(own, self.seed, key, table, missing, self.dim)[0]
        return row

    def read(self, locations: U64, ids: U64, tables: U32, missing: Bool, out: F32, *, slots: I64 | None = None) -> None:
        for i, location in enumerate(locations.tolist()):
            at = i if slots is None else slots[i]
            one = slice(i, i + 1)
            out[at] = self._row(location, ids[one], tables[one], missing[one])[: out.shape[1]]

    def write(self, locations: U64, rows: F32, *, slots: I64 | None = None) -> None:
        for i, location in enumerate(locations.tolist()):
            self._rows[location & _PLACE] = rows[i if slots is None else slots[i]].copy()

    def update(self, locations: U64, ids: U64, tables: U32, missing: Bool, grads: F32, rule: UpdateRule) -> None:
        rows = np.empty((len(locations), self.width), np.float32)
        self.read(locations, ids, tables, missing, rows)
        update_rows(rule, rows, grads)
        self.write(locations, rows)

    def is_written(self, locations: U64) -> Bool:
        return np.array([x & _PLACE in self._rows for x in locations.tolist()], np.bool_)

    def forget(self, locations: U64) -> None:
        for location in locations.tolist():
            self._rows.pop(location & _PLACE, None)

    def export(self, locations: U64 | None = None) -> tuple[U64, F32]:
        wanted = set(self._rows)
        if locations is not None:
            wanted &= {x & _PLACE for x in locations.tolist()}
        keys = sorted(wanted)
        rows = np.array([self._rows[k] for k in keys], np.float32).reshape(len(keys), self.width)
        return np.array(keys, np.uint64), rows

    def load(self, locations: U64, rows: F32) -> None:
        self.prepare(locations, rows)()

    def prepare(self, locations: U64, rows: F32) -> Callable[[], None]:
        def replace() -> None:
            self.clear()
            self.write(locations, rows)

        return replace

    def drop_prepared(self) -> None:
        """Nothing was taken."""

    def make_room(self, locations: U64) -> None:
        """A dictionary makes it."""

    def clear(self) -> None:
        self._rows.clear()

    @property
    def num_written(self) -> int:
        return len(self._rows)
