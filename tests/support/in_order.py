"""Embedding tables trained one id after the other, on raw ids: what the stage must equal, bit for bit.

It knows no index, no unique rows, no plan and no arena: a dictionary from (table, missing flag, raw id) to a row. Sums
run in the order that the stage states: a bag over its ids; a gradient over the features of its table in schema order,
then over rows, then over the ids of a bag; several batches before a step one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.embed._initializer_py import initial_vectors
from headrace.embed._optimizers_py import update_rows
from headrace.embed.initializer import Initializer
from headrace.embed.optimizers import UpdateRule
from headrace.formats.schema import Schema

Ids = Mapping[str, Sequence[Sequence[int | None]]]
"""Feature -> one list of ids a row; None is the missing value."""

Weights = Mapping[str, Sequence[Sequence[float]]]
"""Feature -> the weights of the ids of each row; features that it does not name are unweighted."""

Key = tuple[int, bool, int]


class InOrderTables:
    """All tables of a schema. `lr`, `eps`, `weight_decay` and `betas` are those of the next :meth:`step`."""

    def __init__(
        self,
        schema: Schema,
        *,
        seed: int,
        initializer: Initializer,
        frozen: Sequence[str] = (),
        lr: float,
        eps: float,
        weight_decay: float,
        betas: tuple[float, float],
    ) -> None:
        self.schema, self.seed, self.initializer, self.frozen = schema, seed, initializer, frozen
        self.lr, self.eps, self.weight_decay, self.betas = lr, eps, weight_decay, betas
        self.num_steps = 0
        self.tables = {table.name: table for table in schema.tables}
        self.group_of = {schema.tables[t].name: g for g in schema.groups for t in g.tables}
        self.rows: dict[Key, np.ndarray] = {}  # vector and state of every row that was ever updated
        self.pending: dict[Key, np.ndarray] = {}
        self._starts: dict[Key, np.ndarray] = {}

    def row(self, key: Key) -> np.ndarray:
        """float32 [dim + state]: as it was trained, or as it starts."""
        found = self.rows.get(key)
        if found is None:
            found = self._starts.get(key)
        return self._start(key) if found is None else found

    def pooled(self, ids: Ids, weights: Weights | None = None) -> np.ndarray:
        """float32 [B, D]: the pooled features in schema order."""
        parts = []
        for feature in self.schema.sparse:
            if feature.pooling == "none":
                continue
            table = self.tables[feature.table]
            out = np.zeros((len(ids[feature.name]), table.dim), np.float32)
            for b, bag in enumerate(ids[feature.name]):
                terms = [self.row(_key(table.uid, raw))[: table.dim] for raw in bag]
                if weights and feature.name in weights:
                    terms = [t * np.float32(w) for t, w in zip(terms, weights[feature.name][b], strict=True)]
                if terms:
                    out[b] = _summed(terms)
                    if feature.pooling == "mean":
                        out[b] /= np.float32(len(bag))
            parts.append(out)
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(next(iter(ids.values()))), 0), np.float32)

    def sequences(self, ids: Ids) -> dict[str, np.ndarray]:
        """float32 [n, dim] of each feature that is not pooled: the rows of its ids, one after the other."""
        found = {}
        for feature in self.schema.sparse:
            if feature.pooling == "none":
                table = self.tables[feature.table]
                rows = [self.row(_key(table.uid, raw))[: table.dim] for bag in ids[feature.name] for raw in bag]
                found[feature.name] = np.array(rows, np.float32).reshape(len(rows), table.dim)
        return found

    def backward(
        self, ids: Ids, grad: np.ndarray, of_sequences: Mapping[str, np.ndarray], weights: Weights | None = None
    ) -> None:
        """Add the gradients of one batch, from grad float32 [B, D] and float32 [n, dim] of each sequence feature."""
        pooled: dict[Key, list[np.ndarray]] = {}
        sequences: dict[Key, list[np.ndarray]] = {}
        column = 0
        for feature in self.schema.sparse:
            table = self.tables[feature.table]
            flat = iter(of_sequences[feature.name]) if feature.pooling == "none" else None
            trained = feature.table not in self.frozen
            for b, bag in enumerate(ids[feature.name]):
                for i, raw in enumerate(bag):
                    if flat is not None:
                        term, into = next(flat), sequences
                    else:
                        term, into = grad[b, column : column + table.dim], pooled
                        if weights and feature.name in weights:
                            term = term * np.float32(weights[feature.name][b][i])
                        term = term / np.float32(len(bag)) if feature.pooling == "mean" else term
                    if trained:
                        into.setdefault(_key(table.uid, raw), []).append(term)
            column += 0 if flat is not None else table.dim
        self._keep(pooled, sequences)

    def step(self) -> None:
        """One update of each row that has a gradient."""
        self.num_steps += 1
        of_uid = {table.uid: table for table in self.schema.tables}
        for table in self.schema.tables:
            keys = [key for key in self.pending if of_uid[key[0]] is table]
            if not keys:
                continue
            rows = np.stack([self.row(key) for key in keys])
            grads = np.stack([self.pending[key] for key in keys])
            rule = UpdateRule(
                name=table.optimizer, lr=self.lr, eps=self.eps, weight_decay=self.weight_decay, betas=self.betas,
                step=self.num_steps,
            )  # fmt: skip
            update_rows(rule, rows, grads)
            self.rows.update(zip(keys, rows, strict=True))
        self.pending = {}

    def zero_grad(self) -> None:
        self.pending = {}

    def _keep(self, pooled: dict[Key, list[np.ndarray]], sequences: dict[Key, list[np.ndarray]]) -> None:
        """A row's gradient in a batch is the sum over its pooled uses plus that over its uses in sequences."""
        for key in {**pooled, **sequences}:
            parts = [_summed(terms[key]) for terms in (pooled, sequences) if key in terms]
            one = _summed(parts) + np.float32(0) if len(parts) < 2 and self._has_both(key) else _summed(parts)
            self.pending[key] = self.pending[key] + one if key in self.pending else one

    def _has_both(self, key: Key) -> bool:
        """Whether the row layout of a key's table has pooled features and sequences: a sum of 0 is added then, too."""
        name = next(t.name for t in self.schema.tables if t.uid == key[0])
        kinds = {self.schema.sparse[f].pooling == "none" for f in self.group_of[name].features}
        return len(kinds) == 2

    def _start(self, key: Key) -> np.ndarray:
        table = next(t for t in self.schema.tables if t.uid == key[0])
        keys = np.array([key[2]], np.uint64), np.array([key[0]], np.uint32), np.array([key[1]])
        row = np.zeros(table.dim + self.group_of[table.name].state_floats, np.float32)
        row[: table.dim] = initial_vectors(self.initializer, self.seed, *keys, table.dim)[0]
        self._starts[key] = row
        return row


def _key(uid: int, raw: int | None) -> Key:
    return (uid, raw is None, 0 if raw is None else raw % 2**64)


def _summed(terms: Sequence[np.ndarray]) -> np.ndarray:
    """The terms added one after the other."""
    total = terms[0].copy()
    for term in terms[1:]:
        total = total + term
    return total
