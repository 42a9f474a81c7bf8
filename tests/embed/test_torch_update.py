"""Optimizers by torch's operators against the native kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed._rows import SlotRows
from headrace.embed.optimizers import UpdateRule
from headrace.embed.torch_update import update_slots
from headrace.formats.schema import optimizer_state_floats


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam", "rowwise_adagrad"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_ten_steps_equal_the_native_kernel(name, weight_decay, dim, device, rng):
    width = dim + optimizer_state_floats(name, dim)
    rows = rng.standard_normal((40, width)).astype(np.float32)
    rows[:, dim:] = np.abs(rows[:, dim:])
    vectors, state = (torch.from_numpy(part.copy()).to(device) for part in (rows[:, :dim], rows[:, dim:]))
    for step in range(1, 11):
        rule = UpdateRule(name=name, lr=0.1, weight_decay=weight_decay, betas=(0.8, 0.95), step=step)
        slots = rng.permutation(40)[:17].astype(np.int64)
        grads = rng.standard_normal((17, dim)).astype(np.float32)
        SlotRows.update(rows, slots, grads, rule.native)
        update_slots(vectors, state, torch.from_numpy(slots).to(device), torch.from_numpy(grads).to(device), rule)
        found = torch.cat([vectors, state], dim=1).cpu().numpy()
        if device.type == "cpu" and name == "sgd":
            assert found.tobytes() == rows.tobytes()
        if device.type == "cpu" and name in ("adagrad", "adam") and not weight_decay:
            assert found[:, dim:].tobytes() == rows[:, dim:].tobytes()
        np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)


def test_no_rows(device):
    vectors, state = torch.ones(3, 2, device=device), torch.ones(3, 1, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    rule = UpdateRule(name="rowwise_adagrad", lr=1.0)
    update_slots(vectors, state, none, torch.empty(0, 2, device=device), rule)
    assert vectors.eq(1).all()
