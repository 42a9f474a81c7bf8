"""Run by mpirun or torchrun: `train DATA OUT BATCH` (`levels` alike: hot rows, two levels, an epoch broken off), a run
whose parameters each rank writes to OUT/rank.npz; `kill DATA OUT`, `stop DATA OUT`: rank 1 is killed, or stopped, in
the middle; `kill_in_node DATA OUT`: killed while it hands rows on in its node."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import headrace
from headrace.indexer.exchange.node_memory import Outbox
from tests.support.rank_training import train

BROKEN_OFF = {"steps": 20, "epochs": 2}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "kill_in_node": signal.SIGKILL}
LEVELS = {**BROKEN_OFF, "hot_rows": 60, "hot_every": 7, "node_size": 2, "stage_options": {"check_replicas_every": 5}}


def write(path: Path, result: dict) -> None:
    keys = np.array([(t, int(m), i) for t, m, i in result["rows"]], np.uint64).reshape(-1, 3)
    dense = {f"dense_{k}": array for k, array in enumerate(result["dense"])}
    rows, shared = np.stack(list(result["rows"].values())), np.array(result["shared"])
    np.savez(path, keys=keys, rows=rows, seen=np.array(result["seen"]), shared=shared, **dense)


def read(path: Path) -> dict:
    with np.load(path) as arrays:
        keys = [(int(t), bool(m), int(i)) for t, m, i in arrays["keys"]]
        dense = [arrays[name] for name in sorted(arrays.files) if name.startswith("dense_")]
        rows = dict(zip(keys, arrays["rows"], strict=True))
        return {"rows": rows, "dense": dense, "seen": arrays["seen"].tolist(), "shared": int(arrays["shared"])}


def signal_at(step: int, number: signal.Signals):
    """A transform of a loader that sends its own process a signal when it is at a step."""

    def transform(block):
        transform.blocks += 1
        if transform.blocks == step:
            os.kill(os.getpid(), number)
        return block

    transform.blocks = 0
    return transform


def end_at_message(number: int) -> None:
    """Kill this process when it has written so many messages to others of its node, before it tells of the last."""
    publish = Outbox.publish

    def dying(outbox: Outbox, data):
        dying.messages += 1
        if dying.messages == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return publish(outbox, data)

    dying.messages = 0
    Outbox.publish = dying


if __name__ == "__main__":
    what, data, *rest = sys.argv[1:]
    with headrace.connect(timeout_s=300.0) as ranks:
        if what in SIGNALS:
            ranks.barrier()  # a machine that is busy starts them one after the other
            ranks.timeout_s = 15.0
            stop = {"node_size": 2} if what == "kill_in_node" else {}
            if ranks.rank == 1:
                if what == "kill_in_node":
                    end_at_message(6)
                else:
                    stop["transform"] = signal_at(2, SIGNALS[what])
            source = headrace.CriteoFiles(data, headrace.criteo_schema(dim=4), block_bytes=4096)
            try:
                train(source, ranks, batch_size=8, steps=1000, **stop)
            except BaseException as error:  # also to a file: a launcher may drop what it has not read of a rank
                Path(rest[0], f"{ranks.rank}.txt").write_text(str(error))
                raise
        else:
            options = {} if what == "train" else LEVELS
            result = train(data, ranks, batch_size=int(rest[1]), **options)
            result["shared"] = sum(map(sum, ranks.bytes_shared().values()))
            write(Path(rest[0]) / f"{ranks.rank}.npz", result)
