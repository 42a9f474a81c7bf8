"""YAML from outside: plain data in bounded time and memory, or an error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.plain_yaml import MAX_BYTES, read_yaml
from headrace.formats.schema import Schema, SchemaError
from headrace.ingest.plan.simulation.links import LinkModel

LEVELS = ["&a0 [x, x, x, x, x, x, x, x, x]"]
LEVELS += [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
BILLION = f"[{', '.join(LEVELS)}]"


def test_plain_data(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: [1.5, null]}\nb: {<<: *a, x: 2}\nc: [*a, *a]\n")
    shared = {"x": 1, "y": [1.5, None]}
    assert read_yaml(path) == {"a": shared, "b": {"x": 2, "y": [1.5, None]}, "c": [shared, shared]}
    path.write_text("")
    assert read_yaml(path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [1", "not plain YAML: while parsing"),
        (b"a: 1\n---\nb: 2", "not plain YAML: expected a single document"),
        (b"\xff\xfe\x00", "not plain YAML: "),
        (b"!!python/object/apply:os.system ['ls']", "not plain YAML: could not determine a constructor"),
        (b"a: 2020-99-99", "not plain YAML: month must be in"),
        (b"a: " + b"9" * 5000, "a scalar of 5000 characters, line 1"),
        (b"a: " + b"1:" * 5000 + b"1", "a scalar of 10001 characters"),
        (b"[" * 3000 + b"]" * 3000, "nested too deep"),
        (b"a: &a [*a]", "an alias stands for what it is inside of, line 1"),
        (b"a: 1\nb: {c: 1, 'c': 2}\n", "the key 'c' is there twice, line 2"),
        (b"a: 1\nb: 1\na: 2\n", "the key 'a' is there twice, line 3"),
        (BILLION.encode(), "more than 1000000 values"),
        (b"#" * (MAX_BYTES + 1), f"longer than {MAX_BYTES} bytes"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"x\.yaml: .*{message}"):
        read_yaml(path)


@pytest.mark.parametrize(("read", "error"), [(Schema.from_yaml, SchemaError), (LinkModel.from_yaml, ValueError)])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"sparse: [{{name: a, encoding: {BILLION}}}]", "more than 1000000 values"),
        ("sparse: [a]\nsparse: [b]\n", "the key 'sparse' is there twice"),
        ("sparse: [", "not plain YAML"),
    ],
)
def test_who_reads_it(
    tmp_path: Path, read: Callable[[Path], Any], error: type[Exception], text: str, message: str
) -> None:
    """A schema with one `sparse` more would lose columns in silence; to print a billion values takes for ever."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(error, match=rf"x\.yaml: .*{message}"):
        read(tmp_path / "x.yaml")
