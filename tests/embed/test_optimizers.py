"""Row updates: literal values, the NumPy twin, torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.embed import _optimizers_py as twin
from headrace.embed.optimizers import UpdateRule, update_rows

BOTH = pytest.mark.parametrize("update", [update_rows, twin.update_rows])
WIDTH = {"sgd": 0, "rowwise_adagrad": 1}


@BOTH
def test_sgd_by_hand(update):
    rows = np.array([[1.0, 2.0]], np.float32)
    update(UpdateRule(name="sgd", lr=0.5), rows, np.array([[2.0, -4.0]], np.float32))
    assert rows.tolist() == [[0.0, 4.0]]


@BOTH
def test_rowwise_adagrad_takes_the_mean_of_the_squares(update):  # P76
    rows = np.array([[1.0, 2.0, 0.0]], np.float32)
    update(UpdateRule(name="rowwise_adagrad", lr=5.0, eps=1e-8), rows, np.array([[7.0, 1.0]], np.float32))
    # mean(49, 1) = 25, root 5: steps 5 * 7 / 5 and 5 * 1 / 5. The square of the mean would be 16.
    assert rows.tolist() == [[-6.0, 1.0, 25.0]]


@BOTH
def test_eps_is_outside_the_root(update):  # P76
    rows = np.array([[0.0, 9.0]], np.float32)
    update(UpdateRule(name="rowwise_adagrad", lr=1.0, eps=1.0), rows, np.array([[0.0]], np.float32))
    assert rows.tolist() == [[0.0, 9.0]]
    update(UpdateRule(name="rowwise_adagrad", lr=1.0, eps=1.0), rows, np.array([[4.0]], np.float32))
    assert rows.tolist() == [[np.float32(-4.0) / np.float32(6.0), 25.0]]


@BOTH
@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad"])
def test_a_zero_gradient_changes_no_bit(update, name):
    rows = np.array([[0.3, -0.0, 1e-30][: 2 + WIDTH[name]]], np.float32)
    rows[:, 2:] = 0.0
    before = rows.tobytes()
    update(UpdateRule(name=name, lr=1.0, eps=1e-30), rows, np.zeros((1, 2), np.float32))
    assert rows.tobytes() == before


@given(seed=st.integers(0, 2**32), n=st.integers(0, 9), dim=st.integers(1, 35), name=st.sampled_from(sorted(WIDTH)))
def test_native_equals_twin_bit_for_bit(seed, n, dim, name):
    rng = np.random.default_rng(seed)
    scale = np.float32(10.0) ** rng.integers(-20, 10, (n, 1)).astype(np.float32)
    grads = rng.standard_normal((n, dim), np.float32) * scale
    rows = rng.random((n, dim + WIDTH[name]), np.float32)
    rule = UpdateRule(name=name, lr=0.37, eps=1e-8)
    expected = rows.copy()
    twin.update_rows(rule, expected, grads)
    grads.flags.writeable = False
    update_rows(rule, rows, grads)
    assert rows.tobytes() == expected.tobytes()


def test_torch_adagrad_agrees_on_one_column(rng):  # P76: with one column row-wise is torch's own, eps as stated
    parameter = torch.nn.Parameter(torch.from_numpy(rng.random((5, 1), np.float32)))
    rows = np.concatenate([parameter.detach().numpy(), np.zeros((5, 1), np.float32)], axis=1)
    optimizer = torch.optim.Adagrad([parameter], lr=0.1, eps=1e-8)
    for _ in range(10):
        grads = rng.standard_normal((5, 1)).astype(np.float32)
        parameter.grad = torch.from_numpy(grads)
        optimizer.step()
        update_rows(UpdateRule(name="rowwise_adagrad", lr=0.1, eps=1e-8), rows, grads)
    np.testing.assert_allclose(rows[:, :1], parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"lr": math.nan}, {"lr": 1e39}, {"lr": 1.0, "eps": 0.0}])
def test_bad_hyper_parameters_are_refused(options):
    with pytest.raises(ValueError, match=r"lr=|eps="):
        UpdateRule(name="sgd", **options)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        update_rows(
            UpdateRule(name="rowwise_adagrad", lr=1.0), np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
        )
