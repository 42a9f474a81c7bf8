"""Copies beside the trainer's work: right for every order that marks permit, and wrong without them.

No GPU runs here: `LateLane` does the lane's work as late as the marks permit, `EarlyLane` does it at once and the
trainer's updates as late as they permit. `CudaLane` itself is run over a stand-in for torch's streams and events.
"""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
import torch

from headrace.embed import copy_lane, stage_parts
from headrace.embed.copy_lane import CudaLane, HostLane, lane_of
from headrace.embed.stage import EmbeddingStage
from headrace.embed.torch_rows import TorchRows
from headrace.formats.schema import Schema, Sparse, Table

TWO = Schema(
    sparse=(Sparse(name="a", multi_hot=True), Sparse(name="b")),
    tables=(Table(name="a", dim=4, optimizer="sgd"), Table(name="b", dim=3)),
)


class LateLane(HostLane):
    """Work waits until somebody holds for it, or finishes it."""

    def __init__(self):
        self._lock = threading.RLock()
        self._queue, self._issued, self._done = [], 0, 0

    def issue(self, work, after):
        with self._lock:
            self._queue.append(work)
            self._issued += 1
            return self._issued

    def last(self):
        return self._issued

    def hold(self, mark):
        with self._lock:
            while self._done < (mark or 0):
                self._queue.pop(0)()
                self._done += 1

    finish = hold


class EarlyLane(HostLane):
    """The trainer's updates wait until the lane's work, or the trainer, must see them."""

    def __init__(self):
        self._lock = threading.RLock()
        self._updates, self._asked, self._done = [], 0, 0

    def mark(self):
        return self._asked

    def issue(self, work, after):
        with self._lock:
            self.catch_up(after)
            work()

    def later(self, update):
        with self._lock:
            self._updates.append(update)
            self._asked += 1

    def catch_up(self, mark):
        with self._lock:
            while self._done < (mark or 0):
                self._updates.pop(0)()
                self._done += 1


@pytest.fixture
def early_lane(monkeypatch):
    lane, update, source = EarlyLane(), TorchRows.update, TorchRows.source

    def updated(rows, *args):
        if rows._lane is lane:
            lane.later(lambda: update(rows, *args))
        else:
            update(rows, *args)

    def gathered(rows, slots):
        lane.catch_up(lane.mark())  # the trainer's own work is in order
        return source(rows, slots)

    monkeypatch.setattr(TorchRows, "update", updated)
    monkeypatch.setattr(TorchRows, "source", gathered)
    return lane


def train(stage, batches):
    generator = torch.Generator().manual_seed(1)
    outputs = []
    for batch in batches:
        out = stage(batch)
        outputs.append(out.detach().numpy().tobytes())
        (out * torch.randn(out.shape, generator=generator)).sum().backward()
        stage.step(batch)
    state = stage.state_arrays()
    stage.close(60)
    return outputs, {name: array.tobytes() for name, array in state.items()}


def results(kit, lane, monkeypatch, seed, *, overlap):
    """Of a random stream, over `lane` and over none."""
    rng = np.random.default_rng(seed)
    index = kit.ToyIndex()
    batches = [kit.make_batch(TWO, kit.random_ids(TWO, int(rng.integers(1, 8)), rng), index) for _ in range(14)]
    variant = {"window": int(rng.integers(0, 2)), "spare": [None, 0, 2][seed % 3], "hot": 2 * (seed % 2)}
    planned = kit.plan_batches(batches, **variant, rng=rng)
    found = []
    for one, beside in ((HostLane(), False), (lane, overlap)):
        monkeypatch.setattr(stage_parts, "lane_of", lambda device, one=one: one)
        found.append(train(EmbeddingStage(TWO, mode="arena", kernels="torch", lr=0.1, overlap=beside), planned))
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_lane_may_be_as_late_as_marks_permit(kit, monkeypatch, seed, overlap):
    expected, found = results(kit, LateLane(), monkeypatch, seed, overlap=overlap)
    assert found == expected


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_trainer_may_be_as_late_as_marks_permit(kit, monkeypatch, early_lane, seed, overlap):
    expected, found = results(kit, early_lane, monkeypatch, seed, overlap=overlap)
    assert found == expected


def goes_wrong(kit, lane, monkeypatch):
    def differs(seed):
        expected, found = results(kit, lane, monkeypatch, seed, overlap=False)
        return found != expected

    return any(differs(seed) for seed in range(4))


def test_without_holding_for_the_lane_it_goes_wrong(kit, monkeypatch):
    monkeypatch.setattr(TorchRows, "hold", lambda rows, mark: None)
    assert goes_wrong(kit, LateLane(), monkeypatch)


def test_without_the_mark_of_the_trainer_it_goes_wrong(kit, monkeypatch, early_lane):
    monkeypatch.setattr(TorchRows, "mark", lambda rows: None)
    assert goes_wrong(kit, early_lane, monkeypatch)


class FakeStream:
    def __init__(self, device=None):
        self.log = []

    def wait_event(self, event):
        self.log.append(("wait", event.recorded))


class FakeEvent:
    recorded = None

    def record(self, stream):
        self.recorded = (stream, len(stream.log))
        stream.log.append(("record",))

    def synchronize(self):
        self.recorded[0].log.append(("synchronize", self.recorded[1]))


@pytest.fixture
def fake_cuda(monkeypatch):
    """Streams and events that note what they are told; the trainer's stream."""
    trainer = FakeStream()

    @contextlib.contextmanager
    def stream(one):
        one.log.append("enter")
        yield
        one.log.append("leave")

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: trainer)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return trainer


def test_cuda_work_is_chained_by_events(fake_cuda):
    lane = CudaLane(torch.device("cuda", 0))
    stream = lane._stream
    mark = lane.mark()
    done = lane.issue(lambda: stream.log.append("work"), mark)
    assert stream.log == ["enter", ("wait", (fake_cuda, 0)), "work", "leave", ("record",)]
    lane.hold(done)
    assert fake_cuda.log == [("record",), ("wait", (stream, 4))]
    lane.finish(done)
    assert stream.log[-1] == ("synchronize", 4)
    lane.hold(None)
    lane.finish(None)
    lane.issue(lambda: None, None)
    assert len(fake_cuda.log) == 2


def test_the_lane_of_a_device(fake_cuda):
    assert isinstance(lane_of(torch.device("cpu")), HostLane)
    assert isinstance(lane_of(torch.device("cuda", 0)), CudaLane)


def test_uploads_take_arrays_that_must_not_be_written(device):
    array = np.arange(5)
    array.setflags(write=False)
    tensor = copy_lane.lane_of(device).upload(array)
    assert (tensor.device.type, tensor.tolist()) == (device.type, [0, 1, 2, 3, 4])
    assert lane_of(device).host_rows(2, 3).shape == (2, 3)
