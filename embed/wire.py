"""Vectors on the wire: float32, or 16 bits, at half the bytes and no longer exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from headrace.embed.arrays import F32
from headrace.indexer.exchange.channel import Array, Posts, UnderWay

WireType = Literal["float32", "bfloat16", "float16"]
_TYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Wire:
    """Posts float32 arrays in the wire's type. What a rank keeps for itself is never rounded."""

    def __init__(self, name: WireType = "float32") -> None:
        if name not in _TYPES:
            raise ValueError(f"wire={name!r} is none of {', '.join(_TYPES)}")
        self.name = name
        self._type = _TYPES[name]

    @property
    def bytes_per_value(self) -> int:
        return self._type.itemsize

    def room(self, channel: Posts, peer: int, shape: tuple[int, int]) -> F32:
        """An array to be written, and posted to `peer`: where it need not be packed, one of the channel's own."""
        return channel.room(peer, shape) if self._type == torch.float32 else np.empty(shape, np.float32)

    def post(self, channel: Posts, sends: Mapping[int, F32], receives: Mapping[int, F32], what: str) -> Arrival:
        """As :meth:`Posts.post`; the arrays of `receives` are whole after ``wait()`` of what is given."""
        if self._type == torch.float32:
            return Arrival(channel.post(sends, receives, what), {}, {}, self._type)
        others = {peer: array for peer, array in receives.items() if peer != channel.rank and array.size}
        packed = {peer: self._packed(array) for peer, array in sends.items() if peer != channel.rank and array.size}
        raw = {peer: np.empty(array.size * self.bytes_per_value, np.uint8) for peer, array in others.items()}
        return Arrival(channel.post(packed, raw, what), raw, others, self._type)

    def _packed(self, array: F32) -> Array:
        return torch.from_numpy(array).to(self._type).reshape(-1).view(torch.uint8).numpy()


class Arrival:
    """Arrays under way, in the wire's type until `wait`."""

    def __init__(
        self, posted: UnderWay, raw: Mapping[int, Array], into: Mapping[int, F32], wire_type: torch.dtype
    ) -> None:
        self._posted, self._raw, self._into, self._type = posted, raw, into, wire_type

    def wait(self) -> None:
        """As :meth:`UnderWay.wait`."""
        self._posted.wait()
        for peer, array in self._into.items():
            values = torch.from_numpy(self._raw[peer]).view(self._type)
            torch.from_numpy(array).reshape(-1).copy_(values)
