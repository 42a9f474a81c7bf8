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
from headrace.formats.schema import optimizer_state_floats

BOTH = pytest.mark.parametrize("update", [update_rows, twin.update_rows])
NAMES = ["sgd", "rowwise_adagrad", "adagrad", "adam"]


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
@pytest.mark.parametrize("name", NAMES)
def test_a_zero_gradient_changes_no_bit(update, name):
    rows = np.zeros((1, 2 + optimizer_state_floats(name, 2)), np.float32)
    rows[:, :2] = [0.3, -0.0]
    before = rows.tobytes()
    update(UpdateRule(name=name, lr=1.0, eps=1e-30), rows, np.zeros((1, 2), np.float32))
    assert rows.tobytes() == before


@BOTH
def test_adagrad_by_hand(update):
    rows = np.array([[1.0, 2.0, 9.0, 0.0]], np.float32)
    update(UpdateRule(name="adagrad", lr=2.0, eps=1.0), rows, np.array([[4.0, -3.0]], np.float32))
    # sums 25 and 9: steps 2 * 4 / (5 + 1) and 2 * -3 / (3 + 1)
    assert rows.tolist() == [[np.float32(1) - np.float32(8) / np.float32(6), 3.5, 25.0, 9.0]]


@BOTH
def test_adam_by_hand(update):
    rows = np.array([[1.0, 0.0, 0.0]], np.float32)
    rule = {"name": "adam", "eps": 1e-8, "betas": (0.5, 0.75)}
    update(UpdateRule(lr=0.5, step=1, **rule), rows, np.array([[2.0]], np.float32))
    # m 1, v 1; rate 0.5 * sqrt(0.25) / 0.5 = 0.5
    assert rows.tolist() == [[0.5, 1.0, 1.0]]
    update(UpdateRule(lr=0.5, step=2, **rule), rows, np.array([[0.0]], np.float32))
    # m 0.5, v 0.75; rate 0.5 * sqrt(7 / 16) / 0.75, times 0.5 / sqrt(0.75)
    assert rows[0, 1:].tolist() == [0.5, 0.75]
    assert rows[0, 0] == pytest.approx(0.5 - 0.5 * math.sqrt(7 / 16) / 0.75 * 0.5 / math.sqrt(0.75), rel=1e-6)


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_adds_the_decayed_vector_to_the_gradient(update, name):
    plain, decayed = (np.zeros((1, 2 + optimizer_state_floats(name, 2)), np.float32) for _ in range(2))
    plain[:, :2] = decayed[:, :2] = [4.0, -2.0]
    update(UpdateRule(name=name, lr=0.5), plain, np.array([[1.0 + 0.25 * 4, 3.0 - 0.25 * 2]], np.float32))
    update(UpdateRule(name=name, lr=0.5, weight_decay=0.25), decayed, np.array([[1.0, 3.0]], np.float32))
    assert decayed.tobytes() == plain.tobytes()


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 20),
    dim=st.sampled_from([*range(1, 36), 64]),
    name=st.sampled_from(NAMES),
    weight_decay=st.sampled_from([0.0, 0.01]),
)
def test_native_equals_twin_bit_for_bit(seed, n, dim, name, weight_decay):
    rng = np.random.default_rng(seed)
    scale = np.float32(10.0) ** rng.integers(-20, 10, (n, 1)).astype(np.float32)
    grads = rng.standard_normal((n, dim), np.float32) * scale
    rows = rng.random((n, dim + optimizer_state_floats(name, dim)), np.float32)
    rule = UpdateRule(name=name, lr=0.37, eps=1e-8, weight_decay=weight_decay, step=3)
    expected = rows.copy()
    twin.update_rows(rule, expected, grads)
    grads.flags.writeable = False
    update_rows(rule, rows, grads)
    assert rows.tobytes() == expected.tobytes()


def torch_optimizer(name, parameter, **options):
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}[name]
    return kind([parameter], **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {"lr": 0.1}),
        ("sgd", {"lr": 0.1, "weight_decay": 0.1}),
        ("adagrad", {"lr": 0.1, "eps": 1e-8}),
        ("adagrad", {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.1}),
        ("adam", {"lr": 0.1, "eps": 1e-8, "betas": (0.8, 0.95)}),
    ],
)
def test_torch_agrees(rng, name, options):  # P76
    parameter = torch.nn.Parameter(torch.from_numpy(rng.random((7, 5), np.float32)))
    rows = np.zeros((7, 5 + optimizer_state_floats(name, 5)), np.float32)
    rows[:, :5] = parameter.detach().numpy()
    optimizer = torch_optimizer(name, parameter, **options)
    for step in range(1, 21):
        touched = np.arange(7) if "weight_decay" in options else np.flatnonzero(rng.random(7) < 0.5)
        grads = rng.standard_normal((len(touched), 5)).astype(np.float32)
        sparse = torch.sparse_coo_tensor(torch.from_numpy(touched[None]), torch.from_numpy(grads), (7, 5))
        parameter.grad = sparse if "weight_decay" not in options else torch.from_numpy(grads)
        optimizer.step()
        mine = rows[touched]
        update_rows(UpdateRule(name=name, step=step, **options), mine, grads)
        rows[touched] = mine
    np.testing.assert_allclose(rows[:, :5], parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"lr": 1e39},
        {"eps": 0.0},
        {"weight_decay": -1.0},
        {"weight_decay": math.nan},
        {"betas": (1.0, 0.5)},
        {"betas": (0.5, -0.1)},
        {"betas": (0.5, math.nan)},
        {"step": 0},
    ],
)
def test_bad_hyper_parameters_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        UpdateRule(**{"name": "sgd", "lr": 1.0, **options})


@pytest.mark.parametrize("betas", [0.9, (0.9,), "ab", (0.9, None)])
def test_betas_are_a_pair_of_numbers(betas):
    with pytest.raises(TypeError, match="betas="):
        UpdateRule(name="adam", lr=1.0, betas=betas)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        update_rows(
            UpdateRule(name="rowwise_adagrad", lr=1.0), np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)
        )
