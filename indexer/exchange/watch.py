"""What the ranks tell each other beside their work: what each is doing, to one that waits for it, and that it leaves.

A thread on each rank answers, whatever the others of its process are busy with; it looks a few times a second. The
messages have a lane of their own, are of one length, and are sent only when a wait has lasted a second, and at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from headrace.formats.monitor import Monitor
from headrace.indexer.exchange.activity import Activity, Numbers, Place, Wait
from headrace.indexer.exchange.errors import ExchangeClosedError, RankLostError
from headrace.indexer.exchange.transport import U8, Lane, Waiting

MESSAGE_BYTES = 512
_ASK, _ANSWER, _LEAVE = 1, 2, 3

LOOK_EVERY_S = 0.2
FIRST_S = 1.0
"""A wait that is shorter asks nobody."""

ASK_EVERY_S = 2.0
_MOST_ASKED = 8
_MOST_NAMED = 3

ANSWER_S = 2.0
"""How much longer a wait that is over lasts for the answers of those that have not come."""

LEFT_GRACE_S = 3.0
"""What a rank sent before it left may still be on its way: it is given up when nothing has come for so long."""

_HEAR_S = 1.5
"""How long a lost connection is waited on for what its rank said when it left."""

_SEND_S = 1.0


Outcome = Literal["done", "timeout", "left", "standstill"]


class Watch:
    """The watch of one rank over the others; see the module. `close` once."""

    def __init__(self, lane: Lane, rank: int, size: int, activity: Activity) -> None:
        self._lane, self._rank, self.activity = lane, rank, activity
        self._peers = [peer for peer in range(size) if peer != rank]
        self._heard = Monitor()  # of what follows
        self._said: dict[int, tuple[str, float]] = {}
        self._left: dict[int, tuple[str, float]] = {}
        self._answers: dict[int, Any] = {}
        self._gone = threading.Event()  # this rank itself
        self._sending = threading.Lock()
        self._sent: list[tuple[int, Any]] = []
        self._expected = {peer: self._expect(peer) for peer in self._peers}
        self._thread = threading.Thread(target=self._look, daemon=True, name=f"headrace-watch-{rank}")
        self._thread.start()
        atexit.register(self._leave_at_exit)

    def wait(self, lane: Lane, waiting: Waiting, timeout_s: float, mine: Wait) -> tuple[list[int], Outcome]:
        """(peers that have not come, and why the wait is over): none when all requests are done.

        It ends after `timeout_s`; soon after a rank that is waited for has left; and when one of them is known to wait
        for this rank, which waits here.
        """
        begin = asked = progress = time.monotonic()
        deadline, before = begin + timeout_s, len(waiting) + 1
        limit_s = min(FIRST_S, timeout_s / 4)
        while late := lane.wait(waiting, limit_s):
            now = time.monotonic()
            if len(late) < before:
                before, progress = len(late), now
            mine.ranks = sorted(set(late))
            left = [peer for peer in mine.ranks if peer in self._left]
            since = max([progress, *(self._left[peer][1] for peer in left)])
            if left and now - since >= min(LEFT_GRACE_S, timeout_s):
                return left, "left"
            if stuck := [peer for peer in mine.ranks if self._is_stuck_with(peer, mine)]:
                return stuck, "standstill"
            if now >= deadline:
                return list(mine.ranks), "timeout"
            if asked == begin or now - asked >= min(ASK_EVERY_S, timeout_s / 4):
                asked = now
                self.ask(mine.ranks, mine)
            limit_s = max(0.0, min(0.25, deadline - now))
        return [], "done"

    def ask(self, ranks: Sequence[int], mine: Wait | None = None) -> None:
        """Ask ranks what they are doing, and whether they have begun what this wait of the loop is for."""
        for rank in [rank for rank in ranks if rank not in self._left][:_MOST_ASKED]:
            known = mine is not None and mine is self.activity.the_wait() and rank in mine.numbers
            self._send(_ASK, [mine.serial, mine.place, mine.numbers[rank]] if known and mine else None, "", [rank])

    def _is_stuck_with(self, peer: int, mine: Wait) -> bool:
        """Whether a rank has answered to this wait that its loop waits for this rank and has not begun what this wait
        is for, and this rank has not begun what that one waits for: each waits for the other, for ever."""
        answer = self._answers.get(peer)
        if answer is None or answer[0] != mine.serial or mine is not self.activity.the_wait():
            return False
        _, place, numbers = answer
        return not self.activity.has_begun(Place(*place), peer, Numbers(*numbers))

    def _answer(self, peer: int, asked: Any) -> Any:
        """[serial, place, numbers] of the loop's wait for `peer`, where what it asks for was not begun; else None."""
        wait = self.activity.the_wait()
        if asked is None or wait is None or peer not in wait.ranks or peer not in wait.numbers:
            return None
        serial, place, numbers = asked
        if self.activity.has_begun(Place(*place), peer, Numbers(*numbers)) or self.activity.the_wait() is not wait:
            return None
        return [serial, wait.place, wait.numbers[peer]]

    def words(self, ranks: Sequence[int], since: float) -> str:
        """ "; rank 1 waits for ...; rank 2 does not answer", of a few of these ranks, which are waited for `since`."""
        some, now = ranks[:_MOST_NAMED], time.monotonic()
        self.ask(some)

        def heard(rank: int, after: float) -> str | None:
            words, at = self._said.get(rank, ("", 0.0))
            return words if at >= after else self._left[rank][0] if rank in self._left else None

        self._heard.wait_for(lambda: all(heard(rank, now) for rank in some), ANSWER_S)
        with self._heard.lock:
            found = [(rank, heard(rank, since)) for rank in some]
        return "".join(f"; rank {rank} {words or 'does not answer: is it stopped, or gone?'}" for rank, words in found)

    def left(self, rank: int, timeout_s: float = 0.0) -> str | None:
        """What a rank said when it left, waited for so long; None where it said nothing."""
        said = self._heard.wait_for(lambda: self._left.get(rank), timeout_s)
        return None if said is None else said[0]

    def farewell(self, ranks: Iterable[int]) -> dict[int, str]:
        """What those of `ranks`, whose connections broke, said before, waited for a moment."""
        deadline = time.monotonic() + _HEAR_S
        said = {rank: self.left(rank, max(0.0, deadline - time.monotonic())) for rank in ranks}
        return {rank: words for rank, words in said.items() if words is not None}

    def leave(self, why: str) -> None:
        """Tell the others that this rank leaves, and stop to look. Again: nothing."""
        with self._heard.lock:
            if self._gone.is_set():
                return
            self._gone.set()
        atexit.unregister(self._leave_at_exit)
        if threading.current_thread() is not self._thread:
            self._thread.join(_SEND_S)
        self._send(
            _LEAVE, None, f"{why} ({self.activity.last})", [peer for peer in self._peers if peer not in self._left]
        )
        deadline = time.monotonic() + _SEND_S
        with contextlib.suppress(RankLostError, ExchangeClosedError, RuntimeError):
            self._lane.wait(self._sent, max(0.0, deadline - time.monotonic()))
        self._lane.interrupt()

    def _leave_at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        failed = "" if error is None else f" with {type(error).__name__}: {error}"
        self.leave(f"has ended its program{failed}")

    def _expect(self, peer: int) -> tuple[U8, Any]:
        buffer = np.zeros(MESSAGE_BYTES, np.uint8)
        return buffer, self._lane.receive(buffer, peer)

    def _send(self, kind: int, facts: Any, text: str, ranks: Sequence[int]) -> None:
        message = np.zeros(MESSAGE_BYTES, np.uint8)
        data = f"{json.dumps(facts)}\n{text}".encode()[: MESSAGE_BYTES - 1]
        message[0] = kind
        message[1 : 1 + len(data)] = np.frombuffer(data, np.uint8)
        with self._sending, contextlib.suppress(ExchangeClosedError):
            for rank in ranks:
                self._sent.append((rank, self._lane.send(message, rank)))

    def _look(self) -> None:
        """Until this rank leaves: take what has come, answer what was asked."""
        while not self._gone.wait(LOOK_EVERY_S):
            try:
                for peer, (buffer, request) in list(self._expected.items()):
                    if self._came(peer, request):
                        self._hear(peer, buffer)
                with self._sending:
                    self._sent = [one for one in self._sent if not self._came(*one)]
            except RuntimeError:  # this rank closes, or the backend has failed: who waits is told
                return

    def _came(self, peer: int, request: Any) -> bool:
        """Whether a request is done, or never will be."""
        try:
            return not self._lane.wait([(peer, request)], 0.0)
        except (RankLostError, RuntimeError) as error:
            if isinstance(error, ExchangeClosedError):
                raise
            self._expected.pop(peer, None)
            return True

    def _hear(self, peer: int, buffer: U8) -> None:
        if peer not in self._expected:  # lost
            return
        kind, message = int(buffer[0]), buffer[1:].tobytes().rstrip(b"\0").decode(errors="replace")
        line, _, text = message.partition("\n")
        facts = json.loads(line)
        if kind == _LEAVE:
            del self._expected[peer]
        else:
            self._expected[peer] = self._expect(peer)
        with self._heard.lock:
            if kind == _LEAVE:
                self._left[peer] = text, time.monotonic()
            elif kind == _ANSWER:
                self._said[peer] = text, time.monotonic()
                if facts is not None:
                    self._answers[peer] = facts
            self._heard.changed()
        if kind == _ASK:
            self._send(_ANSWER, self._answer(peer, facts), self.activity.words(), [peer])
