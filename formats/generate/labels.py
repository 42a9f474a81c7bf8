"""Labels that a model can learn: drawn from the log odds of a hidden model of the features.

    log odds = bias + scale · ( sum_f w_f(id_f) + sum_(f,g) <u_f(id_f), v_g(id_g)> + sum_j c_j · log(1 + max(x_j, 0)) )

w, u, v are hash functions of (seed, column, id), uniform with mean 0, so an id keeps its effect wherever it occurs,
popular ids as much as others, and no table is stored. A column's weights are damped by the share of its values that
belong to its 4,096 most frequent ids: the effect of ids that occur once is noise to any learner. A missing id or dense
value has a constant of its own. `scale` and `bias` are set on a fixed sample of rows of day 0, so that the expected
area under the ROC curve and the click rate are those of the preset; under drift the hot ids of later days have other
effects, and the click rate moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.formats.generate.calibration import F32, calibrate, probability
from headrace.formats.generate.features import (
    STAGE_DENSE_WEIGHTS,
    STAGE_LABELS,
    STAGE_WEIGHTS,
    FeatureBlock,
    FeatureStream,
)
from headrace.formats.generate.mixing import U32, keys, mix32

U8 = npt.NDArray[np.uint8]

CALIBRATION_ROWS = 32_768
FREQUENT_IDS = 4_096
PAIR_WEIGHT = 0.7  # standard deviation of a pair's term over that of a column's, before damping
DENSE_WEIGHT = 0.35
_UNIFORM_SD1 = 3.0**0.5 / 2.0**31  # int32 -> uniform with standard deviation 1
_LANE_SD1 = 3.0**0.5 / 2.0**15  # int16 -> the same


@dataclass(frozen=True)
class LabelModel:
    """The hidden model of one stream, calibrated; immutable and safe to share between threads.

    weight_keys: uint32 [n_sparse, 4] (id weight, missing weight, two of the pair vectors)
    damping: float32 [n_sparse]
    pairs: positions of sparse columns that interact
    dense_weights: float32 [n_dense, 2] (slope, constant of the missing value)
    """

    weight_keys: U32
    damping: F32
    pairs: tuple[tuple[int, int], ...]
    dense_weights: F32
    seed: int
    scale: float = 1.0
    bias: float = 0.0

    def log_odds(self, block: FeatureBlock) -> F32:
        """float32 [rows]."""
        raw = self._raw(block)
        raw *= np.float32(self.scale)
        raw += np.float32(self.bias)
        return raw

    def draw(self, log_odds: F32, block_index: int) -> U8:
        """uint8 [rows] labels of block `block_index`: 1 with the probability that `log_odds` (all rows of it) says."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, STAGE_LABELS, block_index])))
        return (generator.random(len(log_odds)) < probability(log_odds)).astype(np.uint8)

    def _raw(self, block: FeatureBlock) -> F32:
        total = np.zeros(block.rows, np.float32)
        for c in range(len(block.ids)):
            total += self._id_weights(c, block)
        for left, right in self.pairs:
            total += self._pair_term(left, right, block)
        for j in range(len(block.dense)):
            total += self._dense_term(j, block)
        return total

    def _id_weights(self, column: int, block: FeatureBlock) -> F32:
        key, missing_key = self.weight_keys[column, :2]
        weights = mix32(block.ids[column], key).view(np.int32).astype(np.float32)
        valid = block.ids_valid[column]
        if not valid.all():
            weights[~valid] = np.float32(missing_key.view(np.int32))
        weights *= np.float32(_UNIFORM_SD1) * self.damping[column]
        return weights

    def _pair_term(self, left: int, right: int, block: FeatureBlock) -> F32:
        """<u(left id), v(right id)> with two-dimensional vectors of standard deviation 1, 0 where an id is missing."""
        u = _lanes(mix32(block.ids[left], self.weight_keys[left, 2]))
        v = _lanes(mix32(block.ids[right], self.weight_keys[right, 3]))
        product = u[:, 0] * v[:, 0]
        product += u[:, 1] * v[:, 1]
        both = block.ids_valid[left] & block.ids_valid[right]
        strength = PAIR_WEIGHT * 2.0**-0.5 * float(self.damping[left] * self.damping[right])
        product *= np.float32(strength)
        product *= both
        return product

    def _dense_term(self, column: int, block: FeatureBlock) -> F32:
        slope, missing = self.dense_weights[column]
        values = np.log1p(np.maximum(block.dense[column], 0).astype(np.float32))
        values *= slope
        return np.asarray(np.where(block.dense_valid[column], values, missing))


def build_label_model(stream: FeatureStream) -> LabelModel:
    """The label model of a stream, calibrated on its fixed sample."""
    preset, seed = stream.preset, stream.seed
    names = list(preset.sparse)
    dense_keys = np.array([keys(seed, STAGE_DENSE_WEIGHTS, j, 2) for j in range(len(preset.dense))], np.uint32)
    dense_keys = dense_keys.reshape(-1, 2)
    spread = np.array([[1.0 / (1.0 + law.sigma), 1.0] for law in preset.dense.values()]).reshape(-1, 2)
    raw = LabelModel(
        weight_keys=np.stack([keys(seed, STAGE_WEIGHTS, c, 4) for c in range(len(names))]),
        damping=np.array([law.coverage(FREQUENT_IDS) for law in preset.sparse.values()], np.float32),
        pairs=tuple((names.index(a), names.index(b)) for a, b in preset.label_pairs),
        dense_weights=(DENSE_WEIGHT * _UNIFORM_SD1 * spread * dense_keys.view(np.int32)).astype(np.float32),
        seed=seed,
    )
    sample = raw.log_odds(stream.calibration_sample(CALIBRATION_ROWS))
    scale, bias = calibrate(sample, click_rate=preset.click_rate, auc=preset.generator_auc)
    return replace(raw, scale=scale, bias=bias)


def _lanes(hashes: U32) -> F32:
    """float32 [n, 2]: the two 16-bit halves of each hash, low half first, as numbers of standard deviation 1."""
    halves = hashes.astype("<u4", copy=False).view("<i2").reshape(-1, 2).astype(np.float32)
    halves *= np.float32(_LANE_SD1)
    return halves
