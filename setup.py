"""Native extensions of headrace: one extension a `.pyx`, headers beside it, C++17.

Environment switches (all off by default, so that a build runs on any machine of its architecture):

- ``HEADRACE_NATIVE=1``      tune for this machine (``-march=native``)
- ``HEADRACE_BOUNDSCHECK=1`` turn Cython's bounds and wrap-around checks back on
- ``HEADRACE_SANITIZE=address,undefined`` build with those sanitizers
"""

import os
import re
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SRC = Path("src")
PACKAGES = ("formats", "indexer", "ingest", "embed")


def _flag(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def _compile_args() -> list[str]:
    args = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-Wno-unused-function", "-ffp-contract=off", "-fno-math-errno"]
    if _flag("HEADRACE_NATIVE"):
        args.append("-march=native")
    sanitizers = os.environ.get("HEADRACE_SANITIZE", "")
    if sanitizers:
        args += [f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", "-g", "-O1"]
    return args


def _link_args() -> list[str]:
    sanitizers = os.environ.get("HEADRACE_SANITIZE", "")
    return ["-pthread", *([f"-fsanitize={sanitizers}"] if sanitizers else [])]


def _needs(source: Path, known: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """Headers, and definitions of Cython, that a source needs, of whichever folder: it is compiled anew with them."""
    text = source.read_text()
    found = [source.parent / name for name in re.findall(r'(?:#include|cdef extern from) "([^"]+\.hpp)"', text)]
    modules = re.findall(r"^from (headrace[\w.]*) cimport", text, re.MULTILINE)
    found += [SRC.joinpath(*module.split(".")).with_suffix(".pxd") for module in modules]
    for path in (*found, source.with_suffix(".pxd")):
        needed = Path(os.path.normpath(path))
        if needed.exists() and needed not in known:
            known = _needs(needed, known | {needed})
    return known


def _extensions() -> list[Extension]:
    found = []
    for package in PACKAGES:
        folder = SRC / "headrace" / package
        for source in sorted(folder.rglob("*.pyx")):
            module = ".".join(source.relative_to(SRC).with_suffix("").parts)
            found.append(
                Extension(
                    module,
                    [str(source)],
                    language="c++",
                    depends=sorted(map(str, _needs(source))),
                    extra_compile_args=_compile_args(),
                    extra_link_args=_link_args(),
                )
            )
    return found


CHECKED = _flag("HEADRACE_BOUNDSCHECK")

setup(
    ext_modules=cythonize(
        _extensions(),
        nthreads=0,
        language_level=3,
        compiler_directives={
            "boundscheck": CHECKED,
            "wraparound": False,
            "initializedcheck": CHECKED,
            "cdivision": True,
            "embedsignature": True,
            "freethreading_compatible": False,
        },
    )
)
