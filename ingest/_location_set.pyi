"""A set of locations as a table of words, probed in order; ABSENT is a free entry, and no member."""

import numpy as np
import numpy.typing as npt

from headrace.ingest.step_plan import I64, U64

def fill(table: U64, locations: U64) -> None:
    """Make `table`, of a power of two of entries and at least twice as many as there are locations, the set of them."""

def contains(table: U64, locations: U64, out: npt.NDArray[np.uint8]) -> None:
    """out[i] is 1 where locations[i] is in the set that `fill` made, else 0."""

def fill_positions(table: U64, positions: I64, locations: U64) -> None:
    """As `fill`, and beside each entry the position of its location, which is there once: `positions` are as many."""

def find(table: U64, positions: I64, locations: U64, out: I64) -> None:
    """out[i] is the position of locations[i] in what `fill_positions` took, -1 where it was not there."""
