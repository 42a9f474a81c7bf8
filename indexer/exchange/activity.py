"""What a rank is doing with the others: in words, for those that wait for it, and in numbers, to find a deadlock."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.indexer.exchange.errors import rank_names

_PLACES_KEPT = 4096


class Numbers(NamedTuple):
    """How many messages a rank has begun to receive from another one, and to send to it, in one channel so far."""

    received: int
    sent: int


class Begun:
    """The messages that this rank has begun in one channel, by the other rank."""

    def __init__(self) -> None:
        self.received: defaultdict[int, int] = defaultdict(int)
        self.sent: defaultdict[int, int] = defaultdict(int)

    def numbers(self, rank: int) -> Numbers:
        return Numbers(self.received[rank], self.sent[rank])


class Place(NamedTuple):
    """A channel: its purpose and run."""

    purpose: str
    run: int


NOWHERE = Place("", 0)


@dataclass(eq=False)
class Wait:
    """A wait of one thread. `numbers` says how far `place` must be with each rank for it to end; `ranks` are those that
    have not come, once that is known; `ahead`: beside the loop that trains, for batches to come."""

    what: str
    place: Place
    numbers: dict[int, Numbers]
    ahead: bool
    serial: int
    ranks: Sequence[int] = ()
    since: float = field(default_factory=time.monotonic)

    def words(self, now: float) -> str:
        of = f" of {rank_names(self.ranks)}" if self.ranks else ""
        return f"{self.what}{of}, since {now - self.since:.0f} s"


class Activity:
    """The waits of this rank's threads, and the last thing that it did with the other ranks. For any thread."""

    def __init__(self) -> None:
        self._last, self._last_at = "to connect", time.monotonic()
        self._given_up: Wait | None = None
        self._waits: dict[int, Wait] = {}  # by thread; each thread writes its own entry
        self._serials = itertools.count(1)
        self._threads: set[int] = set()  # that have waited, but for loaders'
        self._lock = threading.Lock()
        self._begun: dict[Place, Begun] = {}
        self._forgotten = False

    def did(self, what: str) -> None:
        """`what` is done: "stage.step of step 3"."""
        self._last, self._last_at, self._given_up = what, time.monotonic(), None

    def begun_at(self, place: Place) -> Begun:
        """The messages begun at a place, from the first one on, also where its channel was given back in between."""
        with self._lock:
            begun = self._begun.setdefault(place, Begun())
            if len(self._begun) > _PLACES_KEPT:
                del self._begun[next(iter(self._begun))]
                self._forgotten = True
            return begun

    @contextmanager
    def waits(self, what: str, place: Place, numbers: dict[int, Numbers], *, ahead: bool) -> Iterator[Wait]:
        """Within it this thread waits for `what` of other ranks."""
        thread = threading.get_ident()
        if not ahead and thread not in self._threads:
            self._threads.add(thread)
        self._waits[thread] = wait = Wait(what, place, numbers, ahead, next(self._serials))
        try:
            yield wait
        except Exception:
            self._given_up = wait
            raise
        finally:
            self._waits.pop(thread, None)

    @property
    def last(self) -> str:
        return f"the last it did was {self._last}"

    def words(self) -> str:
        """ "waits for the rows of step 3 of rank 0, since 12 s; the last it did was stage.step of step 2"."""
        now = time.monotonic()
        waits = sorted(self._waits.values(), key=lambda wait: wait.since)
        mine = [wait for wait in waits if not wait.ahead] or waits
        if not mine and self._given_up is not None:
            return f"gave up waiting for {self._given_up.words(now)}; {self.last}"
        if not mine:
            return f"is in code of its own; {self.last}, {now - self._last_at:.0f} s ago"
        whose = "its loader waits" if mine[0].ahead else "waits"
        return f"{whose} for {mine[0].words(now)}; {self.last}, {now - self._last_at:.0f} s ago"

    def the_wait(self) -> Wait | None:
        """The wait of the one thread that does all with the others but loading; None where it does not wait, or where
        there are several such threads, of which one may go on while another waits."""
        waits = [wait for wait in list(self._waits.values()) if not wait.ahead]
        return waits[0] if len(waits) == 1 and len(self._threads) == 1 else None

    def has_begun(self, place: Place, rank: int, theirs: Numbers) -> bool:
        """Whether this rank has begun all that another one, with `theirs` at `place`, waits for. True if in doubt."""
        with self._lock:
            begun = self._begun.get(place)
        if begun is None:
            return self._forgotten
        mine = begun.numbers(rank)
        return mine.sent >= theirs.received and mine.received >= theirs.sent
