"""Shuffling by windows: bounded memory, and an order that depends on (seed, epoch, window) alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.formats.rows import RowBlock, Source
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.state import State, count_in
from headrace.ingest.nodes.row_consumer import RowConsumer


def window_permutation(rows: int, *, seed: int, epoch: int, window: int) -> npt.NDArray[np.int64]:
    """Order in which the rows of a window are given: int64 [rows], PCG64 of SeedSequence([seed, epoch, window])."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch, window]))
    return np.random.Generator(bits).permutation(rows).astype(np.int64, copy=False)


class Shuffle(RowConsumer):
    """Each run of `window_rows` rows of the source in random order; no row leaves its window.

    Gives blocks of at most `block_rows` rows whose source is given row by row. Holds one window of rows, and a second
    copy of it while the window is joined. The state names the window's beginning and the rows given of it: a resume
    reads the window again.

    ``set_epoch(e)`` counts from the next ``reset()`` on; a state brings its own epoch.
    """

    def __init__(
        self, source: Iterable[Any], *, window_rows: int, seed: int, epoch: int = 0, block_rows: int = 8192
    ) -> None:
        super().__init__(source)
        self.window_rows = check_int("Shuffle", "window_rows", window_rows, minimum=1)
        self.block_rows = check_int("Shuffle", "block_rows", block_rows, minimum=1)
        self.seed = check_int("Shuffle", "seed", seed, minimum=0)
        self._coming_epoch = check_int("Shuffle", "epoch", epoch, minimum=0)
        self._epoch = self._coming_epoch
        self._window = self._given = 0
        self._begin: State = {}
        self._rows: RowBlock | None = None
        self._order = np.empty(0, np.int64)

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Use `epoch` from the next reset to the beginning on."""
        self._coming_epoch = check_int("Shuffle", "epoch", epoch, minimum=0)

    def _next(self) -> RowBlock:
        rows = self._rows or self._fill()
        if self._given >= rows.num_rows:
            raise ValueError(f"Shuffle: the state says {self._given} rows of a window that has {rows.num_rows}")
        block = rows.take(self._order[self._given : self._given + self.block_rows])
        self._given += block.num_rows
        if self._given == rows.num_rows:
            self._rows = None
            self._window += 1
            self._given = 0
            self._begin = self._rows_state()
        return block

    def _fill(self) -> RowBlock:
        """Take the window's rows; StopIteration when there are none."""
        blocks = self._take_rows(self.window_rows)
        if not blocks:
            raise StopIteration
        joined = RowBlock.concat(blocks)
        files, (file, row) = joined.source.files, joined.source.arrays()
        self._rows = RowBlock(joined.data, Source(files, None, file, row))
        self._order = window_permutation(joined.num_rows, seed=self.seed, epoch=self._epoch, window=self._window)
        return self._rows

    def _reset(self, state: State | None) -> None:
        if state is not None and state.get("seed") != self.seed:
            raise ValueError(f"Shuffle: the state is of seed {state.get('seed')!r}, this node has seed {self.seed}")
        if state is not None and state.get("window_rows") != self.window_rows:
            raise ValueError(
                f"Shuffle: the state is of window_rows={state.get('window_rows')!r}, this node has {self.window_rows}"
            )
        self._reset_rows(state)
        self._rows = None
        self._begin = self._rows_state()
        self._window = 0 if state is None else count_in(self.name, state, "window")
        self._given = 0 if state is None else count_in(self.name, state, "given_rows")
        if state is not None:
            self._coming_epoch = count_in(self.name, state, "epoch")
        self._epoch = self._coming_epoch

    def _state(self) -> State:
        return {
            **self._begin,
            "seed": self.seed,
            "epoch": self._epoch,
            "window_rows": self.window_rows,
            "window": self._window,
            "given_rows": self._given,
        }

    def _close(self) -> None:
        super()._close()
        self._rows = None
