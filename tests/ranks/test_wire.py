"""16 bits on the wire: half the bytes, and only what travels is rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace
from headrace.embed.wire import Wire
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import make_schema, train

VALUES = np.array([[1.0, -2.5], [1 / 3, np.float32(2) ** -20], [0.0, -0.0]], np.float32)


@pytest.mark.parametrize(
    ("name", "third", "tiny"),
    [("float32", 1 / 3, 2.0**-20), ("bfloat16", 0.333984375, 2.0**-20), ("float16", 0.333251953125, 2.0**-20)],
)
def test_what_arrives(name, third, tiny):
    def work(communicator):
        other, got = 1 - communicator.rank, np.zeros((3, 2), np.float32)
        channel = communicator.channel("rows")
        Wire(name).post(channel, {other: VALUES}, {other: got}, "rows").wait()
        return got, communicator.bytes_sent()["rows"][other]

    for got, sent in run_ranks(2, work):
        assert got.tolist() == [[1.0, -2.5], [np.float32(third), tiny], [0.0, 0.0]]
        assert np.signbit(got[2]).tolist() == [False, True]
        assert sent == 6 * (4 if name == "float32" else 2)


@pytest.mark.parametrize("node_size", [1, 2])
def test_training_stays_near(tmp_path, node_size):
    write_lines(tmp_path / "train.txt", 300, seed=3, ids=40)

    def work(communicator, wire):
        options = {"stage_options": {"wire": wire}, "node_size": node_size}
        result = train(tmp_path / "train.txt", communicator, batch_size=6, steps=10, **options)
        return result["rows"], {p: sum(b) for p, b in communicator.bytes_sent().items()}

    exact, half = run_ranks(4, lambda c: work(c, "float32")), run_ranks(4, lambda c: work(c, "bfloat16"))
    for (rows, sent), (near, fewer) in zip(exact, half, strict=True):
        assert fewer["deferred"] * 2 == sent["deferred"] > 0
        assert fewer["gradients"] * 2 == sent["gradients"] > 0
        difference = max(float(np.abs(rows[key] - near[key]).max()) for key in rows)
        assert 0 < difference < 0.01


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="wire='int8' is none of float32, bfloat16, float16"):
        headrace.EmbeddingStage(make_schema(), communicator=headrace.connect("none"), wire="int8")


@pytest.mark.parametrize(
    ("value", "is_beyond"),
    [(65504, False), (65519.99, False), (65520, True), (-65520, True), (-1e30, True), (np.inf, False), (np.nan, False)],
)
def test_what_float16_would_make_infinite(value, is_beyond):
    values = np.array([[np.nan, 1.0], [-np.inf, value]], np.float32)
    for rows, at in ((values, 1), (values[1:], 0), (values[1:, 1:], 0)):
        assert Wire("float16").first_beyond(rows) == (at if is_beyond else None)
        assert Wire("bfloat16").first_beyond(rows) is Wire("float32").first_beyond(rows) is None
    sent = torch.tensor(value, dtype=torch.float32).to(torch.float16)
    assert bool(torch.isinf(sent)) == (is_beyond or np.isinf(value))
