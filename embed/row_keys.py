"""Which rows of one group: where they are, and what they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.embed.arrays import I64, U32, U64, Bool
from headrace.ingest.batch import BatchGroup


class RowKeys(NamedTuple):
    """n rows, each once: locations uint64 [n] (ABSENT: of no row yet), and their keys uint64, uint32, bool [n]."""

    locations: U64
    ids: U64
    tables: U32
    missing: Bool

    def take(self, at: I64 | Bool) -> RowKeys:
        """The rows at the positions `at`, or where it is True."""
        return RowKeys(self.locations[at], self.ids[at], self.tables[at], self.missing[at])

    def copied(self) -> RowKeys:
        """The same rows in memory of their own."""
        return RowKeys(*(part.copy() for part in self))

    def joined(self, other: RowKeys) -> RowKeys:
        """These rows, then those of `other`."""
        return RowKeys(
            np.concatenate([self.locations, other.locations]),
            np.concatenate([self.ids, other.ids]),
            np.concatenate([self.tables, other.tables]),
            np.concatenate([self.missing, other.missing]),
        )

    def put(self, at: I64, rows: RowKeys) -> None:
        """Make `rows` those at the positions `at`."""
        self.locations[at], self.ids[at], self.tables[at], self.missing[at] = rows

    @staticmethod
    def zeros(n: int) -> RowKeys:
        """n rows, to be filled in."""
        return RowKeys(np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros(n, np.uint32), np.zeros(n, np.bool_))

    @staticmethod
    def of(group: BatchGroup) -> RowKeys:
        """The unique rows of a batch's group (no copies, if it is on the host)."""
        return RowKeys(
            group.locations.cpu().numpy(),
            group.unique_ids.cpu().numpy(),
            group.unique_tables.cpu().numpy(),
            group.missing.cpu().numpy(),
        )
