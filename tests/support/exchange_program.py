"""Run by `mpirun -n N` or `torchrun`: the kit of communicators, from inside; exit code 0 if right.

`kit [CHUNK_BYTES]`; `missing`: the last rank never comes; `late`: messages come when their receiver has ended;
`never`, `failed`: rank 0 ends while it expects messages that do not come, `failed` as one that ends all.
"""

from __future__ import annotations

import os
import sys

import headrace
from tests.support.exchange_kit import check_all, check_missing_rank, expect_what_never_comes, leave_messages_under_way

if __name__ == "__main__":
    missing = sys.argv[1] == "missing"
    chunk_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with headrace.connect(timeout_s=300.0, chunk_bytes=chunk_bytes) as ranks:
        expected = "gloo" if "TORCHELASTIC_RUN_ID" in os.environ else "mpi"
        assert ranks.backend == (expected if ranks.world_size > 1 else "none") or ranks.backend == expected
        if missing:
            ranks.barrier()
            ranks.timeout_s = 5.0
            check_missing_rank(ranks, ranks.world_size - 1)
        elif sys.argv[1] == "late":
            leave_messages_under_way(ranks)
        elif sys.argv[1] in ("never", "failed"):
            expect_what_never_comes(ranks, failed=sys.argv[1] == "failed")
        else:
            check_all(ranks)
        if not missing or ranks.rank < ranks.world_size - 1:
            print(f"rank {ranks.rank} of {ranks.world_size}: right", flush=True)
