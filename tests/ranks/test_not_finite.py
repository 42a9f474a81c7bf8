"""What one rank finds not to be finite, or too large for the wire: raised on all, which can then pass the batch by."""

from __future__ import annotations

import itertools
import math
import re
from collections import deque

import numpy as np
import pytest
import torch

import headrace
from headrace.embed.row_keys import RowKeys
from headrace.indexer.exchange.errors import RankLostError, RankMismatchError
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, rows_by_key

GLOBAL_BATCH = 12
BAD_STEP, BAD_RANK = 3, 1
SKIP = r"; nothing was updated on any rank: stage\.skip\(batch\), on all ranks, drops what this batch gave"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("finite") / "train.txt"
    write_lines(path, 100, seed=3, ids=40)
    return path


def train(data, communicator, spoil, *, clip=None, stage_options=None, **options):
    """Batches whose step raises FloatingPointError are skipped. `spoil(loss)` is the loss of the bad step and rank; one
    process knows which step to skip."""
    size = 1 if communicator is None else communicator.world_size
    schema = make_schema(two_layouts=True)
    stage = headrace.EmbeddingStage(
        schema, lr=0.01, eps=1e-4, num_threads=1, communicator=communicator, check_finite=True, **(stage_options or {})
    )
    told = []
    options = {"schema": schema, "window": 4, "capacity": 4000, "timeout": 60, **options}
    with headrace.DataLoader(data, GLOBAL_BATCH // size, communicator=communicator, **options) as loader:
        for step, batch in enumerate(loader):
            loss = stage(batch).square().sum(1).mean() if batch.num_rows else stage(batch).sum()
            if step == BAD_STEP and communicator is None:
                stage.skip(batch)
                continue
            bad = step == BAD_STEP and communicator.rank == BAD_RANK
            (spoil(loss) if bad else loss).backward()
            try:
                if clip is not None:
                    headrace.clip_grad_norm_(stage, [], clip)
                stage.step(batch)
            except FloatingPointError as error:
                told.append((step, str(error)))
                stage.skip(batch)
        return {"rows": rows_by_key(schema, loader.index, stage), "dense": [], "told": told, "steps": stage.num_steps}


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (2, {}),
        (3, {"hot_rows": 30, "hot_every": 2, "stage_options": {"check_replicas_every": 1}}),
        (4, {"node_size": 2, "hot_rows": 30, "hot_every": 2, "stage_options": {"mode": "arena"}}),
        (2, {"clip": 1e6}),
    ],
    ids=["cold", "hot", "two levels", "clipped"],
)
def test_a_gradient_that_is_not_finite_is_raised_on_all_ranks_and_skipped(data, size, options):
    expected = train(data, None, None)
    parts = run_ranks(size, lambda c: train(data, c, lambda loss: loss * math.nan, **options), timeout_s=60)
    assert_equal_to_reference(parts, expected)
    whole = r"gradient of .* of table 'C1' is not finite: feature 'C1', batch row \d, row \d+ of .*train\.txt"
    for rank, part in enumerate(parts):
        assert part["steps"] == expected["steps"]
        [(step, text)] = part["told"]
        assert step == BAD_STEP
        on = "" if rank == BAD_RANK else "on rank 1: "
        assert re.fullmatch(on + whole + SKIP, text), text


def small_run(communicator, data, work, **options):
    """``work(stage, batches, index)``; a rank has one row a batch."""
    schema = make_schema("sgd")
    stage = headrace.EmbeddingStage(schema, lr=1e-9, num_threads=1, communicator=communicator, **options)
    levels = {"node_size": 2} if communicator.world_size == 4 else {}
    with headrace.DataLoader(
        data, 1, schema=schema, communicator=communicator, window=4, timeout=60, **levels
    ) as loader:
        return work(stage, iter(loader), loader.index)


def test_a_dense_norm_that_is_not_finite_spoils_what_was_clipped(data):
    def work(stage, batches, index):
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.full((1,), math.nan)
        batch = next(batches)
        stage(batch).sum().backward()
        headrace.clip_grad_norm_(stage, [p], 1.0)
        with pytest.raises(FloatingPointError, match=r"gradient, clipped, of .* of table 'C\d+' is not finite"):
            stage.step(batch)
        stage.skip(batch)
        batch = next(batches)
        stage(batch).sum().backward()
        stage.step(batch)
        return stage.num_steps

    assert run_ranks(2, lambda c: small_run(c, data, work, check_finite=True), timeout_s=30) == [1, 1]


def set_rows(stage, index, value, every):
    """Make every so many of the rows that rank 0 owns `value`; all ranks call it."""
    found = index.rows_of_buckets()
    uids = np.array([t.uid for t in stage.schema.tables], np.uint32)[found.tables]
    keys = RowKeys(found.locations, found.ids, uids, found.missing).take(np.arange(0, len(uids), every))
    if stage.communicator.rank != 0:
        keys = keys.take(np.arange(0))
    stage.write_rows(0, keys, np.full((len(keys.ids), stage.stores[0].width), value, np.float32))


@pytest.mark.parametrize(
    ("value", "every", "wire", "message"),
    [
        (math.nan, 25, "float32", "vector of .* is not finite"),
        (1e5, 1, "float16", "vector of .* too large for wire='float16'"),
    ],
)
def test_vectors_are_checked_on_all_ranks_alike(data, value, every, wire, message):
    def on_rank(communicator):
        def work(stage, batches, index):
            seen = []
            for step, batch in enumerate(itertools.islice(batches, 5)):
                try:
                    loss = stage(batch).sum()
                except FloatingPointError as error:
                    seen.append(str(error).startswith("on rank "))
                    stage.skip(batch)
                    continue
                loss.backward()
                stage.step(batch)
                stage.flush()
                if step == 1:
                    set_rows(stage, index, value, every)
            held_out = headrace.DataLoader(
                data, 5, schema=stage.schema, index=index, train=False, communicator=communicator, timeout=60
            )
            stage.eval()
            with held_out, pytest.raises(FloatingPointError, match=message) as caught:
                deque(map(stage, held_out), maxlen=0)
            assert "skip" not in str(caught.value)
            return seen

        return small_run(communicator, data, work, check_finite=True, wire=wire)

    parts = run_ranks(2, on_rank, timeout_s=30)
    assert len(parts[0]) == len(parts[1]) >= 1
    assert any(mine or theirs for mine, theirs in zip(*parts, strict=True))  # one rank alone has found it
    if wire == "float16":  # sent by rank 0 alone
        assert (parts[0][0], parts[1][0]) == (False, True)


def test_gradients_too_large_for_the_wire_end_the_rank_that_has_them(data):
    def on_rank(communicator):
        def work(stage, batches, index):
            batch = next(batches)
            (stage(batch).sum() * (1e6 if communicator.rank == 1 else 1.0)).backward()
            if communicator.rank == 1:
                with pytest.raises(FloatingPointError, match=r"gradient of .* of table 'C\d+' is too large .*bfloat16"):
                    stage.step(batch)
            else:
                with pytest.raises(RankLostError):
                    stage.step(batch)

        return small_run(communicator, data, work, wire="float16")

    run_ranks(2, on_rank, timeout_s=30)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(("size", "factor"), [(2, 1e6), (4, 2e5)], ids=["one rank", "sum of a node"])
def test_gradients_too_large_for_the_wire_are_raised_on_all_ranks(tmp_path, size, factor, clips):
    """Of four ranks each has a quarter of 2e5, which float16 holds, and two of a node the half, which it does not."""
    [line] = write_lines(tmp_path / "one.txt", 1, seed=1)
    (tmp_path / "data.txt").write_text(f"{line}\n" * 3 * size)

    def work(stage, batches, index):
        before = stage.state_arrays()
        for step, batch in enumerate(batches):
            (stage(batch).sum() * (factor if step == 1 else 0.0)).backward()
            if step != 1:
                stage.step(batch)
                before = stage.state_arrays()
                continue
            with pytest.raises(FloatingPointError, match="of table 'C.* is too large for wire='float16'.*" + SKIP):
                headrace.clip_grad_norm_(stage, [], 1e9) if clips else stage.step(batch)
            stage.skip(batch)
            for name, array in stage.state_arrays().items():
                np.testing.assert_array_equal(array, before[name])
        return stage.num_steps

    run = lambda c: small_run(c, tmp_path / "data.txt", work, wire="float16", check_finite=True)  # noqa: E731
    assert run_ranks(size, run, timeout_s=30) == [2] * size


def test_ranks_that_check_and_ranks_that_do_not_are_refused():
    def work(communicator):
        headrace.EmbeddingStage(make_schema(), communicator=communicator, check_finite=communicator.rank == 0)

    with pytest.raises(RankMismatchError, match="check_finite differs: True on rank 0; False on rank 1"):
        run_ranks(2, work)


def test_without_the_check_nothing_is_told(data):
    def on_rank(communicator):
        def work(stage, batches, index):
            batch = next(batches)
            stage(batch).sum().backward()
            stage.step(batch)

        small_run(communicator, data, work)
        return {purpose for purpose, sent in communicator.bytes_sent().items() if sum(sent)}

    assert all("finite" not in sent and "gradients" in sent for sent in run_ranks(2, on_rank))
