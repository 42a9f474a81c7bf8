"""Managed collision (MCH) of TorchRec beside the index, on the same generated stream; run by `make bench-peers`.

MCH keeps a table's raw ids sorted and finds them by binary search. `torchrec_mch_remap` is that search alone, over a
table that holds all ids of the stream; `torchrec_mch_train` is a training step's share: ids are noted as well, and
merged into the sorted table at the end of each pass. Both give rows of ids, duplicates included: MCH deduplicates
nothing. `headrace` deduplicates, looks up, inserts and commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import median

import click
import numpy as np
import torch
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from headrace.bench import popular_ids, preset_stream, whole_batches
from headrace.formats.schema import table_uid
from headrace.indexer.bench import Spread, Work, timed
from headrace.indexer.bench_contenders import Batch, Contender, IndexContender, Residents, numpy_values
from headrace.indexer.indexed import IndexTable


class MCHContender:
    """A managed collision module a table, which holds the residents and the ids of `batches`, and has room for them."""

    def __init__(self, residents: Residents, batches: Sequence[Batch], *, train: bool) -> None:
        self._modules = []
        for table, ids in enumerate(residents):
            held = np.unique(np.concatenate([ids, *(numpy_values(batch[table]) for batch in batches)]))
            module = MCHManagedCollisionModule(
                zch_size=len(held) + 1,  # the last row is that of ids it does not know
                device=torch.device("cpu"),
                eviction_policy=DistanceLFU_EvictionPolicy(),
                eviction_interval=1,
                input_hash_size=1 << 62,
            )
            module.train()
            rows = module(_feature(torch.from_numpy(held.astype(np.int64))))["ids"].values()
            if len(torch.unique(rows)) != len(held):
                raise RuntimeError(f"table {table}: MCH gives {len(torch.unique(rows))} rows to {len(held)} ids")
            module.train(train)
            module._eviction_interval = len(batches)  # merges once a pass; the history has room for the whole table
            self._modules.append(module)

    def prepare(self, batches: Sequence[Batch]) -> Callable[[], None]:
        inputs = [
            (c.table, _feature(torch.from_numpy(numpy_values(c).astype(np.int64)))) for batch in batches for c in batch
        ]

        def run() -> None:
            with torch.no_grad():
                for table, feature in inputs:
                    self._modules[table](feature)

        return run

    def close(self) -> None:
        self._modules.clear()


def _feature(ids: torch.Tensor) -> dict[str, JaggedTensor]:
    return {"ids": JaggedTensor(values=ids, lengths=torch.ones(len(ids), dtype=torch.int64))}


@click.command()
@click.option("--preset", default="criteo-terabyte", show_default=True)
@click.option("--rows", type=int, default=5_000_000, show_default=True)
@click.option("--batch-size", type=int, default=8192, show_default=True)
@click.option("--samples", type=int, default=131_072, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Of torch and of the index.")
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(preset: str, rows: int, batch_size: int, samples: int, threads: int, rounds: int, seed: int) -> None:
    """Print a JSON report."""
    torch.set_num_threads(threads)
    stream = preset_stream(preset, seed)
    residents, batches = popular_ids(stream, rows), whole_batches(stream, samples, batch_size)
    tables = [IndexTable(uid=table_uid(name), group=0) for name in stream.preset.sparse]
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {
            "headrace": IndexContender(tables, residents, num_threads=threads),
            "torchrec_mch_remap": MCHContender(residents, batches, train=False),
            "torchrec_mch_train": MCHContender(residents, batches, train=True),
        }
        for contender in contenders.values():
            stack.enter_context(closing(contender))
        seconds = timed(Work(batches, [batches] * rounds), contenders)
    total = sum(len(batch[0].values) for batch in batches)
    rates = {name: Spread.of(total, s) for name, s in seconds.items()}
    report = {
        "preset": preset,
        "rows": sum(map(len, residents)),
        "batch_size": batch_size,
        "threads": threads,
        "samples_per_s": {name: r.median for name, r in rates.items()},
        "ids_per_s": {name: r.median * len(tables) for name, r in rates.items()},
        "headrace_over": {
            name: median(b / a for a, b in zip(seconds["headrace"], s, strict=True)) for name, s in seconds.items()
        },
        "spread": {name: [r.minimum, r.maximum] for name, r in rates.items()},
        "rounds": rounds,
    }
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
