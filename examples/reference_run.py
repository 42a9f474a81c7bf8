"""A second training run on the same batches, its embeddings in `torch.nn.EmbeddingBag`, and the comparison."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace import DIT, Batch, EmbeddingStage, Schema
from torch_reference import InitialRows, ReferenceEmbeddings

RTOL, ATOL = 1e-5, 1e-6


class ReferenceRun:
    """The same model, started from the same parameters, trained in plain PyTorch."""

    def __init__(
        self,
        schema: Schema,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        initial_rows: InitialRows,
        *,
        eps: float,
    ) -> None:
        self.schema = schema
        self.model = copy.deepcopy(model)
        self.optimizer = type(optimizer)(self.model.parameters(), **optimizer.defaults)
        self.embeddings = ReferenceEmbeddings(schema, initial_rows)
        self.eps = eps

    def train_step(self, batch: Batch, lr: float) -> None:
        self.optimizer.zero_grad()
        assert batch.labels is not None
        loss = nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        self.optimizer.step()
        self.embeddings.step(lr, self.eps)

    def logits(self, batch: Batch) -> Tensor:
        logit: Tensor = self.model(batch.dense, self.embeddings(batch))
        return logit

    def compare(self, model: nn.Module, stage: EmbeddingStage, index: DIT) -> dict[str, Any]:
        """Largest difference of any parameter or optimizer state, and whether all are close."""
        worst, close, compared = 0.0, True, 0
        pairs = [(mine.detach().numpy(), theirs.detach().numpy()) for mine, theirs in _dense_pairs(model, self.model)]
        pairs += self._row_pairs(stage, index)
        for mine, theirs in pairs:
            compared += mine.size
            if mine.size:
                worst = max(worst, float(np.abs(mine - theirs).max()))
                close = close and np.allclose(mine, theirs, rtol=RTOL, atol=ATOL)
        return {"allclose": close, "max_abs_difference": worst, "values_compared": compared}

    def _row_pairs(self, stage: EmbeddingStage, index: DIT) -> list[tuple[Any, Any]]:
        """(headrace's rows, the reference's rows) with optimizer state, one pair a table: every key of the index."""
        keys = index.snapshot()
        uid, missing, ids, locations = (keys.column(c).to_numpy() for c in ("table_uid", "missing", "id", "location"))
        group_of = {self.schema.tables[t].name: g.ordinal for g in self.schema.groups for t in g.tables}
        pairs = []
        for name, table in self.embeddings.tables.items():
            mine = np.flatnonzero(uid == table.uid)
            rows = table.rows(missing[mine], ids[mine])
            theirs = [table.bag.weight.detach()[rows]]
            if table.optimizer == "rowwise_adagrad":
                theirs.append(table.state[rows].unsqueeze(1))
            found = stage.lookup_rows(group_of[name], locations[mine], ids[mine], uid[mine], missing[mine])
            pairs.append((np.asarray(found), torch.cat(theirs, dim=1).numpy()))
        return pairs


def _dense_pairs(mine: nn.Module, theirs: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return list(zip(mine.parameters(), theirs.parameters(), strict=True))
