"""Fixtures of the stage's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch


def _load_kit():
    name = "headrace_embed_test_kit"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("kit.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def kit():
    """Batches and plans without indexer and planner; see kit.py."""
    return _load_kit()


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each device that torch's kernels work on; a GPU where there is one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    return torch.device(request.param)
