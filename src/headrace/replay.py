"""A loader run over a dataset without a model: to its end, with a state on disk from which a killed run goes on.

A run with a state is a row of segments of `save_every` batches. At the end of each the state is written (the loader's
place, the index, the sums so far), and the loader goes on from just that state, as a run that was killed then would.
So what comes out, plans included, is the same however often a run is killed; only times differ.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.embed.abandoned import put_aside
from headrace.embed.run_folder import CheckpointError, read_folder, write_folder
from headrace.embed.sole_run import sole_run
from headrace.formats.target_path import follow_links
from headrace.ingest.batch import Batch
from headrace.ingest.data_loader import DataLoader

VERSION = 1
INDEX_FILE = "index.arrow"


@dataclass
class BatchDigest:
    """A digest of all that batches hold, their plans included, in their order; "" when it is not asked for."""

    value: str = ""

    def add(self, batch: Batch) -> None:
        hasher = hashlib.blake2b(self.value.encode(), digest_size=16)
        arrays = [batch.dense, *([batch.labels] if batch.labels is not None else [])]
        for group in batch.groups:
            arrays += [group.query_ids, group.lengths, group.unique_ids, group.unique_tables, group.missing]
            arrays += [group.locations, group.slots]
        for array in arrays:
            data = array.contiguous().numpy()
            hasher.update(f"{data.dtype.str}{data.shape};".encode())
            hasher.update(data.tobytes())
        if batch.plan is not None:
            hasher.update(batch.plan.digest().encode())
        self.value = hasher.hexdigest()


@dataclass
class ReplayState:
    """The folder of a run's state. `parameters` tell one run from another: a state of other ones is refused."""

    folder: Path
    save_every: int
    parameters: dict[str, Any]

    def load(self, loader: DataLoader, digest: BatchDigest) -> int:
        """Put the loader, its index (empty yet) and its sums where the state says; the number of epochs done."""
        folder = follow_links(self.folder)
        if not folder.exists() and put_aside(folder) is None:
            return 0
        restored = False

        def read(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
            nonlocal restored
            if restored:  # the index holds the rows of the one before
                raise CheckpointError(f"{folder}: another run replaced the state while it was read: run this one again")
            if meta.get("version") != VERSION or "replay" not in meta:
                raise CheckpointError(f"{folder}: not the state of a replay")
            if meta["parameters"] != self.parameters:
                found = meta["parameters"]
                names = sorted(k for k in {*found, *self.parameters} if found.get(k) != self.parameters.get(k))
                raise CheckpointError(
                    f"{folder}: the state is of a replay with other {', '.join(map(_named, names))}: give those "
                    "that it began with, or another folder"
                )
            try:
                loader.check_files(meta["replay"]["loader"])  # a run that is over reads nothing that would show it
            except ValueError as error:
                raise CheckpointError(
                    f"{folder}: the state is not of these files: give those that it began with, or another folder "
                    f"({error})"
                ) from error
            loader.index.read_snapshot(folder / INDEX_FILE)
            restored = True
            return meta

        saved = read_folder(self.folder, read)["replay"]
        loader.load_state_dict(saved["loader"], next_epoch=saved["ended"])
        loader.restore_totals(saved["totals"])
        digest.value = saved["digest"]
        return int(saved["epochs"])

    def save(self, loader: DataLoader, digest: BatchDigest, epochs: int, *, ended: bool) -> None:
        """Write the state as of the batches handed out, in one step, then put the loader just there.

        ended: the last of the `epochs` ended with these batches
        """
        state, totals = loader.state_dict(), loader.totals()
        loader.load_state_dict(state, next_epoch=ended)  # ends the iteration: what was read ahead is undone
        loader.restore_totals(totals)
        replay = {"loader": state, "totals": totals, "digest": digest.value, "epochs": epochs, "ended": ended}
        meta = {"version": VERSION, "parameters": self.parameters, "replay": replay}
        write_folder(self.folder, meta, lambda folder: loader.index.write_snapshot(folder / INDEX_FILE))


def _named(parameter: str) -> str:
    """A parameter, with the options of the command line that make it."""
    options = "--schema, --dim, --no-labels" if parameter == "schema" else f"--{parameter.replace('_', '-')}"
    return f"{parameter} ({options})"


@dataclass
class Replay:
    """`epochs` passes over what a loader gives.

    `progress` is called after each batch with the epochs done, `on_batch` for each batch with them.
    """

    loader: DataLoader
    epochs: int = 1
    state: ReplayState | None = None
    digest: BatchDigest | None = None
    progress: Callable[[int], None] = lambda epochs_done: None
    on_batch: Callable[[Batch, int], None] = lambda batch, epochs_done: None
    _done: int = field(default=0, init=False)

    def run(self) -> dict[str, Any]:
        """Run to the end; the loader's statistics, of all runs that this one continues, and `batches_digest`.

        FileExistsError while another run keeps its state in the same folder.
        """
        with contextlib.nullcontext() if self.state is None else sole_run(self.state.folder):
            return self._run()

    def _run(self) -> dict[str, Any]:
        digest = self.digest or BatchDigest()
        if self.state is not None:
            self._done = self.state.load(self.loader, digest)
        while self._done < self.epochs:
            ended = self._segment(digest)
            self._done += ended
            if self.state is not None:
                self.state.save(self.loader, digest, self._done, ended=ended)
        return {**self.loader.stats(), "batches_digest": digest.value if self.digest is not None else None}

    def _segment(self, digest: BatchDigest) -> bool:
        """Batches up to the next state; whether the epoch is over."""
        limit = None if self.state is None else self.state.save_every
        for number, batch in enumerate(self.loader, start=1):
            if self.digest is not None:
                digest.add(batch)
            self.on_batch(batch, self._done)
            self.progress(self._done)
            if number == limit:
                return False
        return True
