import pytest
from torchdata.nodes import BaseNode, Batcher, IterableWrapper

from headrace.ingest.engine.conformance import check_node
from headrace.ingest.engine.conformance_sources import ListSource
from headrace.ingest.engine.prefetch import Prefetch
from headrace.ingest.engine.source import ForeignSource, IterableSource, as_node


class Fresh:
    """An iterable that starts anew each time and is no sequence."""

    def __iter__(self):
        yield from (1, None, 3)


@pytest.mark.parametrize(
    "make", [lambda: [1, None, 3], Fresh, lambda: range(3), list], ids=["list", "fresh", "range", "empty"]
)
def test_iterables_conform(make) -> None:
    check_node(lambda: IterableSource(make()), expected=list(make()))


def test_torchdata_nodes_conform() -> None:
    check_node(lambda: ForeignSource(IterableWrapper([1, None, 3])), expected=[1, None, 3])
    check_node(
        lambda: ForeignSource(Batcher(IterableWrapper(range(5)), 2, drop_last=False)), expected=[[0, 1], [2, 3], [4]]
    )


def test_state_is_the_number_of_items() -> None:
    node = IterableSource([5, 6, 7])
    next(node)
    assert node.get_state() == {"node": "IterableSource", "version": 1, "yielded": 1}


def test_a_generator_serves_one_run() -> None:  # L31: a second epoch must not be short in silence
    node = IterableSource(x for x in range(3))
    node.reset()
    assert next(node) == 0
    with pytest.raises(ValueError, match="this generator can be iterated once, and was"):
        node.reset()


def test_a_new_generator_can_be_resumed_once() -> None:
    node = IterableSource(x for x in range(3))
    node.reset({"node": "IterableSource", "version": 1, "yielded": 2})
    assert list(node) == [2]


@pytest.mark.parametrize("make", [lambda: [1], lambda: iter([1])])
def test_a_state_beyond_the_end_is_refused(make) -> None:
    with pytest.raises(ValueError, match="the state says 2 items, but there are only 1"):
        IterableSource(make()).reset({"node": "IterableSource", "version": 1, "yielded": 2})


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(TypeError, match="a source is a node or an iterable, got int"):
        as_node(3)  # type: ignore[arg-type]


class AliasingNode(BaseNode):
    """Hands out its live list as state, as nodes of torchdata do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def reset(self, initial_state=None) -> None:
        super().reset(initial_state)
        self.seen = [] if initial_state is None else initial_state["seen"]

    def next(self) -> int:
        if len(self.seen) == 3:
            raise StopIteration
        self.seen.append(len(self.seen))
        return self.seen[-1]

    def get_state(self) -> dict:
        return {"seen": self.seen}


class Countdown:
    """An iterable with a state of its own (torchdata's `Stateful`)."""

    def __init__(self) -> None:
        self.left, self.resumed = 99, None

    def __iter__(self):  # runs with the first item: until then the state is that of before
        self.left, self.resumed = 3 if self.resumed is None else self.resumed, None
        while self.left:
            self.left -= 1
            yield self.left

    def state_dict(self) -> dict:
        return {"left": self.left}

    def load_state_dict(self, state: dict) -> None:
        self.resumed = state["left"]


def test_an_iterable_with_a_state_of_its_own_conforms_and_skips_nothing() -> None:
    check_node(lambda: as_node(Countdown()), expected=[2, 1, 0])
    node = as_node(Countdown())
    assert node.get_state()["state"] is None
    assert next(node) == 2
    assert node.get_state() == {"node": "StatefulSource(Countdown)", "version": 1, "state": {"left": 2}}


def test_foreign_states_are_detached_both_ways() -> None:  # L35, torchdata: states alias live lists
    check_node(lambda: ForeignSource(AliasingNode()), expected=[0, 1, 2])
    node = as_node(AliasingNode())
    next(node)
    state = node.get_state()
    next(node)
    assert state["state"] == {"seen": [0]}
    node.reset(state)
    next(node)
    assert state["state"] == {"seen": [0]}


def test_closing_reaches_our_nodes_under_a_foreign_one() -> None:
    inner = Prefetch(ListSource([1, 2, 3, 4]))
    outer = as_node(Batcher(inner, 2))
    assert next(outer) == [1, 2]
    assert [s.name for s in outer.all_stats()] == ["ListSource", "Prefetch", "ForeignSource(Batcher)"]
    outer.close()
    assert inner._run is None
