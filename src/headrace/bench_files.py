"""Files that the benchmarks of reading read: generated Terabyte text, and the same rows as gzip and as Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from isal import igzip

from headrace.formats.convert import convert
from headrace.formats.files import list_files
from headrace.formats.generate.generate import generate

PRESET = "criteo-terabyte"
_GZIP_LEVEL = 2
_COPY_BYTES = 1 << 20


@contextmanager
def work_folder(parent: str | None) -> Iterator[Path]:
    """A folder that is removed in the end, in `parent` (None: where temporary files go)."""
    with TemporaryDirectory(prefix="headrace-bench-", dir=parent) as folder:
        yield Path(folder)


def text_files(data: str | None, folder: Path, *, rows: int, files: int, seed: int) -> list[str]:
    """The uncompressed text files at `data` (a path, glob or folder), or `files` generated ones of `rows` rows."""
    if data is None:
        generate(PRESET, folder / "text", rows=rows, files=files, seed=seed)
        data = str(folder / "text")
    found = list_files(data)
    if packed := [name for name in found if name.endswith((".gz", ".zst"))]:
        raise ValueError(f"{packed[0]}: give uncompressed text; the compressed copies are made of it")
    return list(found)


def gzip_copy(path: str, folder: Path) -> str:
    """The file as one gzip member; its name in `folder`."""
    target = folder / f"{Path(path).name}.gz"
    packed = igzip.IGzipFile(target, "wb", compresslevel=_GZIP_LEVEL)  # type: ignore[no-untyped-call]
    with open(path, "rb") as text, packed:
        shutil.copyfileobj(text, packed, _COPY_BYTES)
    return str(target)


def parquet_copies(paths: list[str], folder: Path, *, threads: int) -> list[str]:
    """The files as `headrace convert` writes them."""
    out = folder / "parquet"
    convert(PRESET, paths, out, threads=threads)
    return list(list_files(out))


def head_of(path: str, num_bytes: int, folder: Path) -> str:
    """The first lines of a file, of `num_bytes` at most (one line at least); its name in `folder`."""
    target = folder / "head.tsv"
    with open(path, "rb") as text:
        data = text.read(num_bytes)
        end = data.rfind(b"\n") + 1
        target.write_bytes(data[:end] if end else data + text.readline())
    return str(target)
