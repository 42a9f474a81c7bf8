"""What a dataset's columns are: declared once, never inferred.

A :class:`Schema` names the label, dense and sparse columns of a dataset and the embedding tables that the
sparse ones look into. Every part is plain data: it can be written in code or in YAML, compared, hashed and stored
beside a model. Unknown keys are refused, since a misspelt option that is ignored costs a training run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from headrace.formats.checks import check_type
from headrace.formats.plain_yaml import read_yaml

Encoding = Literal["hex32", "hex64", "uint64", "int64"]
DenseType = Literal["int64", "float32"]
DenseTransform = Literal["identity", "log1p", "log_plus_3", "standardise"]
Pooling = Literal["sum", "mean", "none"]
MissingId = Literal["key", "drop", "raise", "zero"]
Side = Literal["first", "last"]
Bucketing = Literal["boundaries", "log_square"]
RowType = Literal["float32"]
OptimizerName = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]

OPTIMIZER_STATE_FLOATS: dict[str, int] = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 0, "adam": 0}
"""Single float32 values of optimizer state that a row carries behind its vector."""

OPTIMIZER_STATE_VECTORS: dict[str, int] = {"sgd": 0, "rowwise_adagrad": 0, "adagrad": 1, "adam": 2}
"""Vectors of optimizer state, of the row's own dim, that a row carries behind its vector."""

MOST_TABLES_NAMED = 3
"""Of a row layout, where it is told in words."""


def optimizer_state_floats(optimizer: str, dim: int) -> int:
    """float32 values of optimizer state of a row of `dim` values."""
    return OPTIMIZER_STATE_FLOATS[optimizer] + OPTIMIZER_STATE_VECTORS[optimizer] * dim


_SPARSE_ARROW: dict[str, pa.DataType] = {
    "hex32": pa.uint32(),
    "hex64": pa.uint64(),
    "uint64": pa.uint64(),
    "int64": pa.int64(),
}
_DENSE_ARROW: dict[str, pa.DataType] = {"int64": pa.int64(), "float32": pa.float32()}


class SchemaError(ValueError):
    """A schema that contradicts itself; the message names the column or table."""


def _check_choice(owner: str, name: str, value: object, choices: Any) -> None:
    allowed = get_args(choices)
    if not isinstance(value, str) or value not in allowed:
        raise SchemaError(f"{owner}: {name}={value!r} is not one of {', '.join(map(repr, allowed))}")


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{kind}: a name is a non-empty string, got {name!r}")


def _number(owner: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SchemaError(f"{owner}={value!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SchemaError(f"{owner}={value!r} is not finite")
    return number


def _check_limit(owner: str, name: str, value: object, most: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most):
        raise SchemaError(f"{owner}: {name}={value!r} is not an integer from 1 to {most}")


def _names(owner: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SchemaError(f"{owner}={value!r} is not a list of names")
    names = tuple(value)
    if any(not isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise SchemaError(f"{owner}={list(names)!r} is not a list of different names")
    return names


def _ascending(owner: str, value: Any) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SchemaError(f"{owner}={value!r} is not a list of numbers")
    numbers = tuple(_number(owner, number) for number in value)
    if any(low >= high for low, high in pairwise(numbers)):
        raise SchemaError(f"{owner}={list(numbers)!r} does not ascend")
    return numbers


@lru_cache(maxsize=1 << 14)
def table_uid(name: str) -> int:
    """Stable unsigned 32-bit identity of a table: the first 4 bytes (little endian) of BLAKE2b of its name.

    It depends on the name alone, so that adding a table to a schema changes no row of another table.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label column, float32: 0 or 1 in every row, or, with ``binary=False``, any finite number (a regression target).

    It is what files and pipelines may give: what a transform makes of a label has to be finite only. Criteo's
    tab-separated text and Ali-CCP's skeletons hold 0 or 1 alone, and refuse ``binary=False``.
    """

    name: str
    binary: bool = True

    def __post_init__(self) -> None:
        _check_name("label", self.name)
        if not isinstance(self.binary, bool):
            raise SchemaError(f"label {self.name!r}: binary={self.binary!r} is not a bool")


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense column: `dtype` on disk, float32 in a batch.

    A missing value is null in the record batch and becomes `fill` in the batch (before `transform`). The constants of
    transforms are those of the dataset, so that a value becomes the same in every file, and what comes out is finite:

    - ``"log1p"``: ``log(1 + max(x, 0))``, the rule of MLPerf's DLRM v1;
    - ``"log_plus_3"``: ``log(max(x, -2) + 3)``, that of NVIDIA's and TorchRec's preprocessing;
    - ``"standardise"``: ``(x - mean) / std``, kept within float32.
    """

    name: str
    dtype: DenseType = "int64"
    fill: float = 0.0
    transform: DenseTransform = "identity"
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_name("dense", self.name)
        owner = f"dense {self.name!r}"
        _check_choice(owner, "dtype", self.dtype, DenseType)
        _check_choice(owner, "transform", self.transform, DenseTransform)
        for name in ("fill", "mean", "std"):
            object.__setattr__(self, name, _number(f"{owner}: {name}", getattr(self, name)))
        if self.std <= 0:
            raise SchemaError(f"{owner}: std={self.std!r} is not over 0")
        if self.transform != "standardise" and (self.mean, self.std) != (0.0, 1.0):
            raise SchemaError(f"{owner}: mean and std are for transform='standardise', not {self.transform!r}")

    @property
    def arrow_type(self) -> pa.DataType:
        return _DENSE_ARROW[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """A categorical column (a feature): 64-bit ids after decoding; every bit pattern is legal.

    `table` is the name of the table it looks into (its own name when not given). ``missing="key"`` gives the missing
    value a row of its own, distinct from id 0; ``"drop"`` gives it no row; ``"raise"`` makes it a bad record;
    ``"zero"`` takes it for id 0, as DLRM's and TorchRec's preprocessing does.
    ``multi_hot`` columns are Arrow lists. Of a list longer than `max_length` only the `keep` ("first" or "last") ids
    are taken, counted after missing ones were dropped.

    A feature with `cross` or `bucket_of` is in no file: it is made from other columns when a batch is indexed, and its
    ids are unsigned 64-bit words.

    - ``cross=("user", "category")``: a hash of the ids of features declared before it, one id a row each. A missing
      part takes part as a value of its own; with ``missing="drop"`` or ``"raise"`` it makes the cross a missing value.
    - ``bucket_of="price"``: the bucket of a dense column's value (before its transform, missing where that is). With
      ``boundaries=(10, 100)`` it is the number of boundaries that are not above the value; with
      ``bucketing="log_square"`` floor(ln(x)^2) for x > 2, else x without its fraction.

    `modulo` takes ids modulo a number (off unless given), as published results with tables of fixed size do; two ids
    may then share a row.
    """

    name: str
    table: str = ""
    encoding: Encoding = "hex32"
    pooling: Pooling = "sum"
    multi_hot: bool = False
    missing: MissingId = "key"
    max_length: int | None = None
    keep: Side = "last"
    modulo: int | None = None
    cross: tuple[str, ...] = ()
    bucket_of: str = ""
    boundaries: tuple[float, ...] = ()
    bucketing: Bucketing = "boundaries"

    def __post_init__(self) -> None:
        _check_name("sparse", self.name)
        owner = f"sparse {self.name!r}"
        _check_choice(owner, "encoding", self.encoding, Encoding)
        _check_choice(owner, "pooling", self.pooling, Pooling)
        _check_choice(owner, "missing", self.missing, MissingId)
        if not isinstance(self.multi_hot, bool):
            raise SchemaError(f"{owner}: multi_hot={self.multi_hot!r} is not a bool")
        if not isinstance(self.table, str):
            raise SchemaError(f"{owner}: table={self.table!r} is not the name of a table")
        if not self.table:
            object.__setattr__(self, "table", self.name)
        _check_choice(owner, "keep", self.keep, Side)
        _check_limit(owner, "max_length", self.max_length, _MAX_LENGTH)
        _check_limit(owner, "modulo", self.modulo, 2**63)
        if self.max_length is not None and not self.multi_hot:
            raise SchemaError(f"{owner}: max_length is for lists; declare it multi_hot")
        if self.max_length is None and self.keep != "last":
            raise SchemaError(f"{owner}: keep={self.keep!r} without max_length: nothing is cut off")
        self._check_source(owner)

    def _check_source(self, owner: str) -> None:
        _check_choice(owner, "bucketing", self.bucketing, Bucketing)
        object.__setattr__(self, "cross", _names(f"{owner}: cross", self.cross))
        object.__setattr__(self, "boundaries", _ascending(f"{owner}: boundaries", self.boundaries))
        if not isinstance(self.bucket_of, str):
            raise SchemaError(f"{owner}: bucket_of={self.bucket_of!r} is not the name of a dense column")
        if len(self.cross) == 1:
            raise SchemaError(f"{owner}: cross={list(self.cross)!r}; a cross takes two features or more")
        if self.cross and self.bucket_of:
            raise SchemaError(f"{owner}: either cross or bucket_of says where its ids come from, not both")
        if (self.bucketing == "boundaries" and bool(self.bucket_of)) != bool(self.boundaries):
            raise SchemaError(f"{owner}: bucket_of with bucketing='boundaries' goes together with boundaries")
        if self.bucketing != "boundaries" and not self.bucket_of:
            raise SchemaError(f"{owner}: bucketing={self.bucketing!r} without bucket_of")
        if self.derived:
            if self.multi_hot:
                raise SchemaError(f"{owner}: a cross or bucket is one id a row, not multi_hot")
            object.__setattr__(self, "encoding", "uint64")

    @property
    def derived(self) -> bool:
        """Whether its ids are made from other columns, and are in no file."""
        return bool(self.cross or self.bucket_of)

    @property
    def arrow_type(self) -> pa.DataType:
        element = _SPARSE_ARROW[self.encoding]
        return pa.list_(element) if self.multi_hot else element


@dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table: rows of `dim` values of `dtype`, updated by `optimizer`. It has no size: it grows."""

    name: str
    dim: int = 16
    dtype: RowType = "float32"
    optimizer: OptimizerName = "rowwise_adagrad"

    def __post_init__(self) -> None:
        _check_name("table", self.name)
        owner = f"table {self.name!r}"
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or not 1 <= self.dim <= 65_536:
            raise SchemaError(f"{owner}: dim={self.dim!r} is not an integer from 1 to 65536")
        _check_choice(owner, "dtype", self.dtype, RowType)
        _check_choice(owner, "optimizer", self.optimizer, OptimizerName)

    @property
    def uid(self) -> int:
        return table_uid(self.name)

    @property
    def layout_key(self) -> tuple[int, str, str]:
        return (self.dim, self.dtype, self.optimizer)


@dataclass(frozen=True)
class Group:
    """The features and tables of one row layout; a batch has one block of arrays for each group.

    `features` and `tables` are positions in ``Schema.sparse`` and ``Schema.tables``, in schema order.
    """

    ordinal: int
    dim: int
    dtype: RowType
    optimizer: OptimizerName
    features: tuple[int, ...]
    tables: tuple[int, ...]

    @property
    def state_floats(self) -> int:
        """float32 values of optimizer state a row."""
        return optimizer_state_floats(self.optimizer, self.dim)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: its vector and its optimizer state."""
        return 4 * (self.dim + self.state_floats)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Columns and tables of a dataset.

    Tables that a sparse column names but that are not given get the defaults of :class:`Table`. A table that no
    column uses is refused. Features that share a table share its rows.
    """

    labels: tuple[Label, ...] = ()
    dense: tuple[Dense, ...] = ()
    sparse: tuple[Sparse, ...] = ()
    tables: tuple[Table, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, kind in (("labels", Label), ("dense", Dense), ("sparse", Sparse), ("tables", Table)):
            parts = getattr(self, name)
            if not isinstance(parts, Collection) or isinstance(parts, (str, bytes, Mapping)):
                parts = (parts,)
            for part in parts:
                check_type(f"each of {name}", part, kind, f'a headrace.{kind.__name__}, as {kind.__name__}(name="x")')
            object.__setattr__(self, name, tuple(parts))
        _refuse_duplicates("column", (c.name for kind in (self.labels, self.dense, self.sparse) for c in kind))
        _refuse_duplicates("table", (t.name for t in self.tables))
        given = {t.name: t for t in self.tables}
        used = dict.fromkeys(s.table for s in self.sparse)
        unused = [name for name in given if name not in used]
        if unused:
            raise SchemaError(f"table {unused[0]!r} is used by no sparse column")
        object.__setattr__(self, "tables", tuple(given.get(n) or Table(name=n) for n in used))
        _refuse_uid_collisions(self.tables)
        _check_derived(self)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in the order of a record batch: labels, dense, and the sparse ones that files hold."""
        return tuple(c.name for kind in (self.labels, self.dense, self.stored_sparse) for c in kind)

    @property
    def stored_sparse(self) -> tuple[Sparse, ...]:
        """The sparse columns that files hold: all but crosses and buckets, which are made from others."""
        return tuple(s for s in self.sparse if not s.derived)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Row layouts in the order of their first feature."""
        table_of = {t.name: i for i, t in enumerate(self.tables)}
        by_layout: dict[tuple[int, str, str], list[int]] = {}
        for position, feature in enumerate(self.sparse):
            by_layout.setdefault(self.tables[table_of[feature.table]].layout_key, []).append(position)
        return tuple(
            Group(
                ordinal=ordinal,
                dim=dim,
                dtype=dtype,  # type: ignore[arg-type]
                optimizer=optimizer,  # type: ignore[arg-type]
                features=tuple(positions),
                tables=tuple(dict.fromkeys(table_of[self.sparse[p].table] for p in positions)),
            )
            for ordinal, ((dim, dtype, optimizer), positions) in enumerate(by_layout.items())
        )

    def layout_in_words(self, group: Group) -> str:
        """A row layout by its tables, as reports and errors name it."""
        names = [repr(self.tables[t].name) for t in group.tables]
        more = f" and {len(names) - MOST_TABLES_NAMED} more" if len(names) > MOST_TABLES_NAMED else ""
        tables = f"table{'s' * (len(names) > 1)} {', '.join(names[:MOST_TABLES_NAMED])}{more}"
        return f"{tables} (dim {group.dim}, {group.optimizer})"

    def arrow_schema(self, *, labels: bool = True) -> pa.Schema:
        """Schema of a record batch: labels (float32), dense, sparse, in this order; a null is a missing value."""
        columns = [pa.field(c.name, pa.float32(), nullable=False) for c in self.labels] if labels else []
        columns += [pa.field(c.name, c.arrow_type) for c in self.dense]
        columns += [pa.field(c.name, c.arrow_type) for c in self.stored_sparse]
        return pa.schema(columns)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Plain data that :meth:`from_dict` reads back to an equal schema.

        Options of :data:`_LATER_OPTIONS` stand in it only where they are not the default, so that schemas without them
        keep their digests.
        """
        return {kind.name: [_plain(item) for item in getattr(self, kind.name)] for kind in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Read plain data; an unknown key or a missing name raises :class:`SchemaError`."""
        kinds: dict[str, type[Any]] = {"labels": Label, "dense": Dense, "sparse": Sparse, "tables": Table}
        if not isinstance(data, Mapping):
            raise SchemaError(f"a schema is a mapping with the keys {', '.join(kinds)}, got {type(data).__name__}")
        _refuse_unknown("schema", data, kinds)
        return cls(**{k: tuple(_from_items(kind, k, data.get(k) or ())) for k, kind in kinds.items()})

    @classmethod
    def from_yaml(cls, path: str | Path) -> Schema:
        """Read a YAML file; SchemaError names it, for what is no plain data (see `plain_yaml.py`), too."""
        try:
            data = read_yaml(path)
        except ValueError as error:
            raise SchemaError(str(error)) from error
        try:
            return cls.from_dict(data)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None

    @property
    def digest(self) -> str:
        """Hex digest that differs when any column, table or option differs."""
        return hashlib.blake2b(repr(self.to_dict()).encode(), digest_size=16).hexdigest()


_MAX_LENGTH = 2**31 - 1

_LATER_OPTIONS = frozenset(
    {"binary", "mean", "std", "max_length", "keep", "modulo", "cross", "bucket_of", "boundaries", "bucketing"}
)
"""Options that came after schemas were first stored beside models."""


def _plain(item: Any) -> dict[str, Any]:
    options = {f.name: (getattr(item, f.name), f.default) for f in fields(item)}
    kept = {name: value for name, (value, usual) in options.items() if name not in _LATER_OPTIONS or value != usual}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


_Item = TypeVar("_Item")


def _from_items(kind: type[_Item], key: str, items: Any) -> Iterable[_Item]:
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    if isinstance(items, (str, Mapping)) or not isinstance(items, Iterable):
        raise SchemaError(f"{key} is a list, got {type(items).__name__}")
    for item in items:
        options = {"name": item} if isinstance(item, str) else item
        if not isinstance(options, Mapping):
            raise SchemaError(f"{key}: an entry is a name or a mapping, got {item!r}")
        _refuse_unknown(key, options, names)
        if "name" not in options:
            raise SchemaError(f"{key}: an entry has no name: {dict(options)!r}")
        yield kind(**options)


def _refuse_unknown(owner: str, data: Mapping[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for key in data:
        if key not in known:
            raise SchemaError(f"{owner}: unknown key {key!r}; known keys: {', '.join(known)}")


def _refuse_duplicates(kind: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"{kind} {name!r} is declared twice")
        seen.add(name)


def _check_derived(schema: Schema) -> None:
    """SchemaError for a cross of what is no one-hot feature before it, or a bucket of what is no dense column."""
    before: dict[str, Sparse] = {}
    dense = {d.name for d in schema.dense}
    for feature in schema.sparse:
        owner = f"sparse {feature.name!r}"
        if feature.bucket_of and feature.bucket_of not in dense:
            raise SchemaError(f"{owner}: bucket_of={feature.bucket_of!r} is no dense column")
        for part in feature.cross:
            if part not in before:
                raise SchemaError(f"{owner}: cross of {part!r}, which is no sparse column declared before it")
            if before[part].multi_hot:
                raise SchemaError(f"{owner}: cross of {part!r}, which is multi_hot")
        before[feature.name] = feature


def _refuse_uid_collisions(tables: Iterable[Table]) -> None:
    by_uid: dict[int, str] = {}
    for table in tables:
        other = by_uid.setdefault(table.uid, table.name)
        if other != table.name:
            raise SchemaError(f"tables {other!r} and {table.name!r} have the same 32-bit uid; rename one of them")


def check_schema(schema: object) -> None:
    """TypeError unless it is a :class:`Schema`."""
    wanted = (
        "a headrace.Schema (made in Python, by Schema.from_dict(mapping) or Schema.from_yaml(path), or a dataset's "
        "own, as criteo_schema())"
    )
    check_type("schema", schema, Schema, wanted)
