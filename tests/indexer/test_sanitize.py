"""The native index under the compiler's sanitizers: memory, undefined behaviour, data races."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "sanitize"
HEADERS = Path(__file__).resolve().parents[2] / "indexer"
COMPILER = shutil.which("g++") or shutil.which("clang++")


def _compiles(sanitizers: str, folder: Path) -> bool:
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    built = folder / "probe"
    command = [str(COMPILER), f"-fsanitize={sanitizers}", str(probe), "-o", str(built), "-pthread"]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        return False
    return subprocess.run([str(built)], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "sanitizers", "level"),
    [("random_history.cpp", "address,undefined", "-O0"), ("threads.cpp", "thread", "-O1")],
)
def test_random_workload_is_clean(source: str, sanitizers: str, level: str, tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("no C++ compiler on the path")
    if not _compiles(sanitizers, tmp_path):
        pytest.skip(f"{COMPILER} has no -fsanitize={sanitizers} that runs here")
    program = tmp_path / "program"
    flags = ["-std=c++17", level, "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all", "-pthread"]
    build = [str(COMPILER), *flags, f"-fsanitize={sanitizers}", f"-I{HEADERS}", str(HERE / source), "-o", str(program)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.endswith("ok\n")
