"""Run on each rank by `rank_group.py`: makes a contender, then takes orders from standard input, a line of JSON each.

The first line are settings; {"do": "train", "warm": w, "steps": n} makes w + n steps and answers with the moments at
which the last n ended, the bytes that this node's link sent and received, the payload that the contender counted
towards other nodes, by purpose, and the seconds of the parts of its steps.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from network_lab import interface_bytes
from rank_contenders import Contender, DenseAlone, Headrace, Job
from rank_streams import read_stream


def make(name: str, job: Job) -> Contender:
    if name.startswith("torchrec"):
        from rank_contenders_torchrec import TorchRec

        return TorchRec(job, sharding=name.removeprefix("torchrec_"))
    if name.startswith("costs"):
        from rank_costs import Costs

        return Costs(job)
    if name.startswith("headrace"):
        return Headrace(job)
    if name != "dense":
        raise ValueError(f"there is no contender {name!r}")
    return DenseAlone(job)


def train(contender: Contender, *, warm: int, steps: int) -> dict[str, Any]:
    dist.barrier()
    for _ in range(warm):
        contender.step()
    dist.barrier()
    sent, received = interface_bytes()
    payload, parts, cpu = contender.payload(), contender.parts(), _cpu_s()
    times = [time.monotonic()]  # one clock for all ranks: they are on one machine
    for _ in range(steps):
        contender.step()
        times.append(time.monotonic())
    dist.barrier()
    now_sent, now_received = interface_bytes()
    after = contender.payload()
    return {
        "times": times,
        "sent": now_sent - sent,
        "received": now_received - received,
        "payload": {purpose: n - payload.get(purpose, 0) for purpose, n in after.items()},
        "cpu_s": _cpu_s() - cpu,
        "parts": {part: s - parts[part] for part, s in contender.parts().items()},
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    settings = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=settings["timeout_s"])
    dist.init_process_group("gloo", timeout=timeout)
    stream = read_stream(Path(settings["stream"]))
    rank, node_size = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
    contender = make(sys.argv[1], Job(stream, rank, node_size, settings))
    dist.barrier()
    print(json.dumps({"rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(train(contender, warm=order["warm"], steps=order["steps"])), file=answers, flush=True)
    contender.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
