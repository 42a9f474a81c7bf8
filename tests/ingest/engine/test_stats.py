import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.rows import RowBlock, Source, SourceRange
from headrace.ingest.engine.stats import LatencyHistogram, item_bytes


def test_quantiles_of_known_durations() -> None:
    histogram = LatencyHistogram()
    for _ in range(90):
        histogram.add(0.001)
    for _ in range(10):
        histogram.add(0.1)
    assert histogram.quantile_ms(0.5) == pytest.approx(1.0, rel=0.2)
    assert histogram.quantile_ms(0.9) == pytest.approx(1.0, rel=0.2)
    assert histogram.quantile_ms(0.99) == pytest.approx(100.0, rel=0.2)


def test_no_samples_no_latency() -> None:
    assert LatencyHistogram().quantile_ms(0.5) == 0.0


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_at_most_a_bin_above_the_sorted_sample(durations: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for seconds in durations:
        histogram.add(seconds)
    exact_ms = np.quantile(durations, share, method="inverted_cdf") * 1e3
    got = histogram.quantile_ms(share)
    if 1e-3 < exact_ms < 1e8:
        assert exact_ms * (1 - 1e-9) <= got <= exact_ms * 2**0.25 * (1 + 1e-9)


def test_bytes_of_items_that_tell() -> None:
    data = pa.record_batch({"x": pa.array([1, 2, 3], pa.int64())})
    assert item_bytes(RowBlock(data, Source(("a",), (SourceRange(0, 0, 3),)))) == 24
    assert item_bytes(np.zeros(3, np.int32)) == 12
    assert item_bytes(torch.zeros(3)) == 12
    assert item_bytes(b"abc") == 3
    assert item_bytes(None) == 0
    assert item_bytes("abc") == 0


def test_asking_a_joined_block_for_its_bytes_does_not_join_it() -> None:
    parts = [pa.record_batch({"x": pa.array([n], pa.int64()), "y": pa.array([[n, n]])}) for n in range(2)]
    blocks = [RowBlock(part, Source(("a",), (SourceRange(0, n, 1),))) for n, part in enumerate(parts)]
    joined = RowBlock.concat(blocks)
    assert item_bytes(joined) == sum(part.nbytes for part in parts)
    assert [part.num_rows for part in joined.parts] == [1, 1]  # a copy of all rows would be one part
