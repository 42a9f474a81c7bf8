"""What users have at hand to index a batch, one column after the other; contenders of `bench.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.indexer.bench_contenders import Batch, Contender, Residents, numpy_values, prefill
from headrace.indexer.indexed import IndexTable


class _ColumnPeer:
    """A peer that takes one column after the other, a table a column, in one thread."""

    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]:
        columns = [(c.table, self.form(numpy_values(c))) for batch in batches for c in batch]

        def run() -> None:
            for table, values in columns:
                self.index_column(table, values)

        return run

    def form(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values

    def index_column(self, table: int, values: npt.NDArray[Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class NumpyUniqueDict(_ColumnPeer):
    """numpy.unique and a dict a table; it holds the ids of the batches only, which is in its favour."""

    def __init__(self, tables: Sequence[IndexTable], residents: Residents) -> None:
        self._rows: list[dict[int, int]] = [{} for _ in tables]

    def index_column(self, table: int, values: npt.NDArray[Any]) -> None:
        row_of = self._rows[table]
        unique, _ = np.unique(values, return_inverse=True)
        for value in unique.tolist():
            row_of.setdefault(value, len(row_of))


class PandasFactorize(_ColumnPeer):
    """Dedup alone: pandas has no index that grows."""

    def __init__(self, tables: Sequence[IndexTable], residents: Residents) -> None:
        import pandas

        self._factorize = pandas.factorize

    def index_column(self, table: int, values: npt.NDArray[Any]) -> None:
        self._factorize(values)


class CykhashIndex(_ColumnPeer):
    """All that the index does, by cykhash: unique ids in order, query ids, rows of a map a table that holds the
    residents and takes unseen ids. Nothing can be undone, and a missing value has no key of its own."""

    def __init__(self, tables: Sequence[IndexTable], residents: Residents) -> None:
        import cykhash

        self._cykhash: Any = cykhash
        self._maps: list[Any] = [cykhash.Int64toInt64Map() for _ in tables]
        for column in prefill(residents):
            self.index_column(column.table, self.form(numpy_values(column)))

    def form(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(values).astype(np.int64)

    def index_column(self, table: int, values: npt.NDArray[Any]) -> None:
        self.rows_of(table, values)

    def rows_of(self, table: int, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """(query ids, rows of the unique ids)."""
        lookup, from_arrays = self._cykhash.Int64toInt64Map_to, self._cykhash.Int64toInt64Map_from_buffers
        if len(values) == 0:  # it takes no empty buffers
            return values, values
        unique = np.frombuffer(self._cykhash.unique_stable_int64(values), np.int64)
        query_ids = np.empty(len(values), np.int64)
        lookup(from_arrays(unique, np.arange(len(unique))), values, query_ids, False, -1)
        rows, known = np.empty(len(unique), np.int64), self._maps[table]
        lookup(known, unique, rows, False, -1)
        unseen = rows < 0
        if unseen.any():
            rows[unseen] = np.arange(len(known), len(known) + int(unseen.sum()))
            known.update(from_arrays(unique[unseen], rows[unseen]))
        return query_ids, rows

    def close(self) -> None:
        self._maps.clear()


PEERS: dict[str, tuple[str, Callable[[Sequence[IndexTable], Residents], Contender]]] = {
    "numpy_unique_dict": ("numpy", NumpyUniqueDict),
    "pandas_factorize": ("pandas", PandasFactorize),
    "cykhash": ("cykhash", CykhashIndex),
}
"""By name: the package that it needs, and how it is made."""


def installed_peers() -> list[str]:
    return [name for name, (package, _) in PEERS.items() if find_spec(package)]
