from __future__ import annotations

import pytest

from headrace.indexer.indexed import CHUNK_ROWS, OFFSET_BITS, PLACE_BITS, TIER_SHIFT, pack_location, unpack_location


def test_location_word() -> None:
    assert (OFFSET_BITS, PLACE_BITS, TIER_SHIFT, CHUNK_ROWS) == (14, 46, 62, 16384)
    assert pack_location(1, 2, rank=3, tier=1) == 0x4000_C000_0000_4002
    assert unpack_location(0x4000_C000_0000_4002) == (1, 3, 1, 2)
    top = pack_location((1 << 32) - 1, CHUNK_ROWS - 1, rank=(1 << 16) - 1, tier=3)
    assert top == (1 << 64) - 1
    assert unpack_location(top) == (3, (1 << 16) - 1, (1 << 32) - 1, CHUNK_ROWS - 1)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({"chunk": 1 << 32}, "chunk"),
        ({"chunk": -1}, "chunk"),
        ({"offset": CHUNK_ROWS}, "offset"),
        ({"offset": -1}, "offset"),
        ({"rank": 1 << 16}, "rank"),
        ({"tier": 4}, "tier"),
    ],
)
def test_what_does_not_fit_into_a_location_is_refused(place: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        pack_location(**{"chunk": 0, "offset": 0, **place})
