"""Where each feature's values stand: its group, its place in the group, its columns of the output."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.embed.arrays import I64, U8, U32, Bool
from headrace.formats.schema import OptimizerName, Schema, optimizer_state_floats, table_uid


@dataclass(frozen=True)
class GroupLayout:
    """One row layout; F features in the order of the batch's group.

    `columns` int64 [F] is where a feature's values start in an output row, -1 for a sequence (pooling none); `mean`
    uint8 [F] is 1 where a bag is averaged; `trained` bool [F] is False where the feature's table is frozen;
    `feature_tables` uint32 [F] is the uid of the feature's table, `tables` are the names of all tables.
    """

    dim: int
    optimizer: OptimizerName
    features: tuple[str, ...]
    columns: I64
    mean: U8
    trained: Bool
    feature_tables: U32
    tables: tuple[str, ...]

    @cached_property
    def by_table(self) -> tuple[I64, I64, int]:
        """(features, starts, single): positions of the pooled features whose tables are trained, table after table, in
        order within a table; where in them each table begins, and their number; the tables with one feature come first,
        `single` of them."""
        features: dict[int, list[int]] = {}
        for f in np.flatnonzero((self.columns >= 0) & self.trained).tolist():
            features.setdefault(int(self.feature_tables[f]), []).append(f)
        tables = sorted(features.values(), key=lambda one: len(one) > 1)
        flat = np.array([f for one in tables for f in one], np.int64)
        starts = np.cumsum([0, *map(len, tables)]).astype(np.int64)
        return flat, starts, sum(len(one) == 1 for one in tables)

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state behind the vector of a row."""
        return optimizer_state_floats(self.optimizer, self.dim)

    @property
    def is_pooled(self) -> bool:
        """Whether any feature has columns in the output."""
        return bool((self.columns >= 0).any())

    @property
    def sequences(self) -> tuple[int, ...]:
        """Positions in `features` of those that are not pooled."""
        return tuple(np.flatnonzero(self.columns < 0).tolist())


@dataclass(frozen=True)
class FeatureLayout:
    """All groups, and the columns of the output in schema order.

    `feature_dims` maps each pooled feature to its number of columns, in the order of the columns.
    """

    groups: tuple[GroupLayout, ...]
    feature_dims: dict[str, int]

    @property
    def output_dim(self) -> int:
        return sum(self.feature_dims.values())


def feature_layout(schema: Schema, frozen: Collection[str] = ()) -> FeatureLayout:
    """Layout of a schema: groups interleave in schema order, sequences take no columns; tables `frozen` stay as they
    are."""
    dim_of = {position: group.dim for group in schema.groups for position in group.features}
    columns: dict[int, int] = {}
    feature_dims: dict[str, int] = {}
    start = 0
    for position, feature in enumerate(schema.sparse):
        if feature.pooling == "none":
            columns[position] = -1
            continue
        columns[position] = start
        feature_dims[feature.name] = dim_of[position]
        start += dim_of[position]
    groups = tuple(
        GroupLayout(
            dim=group.dim,
            optimizer=group.optimizer,
            features=tuple(schema.sparse[p].name for p in group.features),
            columns=np.array([columns[p] for p in group.features], np.int64),
            mean=np.array([schema.sparse[p].pooling == "mean" for p in group.features], np.uint8),
            trained=np.array([schema.sparse[p].table not in frozen for p in group.features], np.bool_),
            feature_tables=np.array([table_uid(schema.sparse[p].table) for p in group.features], np.uint32),
            tables=tuple(schema.tables[t].name for t in group.tables),
        )
        for group in schema.groups
    )
    return FeatureLayout(groups, feature_dims)
