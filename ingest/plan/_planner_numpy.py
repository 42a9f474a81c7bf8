"""The planner as one would write it in NumPy: arrays over the rows of the whole stream. A yardstick, not for use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.ingest.step_plan import I64, U64


class NumpyPlanner:
    """Fetches and evictions of each step, as :class:`WindowPlanner` plans them for a window of at least 1, no hot rows.

    In its favour: it is given all batches beforehand and numbers their rows 0 .. N - 1 in the order of their locations
    (not timed), so that it needs no hash table. `step()` pushes one batch and plans one step. For each row it keeps
    the last and the next use in the window, and its slot; victims are the largest of one key over all candidates in
    the arena, by partition. It names rows, slots and positions, not the waits.
    """

    def __init__(self, batches: Sequence[U64], *, window: int, capacity: int) -> None:
        self.locations, inverse = np.unique(np.concatenate(batches), return_inverse=True)
        ends = np.cumsum([len(b) for b in batches])
        self._batches: list[I64] = np.split(inverse.astype(np.int64), ends[:-1])
        rows = len(self.locations)
        self._window, self._capacity = window, capacity
        self._starts = np.concatenate([[0], ends])
        self._last_use = np.full(rows, -1, np.int64)  # number of the row's last use that was pushed
        self._next_step = np.full(len(inverse), -1, np.int64)  # by use: step of the row's next use known so far
        self._used_next = np.full(rows, -1, np.int64)  # of resident rows: step of the next use, -1: none known
        self._used_last = np.full(rows, -1, np.int64)  # step of the last use that was planned
        self._slot = np.full(rows, -1, np.int64)
        self._row_in = np.full(capacity, -1, np.int64)
        self._filled = 0
        self._pushed = self._step = 0
        self.evicted: list[I64] = []  # rows evicted by the last step, late and ahead
        self.fetched: list[I64] = []
        while self._pushed < window:
            self._push()

    def step(self) -> I64:
        """Push the next batch, plan the oldest step; its slots, int64 [U]."""
        if self._pushed < len(self._batches):
            self._push()
        t, rows = self._step, self._batches[self._step]
        self.evicted, self.fetched = [], []
        self._bring(rows, keep=(rows,))
        slots: I64 = self._slot[rows]
        self._used_next[rows] = self._next_step[self._starts[t] : self._starts[t + 1]]
        self._used_last[rows] = t
        if t + 1 < self._pushed:
            following = self._batches[t + 1]
            self._bring(following, keep=(rows, following))
        self._step += 1
        return slots

    def _push(self) -> None:
        step = self._pushed
        rows = self._batches[step]
        before = self._last_use[rows]
        in_window = before >= self._starts[self._step]
        self._next_step[before[in_window]] = step
        self._used_next[rows[~in_window]] = step
        self._last_use[rows] = np.arange(self._starts[step], self._starts[step + 1])
        self._pushed += 1

    def _bring(self, rows: I64, keep: tuple[I64, ...]) -> None:
        missing = rows[self._slot[rows] < 0]
        unused = self._capacity - self._filled
        new = missing[:unused]
        slots = np.arange(self._filled, self._filled + len(new))
        lack = len(missing) - len(new)
        victims = self._victims(lack, keep) if lack else missing[:0]
        placed = missing[: len(new) + len(victims)]
        slots = np.concatenate([slots, self._slot[victims]])
        self._slot[victims] = -1
        self._slot[placed] = slots
        self._row_in[slots] = placed
        self._filled += len(new)
        self.evicted.append(victims)
        self.fetched.append(placed)

    def _victims(self, needed: int, keep: tuple[I64, ...]) -> I64:
        """The rows that leave, first to leave first: the largest keys. Rows are numbered in the order of location."""
        kept = np.zeros(len(self.locations), np.bool_)
        for rows in keep:
            kept[rows] = True
        candidates = self._row_in[: self._filled]
        candidates = candidates[~kept[candidates]]
        following = self._used_next[candidates]
        dead = following < self._step
        far = len(self._batches) + 1
        first_to_leave = np.where(dead, 2 * far - self._used_last[candidates], following)
        key = first_to_leave * len(self.locations) + (len(self.locations) - 1 - candidates)
        needed = min(needed, len(key))
        chosen = np.argpartition(key, len(key) - needed)[len(key) - needed :] if needed else np.empty(0, np.int64)
        return candidates[chosen[np.argsort(-key[chosen])]]
