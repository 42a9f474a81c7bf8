"""Training under mpirun and torchrun equals training in one process; a rank that is gone is named."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.support.criteo_text import write_lines
from tests.support.launch import mpirun, torchrun
from tests.support.rank_training import assert_equal_to_reference, train
from tests.support.rank_training_program import BROKEN_OFF, read

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1000)]

PROGRAM = str(Path(__file__).resolve().parents[1] / "support" / "rank_training_program.py")
GLOBAL_BATCH = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "train.txt"
    write_lines(path, 1210, seed=3, ids=40)
    return path


@pytest.fixture(scope="module")
def reference(data):
    return train(data, None, batch_size=GLOBAL_BATCH)


@pytest.mark.parametrize(
    ("launch", "ranks"), [(mpirun, 1), (mpirun, 2), (mpirun, 3), (mpirun, 4), (torchrun, 2), (torchrun, 4)]
)
def test_fifty_steps(data, reference, launch, ranks, tmp_path):
    done = launch(ranks, PROGRAM, "train", str(data), str(tmp_path), str(GLOBAL_BATCH // ranks))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [read(tmp_path / f"{rank}.npz") for rank in range(ranks)]
    assert_equal_to_reference(parts, reference, exact=ranks == 1)
    assert all(len(part["seen"]) == 50 for part in parts)


@pytest.mark.parametrize("launch", [mpirun, torchrun])
def test_hot_rows_two_levels_and_an_epoch_that_is_broken_off(data, launch, tmp_path):
    done = launch(4, PROGRAM, "levels", str(data), str(tmp_path), str(GLOBAL_BATCH // 4))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [read(tmp_path / f"{rank}.npz") for rank in range(4)]
    assert_equal_to_reference(parts, train(data, None, batch_size=GLOBAL_BATCH, **BROKEN_OFF))
    assert all(part["shared"] > 0 for part in parts) or not hasattr(os, "memfd_create")


@pytest.mark.parametrize("launch", [mpirun, torchrun])
@pytest.mark.parametrize(("what", "ranks"), [("stop", 3), ("kill", 3), ("kill_in_node", 4)])
def test_a_rank_that_is_gone_ends_the_others_with_its_name(data, what, ranks, launch, tmp_path):
    # A launcher that cleans up ends the others when one is killed: told not to, it mostly leaves it to them.
    options = {"options": ("-disable-auto-cleanup",)} if launch is mpirun and what != "stop" else {}
    started = time.monotonic()
    done = launch(ranks, PROGRAM, what, str(data), str(tmp_path), **options)
    assert done.returncode != 0
    assert time.monotonic() - started < 300  # a wait lasts 15 s, starting and ending on a busy machine a minute
    said = done.stdout + done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.txt"))
    named = re.search(r"(of|lost) ranks? ([023], )*1\b", said)  # beside others that are slow
    if what != "stop" and not named:  # a launcher that noticed first has ended the others before they could say it
        assert "Signal 9 (SIGKILL)" in said or "Killed (signal 9)" in said, said
    else:
        assert named, said
