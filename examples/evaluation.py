"""AUC and log loss of a model over an evaluation set (scikit-learn's)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from headrace import Batch


def evaluate(batches: Iterable[Batch], logits_of: Callable[[Batch], Tensor]) -> dict[str, float | int | None]:
    """`rows`, `auc` and `logloss`; the AUC is None when all labels are equal."""
    scores, labels = [], []
    with torch.no_grad():
        for batch in batches:
            if batch.labels is None:
                raise ValueError("the evaluation set has no label column")
            scores.append(torch.sigmoid(logits_of(batch)).double().numpy())
            labels.append(batch.labels.numpy())
    if not scores:
        return {"rows": 0, "auc": None, "logloss": None}
    score, label = np.concatenate(scores), np.concatenate(labels)
    both = label.min() < label.max()
    return {
        "rows": len(label),
        "auc": float(roc_auc_score(label, score)) if both else None,
        "logloss": float(log_loss(label, score, labels=[0.0, 1.0])),
    }
