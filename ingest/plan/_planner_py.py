"""The planner's rules by brute force: dicts and sorts, no attention to speed or memory. Twin of `_planner.pyx`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.ingest.plan._raw import RawMovement, RawPlan
from headrace.ingest.plan.capacity import CapacityError
from headrace.ingest.step_plan import NEVER, U64


class PlannerCore:
    def __init__(self, *, window: int, capacity: int, r_rows: int, horizon: int, overlap: bool) -> None:
        self._overlap = overlap and window > 0
        self._window, self._capacity, self._r_rows, self._horizon = window, capacity, r_rows, horizon
        self._batches: list[list[int]] = []
        self._step = 0
        self._hot: list[int] = []
        self._slot: dict[int, int] = {}  # resident rows
        self._last_use: dict[int, int] = {}
        self._written: dict[int, int] = {}  # move of the last write-back
        self._vacated: dict[int, int] = {}  # move of the last eviction from a slot
        self._free = list(range(r_rows, capacity))
        self._before: set[int] = set()  # resident before `ahead` of the last step
        self.finished = False
        self.rows_needed = self.rows_never_late = self.peak_resident = self.peak_window_rows = 0

    def set_hot(self, locations: U64) -> None:
        rows = locations.tolist()
        _check_different(rows, "hot ")
        self._hot = rows

    def push(self, locations: U64) -> None:
        rows = locations.tolist()
        _check_different(rows, f"step {len(self._batches)}: ")
        cold = set(rows) - set(self._hot)
        before = set(self._batches[-1]) - set(self._hot) if self._batches else set()
        self.rows_needed = max(self.rows_needed, len(cold) + self._r_rows)
        self.rows_never_late = max(self.rows_never_late, len(cold | before) + self._r_rows)
        if len(cold) + self._r_rows > self._capacity:
            raise CapacityError(
                step=len(self._batches),
                capacity=self._capacity,
                rows_needed=self.rows_needed,
                rows_never_late=self.rows_never_late,
            )
        self._batches.append(rows)
        self.peak_window_rows = max(self.peak_window_rows, self.window_rows)

    def pop(self) -> RawPlan:
        if not self.ready():
            raise RuntimeError("no plan is ready")
        t = self._step
        rows = self._batches[t]
        hits = len(set(rows) & (self._before if self._overlap else set(self._slot)))
        late = self._bring(rows, move=2 * t, keep=set(rows))
        self._before = set(self._slot)
        last = t + 1 == len(self._batches)
        following = [] if self._window == 0 or last else self._batches[t + 1]
        ahead = self._bring(following if self._overlap else [], move=2 * t + 1, keep={*rows, *following})
        self._last_use.update(dict.fromkeys(rows, t))
        self._step += 1
        return (
            np.array([self._slot[row] for row in rows], np.int64),
            np.array([row in self._hot for row in rows], np.bool_),
            np.array([self._window == 0 or row in following for row in rows], np.bool_),
            late,
            ahead,
            hits,
            len(self._slot),
        )

    def _bring(self, rows: Sequence[int], *, move: int, keep: set[int]) -> RawMovement:
        missing = [i for i, row in enumerate(rows) if row not in self._slot]
        lack = sum(rows[i] not in self._hot for i in missing) - len(self._free)
        candidates = [row for row in self._slot if row not in keep and row not in self._hot]
        victims = sorted(candidates, key=self._leaves_first)[: max(lack, 0)]
        evict_slots = [self._slot.pop(row) for row in victims]
        for row, slot in zip(victims, evict_slots, strict=True):
            self._written[row] = self._vacated[slot] = move
        self._free += evict_slots
        fetched = []
        for i in missing:
            if rows[i] in self._hot:
                self._slot[rows[i]] = self._hot.index(rows[i])
            elif self._free:
                self._slot[rows[i]] = self._free.pop(0)
            else:
                continue
            fetched.append(i)
        self.peak_resident = max(self.peak_resident, len(self._slot))
        written = [self._written.get(rows[i], NEVER) for i in fetched]
        slots = [self._slot[rows[i]] for i in fetched]
        return (
            np.array(victims, np.uint64),
            np.array(evict_slots, np.int64),
            np.array([rows[i] for i in fetched], np.uint64),
            np.array(slots, np.int64),
            np.array(fetched, np.int64),
            np.array([m if m != NEVER and move - m <= self._horizon else NEVER for m in written], np.int64),
            np.array([self._vacated.get(slot, NEVER) for slot in slots], np.int64),
        )

    def _leaves_first(self, row: int) -> tuple[int, int, int]:
        for step in range(self._step, min(self._step + self._window + 1, len(self._batches))):
            if row in self._batches[step]:
                return 1, -step, row
        return 0, self._last_use[row], row

    def finish(self) -> None:
        self.finished = True

    def ready(self) -> bool:
        return self.full or (self.finished and self._step < len(self._batches))

    @property
    def full(self) -> bool:
        return len(self._batches) - self._step > self._window

    @property
    def window_sizes(self) -> tuple[int, ...]:
        return tuple(len(rows) for rows in self._batches[self._step :])

    @property
    def window_rows(self) -> int:
        return sum(self.window_sizes)

    @property
    def tracked_rows(self) -> int:
        """Rows that the rules need: resident, in the window, hot, or so lately written back that a fetch might wait."""
        next_fetch = 2 * len(self._batches) - 1
        recent = {row for row, m in self._written.items() if not self.finished and next_fetch - m <= self._horizon}
        return len({*self._slot, *self._hot, *recent, *(row for rows in self._batches[self._step :] for row in rows)})

    @property
    def nbytes(self) -> int:
        return 0  # the twin does not count its memory


def _check_different(rows: list[int], where: str) -> None:
    for i, row in enumerate(rows):
        if row in rows[:i]:
            raise ValueError(f"{where}location {row} occurs twice")
