"""Gradients of a step that are summed and not applied yet, since all of them must be known first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headrace.embed.arrays import F32, I64, Bool
from headrace.indexer.exchange.channel import Channel
from headrace.ingest.rank_step import RankStep

_SAMPLED = 1024
"""So many values of a gradient at least, if it has them, tell whether all were scaled."""

F64 = npt.NDArray[np.float64]


class AsGathered:
    """Gradients of row layouts, None for none, as they were when they were sent: who adds to them later, or scales
    them, would do it in vain."""

    def __init__(self, grads: Sequence[Tensor | None]) -> None:
        self._known = [(grad, None if grad is None else _state_of(grad)) for grad in grads]

    def check(self, grads: Sequence[Tensor | None]) -> None:
        """RuntimeError unless `grads` are these, as they were."""
        for (known, state), grad in zip(self._known, grads, strict=True):
            if grad is not known or (grad is not None and _state_of(grad) != state):
                raise RuntimeError(
                    "gradients were added or scaled after clip_grad_norm_, which over ranks has sent those of before "
                    "to their owners: call it after the last backward, and after scaler.unscale_, right before the "
                    "step; stage.optimizer().zero_grad() drops what was sent"
                )


@dataclass(frozen=True, eq=False)
class HeldGradients:
    """Of one step: sums over all ranks, of each layout those of the rows that this rank owns and those of R.

    `cold` are (positions int64 [n] in what is owned, sums float32 [n, dim]), `cold_trained` bool [n] is False for rows
    of frozen tables; `hot` are float32 [touched, dim] (None without R), the same on all ranks, and `hot_own` int64
    those that this rank owns and trains: each row of all is counted by its owner alone. `of` are the gradients of this
    rank's batch that they are sums of.
    """

    step: RankStep
    of: AsGathered
    cold: Sequence[tuple[I64, F32]]
    cold_trained: Sequence[Bool]
    hot: Sequence[F32 | None]
    hot_own: Sequence[I64]

    def told_norms(self, norm_type: float, others: float, channel: Channel, *, max_norm: float) -> F64:
        """float64 [W, 4], a row from each rank: what its own rows add to the norm, the norm `others` of what is not of
        rows and the same on all ranks, and what the caller clips by."""
        mine = np.array([self._part(norm_type), others, max_norm, norm_type])
        return channel.all_gather(mine, f"the norm of its gradients of step {self.step.step}")

    @staticmethod
    def total_norm(told: F64, norm_type: float) -> float:
        """The norm of the gradients of all ranks' rows together with the others, from what :meth:`told_norms` gave.

        Added up in double precision, in the order of the ranks: the same number on all of them. RuntimeError where the
        norm of the others, or what the caller clips by, differs between ranks.
        """
        other = np.flatnonzero(~np.isclose(told[:, 1], told[0, 1], rtol=1e-3, atol=0.0, equal_nan=True)).tolist()
        if other:
            raise RuntimeError(
                f"the norm of the dense gradients on ranks {other} is not that of rank 0 ({told[:, 1].tolist()}): "
                "average them over the ranks before they are clipped (headrace.average_gradients)"
            )
        for column, name in ((2, "max_norm"), (3, "norm_type")):
            if len(set(told[:, column].tolist())) > 1:
                raise RuntimeError(
                    f"clip_grad_norm_ with another {name} on each rank ({told[:, column].tolist()}, in the order of "
                    "the ranks): give all the same"
                )
        dense = float(told[0, 1])
        if math.isinf(norm_type):
            return float(np.max([*told[:, 0], dense]))  # NaN is not lost
        return float((sum(told[:, 0].tolist()) + dense**norm_type) ** (1.0 / norm_type))

    def scale(self, factor: float) -> None:
        """Multiply all sums."""
        for sums in (*(total for _, total in self.cold), *(total for total in self.hot if total is not None)):
            sums *= np.float32(factor)

    def _part(self, norm_type: float) -> float:
        """What the rows that this rank owns add: the sum of the powers, or the largest."""
        parts = [total[trained] for (_, total), trained in zip(self.cold, self.cold_trained, strict=True)]
        parts += [total[own] for total, own in zip(self.hot, self.hot_own, strict=True) if total is not None]
        powers = [_powers(np.abs(part.astype(np.float64)), norm_type) for part in parts if part.size]
        return float(np.max(powers) if math.isinf(norm_type) else np.sum(powers)) if powers else 0.0


def _state_of(grad: Tensor) -> tuple[int, bytes]:
    """How often torch knows that `grad` was changed, and some of its values: GradScaler scales without telling it."""
    flat = grad.detach().reshape(-1)
    return grad._version, flat[:: max(1, len(flat) // _SAMPLED)].numpy().tobytes()


def _powers(sizes: F64, norm_type: float) -> float:
    return float(sizes.max() if math.isinf(norm_type) else np.sum(sizes**norm_type))
