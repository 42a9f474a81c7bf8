"""A run that ends at its n-th removal of a name, as one that is killed there: no handler of errors sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


class Killed(BaseException):
    """In the place of a signal."""


def killed_at_removal(patch: pytest.MonkeyPatch, number: int, run: Callable[[], Any]) -> bool:
    """Run, and end it before it removes its name number `number`; whether it came so far."""
    removed = 0

    def counted(remove: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            nonlocal removed
            if removed == number:
                raise Killed
            removed += 1
            remove(*arguments, **options)

        return call

    with patch.context() as inner:
        for name in ("unlink", "rmdir"):
            inner.setattr(os, name, counted(getattr(os, name)))
        try:
            run()
        except Killed:
            return True
    return False
