"""The model of the links between ranks: read from a file, checked, or the built-in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.formats.checks import check_integer
from headrace.formats.plain_yaml import read_yaml

MAX_RANKS = 1 << 16

_MAX_FILE_BYTES = 1 << 16

_BOUNDS = {"gbit_per_s": (1e-6, 1e6), "latency_us": (0.0, 1e7), "message_us": (0.0, 1e7)}
"""A kilobit to a petabit a second; ten seconds. Times of any trace are then finite, and not all 0."""

ReduceScatter = Literal["ring", "all_reduce"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bandwidth of each direction, latency of a transfer, and what each further message of a rank costs."""

    gbit_per_s: float
    latency_us: float
    message_us: float = 1.0

    def __post_init__(self) -> None:
        for name in ("gbit_per_s", "latency_us", "message_us"):
            value, (least, most) = getattr(self, name), _BOUNDS[name]
            is_number = isinstance(value, Real) and not isinstance(value, bool) and value == value
            if not is_number:
                raise ValueError(f"{name}={_short(value)} is not a number")
            if not least <= value <= most:  # as they are: an integer may be too long for a float
                raise ValueError(f"{name}={_short(value)} is not from {least:g} to {most:g}")

    @property
    def bytes_per_s(self) -> float:
        return self.gbit_per_s * 1e9 / 8


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Nodes of `ranks_per_node` ranks; consecutive ranks share a node.

    inside: the link of a *rank* to the others of its node (NVLink); between: that of a *node* to the other nodes, which
    its ranks share. Both carry their bandwidth in each direction at once.
    overlap: share of the time of early rows and of deferred gradients that is hidden behind compute, 0 to 1. At 0
    every byte counts: the network is the limit. At 1 what may travel under the neighbouring steps costs nothing.
    reduce_scatter: how row-wise sharding reduces pooled vectors: "ring", as NCCL does, or "all_reduce", of which each
    rank keeps its part, as TorchRec over gloo does.
    """

    ranks_per_node: int
    inside: Link
    between: Link
    overlap: float = 0.0
    reduce_scatter: ReduceScatter = "ring"

    def __post_init__(self) -> None:
        check_integer("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS)
        if isinstance(self.overlap, bool) or not isinstance(self.overlap, Real) or not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap={_short(self.overlap)} is not a share from 0 to 1")
        if self.reduce_scatter not in get_args(ReduceScatter):
            raise ValueError(f"reduce_scatter={_short(self.reduce_scatter)} is not one of {get_args(ReduceScatter)}")

    @classmethod
    def from_dict(cls, data: object) -> LinkModel:
        """Read plain data; what is left out is that of :data:`DEFAULT_LINKS`. ValueError for unknown keys and values
        that are none."""
        given = dict(_mapping("a link model", data, cls))
        for name in ("inside", "between"):
            default: Link = getattr(DEFAULT_LINKS, name)
            own = _mapping(name, given.get(name, {}), Link)
            try:
                given[name] = Link(**{f.name: own.get(f.name, getattr(default, f.name)) for f in fields(Link)})
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return cls(**{f.name: given.get(f.name, getattr(DEFAULT_LINKS, f.name)) for f in fields(cls)})

    @classmethod
    def from_yaml(cls, path: str | Path) -> LinkModel:
        """Read a YAML or JSON file; ValueError names it and the key."""
        data = read_yaml(path, max_bytes=_MAX_FILE_BYTES)
        try:
            return cls.from_dict(data)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from None


DEFAULT_LINKS = LinkModel(
    ranks_per_node=8,
    inside=Link(gbit_per_s=2400.0, latency_us=3.0, message_us=0.5),
    between=Link(gbit_per_s=100.0, latency_us=10.0, message_us=1.0),
)
"""8 GPUs a node, NVLink inside (300 GB/s a GPU and direction), 100 Gbit/s between nodes."""


@dataclass(frozen=True)
class Topology:
    """N ranks on M nodes of g each: rank w is number w % g of node w // g."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return self.ranks // self.per_node

    @classmethod
    def of(cls, ranks: int, links: LinkModel) -> Topology:
        """ValueError unless the ranks fill whole nodes, or share one."""
        check_integer("ranks", ranks, 1, MAX_RANKS)
        per_node = min(ranks, links.ranks_per_node)
        if ranks % per_node:
            raise ValueError(
                f"{ranks} ranks do not fill nodes of {per_node}: take a multiple, or fewer than {per_node}"
            )
        return cls(ranks, per_node)


def _mapping(what: str, data: object, kind: type[Any]) -> Mapping[str, Any]:
    names = [f.name for f in fields(kind)]
    if not isinstance(data, Mapping):
        raise ValueError(f"{what} is a mapping with the keys {', '.join(names)}, got {type(data).__name__}")
    unknown = [key for key in data if key not in names]
    if unknown:
        raise ValueError(f"{what}: key {_short(unknown[0])} is unknown; known: {', '.join(names)}")
    return data


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} ... ({len(text)} characters)"
