"""Which states fit which model and optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headrace.embed.restore_checks import check_model, check_optimizer
from headrace.embed.run_folder import CheckpointError


def parameters(*groups):
    return [{"params": [nn.Parameter(torch.zeros(2)) for _ in range(n)]} for n in groups]


def saved_by(kind, *groups, **options):
    return kind(parameters(*groups), **{"lr": 0.1, **options}).state_dict()


def test_a_model_of_the_same_names_and_shapes_fits():
    check_model(nn.Linear(2, 3).state_dict(), nn.Linear(2, 3).double(), "run")
    check_model(nn.Linear(2, 3).state_dict(), nn.LazyLinear(3), "run")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Linear(2, 3, bias=False),
            r"run was saved with another model: only saved \['bias'\], only in the model \[\]",
        ),
        (nn.Bilinear(2, 2, 3), r"weight of shape \[3, 2\], the model has \[3, 2, 2\]"),
        (nn.Linear(2, 4), r"weight of shape \[3, 2\], the model has \[4, 2\]"),
        (
            nn.Sequential(nn.Linear(2, 3)),
            r"only saved \['weight', 'bias'\], only in the model \['0\.weight', '0\.bias'\]",
        ),
    ],
)
def test_another_model_is_refused(model, message):
    with pytest.raises(CheckpointError, match=message):
        check_model(nn.Linear(2, 3).state_dict(), model, "run")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_an_optimizer_of_the_same_kind_fits_whatever_its_values(kind):
    check_optimizer(saved_by(kind, 2, 1), kind(parameters(2, 1), lr=0.5, weight_decay=0.1), "run")


@pytest.mark.parametrize(
    ("saved", "present", "message"),
    [
        (
            torch.optim.Adagrad,
            torch.optim.SGD,
            r"another optimizer than SGD: only saved .*'initial_accumulator_value', 'lr_decay'\], only in .*'momentum'",
        ),
        (torch.optim.SGD, torch.optim.Adam, r"another optimizer than Adam: only saved .*'momentum'.*'betas'"),
        (torch.optim.Adam, torch.optim.Adagrad, "another optimizer than Adagrad"),
    ],
)
def test_an_optimizer_of_another_kind_is_refused(saved, present, message):
    with pytest.raises(CheckpointError, match=message):
        check_optimizer(saved_by(saved, 1), present(parameters(1), lr=0.1), "run")


def test_other_groups_are_refused():
    with pytest.raises(CheckpointError, match=r"\[2, 1\] parameters a group, this one has \[3\]"):
        check_optimizer(saved_by(torch.optim.SGD, 2, 1), torch.optim.SGD(parameters(3)), "run")


def test_schedulers_and_other_releases_of_torch_add_options():
    saved = saved_by(torch.optim.SGD, 1)
    saved["param_groups"][0] |= {"initial_lr": 0.1, "max_momentum": 0.9}
    del saved["param_groups"][0]["fused"]  # as of a release that did not have it
    check_optimizer(saved, torch.optim.SGD(parameters(1)), "run")
