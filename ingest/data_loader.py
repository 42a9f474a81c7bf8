"""DataLoader: the usual chain of nodes in one call, with the interface of torch's DataLoader."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal, NoReturn

from torchdata.nodes import BaseNode

from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_type
from headrace.formats.growing import GrowingFolder
from headrace.formats.reader import RowReader
from headrace.formats.rows import RowBlock
from headrace.formats.schema import Schema, check_schema
from headrace.formats.uninterrupted import uninterrupted
from headrace.indexer.columns import MAX_THREADS
from headrace.indexer.dit import DIT
from headrace.indexer.exchange.communicator import Communicator
from headrace.ingest.adapters.loader_dataset import LoaderDataset
from headrace.ingest.adapters.loader_node import LoaderNode
from headrace.ingest.batch import Batch
from headrace.ingest.batch_forms import join_torchrec
from headrace.ingest.engine.checks import check_int
from headrace.ingest.engine.errors import NodeInterruptedError
from headrace.ingest.engine.gate import Gate
from headrace.ingest.engine.node import Node
from headrace.ingest.engine.state import Snapshot, thaw
from headrace.ingest.engine.stats import NodeStats
from headrace.ingest.file_facts import files_facts
from headrace.ingest.loader_chain import (
    Ahead,
    Ranks,
    batched,
    evaluation_chain,
    nodes_of,
    row_source,
    sole_reader,
    training_chain,
)
from headrace.ingest.loader_state import STATE_KEYS, check_state, loader_state, other_options, part_of, place_in_data
from headrace.ingest.loader_stats import LoaderStats
from headrace.ingest.nodes.index import index_tables
from headrace.ingest.nodes.index_ranks import Uneven
from headrace.ingest.nodes.map_rows import Map
from headrace.ingest.nodes.plan_window import PlanSteps
from headrace.ingest.nodes.shuffle import Shuffle

MAX_TIMEOUT_S = 1_000_000
SHUFFLE_WINDOW_ROWS = 1 << 17

GROWING_IDLE_S = 1.0
"""`idle_s` of a loader over a growing folder, when none is given."""

Paths = str | PathLike[str] | list[str | PathLike[str]] | GrowingFolder


class DataLoader:
    """Iterate over a click log in batches that are already indexed and planned.

    Parameters
    ----------
    dataset
        Files (a path, a list, a glob or a directory of Criteo text, plain or ``.gz``, here or, as URIs, in a store; a
        :class:`GrowingFolder`), a reader, or a node that gives :class:`RowBlock`.
    batch_size
        Rows of a batch; the last one of an epoch may be shorter unless `drop_last`.
    shuffle
        Permute rows within windows of `shuffle_window_rows` rows, as a pure function of (`seed`, epoch). Off: the order
        of the files, the same in every epoch.
    schema
        Columns of the dataset.
    index
        The index table to look ids up in; a new one when not given. ``loader.index`` hands it to an evaluation loader.
        Only one loader at a time may read ahead into an index for training.
    train
        True: unseen ids get a row, and each batch carries a plan. False (evaluation, needs `index`): the index is read
        only, as it is when a batch is handed out; unknown ids are read as what they would be initialised with, and
        ``batch.plan`` is None. A batch that is kept does not learn of rows that come later: iterate anew for each
        evaluation.
    window, capacity, hot_rows, verify_plan
        See :class:`PlanWindow`. A number `hot_rows` that is too large for the arena or the first batches is cut without
        a warning: `stats` has the rows that are pinned (`r_rows`), `why_fewer_hot` says why.
    idle_s
        Hand out what the window holds when the source gave nothing for so many seconds (see :class:`PlanWindow`); None:
        a second for a growing folder, never for anything else. Rows that fill no batch yet are not handed out.
    num_workers
        Threads that decode and index. Results are the same for every number.
    prefetch_factor
        Finished batches that wait for the trainer.
    timeout
        Seconds that `next` may wait before it raises TimeoutError; 0 waits for ever.
    bad_records
        "raise" (the default), "skip", or a :class:`BadRecords` policy. A reader brings its own.
    communicator
        The ranks that train together (:func:`headrace.connect`); the index then holds the rows that this rank owns.
    shard
        Over ranks. True: all ranks are given the same dataset, and each takes `batch_size` rows of every global batch,
        which are those of one process with ``world_size * batch_size``, whatever the number of ranks. False: each rank
        has rows of its own.
    uneven
        Over ranks, when the rows of one end before those of others; see :class:`IndexRanks`.
    hot_every
        Over ranks `hot_rows` ("auto": none) are the rows of each layout that all ranks hold, so that nothing of them
        travels but gradients, all-reduced; they are chosen anew every so many steps.
    node_size
        Over ranks: how many share a node, one after the other. More than 1: they deduplicate together, so that a row
        crosses to another node once.
    transform
        A function RowBlock -> RowBlock, applied before batching.

    Iteration
    ---------
    Each ``iter(loader)`` starts the next epoch from its beginning; `set_epoch` chooses its number. One iterator is
    active at a time. The rows that a batch brings into the index become permanent when that batch is handed out;
    starting another epoch, `close` and `load_state_dict` undo those of batches that were read ahead only.
    """

    def __init__(
        self,
        dataset: Paths | RowReader[Any, Any] | BaseNode[RowBlock],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        schema: Schema,
        index: DIT | None = None,
        train: bool = True,
        window: int = 32,
        capacity: int | None = None,
        hot_rows: int | Literal["auto"] = "auto",
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        seed: int = 0,
        shuffle_window_rows: int = SHUFFLE_WINDOW_ROWS,
        bad_records: BadRecords | str | None = None,
        transform: Callable[[RowBlock], RowBlock] | None = None,
        verify_plan: bool = False,
        communicator: Communicator | None = None,
        shard: bool = True,
        uneven: Uneven = "short",
        hot_every: int = 100,
        node_size: int = 1,
        idle_s: float | None = None,
    ) -> None:
        _check_kinds(
            shuffle=(shuffle, bool), train=(train, bool), drop_last=(drop_last, bool),
            pin_memory=(pin_memory, bool), verify_plan=(verify_plan, bool), shard=(shard, bool),
        )  # fmt: skip
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a function RowBlock -> RowBlock, got {transform!r}")
        check_schema(schema)
        check_type("index", index, (DIT, type(None)), "a headrace.DIT, as the index of another loader")
        check_type("communicator", communicator, (Communicator, type(None)), "a headrace.Communicator, as of connect()")
        check_int("DataLoader", "seed", seed, minimum=0)
        check_int("DataLoader", "shuffle_window_rows", shuffle_window_rows, minimum=1)
        check_int("DataLoader", "hot_every", hot_every, minimum=1)
        check_int("DataLoader", "node_size", node_size, minimum=1)
        if not train and index is None:
            raise ValueError("train=False reads an index: pass index=loader.index of the training loader")
        self.batch_size = check_int("DataLoader", "batch_size", batch_size, minimum=1)
        self.num_workers = _check_workers(num_workers)
        self.drop_last = drop_last
        self.schema = schema
        self.index = index if index is not None else self._make_index(communicator)
        self._transformed = transform is not None
        self._shuffle: Shuffle | None = None
        self._plan: PlanSteps | None = None

        rows, self._read = row_source(dataset, schema, bad_records=bad_records, num_workers=self.num_workers)
        if transform is not None:
            rows = Map(rows, transform)
        if shuffle:
            rows = self._shuffle = Shuffle(rows, window_rows=shuffle_window_rows, seed=seed)
        over = communicator if shard else None
        batches = batched(rows, self.batch_size, drop_last=drop_last, sharded_over=over)
        self._counted = self._read or sole_reader(batches)  # also one that a node of one's own reads by
        timeout_s = _check_timeout(timeout)
        ranks = None
        self._facts: dict[str, object] | None = None  # that ranks compare at each start; those of the epoch are added
        self._sharded = shard
        if communicator is not None:
            facts = self._facts = {"shard": shard, **self._shared_source(shard)}
            if train:
                facts |= {
                    "window": window,
                    "shuffle": shuffle,
                    "seed": seed,
                    "shuffle_window_rows": shuffle_window_rows,
                }
            ranks = Ranks(communicator, uneven=uneven, node_size=node_size, hot_every=hot_every, facts=facts)
        self._root: Node[Batch]
        if train:
            ahead = Ahead(
                window=window,
                capacity=capacity,
                hot_rows=hot_rows,
                verify=verify_plan,
                idle_s=GROWING_IDLE_S if idle_s is None and self._grows else idle_s,
                num_workers=self.num_workers,
                prefetch_factor=prefetch_factor,
                pin_memory=pin_memory,
                timeout_s=timeout_s,
            )
            self._root, self._plan = training_chain(batches, schema, self.index, ahead, ranks)
        else:
            self._root = evaluation_chain(
                batches, schema, self.index, prefetch_factor=prefetch_factor, timeout_s=timeout_s, ranks=ranks
            )
        self._gate = Gate()  # of `next`
        self._under_way: _Place | None = (
            None  # what was handed out before the `next` that is under way, or was interrupted
        )
        self._lock = threading.RLock()  # of what follows; a signal handler may close the loader within
        self._epoch = 0  # of the next iteration
        self._running_epoch = 0
        self._batches = 0  # of the running epoch
        self._started = False
        self._active: _Run | None = None
        self._loaded: dict[str, Any] | None = None
        self._next_epoch = True  # whether a loaded state that turns out to be of an epoch's end starts the next one
        self._resuming: dict[str, Any] | None = None  # the loaded state, until a batch behind it was handed out
        self._stats = LoaderStats(reads=self._counted is not None)
        self._closed = False

    def _make_index(self, communicator: Communicator | None) -> DIT:
        rank = 0 if communicator is None else communicator.rank
        beside = _cores() - 1  # decoding and planning go on while the index works
        return DIT(index_tables(self.schema), num_threads=max(1, min(self.num_workers, beside)), owner_rank=rank)

    @property
    def _grows(self) -> bool:
        return self._read is not None and getattr(self._read.reader, "growing", None) is not None

    def _shared_source(self, shard: bool) -> dict[str, object]:
        """The files and sizes of batches, which must be alike where all ranks read the same rows."""
        if not shard:
            return {}
        facts: dict[str, object] = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self._read is not None:
            facts |= files_facts(self._read.reader)
        return facts

    def __len__(self) -> int:
        """Batches of an epoch, where the number of rows is known exactly; else TypeError."""
        reader = None if self._read is None else self._read.reader
        rows = reader.num_rows if reader is not None and not reader.may_skip and not self._transformed else None
        if rows is None:
            raise TypeError(
                "the number of batches is not known: it takes files with a manifest of row counts, bad_records='raise' "
                "and no transform"
            )
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        loaded = self._loaded
        if loaded is None:
            return self._iterate(self._epoch, None, 0)
        try:
            epoch = self._iterate(loaded["epoch"], loaded["pipeline"], loaded["batches"])
            self._resuming = loaded if loaded["pipeline"] is not None else None
            return epoch
        except BaseException:
            self._loaded = loaded  # a state that was refused, or interrupted, is loaded again
            raise

    def _iterate(self, epoch: int, pipeline: dict[str, Any] | None, batches: int) -> Iterator[Batch]:
        """The rest of an epoch behind `batches` batches, at the state `pipeline`; another iterator is ended."""
        if self._closed:
            raise RuntimeError("the loader is closed")
        self._end("another iterator was started")
        self._begin(epoch, pipeline, batches)
        self._loaded = self._resuming = None
        run = _Run()
        with self._lock:
            self._active = run
        return _Epoch(self, run)

    def _begin(self, epoch: int, pipeline: dict[str, Any] | None, batches: int) -> None:
        self._stats.end_epoch()  # before the reset sets the counters back
        if self._shuffle is not None:
            self._shuffle.set_epoch(epoch)
        if self._facts is not None:
            self._facts["the epoch"] = epoch
            if self._sharded:  # else the places are those of the ranks' own datasets
                rows_known = self._read is not None and not self._transformed
                self._facts["the place in the data"] = place_in_data(pipeline, batches, rows_known=rows_known)
        if self._started and self._under_way is None:
            self._under_way = self._place()  # if the reset is interrupted
        self._reset_nodes(pipeline)
        with uninterrupted():
            self._running_epoch = epoch
            self._epoch = epoch + 1
            self._batches = batches
            self._started = True
            self._under_way = None
            self._stats.begin_epoch(self._counted)

    def _reset_nodes(self, pipeline: dict[str, Any] | None) -> None:
        """Nodes name nodes that differ; what people chose are the options that made them."""
        try:
            self._root.reset(pipeline)
        except ValueError as error:
            words = None if pipeline is None else other_options(pipeline, (node.name for node in nodes_of(self._root)))
            if words is None:
                raise
            raise ValueError(f"DataLoader: {words} ({error})") from error

    @property
    def epoch(self) -> int:
        """Number of the epoch that is being iterated over, or, before and between epochs, of the next one."""
        return self._running_epoch if self._active is not None else self._epoch

    @property
    def epoch_to_come(self) -> int:
        """Number of the epoch that the next iteration begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Number of the next epoch (it seeds the shuffle); RuntimeError when a loaded state says where to go on.

        Over ranks it must be one on all of them: RankMismatchError when the epoch starts.
        """
        if self._loaded is not None:
            raise RuntimeError("load_state_dict() was called: the state says which epoch is continued")
        self._epoch = check_int("DataLoader", "epoch", epoch, minimum=0)

    def state_dict(self) -> dict[str, Any]:
        """Plain data: which rows were handed out. O(1), no rows in it.

        The index has a snapshot of its own (``loader.index.snapshot()``), which holds the rows of just those batches.
        """
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        between = self._active is None and self._epoch != self._running_epoch + 1  # set_epoch() since
        if self._started and not between:
            return self.running_state()
        return loader_state(self.schema.digest, epoch=self._epoch, batches=0, pipeline=None)

    def running_state(self) -> dict[str, Any]:
        """The state of the epoch that is being iterated over, or was last."""
        place = self._under_way
        if place is None:
            place = _Place(self._running_epoch, self._batches, self._root.get_state())
        return loader_state(self.schema.digest, epoch=place.epoch, batches=place.batches, pipeline=thaw(place.pipeline))

    def _place(self) -> _Place:
        """What was handed out up to now; for who is at the gate."""
        return _Place(self._running_epoch, self._batches, self._root._snapshot())

    def load_state_dict(self, state_dict: dict[str, Any], *, next_epoch: bool = True) -> None:
        """Continue behind the rows that `state_dict` says were handed out, from the next ``iter(loader)`` on.

        An iterator that is active is ended: its `next` raises RuntimeError. The state at the end of an epoch starts the
        next epoch, whole; with ``next_epoch=False`` it gives the end of its own first: no batch. Loading twice: the
        last one counts. The batch size may differ from the saved one. Over ranks with ``shard=True`` all load states of
        the same step, else of the same epoch: RankMismatchError when it starts.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        check_state(state_dict, self.schema.digest)
        loaded = copy.deepcopy({key: state_dict[key] for key in STATE_KEYS})
        self._end("load_state_dict() was called; start a new iterator")
        self._loaded = loaded
        self._next_epoch = next_epoch

    def _end(self, why: str) -> None:
        """End the active iteration: stop reading ahead, undo what was not handed out; bounded."""
        with self._lock:
            active, self._active = self._active, None
        if active is not None:
            active.ended = why
            self._root.close()  # the next reset opens it again

    def _next(self, run: _Run) -> Batch:
        if self._gate.mine:
            raise RuntimeError("next() was called from inside the loader itself")
        before: list[_Place] = []  # the place before the batch, once that is made
        try:
            return self._gate.run(
                "next", self._root.busy_timeout_s, partial(self._next_inside, run, before), self._busy
            )
        except BaseException:
            if before:  # a signal handler, on the way out: the batch does not reach the trainer
                self._under_way = before[0]
            raise

    def _busy(self) -> NoReturn:
        raise TimeoutError(f"next(): the loader is busy for {self._root.busy_timeout_s:g} s: {self._gate.holder()}")

    def _next_inside(self, run: _Run, made_behind: list[_Place]) -> Batch:
        if run.ended is not None:
            raise RuntimeError(run.ended)
        place = self._under_way
        if place is None:
            self._under_way = place = self._place()
        elif not self._root._over:
            raise NodeInterruptedError(_INTERRUPTED)
        batch = self._next_batch(run)
        made_behind.append(place)
        self._under_way = None  # the last line, behind which no signal handler is called: the batch is the trainer's
        return batch

    def _next_batch(self, run: _Run) -> Batch:
        begin = time.perf_counter()
        resuming = self._resuming
        try:
            batch = next(self._root)
            self._resuming = None
        except StopIteration:
            if resuming is not None and self._next_epoch:  # the state was saved at the very end of an epoch
                self._resuming = None
                self._begin(self._running_epoch + 1, None, 0)
                self._under_way = self._place()
                return self._next_batch(run)
            run.exhausted = True
            self._stats.end_epoch()
            with self._lock:
                if self._active is run:
                    self._active = None
            self._resuming = self._under_way = None
            raise
        except BaseException:
            self._loaded = resuming or self._loaded  # a state that turns out wrong only now is not forgotten either
            raise
        join_torchrec()
        self._batches += 1
        self._stats.add(batch, wait_s=time.perf_counter() - begin)
        return batch

    def stats(self) -> dict[str, Any]:
        """What was handed out since the loader was made, and how long the trainer waited for it.

        The keys of :class:`LoaderStats`, and `window`, `stale_reads` (None unless `verify_plan`), `index_rows`, and
        `fetched`: bytes, requests and retries of a store that is read by ranges (None of other files).
        """
        plan = self._plan
        store = getattr(self._counted.reader, "store", None) if self._counted is not None else None
        return {
            **self._stats.summary(),
            "window": None if plan is None else plan.window,
            "stale_reads": plan.stale_reads if plan is not None and plan.verify else None,
            "index_rows": len(self.index),
            "fetched": None if store is None else store.counts(),
        }

    def as_iterable_dataset(self) -> LoaderDataset:
        """The loader as a torch ``IterableDataset`` of batches, for what takes only that.

        ``torch.utils.data.DataLoader(dataset, batch_size=None)`` and torchdata's StatefulDataLoader (whose state then
        holds the loader's) iterate over it, and so does Lightning. `num_workers` must be 0 there: the threads are the
        loader's, and worker processes would each have an index of their own.
        """
        return LoaderDataset(self)

    def as_node(self) -> LoaderNode:
        """The loader as a node of batches, for ``torchdata.nodes.Loader`` and chains of torchdata's or our nodes.

        A node behind it that reads ahead makes batches count as handed out when it takes them.
        """
        return LoaderNode(self)

    def check_files(self, state_dict: dict[str, Any]) -> None:
        """ValueError when `state_dict` is of other files than this loader's; nothing is read or changed.

        The next ``iter(loader)`` after `load_state_dict` checks the same: this is for who does not iterate any more.
        """
        check_state(state_dict, self.schema.digest)
        read = self._counted
        if read is not None and (part := part_of(state_dict["pipeline"], read.name)) is not None:
            read.check_files(part)

    def totals(self) -> dict[str, float]:
        """The sums behind `stats`, as plain data that `restore_totals` takes; to be saved beside `state_dict`."""
        rows_in = rows_skipped = 0
        if self._counted is not None and self._started:
            part = part_of(self.running_state()["pipeline"], self._counted.name) or {}
            rows_in, rows_skipped = part.get("rows_in", 0), part.get("rows_skipped", 0)
        return self._stats.totals(rows_in=rows_in, rows_skipped=rows_skipped)

    def restore_totals(self, totals: Mapping[str, float]) -> None:
        """Let `stats` count on from `totals`, which were saved with the state that was loaded just before."""
        self._stats.restore(totals)

    @property
    def why_fewer_hot(self) -> tuple[str | None, ...]:
        """Of each row layout, why fewer rows are pinned than the number `hot_rows`, in words; None where as many are.

        Empty before the first batch, and without plans.
        """
        return () if self._plan is None else self._plan.why_fewer_hot

    @property
    def rows_handed_out(self) -> int:
        """Rows of the batches handed out since the loader was made, or since what `restore_totals` goes on from.

        Rows of padding (``uneven="pad"``) are left out.
        """
        return self._stats.rows

    @property
    def bytes_in(self) -> int:
        """Bytes (uncompressed) read of the files in this epoch, read ahead included; 0 with a node as the dataset."""
        return 0 if self._read is None else self._read.bytes_in

    def node_stats(self) -> list[NodeStats]:
        """Items, bytes, busy and waiting time of each node since its last reset, source first."""
        return self._root.all_stats()

    def close(self) -> None:
        """Stop all threads and undo what was not handed out; bounded time, idempotent. The index stays usable.

        A `next` that waits in another thread raises :class:`NodeClosedError`.
        """
        self._closed = True
        with self._lock:
            active, self._active = self._active, None
        if active is not None:
            active.ended = "the loader was closed"
        self._root.close()

    shutdown = close

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_INTERRUPTED = (
    "next() was interrupted half-way, and its batch may be lost, so that this iterator ends here: "
    "loader.load_state_dict(loader.state_dict()) and a new iter(loader) go on behind the last batch that was handed "
    "out, or begin another epoch with iter(loader)"
)


@dataclass(frozen=True)
class _Place:
    """`batches` of `epoch` were handed out, and the nodes' state is `pipeline`."""

    epoch: int
    batches: int
    pipeline: Snapshot | dict[str, Any]


class _Run:
    """What a loader and its iterator share, so that neither keeps the other alive in a cycle: `ended` says why."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self.exhausted = False


class _Epoch(Iterator[Batch]):
    """One pass over the loader."""

    def __init__(self, loader: DataLoader, run: _Run) -> None:
        self._loader = loader
        self._run = run

    def __next__(self) -> Batch:
        if self._run.exhausted:
            raise StopIteration
        return self._loader._next(self._run)


def _check_kinds(**arguments: tuple[object, type]) -> None:
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            raise TypeError(f"DataLoader: {name} is a {kind.__name__}, got {value!r}")


def _check_workers(num_workers: object) -> int:
    number = check_int("DataLoader", "num_workers", num_workers, minimum=0)
    if number > MAX_THREADS:
        raise ValueError(f"DataLoader: num_workers is at most {MAX_THREADS}, got {number}")
    return number


def _check_timeout(timeout: object) -> float | None:
    """Seconds, or None for no limit (0, as in torch)."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= MAX_TIMEOUT_S:
        raise ValueError(f"DataLoader: timeout is seconds from 0 (no limit) to {MAX_TIMEOUT_S}, got {timeout!r}")
    return float(timeout) or None
