"""AUC and log loss of a model over an evaluation set (scikit-learn's)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from headrace import Batch, Communicator


def evaluate(
    batches: Iterable[Batch], logits_of: Callable[[Batch], Tensor], ranks: Communicator | None = None
) -> dict[str, float | int | None]:
    """`rows`, `auc` and `logloss`; the AUC is None when all labels are equal.

    With `ranks`, which all call it, they are those of the rows of all ranks, equal on each: an AUC is no mean of AUCs,
    so that scores and labels travel (12 bytes a row, to every rank).
    """
    scores, labels = [torch.empty(0, dtype=torch.float64)], [torch.empty(0)]
    with torch.no_grad():
        for batch in batches:
            if batch.labels is None:
                raise ValueError("the evaluation set has no label column")
            scores.append(torch.sigmoid(logits_of(batch)).double())
            labels.append(batch.labels)
    score, label = torch.cat(scores).numpy(), torch.cat(labels).numpy()
    if ranks is not None:
        score = np.concatenate(ranks.all_gather(score, "scores of an evaluation"))
        label = np.concatenate(ranks.all_gather(label, "labels of an evaluation"))
    if not len(label):
        return {"rows": 0, "auc": None, "logloss": None}
    both = label.min() < label.max()
    return {
        "rows": len(label),
        "auc": float(roc_auc_score(label, score)) if both else None,
        "logloss": float(log_loss(label, score, labels=[0.0, 1.0])),
    }
