"""Whether all ranks were started alike."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.indexer.exchange.channel import Channel
from headrace.indexer.exchange.errors import RankMismatchError

_FACTS_LIMIT = 1 << 20


def agree(channel: Channel, facts: Mapping[str, object], what: str) -> None:
    """RankMismatchError, on all ranks alike, unless `facts` (name -> plain value) are equal on all of them.

    It names each fact that differs, and its value on each rank. `what` is what all ranks do here, for the error where
    one does not come.
    """
    mine = {name: str(value) for name, value in facts.items()}
    told = channel.all_gather_bytes(json.dumps(mine).encode(), what, limit=_FACTS_LIMIT)
    ranks: list[dict[str, str]] = [json.loads(data) for data in told]
    names = list(dict.fromkeys(name for rank in ranks for name in rank))
    differences = [_difference(name, [rank.get(name, "nothing") for rank in ranks]) for name in names]
    found = [text for text in differences if text]
    if found:
        raise RankMismatchError("the ranks were started differently: " + "; ".join(found))


def _difference(name: str, values: list[str]) -> str:
    """ "name is A on ranks 0, 2, B on rank 1", or "" where all are equal."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    if len(by_value) == 1:
        return ""
    parts = [f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}" for value, r in by_value.items()]
    return f"{name} is {', '.join(parts)}"
