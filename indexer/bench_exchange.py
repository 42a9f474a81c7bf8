"""Keys as they travel between the ranks of a benchmark, over :mod:`headrace.indexer.exchange`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.indexer.exchange.channel import Channel

KEY = np.dtype([("id", "<u8"), ("table_missing", "<u4")])
"""A key as it travels: the id, and its table's ordinal << 1 | the missing flag."""

Keys = npt.NDArray[np.void]


def swap_keys(channel: Channel, sent: Keys, to: int, sender: int, limit: int) -> Keys:
    """Send keys and receive others, whose number `sender` tells first; it is checked before any memory is taken."""
    count = np.empty(1, np.int64)
    channel.swap(np.array([len(sent)], np.int64), to, count, sender)
    received: Keys = np.empty(check_count(int(count[0]), limit, sender), KEY)
    channel.swap(sent, to, received, sender)
    return received


def check_count(count: int, limit: int, sender: int) -> int:
    """The number of keys that `sender` announced. ValueError outside [0, limit]."""
    if not 0 <= count <= limit:
        raise ValueError(f"rank {sender} announces {count} keys; a batch has at most {limit}")
    return count
