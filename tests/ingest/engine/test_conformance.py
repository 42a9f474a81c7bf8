"""The kit finds what it is for: each of these nodes has one fault, and must be refused for it."""

from typing import Any

import pytest

from headrace.ingest.engine.conformance import check_node, check_node_over
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.state import Snapshot, State


class ForgetsItsCount(Node[tuple[int, Any]]):
    def _next(self) -> tuple[int, Any]:
        item = self._pull()
        self.count += 1
        return self.count, item

    def _reset(self, state: State | None) -> None:
        self._reset_source(state)
        self.count = 0


class StateNotPlain(ForgetsItsCount):
    def _state(self) -> State:
        return {"source": self._source_state(), "count": (1, 2)}


class StateWithRows(ForgetsItsCount):
    def _state(self) -> State:
        return {"source": self._source_state(), "rows": list(range(5000))}


class ReadsAhead(Node[Any]):
    """Holds one item back, but gives the source's state as its own."""

    def _next(self) -> Any:
        while len(self.held) < 2:
            try:
                self.held.append(self._pull())
            except StopIteration:
                break
        if not self.held:
            raise StopIteration
        return self.held.pop(0)

    def _reset(self, state: State | None) -> None:
        self._reset_source(state)
        self.held: list[Any] = []


class SwallowsErrors(Node[Any]):
    def _next(self) -> Any:
        try:
            return self._pull()
        except Exception as error:
            raise StopIteration from error


class SecondEpochEmpty(Node[Any]):
    def _next(self) -> Any:
        return self._pull()

    def _reset(self, state: State | None) -> None:
        if not hasattr(self, "used") or state is not None:
            self._reset_source(state)
        self.used = True


class WrapsErrors(Node[Any]):
    def _next(self) -> Any:
        try:
            return self._pull()
        except StopIteration:
            raise
        except Exception as error:
            raise RuntimeError(str(error)) from error


class PrefetchProducedState(Prefetch[Any]):
    def _state(self) -> State:
        return {"source": Snapshot(self.source._snapshot())}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ForgetsItsCount, "resumed again: item 0 is"),
        (StateNotPlain, "does not survive JSON"),
        (StateWithRows, "the state has"),
        (ReadsAhead, "resumed again: 1 items, not 2"),
        (SecondEpochEmpty, "0 items, not 3"),
    ],
)
def test_faults_of_a_chain_are_found(kind, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_node(lambda: kind([1, 2, 3]))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (SwallowsErrors, AssertionError, "end of stream in place of TwoPartError"),
        (WrapsErrors, RuntimeError, "two parts"),
        (PrefetchProducedState, AssertionError, "items"),
    ],
)
def test_faults_over_bad_sources_are_found(kind, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_node_over(kind, items=[1, 2, 3, 4, 5])


def test_wrong_items_are_found() -> None:
    with pytest.raises(AssertionError, match="first run: item 1 is 2, not 9"):
        check_node(lambda: Prefetch([1, 2]), expected=[1, 9])
