"""The order of lookups in an index and of places that become others', within this process."""

from __future__ import annotations

import itertools

_NUMBERS = itertools.count()


def next_in_order() -> int:
    """A number that is larger than all that any thread was given before.

    One that is taken before a lookup begins, and is larger than one that was taken when places were forgotten, says
    that the lookup saw the index as it was after.
    """
    return next(_NUMBERS)
