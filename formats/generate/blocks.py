"""Blocks of rows as text, made one after the other or by several threads, always handed over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from isal import igzip

from headrace.formats.generate.calibration import F32
from headrace.formats.generate.criteo_text import format_criteo
from headrace.formats.generate.features import STAGE_BEHAVIOURS, FeatureBlock, FeatureStream
from headrace.formats.generate.labels import U8, LabelModel
from headrace.formats.generate.taobao_csv import draw_behaviours, format_taobao, timestamps

_GZIP_LEVEL = 2
_Array = TypeVar("_Array", bound=npt.NDArray[Any])
_Block = TypeVar("_Block")


@dataclass(frozen=True)
class FormattedBlock:
    """log_odds float32 [rows] and labels uint8 [rows] of a block, or None; pieces: (file number, rows, bytes of it)."""

    log_odds: F32 | None
    labels: U8 | None
    pieces: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True)
class BlockText:
    """Makes the text of block i from (stream, label model, i) alone; safe to share between threads.

    file_ends: row, counted from the first row of block `first_block`, after the last one of each file; rows from
    `file_ends[-1]` on are cut off.
    """

    stream: FeatureStream
    model: LabelModel | None
    compression: str | None
    first_block: int
    file_ends: Sequence[int]

    def __call__(self, position: int) -> FormattedBlock:
        """Block `position` of the part: block ``first_block + position`` of the stream."""
        index = self.first_block + position
        block = self.stream.block(index)
        log_odds = labels = None
        if self.model is not None:
            log_odds = self.model.log_odds(block)
            labels = self.model.draw(log_odds, index)
        behaviours = self._behaviours(labels, index)
        pieces = []
        first = position * block.rows
        for number, start, stop in _cut(first, first + block.rows, self.file_ends):
            rows = slice(start - first, stop - first)
            data = self._text(block.slice(rows.start, rows.stop), _part(labels, rows), _part(behaviours, rows))
            pieces.append((number, stop - start, compress(data) if self.compression else data))
        kept = slice(0, max(0, self.file_ends[-1] - first))
        return FormattedBlock(_part(log_odds, kept), _part(labels, kept), tuple(pieces))

    def _behaviours(self, labels: U8 | None, index: int) -> U8 | None:
        if self.stream.preset.layout != "taobao" or labels is None:
            return None
        sequence = np.random.SeedSequence([self.stream.seed, STAGE_BEHAVIOURS, index])
        return draw_behaviours(np.random.Generator(np.random.PCG64(sequence)), labels)

    def _text(self, block: FeatureBlock, labels: U8 | None, behaviours: U8 | None) -> bytes:
        if behaviours is None:
            return format_criteo(labels, block.dense, block.dense_valid, block.ids, block.ids_valid)
        seconds = timestamps(block.first_row, block.rows, self.stream.drift_rows)
        return format_taobao(block.ids, behaviours, seconds)


def compress(data: bytes) -> bytes:
    """One gzip member without a time stamp."""
    return bytes(igzip.compress(data, _GZIP_LEVEL, mtime=0))


def file_ends(rows: int, files: int) -> list[int]:
    """End row of each file; lengths differ by at most one, longer files first."""
    length, longer = divmod(rows, files)
    return [number * length + min(number, longer) for number in range(1, files + 1)]


def in_order(make: Callable[[int], _Block], count: int, threads: int) -> Iterator[_Block]:
    """``make(0), make(1), ...``; with several threads at most 2 · threads blocks are ahead of the reader.

    An error of `make` is raised in its place; blocks not begun are then dropped, those in work are waited for.
    """
    if threads == 1:
        yield from map(make, range(count))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="generate") as pool:
        ahead: deque[Future[_Block]] = deque()
        try:
            for position in range(count):
                ahead.append(pool.submit(make, position))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _cut(first: int, last: int, ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(file number, start, stop) of the parts of rows [first, last) that lie in each file; empty parts left out."""
    start = first
    for number in range(int(np.searchsorted(ends, first, side="right")), len(ends)):
        stop = min(ends[number], last)
        if stop > start:
            yield number, start, stop
            start = stop
        if start >= last:
            return


def _part(array: _Array | None, rows: slice) -> _Array | None:
    return None if array is None else cast(_Array, array[rows])
