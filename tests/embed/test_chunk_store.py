"""The chunk store against its twin, and its memory, laziness and refusals."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.embed import _chunk_store_py as twin
from headrace.embed._threads import Threads
from headrace.embed.chunk_store import PLACE_MASK, ChunkStore
from headrace.embed.initializer import Constant, Normal, Uniform, initial_vectors
from headrace.embed.optimizers import UpdateRule
from headrace.indexer.indexed import ABSENT, CHUNK_ROWS, OFFSET_BITS, PLACE_BITS, TIER_SHIFT, pack_location

BOTH = pytest.mark.parametrize("make", [ChunkStore, twin.ChunkStore])
ADAGRAD = UpdateRule(name="rowwise_adagrad", lr=0.1)
PLACES = [pack_location(c, o) for c in (0, 1, 65_536, 2**32 - 1) for o in (0, 1, 63, 64, 16_383)]


def keys(n, first=0):
    return np.arange(first, first + n, dtype=np.uint64), np.full(n, 5, np.uint32), np.zeros(n, bool)


def read(store, locations, first=0, width=None):
    out = np.full((len(locations), width or store.width), np.nan, np.float32)
    store.read(np.array(locations, np.uint64), *keys(len(locations), first), out)
    return out


@BOTH
def test_a_row_never_written_reads_as_its_initial_vector_and_zero_state(make):
    store = make(3, 1, seed=4, initializer=Normal())
    expected = initial_vectors(Normal(), 4, *keys(2), 3)
    for locations in ([PLACES[3], PLACES[4]], [int(ABSENT), int(ABSENT)]):  # P30
        rows = read(store, locations)
        assert rows[:, :3].tobytes() == expected.tobytes()
        assert rows[:, 3].tolist() == [0, 0]
        assert read(store, locations, width=3).tobytes() == expected.tobytes()
    assert store.num_written == 0


@BOTH
def test_absent_is_not_the_last_place_of_the_last_chunk(make):
    store = make(1, 0, initializer=Constant(value=3))
    store.write(np.array([pack_location(2**32 - 1, 16_383)], np.uint64), np.ones((1, 1), np.float32))
    assert read(store, [int(ABSENT), pack_location(2**32 - 1, 16_383)]).tolist() == [[3], [1]]


@BOTH
def test_a_read_never_makes_a_row_written(make):  # its place may go to another key before it was delivered
    store = make(2, 0)
    first = read(store, [PLACES[1]], first=1)
    other = read(store, [PLACES[1]], first=2)
    assert (first != other).any()
    assert not store.is_written(np.array(PLACES[:2], np.uint64)).any()
    store.update(np.array(PLACES[1:2], np.uint64), *keys(1, 2), np.ones((1, 2), np.float32), ADAGRAD_FREE)
    np.testing.assert_array_equal(read(store, [PLACES[1]], first=1), other - np.float32(0.5))


ADAGRAD_FREE = UpdateRule(name="sgd", lr=0.5)


@BOTH
def test_written_rows_come_back_whatever_the_rank_bits(make):
    store = make(2, 1)
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    store.write(np.array([pack_location(2**32 - 1, 7, rank=3), pack_location(0, 7)], np.uint64), rows)
    assert read(store, [pack_location(0, 7, rank=9), pack_location(2**32 - 1, 7)]).tolist() == rows[::-1].tolist()
    locations, exported = store.export()
    assert locations.tolist() == [pack_location(0, 7), pack_location(2**32 - 1, 7)]
    assert exported.tolist() == rows[::-1].tolist()
    assert store.num_written == 2


@BOTH
def test_slots_choose_rows_of_the_other_side(make):
    store = make(1, 0)
    arena = np.array([[10], [11], [12]], np.float32)
    places = np.array(PLACES[:2], np.uint64)
    store.write(places, arena, slots=np.array([2, 0]))
    assert read(store, PLACES[:2]).tolist() == [[12], [10]]
    target = np.zeros((4, 1), np.float32)
    store.read(places, *keys(2), target, slots=np.array([3, 1]))
    assert target.ravel().tolist() == [0, 10, 0, 12]


@BOTH
def test_export_of_some_and_load(make):
    store = make(1, 1)
    store.write(np.array(PLACES[:3], np.uint64), np.arange(6, dtype=np.float32).reshape(3, 2))
    locations, rows = store.export(np.array([PLACES[2], PLACES[0], PLACES[5], PLACES[0]], np.uint64))
    assert locations.tolist() == [PLACES[0], PLACES[2]]
    assert rows.tolist() == [[0, 1], [4, 5]]
    store.load(locations, rows)
    assert store.num_written == 2
    assert not store.is_written(np.array(PLACES[1:2], np.uint64))[0]


@BOTH
def test_a_forgotten_row_starts_again(make):
    store = make(1, 0, initializer=Constant(value=2))
    place = np.array(PLACES[:1], np.uint64)
    store.write(place, np.ones((1, 1), np.float32))
    store.forget(place)
    assert read(store, place).tolist() == [[2]]
    assert store.num_written == 0


@pytest.mark.parametrize(
    "between",
    [
        lambda store, places: None,
        lambda store, places: store.forget(places[1:3]),
        lambda store, places: store.clear(),
        lambda store, places: store.load(*store.export(places[2:])),
        lambda store, places: store.write(places[:2], np.full((2, 6), 7, np.float32)),
        lambda store, places: store.update(
            places[::-1].copy(), *keys(len(places)), np.ones((4, 5), np.float32), ADAGRAD
        ),
        lambda store, places: store.make_room(np.array(PLACES, np.uint64)),
        lambda store, places: read(store, np.array(PLACES[3:6], np.uint64)),
        lambda store, places: places.put(range(4), PLACES[2:6]),  # a buffer that is used again for other rows
        lambda store, places: places.put(range(4), places[::-1].copy()),
    ],
)
def test_rows_that_were_located_are_updated_whatever_came_between(between):
    """The update of the same places, which were all written, does not look for them again."""
    grads, exports = np.full((4, 5), 0.5, np.float32), []
    for make in (ChunkStore, twin.ChunkStore):
        store, places = make(5, 1, seed=3), np.array(PLACES[:4], np.uint64)
        store.write(places, np.arange(24, dtype=np.float32).reshape(4, 6))
        locate(store, places)
        between(store, places)
        store.update(places, *keys(4), grads, ADAGRAD)
        exports.append([array.tolist() for array in store.export()] + [store.num_written])
    assert exports[0] == exports[1]


def locate(store, places):
    if isinstance(store, ChunkStore):
        store.source(places, *keys(len(places))).read(np.empty((len(places), 5), np.float32))


def test_an_array_at_the_place_of_one_that_was_located_is_looked_at():
    """Freed memory is given out again at once: an address is no name for what is in it."""
    exports = []
    for make in (ChunkStore, twin.ChunkStore):
        store = make(5, 1, seed=3)
        store.write(np.array(PLACES[:8], np.uint64), np.arange(48, dtype=np.float32).reshape(8, 6))
        for first in (0, 4):
            places = np.array(PLACES[first : first + 4], np.uint64)
            locate(store, places[: 4 - first])  # in the second round none
            store.update(places, *keys(4), np.full((4, 5), 0.5, np.float32), ADAGRAD)
            del places
        exports.append([array.tolist() for array in store.export()])
    assert exports[0] == exports[1]


@pytest.mark.parametrize("bad", [int(ABSENT), 1 << TIER_SHIFT])
def test_a_place_that_was_located_and_then_spoiled_is_refused(bad):
    store, places = ChunkStore(5, 1), np.array(PLACES[:4], np.uint64)
    store.write(places, np.zeros((4, 6), np.float32))
    locate(store, places)
    places[2] = bad
    with pytest.raises(ValueError, match="at position 2 is not in host memory"):
        store.update(places, *keys(4), np.ones((4, 5), np.float32), ADAGRAD)
    assert not store.export()[1].any()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 700, 1399])
def test_places_that_several_threads_look_at(at, num_threads):
    """One place that is another than when the rows were located, in whichever thread's part."""
    n = 1400
    places = np.array([pack_location(3, offset) for offset in range(n + 1)], np.uint64)
    rows = np.random.default_rng(1).random((n + 1, 6), np.float32)
    exports = []
    for make in (ChunkStore, twin.ChunkStore):
        store = make(5, 1)
        store.write(places, rows)
        used, options = places[:n].copy(), {}
        if make is ChunkStore:
            options = {"threads": Threads(num_threads)}
            store.source(used, *keys(n)).read(np.empty((n, 5), np.float32), options["threads"])
        used[at] = places[n]
        store.update(used, *keys(n), np.full((n, 5), 0.5, np.float32), ADAGRAD, **options)
        exports.append([array.tobytes() for array in store.export()])
    assert exports[0] == exports[1]


class SameAsTwin(RuleBasedStateMachine):
    """Any sequence of operations gives the same bits in the native store and its twin."""

    places = st.lists(st.sampled_from(PLACES), max_size=12, unique=True).map(lambda x: np.array(x, np.uint64))

    def __init__(self):
        super().__init__()
        options = {"seed": 3, "initializer": Uniform(low=-1, high=1)}
        self.pair = ChunkStore(5, 1, **options), twin.ChunkStore(5, 1, **options)
        self.rng = np.random.default_rng(0)
        self.located = np.empty(0, np.uint64)

    @rule(places=places, only_written=st.booleans())
    def locate(self, places, only_written):
        if only_written:
            places = places[self.pair[1].is_written(places)]
        self.located = places
        out = np.empty((len(places), 5), np.float32)
        self.pair[0].source(places, *keys(len(places))).read(out)
        assert out.tobytes() == read(self.pair[1], places, width=5).tobytes()

    @rule()
    def update_what_was_located(self):
        """The very same array: whatever came between, its rows are found."""
        self.update(self.located)

    @rule(places=places)
    def use_its_buffer_again(self, places):
        n = min(len(self.located), len(places))
        self.located[:n] = places[:n]
        self.located = np.unique(self.located)  # a new array; the buffer is freed, and given out again

    @rule(places=places)
    def write(self, places):
        rows = self.rng.random((len(places), 6), np.float32)
        for store in self.pair:
            store.write(places, rows)

    @rule(places=places)
    def update(self, places):
        grads = self.rng.random((len(places), 5), np.float32)
        for store in self.pair:
            store.update(places, *keys(len(places)), grads, ADAGRAD)

    @rule(places=places)
    def forget(self, places):
        for store in self.pair:
            store.forget(places)

    @rule(places=places, width=st.sampled_from([5, 6]))
    def read(self, places, width):
        native, expected = (read(store, places, width=width) for store in self.pair)
        assert native.tobytes() == expected.tobytes()

    @rule(places=places)
    def reload(self, places):
        for store in self.pair:
            store.load(*store.export(places))

    @invariant()
    def same_contents(self):
        (locations, rows), (expected_locations, expected_rows) = (store.export() for store in self.pair)
        assert locations.tolist() == expected_locations.tolist()
        assert rows.tobytes() == expected_rows.tobytes()
        assert self.pair[0].num_written == self.pair[1].num_written == len(locations)


TestSameAsTwin = SameAsTwin.TestCase
TestSameAsTwin.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


MEMORY = """
import numpy as np, psutil
from headrace.embed.chunk_store import ChunkStore
from headrace.indexer.indexed import pack_location

rss = psutil.Process().memory_info
before = rss().rss
store = ChunkStore(256, 0)
places = np.array([pack_location(chunk * 9_999_991 % 2**32, 0) for chunk in range(50)], np.uint64)
store.write(places, np.ones((50, 256), np.float32))
assert store.nbytes >= 50 * 16_384 * 256 * 4  # 840 MB of address space
assert rss().rss - before < 20 << 20
full = np.array([pack_location(7, offset) for offset in range(16_384)], np.uint64)
store.write(full, np.ones((16_384, 256), np.float32))
assert rss().rss - before > 16 << 20
store.clear()
assert store.nbytes == 0
assert rss().rss - before < 8 << 20
assert store.num_written == 0
"""


def test_untouched_pages_cost_nothing_and_clear_gives_memory_back():
    """In a process of its own, whose memory nothing else changes."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True, timeout=120)


@pytest.mark.parametrize("operation", ["read", "write", "update"])
def test_other_tiers_are_refused_before_anything_changes(operation):
    store = ChunkStore(1, 0)
    places = np.array([PLACES[0], pack_location(0, 1, tier=1)], np.uint64)
    one = np.ones((2, 1), np.float32)
    actions = {
        "read": lambda: store.read(places, *keys(2), one),
        "write": lambda: store.write(places, one),
        "update": lambda: store.update(places, *keys(2), one, ADAGRAD_FREE),
    }
    with pytest.raises(ValueError, match=r"0x4000000000000001 at position 1"):
        actions[operation]()
    assert store.num_written == 0


def test_absent_rows_cannot_be_written():
    store = ChunkStore(1, 0)
    with pytest.raises(ValueError, match="0xffffffffffffffff at position 0"):
        store.write(np.array([ABSENT]), np.ones((1, 1), np.float32))


@pytest.mark.parametrize(
    "action",
    [
        lambda s, p: s.write(p, np.ones((2, 3), np.float32)),
        lambda s, p: s.write(p, np.ones((1, 2), np.float32)),
        lambda s, p: s.write(p, np.ones((9, 2), np.float32), slots=np.array([0, 9])),
        lambda s, p: s.write(p, np.ones((9, 2), np.float32), slots=np.array([0, -1])),
        lambda s, p: s.read(p, *keys(2), np.ones((3, 2), np.float32)),
        lambda s, p: s.read(p, *keys(1), np.ones((2, 2), np.float32)),
        lambda s, p: s.read(p, *keys(2), np.ones((2, 3), np.float32)),
        lambda s, p: s.update(p, *keys(2), np.ones((2, 2), np.float32), ADAGRAD_FREE),
        lambda s, p: s.update(p, *keys(2), np.ones((1, 1), np.float32), ADAGRAD_FREE),
        lambda s, p: s.load(p, np.ones((2, 3), np.float32)),
        lambda s, p: s.load(p[[0, 0]], np.ones((2, 2), np.float32)),
        lambda s, p: s.load(p.astype(np.int64), np.ones((2, 2), np.float32)),
        lambda s, p: s.load(p + np.uint64(2**62), np.ones((2, 2), np.float32)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(action):
    store = ChunkStore(1, 1)
    with pytest.raises((ValueError, IndexError)):
        action(store, np.array(PLACES[:2], np.uint64))
    assert store.num_written == 0


def test_read_only_inputs_are_taken():
    store = ChunkStore(1, 0)
    arrays = [np.array(PLACES[:2], np.uint64), *keys(2), np.ones((2, 1), np.float32)]
    for array in arrays:
        array.flags.writeable = False
    places, ids, tables, missing, values = arrays
    store.write(places, values)
    store.update(places, ids, tables, missing, values, ADAGRAD_FREE)
    assert read(store, places).tolist() == [[0.5], [0.5]]


def test_a_second_caller_is_refused():
    store = ChunkStore(256, 0, initializer=Normal())
    places = np.arange(20_000, dtype=np.uint64)
    arguments = (places, *keys(len(places)), np.empty((len(places), 256), np.float32))
    one = (places[:1], *keys(1))
    value = np.ones((1, 256), np.float32)
    calls = {
        "read": lambda: store.read(*one, value.copy()),
        "write": lambda: store.write(places[:1], value),
        "update": lambda: store.update(*one, value, ADAGRAD_FREE),
        "is_written": lambda: store.is_written(places[:1]),
        "forget": lambda: store.forget(places[:1]),
        "num_written": lambda: store.num_written,
        "export": store.export,
        "clear": store.clear,
        "nbytes": lambda: store.nbytes,
    }
    refused = {}
    thread = threading.Thread(target=lambda: store.read(*arguments))  # some 100 ms without the GIL
    thread.start()
    while thread.is_alive():
        for name in calls.keys() - refused.keys():
            try:
                calls[name]()
            except RuntimeError as error:
                refused[name] = str(error)
        time.sleep(0.001)
    assert refused == dict.fromkeys(calls, "the rows are in use by another thread: one caller at a time")
    store.write(places[:1], value)  # and free again
    assert store.num_written == 1


def test_locations_are_packed_as_the_index_packs_them():
    assert pack_location(2**32 - 1, CHUNK_ROWS - 1) == PLACE_MASK
    assert pack_location(0, 0, rank=1) == 1 << PLACE_BITS
    assert pack_location(0, 0, tier=1) == 1 << TIER_SHIFT
    assert pack_location(1, 0) == 1 << OFFSET_BITS
    assert (OFFSET_BITS, PLACE_BITS, TIER_SHIFT) == (14, 46, 62)


def test_empty_calls_do_nothing():
    store = ChunkStore(2, 1)
    none = np.empty(0, np.uint64)
    store.write(none, np.empty((0, 3), np.float32))
    store.update(none, *keys(0), np.empty((0, 2), np.float32), ADAGRAD)
    assert read(store, none).shape == (0, 3)
    assert store.export()[1].shape == (0, 3)
