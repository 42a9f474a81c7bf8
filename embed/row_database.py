"""Rows as a database: for frameworks whose loops, gradients and devices are their own.

::

    with database.prefetch({"items": ids}) as ticket:   # which rows, deduplicated; released at the end
        rows = database.pull(ticket)["items"]           # float32 [U, dim]; ids[i] is row ticket.query_ids["items"][i]
        database.push(ticket, {"items": gradients})     # float32 [U, dim], any number of times
    database.update()                                   # one optimizer step on all that was pushed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch

from headrace.embed.arrays import F32, I64, U64, Bool, array_of, host_array
from headrace.embed.finite import first_not_finite, key_name
from headrace.embed.key_lookup import FindsRows, TableIds, TableRows, check_finds_rows, check_ids, find_rows
from headrace.embed.stage import EmbeddingStage
from headrace.formats.checks import check_flag, check_type
from headrace.formats.rows import Source
from headrace.indexer.indexed import ABSENT

OnNan = Literal["raise", "ignore"]


@dataclass(frozen=True, eq=False)
class RowTicket:
    """The rows of one :meth:`RowDatabase.prefetch`, in flight until it is released.

    For each table, `query_ids` int64 [n] is the position of each id in its U unique rows, in the order of `unique_ids`
    uint64 [U] and `missing` bool [U]. A query id means something with this ticket only.

    As a context manager it is released at the end of the block, on errors too, unless it was released within.
    """

    query_ids: Mapping[str, I64]
    unique_ids: Mapping[str, U64]
    missing: Mapping[str, Bool]
    rows: Mapping[str, TableRows] = field(repr=False)
    source: Source | None = field(default=None, repr=False)
    num_replaced: int = field(default=0, repr=False)
    """``stage.num_replaced`` when its places were looked up."""
    database: RowDatabase | None = field(default=None, repr=False)
    """Where it is in flight."""

    def __enter__(self) -> RowTicket:
        self._of_its_database().check_open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        database = self._of_its_database()
        if database.is_open(self):
            database.release(self)

    def _of_its_database(self) -> RowDatabase:
        if self.database is None:
            raise RuntimeError("a ticket of no database: RowDatabase.prefetch(ids) makes tickets")
        return self.database


class RowDatabase:
    """Pull rows and push gradients of a stage's tables by raw id; works beside the stage's own forward and step.

    Several tickets may be in flight; none outlives ``stage.forget_rows`` and the loading of a state. A pull gives the
    newest rows: those of the last `update` or stage step. Pushed gradients add up with each other and with those of the
    stage's backward, until `update` (or a step of the stage's optimizer, which is the same) applies them; they may be
    clipped before with :func:`~headrace.embed.clipping.clip_grad_norm_`.

    ``on_nan="raise"`` refuses gradients with a NaN or an infinity. One caller at a time.
    """

    def __init__(self, stage: EmbeddingStage, index: FindsRows, *, on_nan: OnNan = "raise") -> None:
        check_type("stage", stage, EmbeddingStage, "a headrace.EmbeddingStage")
        check_finds_rows(index)
        if not isinstance(on_nan, str) or on_nan not in ("raise", "ignore"):
            raise ValueError(f"on_nan={on_nan!r} is neither 'raise' nor 'ignore'")
        stage.use_index(index, "this RowDatabase")
        self.stage = stage
        self.index = index
        self.on_nan = on_nan
        self._open: dict[int, RowTicket] = {}

    @property
    def in_flight(self) -> int:
        """Tickets that are not released."""
        return len(self._open)

    def prefetch(
        self,
        ids: Mapping[str, Any],
        *,
        missing: Mapping[str, Any] | None = None,
        insert: bool = True,
        source: Source | None = None,
    ) -> RowTicket:
        """A ticket for ids (integers of up to 64 bits [n], any repetitions) of tables.

        `missing` bool [n] marks missing values, a row of their own. With `insert`, keys not seen before get rows, which
        cost no memory before their first update; without it they read as they would start, and cannot be pushed to,
        for as long as the ticket is in flight, also if they get rows meanwhile.
        `source` says which row of which file each id comes from, for errors, where all tables have as many ids.
        TypeError or ValueError for what is no id; RuntimeError while a loader that shares the index has read ahead.
        """
        self.stage.use_index(self.index, "this RowDatabase")
        check_flag("insert", insert)
        check_type("source", source, (Source, type(None)), "a headrace.Source, or None")
        _check_by_table("ids", ids, "{'items': ids}")
        if missing is not None:
            _check_by_table("missing", missing, "{'items': mask}")
        columns = {}
        for name, values in ids.items():
            array = check_ids(name, values)
            columns[name] = TableIds(array, _check_mask(name, (missing or {}).get(name), len(array)))
        unknown = set(missing or {}) - set(columns)
        if unknown:
            raise ValueError(f"missing: {sorted(unknown)[0]!r} has no ids")
        rows = find_rows(self.index, self.stage.schema, columns, self, insert=insert)
        ticket = RowTicket(
            query_ids={name: rows[name].query_ids for name in columns},
            unique_ids={name: rows[name].keys.ids for name in columns},
            missing={name: rows[name].keys.missing for name in columns},
            rows=rows,
            source=source,
            num_replaced=self.stage.num_replaced,
            database=self,
        )
        self._open[id(ticket)] = ticket
        return ticket

    def pull(self, ticket: RowTicket) -> dict[str, F32]:
        """The newest vectors of the ticket's unique rows, float32 [U, dim] a table; copies."""
        self.check_open(ticket)
        self._check_places(ticket)
        return {name: self.stage.read_vectors(rows.group, rows.keys) for name, rows in ticket.rows.items()}

    def push(self, ticket: RowTicket, grads: Mapping[str, Any]) -> None:
        """Add gradients float32 [U, dim] of the ticket's unique rows to the next :meth:`update`; some tables or all.

        ValueError for another shape or dtype, a table without rows in the ticket, a frozen one, or rows that do not
        exist; FloatingPointError that names table, id and, where known, file and row. Nothing is added then.
        """
        self.check_open(ticket)
        self._check_places(ticket)
        _check_by_table("grads", grads, "{'items': gradients}")
        checked = {name: self._check_gradients(ticket, name, values) for name, values in grads.items()}
        self.stage.add_gradients(
            [(ticket.rows[name].group, ticket.rows[name].keys, array) for name, array in checked.items()]
        )

    def update(self) -> None:
        """One optimizer step on all rows that have gradients; nothing, and no step, without any."""
        self.stage.optimizer().step()

    def release(self, ticket: RowTicket) -> None:
        """The ticket is done with; what was pushed stays. RuntimeError for one that is released already."""
        self.check_open(ticket)
        del self._open[id(ticket)]

    def is_open(self, ticket: RowTicket) -> bool:
        """Whether a ticket of this database is not released."""
        return self._open.get(id(ticket)) is ticket

    def check_open(self, ticket: RowTicket) -> None:
        """RuntimeError unless :meth:`is_open`, TypeError for what is no ticket."""
        if not isinstance(ticket, RowTicket):
            raise TypeError(f"a ticket is what prefetch(ids) gave, not a {type(ticket).__name__}")
        if not self.is_open(ticket):
            raise RuntimeError("this ticket was released, or is of another database: prefetch the ids again")

    def _check_places(self, ticket: RowTicket) -> None:
        if ticket.num_replaced != self.stage.num_replaced:
            raise RuntimeError(
                "rows were forgotten, or a state was loaded, since this ticket was made: other rows may be in its "
                "places; release it and prefetch the ids again"
            )

    def _check_gradients(self, ticket: RowTicket, name: str, values: Any) -> F32:
        """A contiguous copy of gradients that may be added."""
        if name not in ticket.rows:
            raise ValueError(f"gradients of table {name!r}, of which the ticket has no ids")
        if name in self.stage.frozen:
            raise ValueError(f"gradients of table {name!r}, which is frozen")
        keys, group = ticket.rows[name].keys, ticket.rows[name].group
        array = _array(name, values)
        wanted = (len(keys.ids), self.stage.layout.groups[group].dim)
        if array.dtype != np.float32 or array.shape != wanted:
            raise ValueError(
                f"table {name!r}: gradients of {array.dtype} {list(array.shape)}, not float32 {list(wanted)} "
                "as the ticket has unique rows"
            )
        absent = keys.locations == ABSENT
        if absent.any():
            key = key_name(self.stage.schema, keys, int(absent.argmax()))
            raise ValueError(f"gradient of {key}, which has no row: it was prefetched with insert=False")
        if self.on_nan == "raise" and (at := first_not_finite(array)) is not None:
            key = key_name(self.stage.schema, keys, at)
            raise FloatingPointError(f"gradient of {key} is not finite{_where(ticket, name, at)}")
        return np.array(array, np.float32, order="C")


def _array(name: str, values: Any) -> Any:
    if not isinstance(values, torch.Tensor):
        return array_of(values, f"table {name!r}: gradients")
    if values.dtype == torch.bfloat16:  # which NumPy has not
        raise ValueError(f"table {name!r}: gradients of torch.bfloat16, not float32: pass gradients.float()")
    try:
        return host_array(values)
    except RuntimeError as error:  # without memory, or conjugate
        raise ValueError(f"table {name!r}: gradients that are no plain array: {error}") from error


def _check_by_table(name: str, value: object, example: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a mapping from table, as {example}, not a {type(value).__name__}")


def _where(ticket: RowTicket, name: str, unique: int) -> str:
    query_ids = ticket.query_ids[name]
    if ticket.source is None or ticket.source.num_rows != len(query_ids):
        return ""
    row = int(np.flatnonzero(query_ids == unique)[0])
    file, line = ticket.source.locate(row)
    return f": position {row}, row {line} of {file}"


def _check_mask(name: str, mask: Any, count: int) -> Bool | None:
    if mask is None:
        return None
    array = array_of(mask, f"table {name!r}: flags of missing")
    if array.dtype != np.bool_ or array.shape != (count,):
        raise ValueError(f"table {name!r}: missing is {array.dtype} {list(array.shape)}, not bool [{count}]")
    return np.ascontiguousarray(array)
