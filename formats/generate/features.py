"""Blocks of feature values: the part of a stream that does not depend on labels.

Block i of a stream is a pure function of (preset, skew, seed, drift, block size, i): its random numbers come from
``SeedSequence([seed, stage, i])``, always for a whole block, so that rows do not depend on threads, on how rows are
divided over files, or on how many rows are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.formats.generate.dense import Mask
from headrace.formats.generate.drift import Drift
from headrace.formats.generate.mixing import U32, Permutation, keys
from headrace.formats.generate.popularity import I64
from headrace.formats.generate.presets import Preset

# Second word of every SeedSequence, after the seed: what the numbers are for. The values are part of the stream.
STAGE_FEATURES, STAGE_LABELS, STAGE_CALIBRATION, STAGE_IDS, STAGE_DRIFT = 1, 2, 3, 4, 5
STAGE_WEIGHTS, STAGE_DENSE_WEIGHTS, STAGE_BEHAVIOURS = 6, 7, 8


@dataclass(frozen=True)
class FeatureBlock:
    """Columns of consecutive rows; a value whose mask is False is missing, and then means nothing.

    dense: int64 [n_dense, rows]; dense_valid: bool, same shape
    ids: uint32 [n_sparse, rows]; ids_valid: bool, same shape
    first_row: number of the first row in the stream
    """

    dense: I64
    dense_valid: Mask
    ids: U32
    ids_valid: Mask
    first_row: int

    @property
    def rows(self) -> int:
        return int(self.ids.shape[1])

    def slice(self, start: int, stop: int) -> FeatureBlock:
        """Rows start .. stop - 1, copied so that columns stay contiguous; the block itself when that is all of it."""
        if (start, stop) == (0, self.rows):
            return self
        return FeatureBlock(
            dense=np.ascontiguousarray(self.dense[:, start:stop]),
            dense_valid=np.ascontiguousarray(self.dense_valid[:, start:stop]),
            ids=np.ascontiguousarray(self.ids[:, start:stop]),
            ids_valid=np.ascontiguousarray(self.ids_valid[:, start:stop]),
            first_row=self.first_row + start,
        )


@dataclass(frozen=True)
class FeatureStream:
    """Draws blocks of `rows_per_block` rows of a preset's columns."""

    preset: Preset
    seed: int
    rows_per_block: int
    drift: float
    drift_rows: int

    @cached_property
    def permutations(self) -> tuple[Permutation, ...]:
        """Rank (after drift) -> id, one a sparse column."""
        return tuple(
            Permutation(tuple(map(int, keys(self.seed, STAGE_IDS, c, 4))), bits=self._id_bits(law.cardinality))
            for c, law in enumerate(self.preset.sparse.values())
        )

    @cached_property
    def drifts(self) -> tuple[Drift, ...]:
        return tuple(
            Drift(drift=self.drift, cardinality=law.cardinality, key=int(keys(self.seed, STAGE_DRIFT, c, 1)[0]))
            for c, law in enumerate(self.preset.sparse.values())
        )

    def block(self, index: int) -> FeatureBlock:
        """Block `index` (>= 0): rows index · rows_per_block and on."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, STAGE_FEATURES, index])))
        return self._draw(generator, index * self.rows_per_block, self.rows_per_block)

    def calibration_sample(self, rows: int) -> FeatureBlock:
        """`rows` rows of day 0 that belong to no block, the same whatever the block size."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, STAGE_CALIBRATION])))
        return self._draw(generator, 0, min(rows, self.drift_rows))

    def _id_bits(self, cardinality: int) -> int:
        """Criteo ids fill 32 bits; Taobao's are small decimal numbers: the fewest bits that hold the column."""
        return 32 if self.preset.layout == "criteo" else max(1, (cardinality - 1).bit_length())

    def _draw(self, generator: np.random.Generator, first_row: int, rows: int) -> FeatureBlock:
        dense_laws, laws = self.preset.dense, self.preset.sparse
        valid = self._draw_masks(generator, rows)
        dense = np.empty((len(dense_laws), rows), np.int64)
        for c, dense_law in enumerate(dense_laws.values()):
            dense[c] = dense_law.draw(generator, rows)
        ids = np.empty((len(laws), rows), np.uint32)
        for c, law in enumerate(laws.values()):
            ids[c] = self._ids(c, law.draw(generator, rows), first_row)
        split = len(dense_laws)
        return FeatureBlock(dense, valid[:split], ids, valid[split:], first_row)

    def _draw_masks(self, generator: np.random.Generator, rows: int) -> Mask:
        """bool [n_dense + n_sparse, rows]: one draw a column that can be missing, one for all of a joint group."""
        p_miss = {name: law.p_miss for name, law in self.preset.dense.items()}
        p_miss |= {name: law.p_miss for name, law in self.preset.sparse.items()}
        leader = {name: group[0] for group in self.preset.joint_missing for name in group}
        valid = np.ones((len(p_miss), rows), np.bool_)
        row_of = {name: position for position, name in enumerate(p_miss)}
        drawn: dict[str, npt.NDArray[np.bool_]] = {}
        for name, share in p_miss.items():
            if share > 0.0:
                first = leader.get(name, name)
                if first not in drawn:
                    drawn[first] = generator.random(rows) >= share
                valid[row_of[name]] = drawn[first]
        return valid

    def _ids(self, column: int, ranks: I64, first_row: int) -> U32:
        return self.permutations[column](self._positions(column, ranks, first_row).astype(np.uint32))

    def _positions(self, column: int, ranks: I64, first_row: int) -> I64:
        """Ranks after drift; a block may reach over several days."""
        if self.drift == 0.0:
            return ranks
        parts, start, drift = [], 0, self.drifts[column]
        while start < len(ranks):
            day = (first_row + start) // self.drift_rows
            stop = min(len(ranks), (day + 1) * self.drift_rows - first_row)
            parts.append(drift.positions(ranks[start:stop], day))
            start = stop
        return np.concatenate(parts)
