"""Sums of segments of rows by torch's operators, in a stated order on every device.

A segment of up to `PIECE` rows is added up in order. A longer one is cut into pieces of `PIECE`, whose sums are added
up in the same way: an id that half of a large batch has would else be one long chain of additions. No atomics: a result
depends on the inputs alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.embed.arrays import I64

PIECE = 128


def segment_sums(values: Tensor, offsets: Tensor, counts: I64) -> Tensor:
    """float32 [S, dim]: the sums of the rows values[offsets[s] : offsets[s + 1]]; an empty one is 0.

    values float32 [n, dim]; offsets int64 [S + 1] from 0 to n on the device; `counts` int64 [S] are their differences,
    on the host.
    """
    while len(counts) and int(counts.max()) > PIECE:
        pieces = -(-counts // PIECE)
        values, offsets = _sums_of_pieces(values, offsets, int(pieces.sum()))
        counts = pieces
    return _sums(values, offsets)


def _sums_of_pieces(values: Tensor, offsets: Tensor, num_pieces: int) -> tuple[Tensor, Tensor]:
    """(sums of the pieces of all segments, offsets of the segments in them)."""
    pieces = torch.div(offsets[1:] - offsets[:-1] + (PIECE - 1), PIECE, rounding_mode="floor")
    first = torch.nn.functional.pad(pieces.cumsum(0), (1, 0))  # of each segment, and the end
    # which segment a piece is of; its number in it says where it begins
    segment = torch.repeat_interleave(pieces, output_size=num_pieces)
    number = torch.arange(num_pieces, device=values.device) - first[segment]
    begins = offsets[segment] + number * PIECE
    ends = torch.cat([begins, offsets[-1:]])
    return _sums(values, ends), first


def _sums(values: Tensor, offsets: Tensor) -> Tensor:
    if values.shape[0] == 0:
        return values.new_zeros((offsets.numel() - 1, values.shape[1]))
    # "unsafe" leaves out checks of the offsets that would wait for the device
    return torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True)
