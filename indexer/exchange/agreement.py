"""Whether all ranks were started alike, and in a few words what differs on which rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.indexer.exchange.channel import Channel
from headrace.indexer.exchange.errors import RankMismatchError, rank_names

STARTED = "the ranks were started differently"

_FACTS_LIMIT = 1 << 20
_DETAIL_LIMIT = 1 << 26
_MOST = 3
"""So many differences of one kind are named, and of so many ranks."""

_LONGEST = 80
"""Characters of a value that are shown."""

_NOTHING = "not given"


@dataclass(frozen=True)
class Detail:
    """A fact that may be long: compared by a digest; only where those differ is it told whole.

    `data` is plain, as JSON has it; ``difference(one, other, (name, name))`` says in a few words what makes the data of
    two ranks different.
    """

    data: Any
    difference: Callable[[Any, Any, tuple[str, str]], str]

    def encoded(self) -> bytes:
        return json.dumps(self.data).encode()


def agree(channel: Channel, facts: Mapping[str, object], what: str, *, wrong: str = STARTED) -> None:
    """RankMismatchError, on all ranks alike, unless `facts` are equal on all of them.

    A fact is a plain value, a mapping of facts, which is compared key by key, or a :class:`Detail`. The error begins
    with `wrong` and names each fact that differs, and its value on each rank. `what` is what all ranks do here: for the
    error where one does not come, or does something else that all do together.
    """
    with channel.sole_use(what):
        _agree(channel, facts, what, wrong)


def _agree(channel: Channel, facts: Mapping[str, object], what: str, wrong: str) -> None:
    mine = {name: _told(value) for name, value in facts.items()}
    told = channel.all_gather_bytes(json.dumps([what, mine]).encode(), what, limit=_FACTS_LIMIT)
    calls, ranks = [call for call, _ in map(_read, told)], [rank for _, rank in map(_read, told)]
    if any(call != what for call in calls):
        raise RankMismatchError("the ranks are at different places: " + "; ".join(_by_value(calls)))
    found: list[str] = []
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank.get(name, _NOTHING) for rank in ranks]
        if all(value == values[0] for value in values):
            continue
        fact = facts.get(name)
        if isinstance(fact, Detail) and _NOTHING not in values:  # on all ranks, which all come to this
            data = channel.all_gather_bytes(fact.encoded(), what, limit=_DETAIL_LIMIT)
            found.append(f"{name} differs: {_detailed(fact, values, data)}")
        else:
            found += _differences(name, values)
    if found:
        raise RankMismatchError(f"{wrong}: " + "; ".join(found))


def refuse_differences(ranks: Sequence[Mapping[str, object]], wrong: str) -> None:
    """RankMismatchError that begins with `wrong`, unless the facts of each rank, which all ranks know, are equal."""
    names = dict.fromkeys(name for rank in ranks for name in rank)
    found = [text for name in names for text in _differences(name, [_told(rank.get(name)) for rank in ranks])]
    if found:
        raise RankMismatchError(f"{wrong}: " + "; ".join(found))


def _told(value: object) -> object:
    """What JSON carries: the digest of a detail, the words of a value."""
    if isinstance(value, Detail):
        return hashlib.blake2b(value.encoded(), digest_size=16).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): _told(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _read(data: bytes) -> tuple[str, dict[str, Any]]:
    call, facts = json.loads(data)
    return call, facts


def _detailed(fact: Detail, digests: Sequence[object], data: Sequence[bytes]) -> str:
    """What makes the data of the first rank of each kind different from those of rank 0."""
    groups = _ranks_by_value(digests)
    (first, *_), *others = groups
    said = []
    for ranks in others[:_MOST]:
        names = tuple(rank_names(group) for group in (groups[0], ranks))
        said.append(fact.difference(json.loads(data[first]), json.loads(data[ranks[0]]), (names[0], names[1])))
    return "; ".join(said)


def _differences(name: str, values: Sequence[Any]) -> list[str]:
    """A phrase for each place below `name` where the ranks differ; places that differ alike are named together."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for path, found in _places(values):
        key = (path[-1] if path else "", tuple(found))
        alike.setdefault(key, []).append(" ".join(path[:-1]))
    said = []
    for (last, leaves), places in list(alike.items())[:_MOST]:
        where = f"{last} of {_listed(places)} ({name})" if places[0] else f"{name} {last}".strip()
        said.append(f"{where} differs: {'; '.join(_by_value(list(leaves)))}")
    return [*said, *([f"{len(alike) - _MOST} more of {name}"] if len(alike) > _MOST else [])]


def _places(values: Sequence[Any]) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    """(path, value on each rank) of each place where these differ."""
    if all(value == values[0] for value in values):
        return
    if not all(isinstance(value, dict) or value == _NOTHING for value in values):
        yield (), [value if isinstance(value, str) else "several" for value in values]
        return
    mappings = [value if isinstance(value, dict) else {} for value in values]
    for key in dict.fromkeys(key for value in mappings for key in value):
        for path, leaves in _places([value.get(key, _NOTHING) for value in mappings]):
            yield (key, *path), leaves


def _ranks_by_value(values: Sequence[object]) -> list[list[int]]:
    ranks: dict[object, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return list(ranks.values())


def _by_value(values: Sequence[str]) -> list[str]:
    """["32 on ranks 0, 2", "3 on rank 1"]."""
    return [f"{_short(values[ranks[0]])} on {rank_names(ranks)}" for ranks in _ranks_by_value(values)]


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 25]} ... {value[-20:]}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
