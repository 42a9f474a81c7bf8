"""Everything that a GPU must show, on a bare machine with PyTorch, in under 8 minutes; run by `make gpu-check`.

It builds the extensions in place, runs the tests marked `gpu`, and the stage's benchmark on the device, and writes
one JSON report with the card's name. What it needs and lacks is said first. Packages that the machine's Python lacks
are taken from the wheels in WHEELS (see `make gpu-wheels`) into a folder of their own: nothing is installed.

Exit status: 0 all is well, 1 something failed, 2 there is no GPU (or no compiler, or a package is missing). With
``--device cpu`` the same steps run on the host: a rehearsal, which says nothing about a GPU.

No import of headrace, and nothing beyond the standard library and torch, since they are what it is about to set up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 470.0

# import name -> distributions that bring it
NEEDED = {
    "Cython": ("cython",),
    "setuptools": ("setuptools",),
    "numpy": ("numpy",),
    "pyarrow": ("pyarrow",),
    "torchdata": ("torchdata",),
    "isal": ("isal",),
    "webdataset": ("webdataset", "braceexpand"),
    "click": ("click",),
    "yaml": ("pyyaml",),
    "pytest": ("pytest", "iniconfig", "pluggy", "packaging", "pygments"),
    "pytest_timeout": ("pytest-timeout",),
    "hypothesis": ("hypothesis", "sortedcontainers"),
    "psutil": ("psutil",),
}


class Check:
    """Runs steps one after the other within the time that is left, and keeps what they said."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ends = time.monotonic() + options.limit_s
        self.folder = ROOT / "runs" / "gpu_check"
        self.packages = self.folder / "packages"
        self.report: dict[str, Any] = {"device": options.device, "python": platform.python_version(), "steps": {}}
        path = [str(ROOT / "src"), str(self.packages), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def run(self, name: str, command: list[str]) -> bool:
        """Whether `command` ended with status 0, in time."""
        print(f"== {name}: {' '.join(command)}", flush=True)
        begin = time.monotonic()
        try:
            status: int | str = subprocess.run(
                command, cwd=ROOT, env=self.environment, timeout=max(1.0, self.ends - begin)
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"stopped: the {self.options.limit_s:g} s for all steps were used up"
        seconds = round(time.monotonic() - begin, 1)
        self.report["steps"][name] = {"status": status, "seconds": seconds}
        print(f"== {name}: status {status} after {seconds} s", flush=True)
        return status == 0

    def finish(self, status: int, why: str) -> int:
        """Writes the report; `status`."""
        self.report |= {"status": status, "result": why}
        self.folder.mkdir(parents=True, exist_ok=True)
        out = Path(self.options.out) if self.options.out else self.folder / "report.json"
        out.write_text(json.dumps(self.report, indent=2) + "\n")
        print(f"gpu-check: {why}\nreport: {out}", flush=True)
        return status


def look_for_device(check: Check) -> str | None:
    """Notes torch and the card; why this cannot go on, or None."""
    if importlib.util.find_spec("torch") is None:
        return f"this Python ({sys.executable}) has no torch"
    import torch

    check.report["torch"] = torch.__version__
    if check.options.device == "cpu":
        check.report["card"] = None
        return None
    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} finds no CUDA device, so nothing was run"
    check.report["card"] = torch.cuda.get_device_name()
    check.report["cuda"] = torch.version.cuda
    check.report["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    print(f"card: {check.report['card']}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    return None


def bring_packages(check: Check) -> str | None:
    """Unpacks wheels of what is missing into a folder of its own; what cannot be had, or None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    wheels = Path(check.options.wheels).resolve()
    wanted = [one for name in missing for one in NEEDED[name]]
    if not wheels.is_dir():
        return f"missing packages: {', '.join(wanted)}; carry their wheels in {wheels} (make gpu-wheels)"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    command += ["--find-links", str(wheels), "--target", str(check.packages), *wanted]
    return None if check.run("packages", command) else f"{wheels} lacks wheels of {', '.join(wanted)} for this Python"


def compiler() -> str | None:
    """The C++ compiler that setuptools will call, or None."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)


def test_command(device: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--durations=5"]
    if device == "cuda":
        return [*command, "-m", "gpu", "tests/embed"]
    return [*command, "-k", "cpu", *map(str, sorted(Path("tests/embed").glob("test_torch_*.py")))]


def benchmark_command(device: str, optimizer: str, out: Path) -> list[str]:
    sizes = ["--batch-size", "16384", "--batches", "60", "--warm-up", "25", "--window", "20", "--hidden", "512"]
    if device == "cpu":
        sizes = ["--batch-size", "512", "--batches", "8", "--warm-up", "3", "--window", "4", "--hidden", "32"]
        sizes += ["--kernels", "torch", "--dim", "16"]
    command = [
        sys.executable,
        "benchmarks/stage_arena.py",
        "--device",
        device,
        "--optimizer",
        optimizer,
        "--rounds",
        "3",
    ]
    threads = str(min(8, len(os.sched_getaffinity(0))))
    return [*command, *sizes, "--threads", threads, "--json", str(out)]


def run_benchmarks(check: Check) -> bool:
    """The stage on the device, for two optimizers; the reports join this one."""
    well = True
    for optimizer in ("sgd", "rowwise_adagrad"):
        out = check.folder / f"stage_{optimizer}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
        well &= check.run(f"benchmark {optimizer}", benchmark_command(check.options.device, optimizer, out))
        if out.is_file():
            check.report.setdefault("benchmarks", {})[optimizer] = json.loads(out.read_text())
    return well


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--wheels", default=str(ROOT / ".gpu-wheels"), help="folder of wheels")
    parser.add_argument("--out", help="file of the report [default: runs/gpu_check/report.json]")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds for all steps")
    check = Check(parser.parse_args(arguments))
    if why := look_for_device(check):
        return check.finish(2, why)
    if why := bring_packages(check):
        return check.finish(2, why)
    if compiler() is None:
        return check.finish(2, "no C++ compiler (c++, g++ or clang++): the extensions cannot be built here")
    jobs = str(len(os.sched_getaffinity(0)))
    if not check.run("build", [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--parallel", jobs]):
        return check.finish(1, "the extensions do not build")
    tests = check.run("tests", test_command(check.options.device))
    benchmarks = run_benchmarks(check)
    if not (tests and benchmarks):
        return check.finish(1, "the tests failed" if not tests else "the benchmark failed")
    what = (
        f"all is well on {check.report['card']}" if check.report["card"] else "a rehearsal on the host; no GPU was used"
    )
    return check.finish(0, what)


if __name__ == "__main__":
    sys.exit(main())
