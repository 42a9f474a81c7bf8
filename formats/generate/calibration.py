"""Scale and bias of log odds, so that labels drawn from them have a wished-for click rate and learnability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_SCALE_STEPS = 16
_BIAS_STEPS = 48
_THIN = 8  # the scale is searched on every 8th value of the sorted sample


def probability(log_odds: npt.NDArray[np.floating]) -> F64:
    """Logistic function, float64, of log odds of moderate size (|x| < 700)."""
    return np.asarray(1.0 / (1.0 + np.exp(-log_odds.astype(np.float64))))


def expected_auc(probabilities: F64) -> float:
    """Area under the ROC curve to expect when independent labels are drawn with `probabilities`, themselves the scores.

    Sum over pairs i, j with p_i > p_j of p_i (1 - p_j), over the expected number of (positive, negative) pairs.
    """
    p = np.sort(probabilities)
    below = np.cumsum(1.0 - p) - (1.0 - p)
    pairs = p.sum() * (1.0 - p).sum() - (p * (1.0 - p)).sum()
    return float((p * below).sum() / pairs)


def calibrate(raw: F32, *, click_rate: float, auc: float) -> tuple[float, float]:
    """(scale, bias) such that ``scale * raw + bias`` has mean probability `click_rate` and expected area `auc`.

    raw: float32 [n], a sample. By bisection: deterministic. A constant sample gets scale 1.
    """
    if not len(raw) or not np.isfinite(raw).all():
        raise ValueError("calibration needs one or more finite log odds")
    values = np.sort(raw).astype(np.float64)
    spread = float(values.std())
    if spread < 1e-6:
        return 1.0, _bias(values, click_rate)
    thin = values[_THIN // 2 :: _THIN] if len(values) > 1024 * _THIN else values
    low, high = 0.0, 8.0 / spread
    for _ in range(_SCALE_STEPS):
        scale = 0.5 * (low + high)
        reached = expected_auc(probability(scale * thin + _bias(scale * thin, click_rate)))
        low, high = (scale, high) if reached < auc else (low, scale)
    scale = 0.5 * (low + high)
    return scale, _bias(scale * values, click_rate)


def _bias(scaled: F64, click_rate: float) -> float:
    low, high = -40.0 - float(scaled.max()), 40.0 - float(scaled.min())
    for _ in range(_BIAS_STEPS):
        middle = 0.5 * (low + high)
        rate = float(probability(scaled + middle).mean())
        low, high = (middle, high) if rate < click_rate else (low, middle)
    return 0.5 * (low + high)
