"""The index kernels that every behaviour is tested on."""

from __future__ import annotations

import pytest

from headrace.indexer._dit_py import PyDIT
from headrace.indexer.dit import DIT


@pytest.fixture(params=[DIT, PyDIT], ids=["native", "twin"])
def index_class(request: pytest.FixtureRequest) -> type[DIT]:
    return request.param
