"""Where a chain begins: an iterable, or a node of torchdata."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from torchdata.nodes import BaseNode

from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import State, count_in

T = TypeVar("T")


def as_node(source: Iterable[T]) -> Node[T]:
    """`source` itself if it is a node of ours, a torchdata node or an iterable wrapped; else TypeError."""
    if isinstance(source, Node):
        return source
    if isinstance(source, BaseNode):
        return ForeignSource(source)
    if isinstance(source, Iterable):
        has_state = all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))
        return StatefulSource(source) if has_state else IterableSource(source)
    raise TypeError(f"a source is a node or an iterable, got {type(source).__name__}")


class IterableSource(Node[T]):
    """Items of an iterable; the state is their number, so a resume skips that many (in O(1) for a sequence).

    A one-shot iterator (a generator) serves one run: a second ``reset()`` after items were taken raises ValueError,
    since it would go on in the middle.
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        super().__init__()
        self._iterable = iterable
        self._iterator: Iterator[T] | None = None
        self._touched = False
        self._yielded = 0

    def _next(self) -> T:
        assert self._iterator is not None
        self._touched = True
        item = next(self._iterator)
        self._yielded += 1
        return item

    def _reset(self, state: State | None) -> None:
        count = 0 if state is None else count_in(self.name, state, "yielded")
        self._iterator = self._begin(count)
        self._yielded = count

    def _state(self) -> State:
        return {"yielded": self._yielded}

    def _begin(self, count: int) -> Iterator[T]:
        """Iterator over the items after the first `count`."""
        if isinstance(self._iterable, Sequence):
            self._check_available(count, len(self._iterable))
            return _tail(self._iterable, count)
        iterator = iter(self._iterable)
        if iterator is self._iterable:
            if self._touched:
                raise ValueError(
                    f"{self.name}: this {type(iterator).__name__} can be iterated once, and was; "
                    "give an iterable that starts anew each time (a list, or a class with __iter__)"
                )
            self._touched = count > 0
        self._check_available(count, sum(1 for _ in islice(iterator, count)))
        return iterator

    def _check_available(self, count: int, available: int) -> None:
        if count > available:
            raise ValueError(f"{self.name}: the state says {count} items, but there are only {available}")

    def _position(self) -> str:
        return f"item {self._yielded}"


class StatefulSource(Node[T]):
    """Items of an iterable that keeps its own state: ``state_dict()`` says where its iterator is, and
    ``load_state_dict(s)`` makes the next ``iter()`` go on there (torchdata's `Stateful`).

    Before the first item of a pass the state is None, "the beginning": a generator has not run by then, and the
    iterable's own state would be that of the pass before.
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        super().__init__()
        self._iterable: Any = iterable
        self._iterator: Iterator[T] = iter(())
        self._begun = False

    @property
    def name(self) -> str:
        return f"StatefulSource({type(self._iterable).__name__})"

    def _next(self) -> T:
        item = next(self._iterator)
        self._begun = True
        return item

    def _reset(self, state: State | None) -> None:
        own = None if state is None else state.get("state")
        if own is not None:
            self._iterable.load_state_dict(copy.deepcopy(own))
        self._begun = own is not None
        self._iterator = iter(self._iterable)

    def _state(self) -> State:
        return {"state": copy.deepcopy(self._iterable.state_dict()) if self._begun else None}


class ForeignSource(Node[T]):
    """A torchdata node with the contract of ours: one thread inside, lasting end and error, detached states."""

    def __init__(self, node: BaseNode) -> None:
        super().__init__()
        self._node = node

    @property
    def name(self) -> str:
        return f"ForeignSource({type(self._node).__name__})"

    def _next(self) -> T:
        item: T = next(self._node)
        return item

    def _reset(self, state: State | None) -> None:
        self._node.reset(None if state is None else copy.deepcopy(state.get("state")))

    def _state(self) -> State:
        return {"state": copy.deepcopy(self._node.state_dict())}

    def _upstream(self) -> tuple[Node[Any], ...]:
        """A node of ours under the foreign one, so that waking, closing and statistics reach it."""
        node: Any = self._node
        while isinstance(node, BaseNode) and not isinstance(node, Node):
            node = getattr(node, "source", None)
        return (node,) if isinstance(node, Node) else ()

    def _defer_delivery(self) -> None:
        self._deferred = True  # not further: what a foreign node makes of an item, a node of ours cannot know again

    def delivered(self, item: object) -> None:
        """Ends here: a node of ours under a foreign one counts an item as delivered when it hands it to that node."""

    def _close(self) -> None:
        for name in ("close", "shutdown"):
            end: Any = getattr(self._node, name, None)
            if callable(end):
                end()
                return


def _tail(sequence: Sequence[T], start: int) -> Iterator[T]:
    return (sequence[i] for i in range(start, len(sequence)))
