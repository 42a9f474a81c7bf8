"""Instructions that the index takes for an id, a known key and a new row, counted by callgrind: they repeat exactly.

    python benchmarks/index_instructions.py [--json FILE]

Needs g++ and valgrind.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = {"dedup": 0, "known": 1, "insert": 1}  # which of the printed numbers to divide by: ids or unique keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "index_instructions"
        flags = ["-O3", "-g", "-std=c++17", "-DNDEBUG", "-pthread", f"-I{HERE.parent / 'indexer'}"]
        subprocess.run(["g++", *flags, HERE / "index_instructions.cpp", "-o", program], check=True)
        report = {}
        for part, divisor in PARTS.items():
            instructions, numbers = count(program, part, folder)
            report[f"{part}_instructions"] = instructions
            report[f"{part}_per_{'id' if divisor == 0 else 'key'}"] = round(instructions / numbers[divisor], 2)
        report |= dict(zip(("ids", "unique_keys", "new_rows"), numbers, strict=True))
    for key, value in report.items():
        print(f"{key:24}{value:>16,}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def count(program: Path, part: str, folder: str) -> tuple[int, list[int]]:
    """Instructions inside `measured`, and what the program printed."""
    callgrind = ["valgrind", "--tool=callgrind", "--toggle-collect=void measured*", "--collect-atstart=no"]
    done = subprocess.run(
        [*callgrind, f"--callgrind-out-file={folder}/{part}", program, part],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(f"callgrind said nothing of what it collected: {done.stderr[-500:]}")
    return int(found.group(1)), [int(number) for number in done.stdout.split()]


if __name__ == "__main__":
    main()
