"""Speed of decoding Criteo text, plain and gzip, beside bare inflate and what reads such files elsewhere.

Everything is measured in the same run, turn by turn, on files in the page cache: machines are noisy, and figures of
different runs do not compare. A pass is what the loader does: `ReadRows` over the files, every value checked, every row
counted. MB are 10^6 bytes of text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from headrace.formats.bench_peers import inflate, read_by_pyarrow_csv, read_by_python_csv
from headrace.formats.criteo_reader import CriteoFiles
from headrace.formats.schema import Schema
from headrace.ingest.nodes.read_rows import ReadRows

GZ_THREADS = 2
"""Threads that read the gzip file: while one inflates, the other parses."""

Work = tuple[Callable[[], int], int]
"""A pass, and its bytes of text; what the pass gives must be the same every time."""


def measure(
    text: Sequence[str],
    gz: str,
    schema: Schema,
    *,
    small: str | None,
    threads: Sequence[int] = (1, 2),
    rounds: int = 5,
) -> dict[str, Any]:
    """Decode the plain files `text` and the gzip file `gz`, which holds the text of ``text[0]``.

    `small`: a piece of the text for the peers, of which one is very slow; None leaves them out.

    ==================== =====================================================================================
    `mb_per_s`           by number of threads, medians; one thread reads, parses and settles inline
    `rows_per_s`         rows a second with the first number of threads
    `scaling`            times as fast as with the first number of threads, by rounds, medians
    `gz_mb_per_s`        from the gzip file, MB of text, with two threads
    `inflate_mb_per_s`   inflating it, and nothing else, with one thread
    `gz_to_inflate`      the first over the second, by rounds, median
    `peers`              MB/s of others, with one thread
    `times_peer`         how many times as fast the first number of threads is, by rounds, medians
    `spread`             smallest and largest MB/s of each
    ==================== =====================================================================================
    """
    if not threads or len(set(threads)) < len(threads):
        raise ValueError(f"threads are {list(threads)}; give at least one number, each once")
    num_bytes = sum(map(os.path.getsize, text))
    work: dict[str, Work] = {f"threads_{n}": (partial(read_all, text, schema, n), num_bytes) for n in threads}
    work["gz"] = partial(read_all, [gz], schema, GZ_THREADS), os.path.getsize(text[0])
    work["inflate"] = partial(inflate, gz), os.path.getsize(text[0])
    if small is not None:
        work["pyarrow_csv"] = partial(read_by_pyarrow_csv, text[0], schema), os.path.getsize(text[0])
        work["python_csv"] = partial(read_by_python_csv, small, schema), os.path.getsize(small)
    rates, counts = _rates(work, rounds)
    first = f"threads_{threads[0]}"
    mb_per_s = {name: median(r) for name, r in rates.items()}
    peers = [name for name in ("pyarrow_csv", "python_csv") if name in work]
    return {
        "bytes": num_bytes,
        "rows": counts[first],
        "rounds": rounds,
        "mb_per_s": {str(n): mb_per_s[f"threads_{n}"] for n in threads},
        "rows_per_s": mb_per_s[first] * 1e6 * counts[first] / num_bytes,
        "scaling": {str(n): _ratio(rates, f"threads_{n}", first) for n in threads[1:]},
        "gz_mb_per_s": mb_per_s["gz"],
        "inflate_mb_per_s": mb_per_s["inflate"],
        "gz_to_inflate": _ratio(rates, "gz", "inflate"),
        "peers": {name: mb_per_s[name] for name in peers},
        "times_peer": {name: _ratio(rates, first, name) for name in peers},
        "spread": {name: [min(r), max(r)] for name, r in rates.items()},
    }


def read_all(files: Sequence[str], schema: Schema, threads: int) -> int:
    """One pass with so many decoding threads, inline with one; its rows."""
    reader = CriteoFiles(files, schema)
    with ReadRows(reader, num_workers=threads if threads > 1 else 0) as rows:
        return sum(block.num_rows for block in rows)


def _rates(work: dict[str, Work], rounds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """(MB/s of each pass of each, what its passes gave); the first pass warms up and is not counted."""
    counts = {name: run() for name, (run, _) in work.items()}
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (run, num_bytes) in work.items():
            begin = time.perf_counter()
            count = run()
            rates[name].append(num_bytes / 1e6 / (time.perf_counter() - begin))
            if count != counts[name]:
                raise RuntimeError(f"{name}: {count} in this pass, {counts[name]} in the first")
    return rates, counts


def _ratio(rates: dict[str, list[float]], fast: str, slow: str) -> float:
    return median(a / b for a, b in zip(rates[fast], rates[slow], strict=True))
