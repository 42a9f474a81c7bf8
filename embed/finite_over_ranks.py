"""Values that are not finite, over ranks: what one rank finds is raised on all, since none can go on without it."""

from __future__ import annotations

from headrace.indexer.exchange.channel import Channel
from headrace.indexer.exchange.errors import rank_names

_SKIP = "; nothing was updated on any rank: stage.skip(batch), on all ranks, drops what this batch gave"
_ALONE = "; nothing was updated; with check_finite=True all ranks raise this, and can skip the batch"

_LONGEST = 400
"""Characters of what another rank found that are shown."""


def raise_finding(channel: Channel | None, found: str | None, what: str, *, trains: bool = True) -> None:
    """FloatingPointError with what this rank has `found`, if anything, or, with a `channel` between all ranks, if any
    has: all call it alike, and those that found nothing name who did.

    A message of 8 bytes to each where nobody did; `what` is named where one does not come.
    """
    told: list[bytes] = []
    if channel is not None:
        mine = (found or "").encode()[: 4 * _LONGEST]
        told = channel.all_gather_bytes(mine, f"whether {what} are finite", limit=4 * _LONGEST)
    hint = "" if not trains else _ALONE if channel is None else _SKIP
    if found is not None:
        raise FloatingPointError(found + hint)
    ranks = [rank for rank, text in enumerate(told) if text]
    if ranks:
        first = told[ranks[0]].decode(errors="replace")
        first = first if len(first) <= _LONGEST else f"{first[:_LONGEST]} ..."
        also = f" (others on {rank_names(ranks[1:])})" if ranks[1:] else ""
        raise FloatingPointError(f"on rank {ranks[0]}: {first}{also}{hint}")
