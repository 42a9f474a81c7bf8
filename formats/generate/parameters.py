"""What defines a generated data set; equal parameters give equal files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.formats.checks import check_integer, check_type
from headrace.formats.generate.presets import load_preset

# Raised whenever a change of the code changes the rows that given parameters produce.
STREAM_VERSION = 1

COMPRESSIONS = (None, "gzip")
_MAX_ROWS = 10**12
_MAX_FILES = 100_000
_MAX_BLOCK_ROWS = 1 << 22

# (field, lowest, highest value)
_INTEGERS = (
    ("rows", 0, _MAX_ROWS),
    ("eval_rows", 0, _MAX_ROWS),
    ("files", 1, _MAX_FILES),
    ("seed", 0, 2**64 - 1),
    ("rows_per_block", 1, _MAX_BLOCK_ROWS),
    ("drift_rows", 1, _MAX_ROWS),
    ("max_cardinality", 1, 2**32),
)
_OPTIONAL = ("drift_rows", "max_cardinality")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Checked on creation: ValueError names the argument, its value and what is allowed; TypeError its type."""

    preset: str
    rows: int
    files: int = 1
    skew: str = "default"
    seed: int = 0
    drift: float = 0.0
    drift_rows: int | None = None
    compression: str | None = None
    labels: bool = True
    rows_per_block: int = 65_536
    max_cardinality: int | None = None
    eval_rows: int = 0

    def __post_init__(self) -> None:
        for name, low, high in _INTEGERS:
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, check_integer(name, value, low, high))
        if isinstance(self.drift, bool) or not isinstance(self.drift, (int, float)):
            raise TypeError(f"drift={self.drift!r} is not a number")
        if not 0.0 <= self.drift <= 1.0:
            raise ValueError(f"drift={self.drift!r} is not a share from 0 to 1")
        object.__setattr__(self, "drift", float(self.drift))
        check_type("compression", self.compression, (str, type(None)), "the name of a compression, or None")
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"compression={self.compression!r} is not one of {', '.join(map(repr, COMPRESSIONS))}")
        if not isinstance(self.labels, bool):
            raise TypeError(f"labels={self.labels!r} is not a bool")
        preset = load_preset(self.preset, skew=self.skew)
        if not self.labels and preset.file_names["unlabelled"] is None:
            raise ValueError(f"labels=False: the format of preset {self.preset!r} has no files without behaviour")
        if self.drift_rows is None:
            object.__setattr__(self, "drift_rows", preset.rows_per_day)

    @property
    def day_rows(self) -> int:
        assert self.drift_rows is not None  # filled in on creation
        return self.drift_rows

    @property
    def train_blocks(self) -> int:
        return -(-self.rows // self.rows_per_block)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest: all fields, and the version of the stream."""
        return {**asdict(self), "stream_version": STREAM_VERSION}


def made_by_generate(parameters: Mapping[str, Any]) -> bool:
    """Whether the `parameters` of a manifest are those of a generated data set, of whatever version."""
    return {"preset", "stream_version"} <= parameters.keys()
