import numpy as np
import pytest

from headrace.ingest.engine.checks import check_int, check_timeout_s


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, 0, -1, np.float32(2)])
def test_wrong_counts_are_refused_by_name(value: object) -> None:  # L63
    with pytest.raises(ValueError, match=r"Owner: batch_size is an integer of at least 1, got "):
        check_int("Owner", "batch_size", value, minimum=1)


@pytest.mark.parametrize("value", [1, 5, np.int32(7)])
def test_counts_become_ints(value: int) -> None:
    got = check_int("Owner", "n", value, minimum=1)
    assert type(got) is int
    assert got == value


@pytest.mark.parametrize("value", [0, -1, True, "1", float("nan")])
def test_wrong_timeouts_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="timeout_s is a positive number"):
        check_timeout_s("Owner", "timeout_s", value)


def test_timeouts_are_seconds_or_none() -> None:
    assert check_timeout_s("Owner", "timeout_s", None) is None
    assert check_timeout_s("Owner", "timeout_s", 2) == 2.0
