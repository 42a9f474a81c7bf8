"""Memory that runs out within a block."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def address_space_left(num_bytes: int) -> Iterator[None]:
    """Within it this process may map no more than so many bytes beside what it has mapped."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
