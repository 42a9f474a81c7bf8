"""C++ programs of the tests, built and run under the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPILER = shutil.which("g++") or shutil.which("clang++")
SHARED = Path(__file__).resolve().parent / "cpp"  # headers of these programs


def run_sanitized(
    source: Path,
    *,
    headers: Path,
    sanitizers: str,
    level: str,
    folder: Path,
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
    timeout_s: float = 60,
) -> None:
    """Build `source` in `folder`, with more `options` of the compiler, and run it: it must end with the line "ok".

    Skips without a compiler or sanitizers.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler on the path")
    program = folder / "program"
    flags = ["-std=c++17", level, "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all", "-pthread"]
    includes = [f"-I{headers}", f"-I{SHARED}"]
    build = [str(COMPILER), *flags, *options, f"-fsanitize={sanitizers}", *includes, str(source), "-o", str(program)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=100, check=False)
    if built.returncode and not _works(sanitizers, folder):
        pytest.skip(f"{COMPILER} has no -fsanitize={sanitizers} that runs here")
    assert built.returncode == 0, built.stderr
    command = [str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    if done.returncode and not _works(sanitizers, folder):
        pytest.skip(f"programs with -fsanitize={sanitizers} do not run here")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.endswith("ok\n")


def _works(sanitizers: str, folder: Path) -> bool:
    """Whether an empty program builds and runs."""
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    built = folder / "probe"
    command = [str(COMPILER), f"-fsanitize={sanitizers}", str(probe), "-o", str(built), "-pthread"]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        return False
    return subprocess.run([str(built)], capture_output=True, timeout=60, check=False).returncode == 0
