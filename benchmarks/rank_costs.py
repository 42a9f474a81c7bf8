"""What rows cost over ranks, and the R that they make best: seconds a row requested late, early, and all-reduced.

Every rank wants the same `ROWS` rows, spread over the owners, as it is with the rows that R is about: those that
(nearly) every batch contains. A row is sent, comes back as a gradient, is summed and updated by its owner; an
all-reduced one is updated by every rank. What a cost is: a step with such an exchange less one without, over the rows,
the median of many such pairs. What a step costs that has an R at all is the training step with one of a single row less
that without any (`ranks.py` has both as contenders).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
import torch.distributed as dist
from rank_contenders import LR, DenseAlone, Job
from rank_dense import DIM
from rank_streams import RankStream

from headrace.embed._rows import SlotRows
from headrace.embed.arrays import F32
from headrace.embed.optimizers import UpdateRule
from headrace.indexer.cost_curve import CostCurve, RowCosts, cost_curve
from headrace.indexer.exchange.channel import Posted, Posts
from headrace.indexer.exchange.communicator import connect
from headrace.indexer.indexed import F64

ROWS = 8192


class Costs:
    """A step is one of each kind: the dense part alone, and with rows that come late, early, and all-reduced."""

    def __init__(self, job: Job) -> None:
        self._dense = DenseAlone(job)
        self._communicator = communicator = connect("gloo", timeout_s=job.settings["timeout_s"])
        self._node: Posts | None = None
        members = None
        if job.settings["levels"] == 2:
            members = communicator.cross_members(job.node_size)
            self._node = communicator.node_channel("node_rows", 0, job.node_size)
        self._owners = communicator.channel("rows", 0, members)
        self._hot = communicator.channel("hot")
        self._table = np.zeros((ROWS, DIM + 1), np.float32)  # with the state of row-wise Adagrad
        self._slots = np.random.default_rng(0).permutation(ROWS).astype(np.int64)
        self._rule = UpdateRule(name="rowwise_adagrad", lr=LR, eps=1e-8, weight_decay=0.0, step=1).native
        kinds: dict[str, Callable[[], None]] = {
            "without": self._dense.step,
            "late": self._late,
            "early": self._early,
            "reduced": self._reduced,
        }
        self._kinds, self._seconds = kinds, dict.fromkeys(kinds, 0.0)
        self._order = list(kinds)

    def step(self) -> None:
        for kind in self._order:
            dist.barrier()
            begin = time.perf_counter()
            self._kinds[kind]()
            dist.barrier()  # the slowest rank's time counts
            self._seconds[kind] += time.perf_counter() - begin
        self._order.append(self._order.pop(0))  # so that none always comes after the same other

    def _late(self) -> None:
        for _ in ("rows", "gradients"):
            self._arrive(self._send())
        self._update(ROWS // self._communicator.world_size)
        self._dense.step()

    def _early(self) -> None:
        there, back = self._send(), self._send()
        self._dense.step()
        self._arrive(there)
        self._arrive(back)
        self._update(ROWS // self._communicator.world_size)

    def _reduced(self) -> None:
        grads = self._gathered(ROWS)
        total = self._hot.all_reduce(grads)
        SlotRows.update(self._table, self._slots, total, self._rule)
        self._dense.step()

    def _send(self) -> Posted:
        """Begin to send each peer its share of what a rank (of two levels: this rank for its node) has to send."""
        channel = self._owners
        count = ROWS // self._communicator.world_size
        others = [peer for peer in range(channel.size) if peer != channel.rank]
        into = {peer: np.empty((count, DIM), np.float32) for peer in others}
        return channel.post({peer: self._gathered(count) for peer in others}, into)

    def _arrive(self, posted: Posted) -> None:
        posted.wait()
        if self._node is None:
            return
        shape = ROWS // self._node.size, DIM
        sends = {peer: self._node.room(peer, shape) for peer in range(self._node.size)}
        for out in sends.values():
            SlotRows.gather(self._table, self._slots[: shape[0]], out)
        self._node.post(sends, {peer: np.empty(shape, np.float32) for peer in sends}, "rows").wait()

    def _gathered(self, count: int) -> F32:
        out = np.empty((count, DIM), np.float32)
        SlotRows.gather(self._table, self._slots[:count], out)
        return out

    def _update(self, count: int) -> None:
        parts = [self._gathered(count) for _ in range(self._owners.size)]
        SlotRows.update(self._table, self._slots[:count], np.sum(parts, axis=0), self._rule)

    def payload(self) -> dict[str, int]:
        return {}

    def parts(self) -> dict[str, float]:
        return dict(self._seconds)

    def close(self) -> None:
        self._communicator.close()


def row_costs(steps: Sequence[Mapping[str, float]], *, c_step: float) -> RowCosts:
    """Seconds a row, from those of each kind in each of several steps, and of a step in which there is an R."""
    late, early, reduced = (
        max(0.0, median(step[kind] - step["without"] for step in steps)) / ROWS for kind in ("late", "early", "reduced")
    )
    return RowCosts(c_early=early, c_late=max(late, early), c_ar=reduced, c_step=c_step)


def presence(stream: RankStream, node_size: int) -> F64:
    """Share, float64 [keys], of the steps of a rank (of a node, if it has several) that use each key of a stream."""
    offsets = np.cumsum([0, *stream.cardinalities])
    counts = np.zeros(offsets[-1], np.int64)
    batches = 0
    for step in stream.rows:
        for first in range(0, len(step), node_size):
            keys = step[first : first + node_size].astype(np.int64) + offsets[:-1, None]
            counts[np.unique(keys)] += 1
            batches += 1
    return np.asarray(counts / batches, np.float64)


def curve(stream: RankStream, costs: RowCosts, *, levels: int, node_size: int) -> CostCurve:
    """What each size of R costs a step, by the rule of the loader; its ``optimum`` is the R that the rule chooses."""
    together = node_size if levels == 2 else 1
    world_size = stream.labels.shape[1] // together
    return cost_curve(presence(stream, together), costs, world_size=world_size)
