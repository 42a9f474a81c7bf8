"""The same embeddings with `torch.nn.EmbeddingBag`: what headrace's index, plan and stage are checked against.

It knows nothing of headrace's index: each table has a dictionary of its own from (missing, raw id) to a row, and grows
its `EmbeddingBag` when rows run out. Only the initial vectors come from headrace's initialiser.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace import Batch, Schema

F32 = npt.NDArray[np.float32]
InitialRows = Callable[[int, npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.bool_]], F32]
"""(dim, ids, table uids, missing flags) -> initial vectors [n, dim]."""


class ReferenceTable:
    """One table: a dictionary from key to row and an `EmbeddingBag` over the rows seen so far."""

    def __init__(self, uid: int, dim: int, optimizer: str, initial_rows: InitialRows) -> None:
        self.uid = uid
        self.dim = dim
        self.optimizer = optimizer
        self.row_of: dict[tuple[bool, int], int] = {}
        self._initial_rows = initial_rows
        self.bag = self._new_bag(torch.empty(0, dim))
        self.state = torch.zeros(0)  # row-wise Adagrad: mean squared gradient, summed over steps

    def rows(self, missing: npt.NDArray[np.bool_], ids: npt.NDArray[np.uint64]) -> Tensor:
        """int64 [n]: the row of each key; unseen keys get the next ones."""
        before = len(self.row_of)
        keys = list(zip(missing.tolist(), ids.tolist(), strict=True))
        rows = [self.row_of.setdefault(key, len(self.row_of)) for key in keys]
        if len(self.row_of) > before:
            new = [i for i, row in enumerate(rows) if row >= before]
            self._append(ids[new], missing[new])
        return torch.tensor(rows, dtype=torch.int64)

    def step(self, lr: float, eps: float) -> None:
        """One update of the touched rows: w -= lr g, or row-wise Adagrad w -= lr g / (sqrt(s) + eps)."""
        sparse = self.bag.weight.grad
        if sparse is None:
            return
        touched, grad = summed_in_order(sparse._indices()[0], sparse._values())
        with torch.no_grad():
            update = lr * grad
            if self.optimizer == "rowwise_adagrad":
                self.state[touched] += mean_square(grad)
                root = self.state[touched].double().sqrt().float()  # rounded as IEEE says; float32 sqrt may not be
                update = update / (root + eps).unsqueeze(1)
            self.bag.weight[touched] -= update
        self.bag.weight.grad = None

    def _append(self, ids: npt.NDArray[np.uint64], missing: npt.NDArray[np.bool_]) -> None:
        tables = np.full(len(ids), self.uid, np.uint32)
        new = torch.from_numpy(self._initial_rows(self.dim, ids, tables, missing))
        self.bag = self._new_bag(torch.cat([self.bag.weight.detach(), new]))
        self.state = torch.cat([self.state, torch.zeros(len(ids))])

    @staticmethod
    def _new_bag(weight: Tensor) -> nn.EmbeddingBag:
        return nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)


# Both sums below are taken in the order that headrace states. torch's own `coalesce` and `mean` take another one, which
# changes last bits (as a float32 `sqrt` of a vector library does, above). And where the input of a ReLU is that close
# to 0, a last bit decides whether a gradient is 0, which row-wise Adagrad (its step does not depend on the size of the
# gradient) turns into a difference of a whole step.


def summed_in_order(rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """(distinct rows int64 [U], float32 [U, dim]): the gradients of each row, added one after the other."""
    distinct, inverse = rows.unique(return_inverse=True)
    total = torch.zeros(len(distinct), values.shape[1])
    return distinct, total.index_add_(0, inverse, values)


def mean_square(values: Tensor) -> Tensor:
    """float32 [n]: mean of the squares of each row, added column by column."""
    total = torch.zeros(len(values))
    for column in values.unbind(dim=1):
        total += column * column
    return total / values.shape[1]


class ReferenceEmbeddings:
    """All tables of a schema; called with a batch it gives pooled features [B, n_sparse * dim] in schema order."""

    def __init__(self, schema: Schema, initial_rows: InitialRows) -> None:
        self.schema = schema
        self.tables = {t.name: ReferenceTable(t.uid, t.dim, t.optimizer, initial_rows) for t in schema.tables}

    def __call__(self, batch: Batch) -> Tensor:
        bags = {}  # every table first learns its new keys, since that replaces its weight
        for layout, group in zip(self.schema.groups, batch.groups, strict=True):
            ids, missing = group.unique_ids.numpy(), group.missing.numpy()
            for k, feature in enumerate(layout.features):
                offsets = group.offsets[k * batch.num_rows : (k + 1) * batch.num_rows + 1]
                used, inverse = group.query_ids[offsets[0] : offsets[-1]].unique(return_inverse=True)
                rows = self._table(feature).rows(missing[used.numpy()], ids[used.numpy()])
                bags[feature] = (rows[inverse], offsets[:-1] - offsets[0])
        return torch.cat([self._table(f).bag(*bags[f]) for f in range(len(self.schema.sparse))], dim=1)

    def step(self, lr: float, eps: float) -> None:
        for table in self.tables.values():
            table.step(lr, eps)

    def _table(self, feature: int) -> ReferenceTable:
        return self.tables[self.schema.sparse[feature].table]
