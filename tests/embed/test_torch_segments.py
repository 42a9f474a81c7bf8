"""Sums of segments: in order up to a piece, piece by piece beyond."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.embed import torch_segments
from headrace.embed.torch_segments import PIECE, segment_sums


def sums(values, counts, device):
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    found = segment_sums(
        torch.from_numpy(values).to(device), torch.from_numpy(offsets).to(device), np.array(counts, np.int64)
    )
    assert found.device.type == device.type
    return found.cpu().numpy()


def in_order(values, counts, piece=PIECE):
    """The same sums one by one, in float32."""
    rows, at = [], 0
    for count in counts:
        terms = list(values[at : at + count])
        at += count
        while len(terms) > piece:
            terms = [sum(terms[i : i + piece], np.float32(0)) for i in range(0, len(terms), piece)]
        rows.append(sum(terms, np.zeros(values.shape[1], np.float32)))
    return np.array(rows, np.float32).reshape(-1, values.shape[1])


@pytest.mark.parametrize(
    "counts",
    [[], [0], [0, 0, 0], [1], [3, 0, 1], [0, PIECE, 0], [PIECE + 1], [2, 3 * PIECE, 0, 5], [PIECE * PIECE + 7, 1, 0]],
)
def test_sums_are_those_of_the_stated_order(counts, device, rng):
    values = rng.standard_normal((sum(counts), 3)).astype(np.float32)
    assert sums(values, counts, device).tolist() == in_order(values, counts).tolist()


@pytest.mark.parametrize("seed", range(30))
def test_random_segments_with_short_pieces(seed, device, monkeypatch):
    monkeypatch.setattr(torch_segments, "PIECE", 3)
    rng = np.random.default_rng(seed)
    counts = (rng.integers(0, 40, rng.integers(0, 9)) * (rng.random() < 0.8)).tolist()
    values = rng.standard_normal((sum(counts), 2)).astype(np.float32)
    assert sums(values, counts, device).tolist() == in_order(values, counts, piece=3).tolist()
