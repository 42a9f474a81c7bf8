"""What commands write to pipes: read whole, woken, and never another file's descriptor."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import pytest

from headrace.formats.command_store import CommandStore
from headrace.formats.errors import ReadInterruptedError


def test_an_interrupt_after_the_close_writes_to_nobody() -> None:
    """It wrote a byte into whatever file had got the descriptor."""
    store = CommandStore(("pipe",))
    file = store.open("pipe:echo hello")
    assert file.read(100) == b"hello\n"
    file.close()
    file.close()
    others = [tempfile.TemporaryFile() for _ in range(8)]  # noqa: SIM115 (closed below)
    store.interrupt()
    assert [os.fstat(other.fileno()).st_size for other in others] == [0] * 8
    for other in others:
        other.close()
    with pytest.raises(ValueError, match="closed file"):
        file.read(1)


def test_with_a_thousand_files_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        store = CommandStore(("pipe",))
        with store.open("pipe:echo hello") as file:
            assert file.read(100) == b"hello\n"
        with store.open("pipe:sleep 100") as file:
            store.interrupt()
            with pytest.raises(ReadInterruptedError):
                file.read(1)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_command_that_writes_and_then_ends(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "x").write_bytes(data)
    with CommandStore(("pipe",)).open(f"pipe:cat {tmp_path / 'x'}") as file:
        assert file.readall() == data
