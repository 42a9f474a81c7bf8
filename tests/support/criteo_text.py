"""Small Criteo-shaped text for tests, and an independent reading of it in plain Python."""

from __future__ import annotations

import random
from pathlib import Path

NUM_DENSE, NUM_SPARSE = 13, 26


def random_line(rng: random.Random, *, ids: int) -> str:
    """One line: label, 13 integers, 26 hex ids out of `ids` a column, skewed; some of each missing."""
    dense = ["" if rng.random() < 0.2 else str(int(rng.expovariate(0.02)) - 2) for _ in range(NUM_DENSE)]
    sparse = []
    for column in range(NUM_SPARSE):
        rank = int(ids * rng.random() ** 3)
        value = (rank * 2654435761 + column * 40503) % 2**32
        sparse.append("" if rng.random() < 0.1 else f"{value:08x}")
    return "\t".join([str(int(rng.random() < 0.3)), *dense, *sparse])


def write_lines(path: Path, rows: int, *, seed: int = 0, ids: int = 50) -> list[str]:
    """Write `rows` random lines; returns them."""
    rng = random.Random(seed)
    lines = [random_line(rng, ids=ids) for _ in range(rows)]
    path.write_text("".join(line + "\n" for line in lines))
    return lines


def parse_line(line: str) -> tuple[float, list[int | None], list[int | None]]:
    """(label, dense, ids); None where missing."""
    fields = line.rstrip("\n").split("\t")
    assert len(fields) == 1 + NUM_DENSE + NUM_SPARSE
    dense = [int(v) if v else None for v in fields[1 : 1 + NUM_DENSE]]
    return float(fields[0]), dense, [int(v, 16) if v else None for v in fields[1 + NUM_DENSE :]]
