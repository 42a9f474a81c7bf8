"""Clipping by the norm of all ranks' gradients: as one process clips those of the same global batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headrace
from headrace.indexer.exchange.simulated import run_ranks
from tests.support.criteo_text import write_lines
from tests.support.rank_training import assert_equal_to_reference, make_schema, train

GLOBAL_BATCH = 24
NORM = 0.05


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "train.txt"
    write_lines(path, 500, seed=5, ids=40)
    return path


def clipped(data, communicator, *, norm_type=2.0, max_norm=NORM, **options):
    size = 1 if communicator is None else communicator.world_size
    clip = {"max_norm": max_norm, "norm_type": norm_type}
    return train(data, communicator, batch_size=GLOBAL_BATCH // size, steps=20, clip=clip, **options)


HOT = {"hot_rows": 60, "hot_every": 4, "stage_options": {"check_replicas_every": 1}}


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("options", [{}, HOT, {**HOT, "node_size": 2}], ids=["cold", "hot", "two levels"])
def test_parameters_and_norms_are_those_of_one_process(data, norm_type, options):
    expected = clipped(data, None, norm_type=norm_type)
    assert max(expected["norms"]) > 2 * NORM  # so that it does something
    parts = run_ranks(2, lambda c: clipped(data, c, norm_type=norm_type, **options))
    assert_equal_to_reference(parts, expected)
    for part in parts:
        assert part["norms"] == parts[0]["norms"]
        np.testing.assert_allclose(part["norms"], expected["norms"], rtol=2e-5)


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_two_layouts_and_a_frozen_table(data, size):
    schema = make_schema("sgd", two_layouts=True)
    frozen = {"frozen": ("C2",)}
    expected = clipped(data, None, schema=schema, stage_options=frozen)
    hot = {**HOT, "stage_options": {**frozen, "mode": "arena"}, "window": 7}
    parts = run_ranks(size, lambda c: clipped(data, c, schema=schema, **hot))
    assert_equal_to_reference(parts, expected)


def test_a_large_norm_changes_nothing_but_the_order(data):
    plain = train(data, None, batch_size=GLOBAL_BATCH, steps=20)
    parts = run_ranks(2, lambda c: clipped(data, c, max_norm=1e6))
    assert_equal_to_reference(parts, plain)


def small_run(communicator, data, work):
    schema = make_schema("sgd")
    with headrace.DataLoader(data, 4, schema=schema, communicator=communicator, timeout=60) as loader:
        stage = headrace.EmbeddingStage(schema, lr=0.1, num_threads=1, communicator=communicator)
        first, second = (batch for batch, _ in zip(loader, range(2), strict=False))
        return work(stage, first, second)


def test_dense_gradients_that_were_not_averaged_are_refused(data):
    def work(stage, first, second):
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.ones(1) * (1 + first.ranks.now.rank)
        stage(first).sum().backward()
        headrace.clip_grad_norm_(stage, [p], 1.0)

    with pytest.raises(RuntimeError, match=r"(?s)ranks \[1\] is not that of rank 0.*average_gradients"):
        run_ranks(2, lambda c: small_run(c, data, work))


def test_what_was_clipped_is_dropped_with_the_gradients(data):
    def work(stage, first, second):
        stage(first).sum().backward()
        stage.step(first)
        before = stage.state_arrays()
        stage(second).sum().backward()
        headrace.clip_grad_norm_(stage, [], 1e-3)
        stage.optimizer().zero_grad()
        (stage(second).sum() * 0.0).backward()
        stage.step(second)
        after = stage.state_arrays()
        same = np.isin(after["locations_0"], before["locations_0"])
        assert 0 < same.sum() == len(before["rows_0"])
        np.testing.assert_array_equal(after["rows_0"][same], before["rows_0"])

    run_ranks(2, lambda c: small_run(c, data, work))


def adds(stage, batch):
    (stage(batch).sum() * 3.0).backward()


def scales(stage, batch):
    for leaf in stage.pending_leaves():
        leaf.grad.mul_(0.5)


def unscales(stage, batch):
    """As a GradScaler's step does where nobody has called its `unscale_` before clipping; torch does not count it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(1))
    scaler.unscale_(stage.optimizer())


def clips_again(stage, batch):
    adds(stage, batch)
    headrace.clip_grad_norm_(stage, [], 1e-3)


@pytest.mark.parametrize("use", [adds, scales, unscales, clips_again])
def test_gradients_that_change_after_they_were_clipped_are_refused(data, use):
    """Those of before are at their owners: what comes later would be lost."""

    def work(stage, first, second):
        stage(first).sum().backward()
        stage.step(first)
        before = stage.state_arrays()
        stage(second).sum().backward()
        headrace.clip_grad_norm_(stage, [], 1e-3)
        with pytest.raises(RuntimeError, match="added or scaled after clip_grad_norm_"):  # noqa: PT012
            use(stage, second)
            stage.step(second)
        for name, array in stage.state_arrays().items():
            np.testing.assert_array_equal(array, before[name])
        stage.optimizer().zero_grad()
        (stage(second).sum() * 0.0).backward()
        headrace.clip_grad_norm_(stage, [], 1e-3)
        stage(second)  # without a backward it adds nothing
        stage.step(second)
        return stage.num_steps

    assert run_ranks(2, lambda c: small_run(c, data, work)) == [2, 2]


def test_dense_gradients_may_be_averaged_after_they_were_refused(data):
    def work(stage, first, second):
        p = torch.nn.Parameter(torch.zeros(1))
        p.grad = torch.ones(1) * (1 + first.ranks.now.rank)
        stage(first).sum().backward()
        with pytest.raises(RuntimeError, match="average them over the ranks"):
            headrace.clip_grad_norm_(stage, [p], 1.0)
        p.grad = torch.ones(1)
        norm = headrace.clip_grad_norm_(stage, [p], 1.0)
        stage.step(first)
        return float(norm), stage.num_steps

    one, other = run_ranks(2, lambda c: small_run(c, data, work))
    assert one == other
    assert one[1] == 1


def test_a_norm_that_is_not_finite(data):
    def work(stage, first, second):
        stage(first).mul(math.inf).sum().backward()
        with pytest.raises(RuntimeError, match="cannot be clipped"):
            headrace.clip_grad_norm_(stage, [], 1.0, error_if_nonfinite=True)

    run_ranks(2, lambda c: small_run(c, data, work))


def test_without_a_batch_there_is_nothing_to_clip(data):
    with pytest.raises(RuntimeError, match="no gradients of a batch over ranks"):
        run_ranks(2, lambda c: small_run(c, data, lambda stage, first, second: headrace.clip_grad_norm_(stage, [])))


def test_another_max_norm_on_one_rank_is_refused(data):
    with pytest.raises(
        RuntimeError, match=r"another max_norm on each rank \(\[0.5, 1.5\], in the order of the ranks\)"
    ):
        run_ranks(2, lambda c: clipped(data, c, max_norm=0.5 + c.rank))
