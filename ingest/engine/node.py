"""The base class of all nodes: life cycle, state, errors, closing and counters around small hooks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, final

from torchdata.nodes import BaseNode

from headrace.ingest.engine.errors import NodeClosedError, NodeInterruptedError, add_context, context_of, twin_of
from headrace.ingest.engine.gate import Gate
from headrace.ingest.engine.state import Snapshot, State, check_header, freeze, state_in, thaw
from headrace.ingest.engine.stats import Meter, NodeStats

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Node(BaseNode, Generic[T_co]):  # type: ignore[misc]
    """A stage of the loader: takes items from its source, gives items.

    A node is a :class:`torchdata.nodes.BaseNode`, so that torchdata's ``Loader`` and nodes work with it; its source may
    be another node, any torchdata node, or an iterable. One that keeps nothing between items needs one hook::

        class Double(Node[int]):
            def _next(self) -> int:
                return 2 * self._pull()

    One that keeps something says what it is, and takes it back::

        class Enumerate(Node[tuple[int, Any]]):
            def _next(self) -> tuple[int, Any]:
                item = self._pull()  # may raise StopIteration: the end
                self.count += 1
                return self.count - 1, item

            def _reset(self, state: State | None) -> None:
                self._reset_source(state)
                self.count = state["count"] if state else 0

            def _state(self) -> State:
                return {"source": self._source_state(), "count": self.count}

    What the base class makes of the hooks (s is a state, s(k) the state after k delivered items):

    - ``reset(s(k))`` then ``next()`` gives item k + 1, for every k, the last included; after ``reset(s)`` the state
      equals s.
    - After the end ``next()`` raises StopIteration until ``reset()``; after an error, that error. A failed ``next()``
      delivers nothing: the state stays that of the last delivered item, so a reset to it tries the failed item again.
    - A ``next()`` that a signal handler interrupts (Ctrl-C), at whatever line, ends the run: its item may be lost, so
      every later ``next()`` raises :class:`NodeInterruptedError` until ``reset()``. The state is that before the item.
    - States are plain, carry the node's name and `VERSION`, share nothing with the node; ``reset()`` checks them.
    - One thread is inside at a time. ``reset()`` and ``close()`` from another thread first wake and stop what waits.
    - ``close()`` may be called at any time, by any thread, more than once; ``reset()`` opens a closed node again.

    Legal transitions: new -> running (first ``next()`` or ``reset()``); running -> ended | failed; any -> closed
    (``close()``); any -> running (``reset()``).
    """

    VERSION: ClassVar[int] = 1
    """Version of the node's state; raise it when `_state` changes."""

    close_timeout_s: float = 5.0
    """How long ``close()`` waits for threads before it gives them up with a RuntimeWarning."""

    busy_timeout_s: float = 60.0
    """How long ``reset()``, ``get_state()`` and a second thread's ``next()`` wait for the thread that is inside."""

    def __init__(self, source: Iterable[Any] | None = None) -> None:
        super().__init__()
        from headrace.ingest.engine.source import as_node  # its nodes are subclasses of this one

        self._source: Node[Any] | None = None if source is None else as_node(source)
        self._gate = Gate()
        self._meter = Meter()
        self._cached: Snapshot | None = None
        self._under_way: Snapshot | None = None  # the state before the item that is being made, or was interrupted
        self._error: BaseException | None = None
        self._started = self._ended = False
        self._closed = self._released = False
        self._close_pending = False
        self._deferred = False
        self._deadline = 0.0
        if self._source is not None:
            self._source._defer_delivery()

    # ---- hooks for subclasses -------------------------------------------------------------------------------------

    def _next(self) -> T_co:
        """Make the next item, or raise StopIteration at the end."""
        raise NotImplementedError(f"{type(self).__name__} does not define _next()")

    def _reset(self, state: State | None) -> None:
        """Go to the beginning, or to a state that this node made (header checked, a copy of one's own)."""
        self._reset_source(state)

    def _state(self) -> State:
        """What is needed to go on after the last item that ``_next()`` returned: plain data, O(1), no rows."""
        return {} if self._source is None else {"source": self._source_state()}

    def _close(self) -> None:
        """Release threads and files within ``_time_left()`` seconds. Called once for each time the node was open."""

    def _interrupt(self) -> None:
        """Wake whoever waits inside this node, from any thread and at any time; must not wait itself."""

    def _position(self) -> str | None:
        """Where the node is in its input, for error messages."""
        return None

    # ---- what hooks call ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the node in states, errors and statistics."""
        return type(self).__name__

    @property
    def source(self) -> Node[Any]:
        """The node that this one takes its items from."""
        if self._source is None:
            raise AttributeError(f"{self.name} has no source")
        return self._source

    def _pull(self) -> Any:
        """Next item of the source; StopIteration at its end. The time is counted as waiting."""
        started = time.perf_counter()
        try:
            return self.source.next()
        finally:
            self._meter.wait_in_s += time.perf_counter() - started

    def _source_state(self) -> Snapshot:
        """State of the source after the last item pulled from it; not to be changed."""
        return self.source._snapshot()

    def _reset_source(self, state: State | None) -> None:
        """Reset the source (if there is one) to the part of `state` that is its own, or to the beginning."""
        if self._source is not None:
            self._source.reset(None if state is None else state_in(self.name, state, "source"))

    def _skip(self, count: int) -> None:
        """Count rows or items that were left out."""
        self._meter.skipped += count

    def _time_left(self) -> float:
        """Seconds left to the ``reset()`` or ``close()`` in progress."""
        return max(0.0, self._deadline - time.monotonic())

    # ---- delivery -------------------------------------------------------------------------------------------------

    def _defer_delivery(self) -> None:
        """Leave it to a node downstream to say when an item was delivered (each node tells its source)."""
        self._deferred = True
        for node in self._upstream():
            node._defer_delivery()

    def delivered(self, item: object) -> None:
        """`item` was handed to the trainer.

        Called once an item, by the consumer's thread, in order, on the outermost node, which passes it upstream. Nodes
        upstream may be working for later items meanwhile, so that an override must be thread-safe; it ends by calling
        ``super().delivered(item)``. An item that was mapped on its way arrives as it was handed out, and carries
        what its maker needs to recognise it.
        """
        for node in self._upstream():
            node.delivered(item)

    # ---- life cycle -----------------------------------------------------------------------------------------------

    def __next__(self) -> T_co:
        return self.next()

    def __iter__(self) -> Iterator[T_co]:
        return self

    @final
    def next(self) -> T_co:
        """The next item; StopIteration at and after the end; the same error again after an error."""
        before: list[Snapshot] = []  # the state before the item, once it is made
        try:
            return self._in_turn("next", partial(self._next_inside, before))
        except BaseException:
            if before:  # a signal handler, on the way out: the item does not reach the caller
                self._under_way = before[0]
            raise

    @final
    def reset(self, initial_state: State | None = None) -> None:
        """Go to the beginning, or to a state from ``get_state()``; stops first what is under way.

        A state of another node or version raises ValueError and changes nothing.
        """
        super().reset(initial_state)
        if initial_state is not None:
            check_header(self.name, self.VERSION, initial_state)
        if not self._gate.mine:
            self._interrupt_chain()
        self._in_turn("reset", partial(self._restart, initial_state))

    @final
    def get_state(self) -> State:
        """State after the last delivered item: plain data, the caller's own."""
        return self._in_turn("get_state", self._state_inside)

    @final
    def state_dict(self) -> State:
        """Same as :meth:`get_state` (torchdata's name)."""
        return self.get_state()

    @final
    def close(self) -> None:
        """Stop all threads of this node and its sources, and release what they hold; within `close_timeout_s`.

        A thread that does not come back from foreign code is given up with a RuntimeWarning; it does not keep the
        interpreter from exiting. A ``next()`` that waits in another thread raises :class:`NodeClosedError`.
        """
        self._mark_closed()
        self._interrupt_chain()
        stuck: list[str] = []
        self._close_until(time.monotonic() + self.close_timeout_s, stuck)
        if stuck:
            warnings.warn(
                f"{self.name}.close(): not stopped after {self.close_timeout_s:g} s, left behind: {'; '.join(stuck)}",
                RuntimeWarning,
                stacklevel=2,
            )

    shutdown = close

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- statistics -----------------------------------------------------------------------------------------------

    def stats(self) -> NodeStats:
        """What this node did since its last reset. May be called by any thread."""
        meter = self._meter
        return NodeStats(
            name=self.name,
            items=meter.items,
            bytes=meter.bytes,
            busy_s=max(0.0, meter.next_s - meter.wait_in_s),
            wait_in_s=meter.wait_in_s,
            wait_out_s=0.0,
            next_s=meter.next_s,
            queue_depth=0,
            skipped=meter.skipped,
            p50_ms=meter.latency.quantile_ms(0.50),
            p90_ms=meter.latency.quantile_ms(0.90),
            p99_ms=meter.latency.quantile_ms(0.99),
        )

    def all_stats(self) -> list[NodeStats]:
        """Statistics of the chain, the source first."""
        return [s for node in self._upstream() for s in node.all_stats()] + [self.stats()]

    # ---- the engine's own -----------------------------------------------------------------------------------------

    def _upstream(self) -> tuple[Node[Any], ...]:
        """The nodes that this one takes items from; a node with several sources overrides it."""
        return () if self._source is None else (self._source,)

    def _snapshot(self) -> Snapshot:
        """State after the last delivered item; kept until the next item, so that a chain costs one dict a node."""
        if self._under_way is not None:
            return self._under_way
        if self._cached is None:
            self._cached = freeze({"node": self.name, "version": self.VERSION, **self._state()})
        return self._cached

    def _next_inside(self, made_behind: list[Snapshot]) -> T_co:
        if self._ended:
            raise StopIteration
        if self._error is not None:
            raise twin_of(self._error)
        if self._closed:
            raise NodeClosedError(f"{self.name} is closed; reset() opens it again")
        if self._under_way is not None:
            raise self._interrupted("next")
        if not self._started:
            self._restart(None)
        before = self._snapshot()
        item = self._deliver(before)
        made_behind.append(before)
        self._under_way = None  # the last line, behind which no signal handler is called: the item is the caller's
        return item

    def _deliver(self, before: Snapshot) -> T_co:
        """The next item; `before` stays this node's state until that is handed out."""
        self._under_way = before
        started = time.perf_counter()
        try:
            item = self._next()
            if not self._deferred:
                self.delivered(item)
        except StopIteration:
            self._ended = True
            self._cached = self._under_way = None
            raise
        except BaseException as error:
            self._fail(error, "next")
            self._cached, self._under_way = before, None
            raise
        finally:
            seconds = time.perf_counter() - started
            self._meter.next_s += seconds
        self._cached = None
        self._meter.delivered(item, seconds)
        return item

    def _state_inside(self) -> State:
        if not self._started:
            if self._error is not None:
                raise twin_of(self._error)
            if self._closed:
                raise NodeClosedError(f"{self.name} was closed before it was used")
            self._restart(None)
        return thaw(self._snapshot())

    def _restart(self, state: State | None) -> None:
        self._error = self._interrupted("reset")  # until it is done
        self._deadline = time.monotonic() + self.busy_timeout_s
        self._started = self._ended = self._closed = self._released = False
        self._cached = self._under_way = None
        try:
            self._reset(None if state is None else thaw(state))
        except BaseException as error:
            self._fail(error, "reset")
            raise
        self._meter = Meter()
        self._cached = None if state is None else freeze(thaw(state))
        self._started = True
        self._error = None

    def _fail(self, error: BaseException, doing: str) -> None:
        mine = f"in node {self.name}"
        context = context_of(error)
        if not (context and context[-1].startswith(mine)):
            position = self._position()
            add_context(error, mine if position is None else f"{mine}, {position}")
        self._error = twin_of(error) if isinstance(error, Exception) else self._interrupted(doing)

    def _interrupted(self, doing: str) -> NodeInterruptedError:
        if doing == "reset":
            return NodeInterruptedError(f"{self.name}: reset() was interrupted half-way: call it again")
        return NodeInterruptedError(
            f"{self.name}: next() was interrupted half-way, and its item may be lost: reset(get_state()) goes on "
            "behind the last item that was handed out, reset() begins anew"
        )

    def _in_turn(self, doing: str, call: Callable[[], R]) -> R:
        """``call()``, with no other thread inside; then the close that was asked for meanwhile."""
        if self._gate.mine:
            raise RuntimeError(f"{self.name}.{doing}() was called from inside the node itself")
        try:
            return self._gate.run(doing, self.busy_timeout_s, call, partial(self._busy, doing))
        finally:
            if self._close_pending:
                self._close_pending = False
                self.close()

    def _busy(self, doing: str) -> NoReturn:
        raise TimeoutError(f"{self.name}.{doing}(): busy for {self.busy_timeout_s:g} s: {self._gate.holder()}")

    @property
    def _over(self) -> bool:
        """``next()`` has an end or an error to tell, other than that it was interrupted."""
        error = self._error
        return self._ended or self._closed or (error is not None and not isinstance(error, NodeInterruptedError))

    def _mark_closed(self) -> None:
        self._closed = True
        for node in self._upstream():
            node._mark_closed()

    def _interrupt_chain(self) -> None:
        self._interrupt()
        for node in self._upstream():
            node._interrupt_chain()

    def _close_until(self, deadline: float, stuck: list[str]) -> None:
        if self._released:
            return
        if self._gate.mine:  # called by a signal handler or a user's function: done when that call leaves
            self._close_pending = True
            return
        left = deadline - time.monotonic()
        try:
            self._gate.run("close", left, partial(self._release, deadline, stuck), partial(self._note_stuck, stuck))
        finally:
            for node in self._upstream():
                node._close_until(deadline, stuck)

    def _note_stuck(self, stuck: list[str]) -> None:
        if not stuck:
            stuck.append(f"{self.name} ({self._gate.holder()})")

    def _release(self, deadline: float, stuck: list[str]) -> None:
        self._closed = True
        if self._released:
            return
        self._deadline = deadline
        if self._started and self._error is None:
            self._snapshot()  # the state can be asked for after close()
        try:
            self._close()
        except Exception:
            self._released = True
            raise
        self._released = True  # not if a signal handler has raised: the next close() goes on
        stuck.extend(self._left_behind())

    def _left_behind(self) -> list[str]:
        """Threads that ``_close()`` could not stop."""
        return []


_Self = TypeVar("_Self", bound=Node[Any])
