"""What a row starts from: a function of (seed, table uid, missing flag, id) alone.

Not of time, thread, rank or location, so that a row needs no memory before its first update, and two runs agree on rows
that neither has seen. Block b (of 4 values) of a vector is

    words[4] = Philox4x32-10(counter=(id low, id high, table uid, b | missing << 31), key=(seed low, seed high))

with id = 0 where missing (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Then, k = 0..3,

- uniform: ``low + (high - low) * ((words[k] >> 8) / 2**24)`` in float32, in [low, high];
- normal: Box-Muller over (words[0], words[1]) and (words[2], words[3]) in float64, rounded to float32, with a
  logarithm, sine and cosine made of IEEE operations alone (libm's differ between machines).

Optimizer state starts at 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

import numpy as np

from headrace.embed import _rows
from headrace.embed.arguments import check_integer, check_number
from headrace.embed.arrays import F32, U32, U64, Bool

FLOAT32_MAX = float(np.finfo(np.float32).max)


class Initializer(ABC):
    """A distribution of initial values; plain data, compared by value."""

    @abstractmethod
    def native(self) -> tuple[int, float, float]:
        """(kind, first, second) as the native code takes them."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :func:`from_dict` reads back to an equal initialiser."""
        options = {name: float(value) for name, value in asdict(self).items()}  # type: ignore[call-overload]
        return {"name": type(self).__name__, **options}


@dataclass(frozen=True, kw_only=True)
class Constant(Initializer):
    """Every value is `value`."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _check_finite("Constant", value=self.value)

    def native(self) -> tuple[int, float, float]:
        return 0, float(np.float32(self.value)), 0.0


@dataclass(frozen=True, kw_only=True)
class Uniform(Initializer):
    """Uniform in [low, high]; the default, -0.05 to 0.05, does not depend on the dim or on the size of the table."""

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        _check_finite("Uniform", low=self.low, high=self.high)
        if not self.low <= self.high:
            raise ValueError(f"Uniform: low={self.low!r} is above high={self.high!r}")
        _check_finite("Uniform", span=float(np.float32(self.high)) - float(np.float32(self.low)))

    def native(self) -> tuple[int, float, float]:
        low = np.float32(self.low)
        return 1, float(low), float(np.float32(self.high) - low)


@dataclass(frozen=True, kw_only=True)
class Normal(Initializer):
    """Normal with mean 0 and standard deviation `std`."""

    std: float = 0.01

    def __post_init__(self) -> None:
        _check_finite("Normal", std=self.std)
        if self.std < 0:
            raise ValueError(f"Normal: std={self.std!r} is negative")

    def native(self) -> tuple[int, float, float]:
        return 2, float(self.std), 0.0


_KNOWN: dict[str, type[Initializer]] = {kind.__name__: kind for kind in (Constant, Uniform, Normal)}


def from_dict(data: dict[str, Any]) -> Initializer:
    """Read what :meth:`Initializer.to_dict` wrote; an unknown name or option raises ValueError."""
    options = dict(data)
    kind = _KNOWN.get(options.pop("name", ""))
    if kind is None:
        raise ValueError(f"initialiser {data!r} is not one of {', '.join(_KNOWN)}")
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"initialiser {data!r}: {error}") from None


def check_seed(seed: SupportsIndex) -> int:
    """`seed` as an int; must be an unsigned 64-bit integer."""
    return check_integer("seed", seed, least=0, most=(1 << 64) - 1)


def initial_vectors(
    initializer: Initializer,
    seed: int,
    ids: U64,
    tables: U32,
    missing: Bool,
    dim: int,
) -> F32:
    """float32 [n, dim]: initial vectors of n keys (raw id, table uid, missing flag)."""
    out = np.empty((len(ids), dim), np.float32)
    _rows.initial_vectors(ids, tables, missing.view(np.uint8), check_seed(seed), *initializer.native(), out)
    return out


def _check_finite(owner: str, **values: object) -> None:
    for name, value in values.items():
        if not abs(check_number(f"{owner}: {name}", value)) <= FLOAT32_MAX:
            raise ValueError(f"{owner}: {name}={value!r} is not a finite float32")
