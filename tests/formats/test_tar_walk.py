"""An archive's bytes: plain files with whole headers and a marked end pass, everything else is an error."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.errors import CorruptShardError
from headrace.formats.tar_walk import TarWalk


def archive(*members: tuple[str, bytes], **options: Any) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", **{"format": tarfile.USTAR_FORMAT, **options}) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


def walk(data: bytes, step: int = 1 << 20, *, end_required: bool = True, max_member_bytes: int = 1 << 20) -> TarWalk:
    found = TarWalk("x.tar", max_member_bytes=max_member_bytes)
    for at in range(0, len(data), step):
        found.feed(data[at : at + step])
    found.finish(end_required=end_required)
    return found


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), max_size=5), step=st.integers(1, 2000))
def test_whole_archives_pass_in_steps_of_any_size(sizes: list[int], step: int) -> None:
    data = archive(*((f"m{i}.arrow", bytes([i + 1]) * size) for i, size in enumerate(sizes)))
    found = walk(data, step)
    assert (found.members, found.bytes) == (len(sizes), len(data))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_all_forms(form: int) -> None:
    name = "/".join(["f" * 60] * (3 if form == tarfile.USTAR_FORMAT else 5)) + ".arrow"
    assert walk(archive((name, b"abc"), format=form)).members == 1


def test_every_cut_is_seen() -> None:
    data = archive(("a.arrow", b"a" * 700), ("b.arrow", b"b" * 512), ("c.arrow", b""))
    end = 512 + 1024 + 512 + 512 + 512
    for size in range(len(data) + 1):
        if size >= end + 1024 and size % 512 == 0:
            walk(data[:size])
            continue
        with pytest.raises(CorruptShardError, match=r"^x\.tar: cut"):
            walk(data[:size])
    for size in (512 + 1024, end):  # between members: whole, if a manifest says so
        assert walk(data[:size], end_required=False).members in (1, 3)


def test_a_flipped_bit_of_a_header_is_seen() -> None:
    data = bytearray(archive(("a.arrow", b"a" * 600), ("b.arrow", b"b" * 600)))
    for at in [*range(0, 500, 7), *range(512 + 1024, 512 + 1024 + 500, 7)]:
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptShardError):
            walk(bytes(damaged))


def special(kind: bytes, name: str = "evil") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = "/etc/passwd"
        tar.addfile(info)
    return target.getvalue()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.DIRTYPE, "a folder"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"Z", "of kind b'Z'"),
    ],
)
def test_only_plain_files(kind: bytes, what: str) -> None:
    with pytest.raises(CorruptShardError, match=rf"member 'evil/?' is {what}, not a plain file"):
        walk(special(kind))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x" * 512, "not a tar archive"),
        (b"", "cut: the end of the archive is not marked"),
        (archive(("a", b"1")) + archive(("b", b"2")), "other bytes behind the end of the archive"),
        (archive(("a", b"1" * 3000)), "member 1 says it has 3000 bytes, allowed are 2000"),
    ],
)
def test_what_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptShardError, match=message):
        walk(data, max_member_bytes=2000)


@pytest.mark.parametrize("field", [b"+0000000012\0", b"00_0000012\0 ", b"99999999999\0"[:12], b"\xff" * 12])
def test_sizes_that_are_none(field: bytes) -> None:
    data = bytearray(archive(("a", b"1" * 10)))
    data[124:136] = field.ljust(12, b"\0")[:12]
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(CorruptShardError, match="says it has"):
        walk(bytes(data))


def extended(kind: bytes, records: dict[str, str]) -> bytes:
    """A header of extensions with its records, of kind "x" (of the next member) or "g" (of all that follow)."""
    return tarfile.TarInfo._create_pax_generic_header(records, kind, "utf-8")  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("kind", [b"x", b"g"])
@pytest.mark.parametrize(
    "records",
    [
        {"size": "1"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)},
        {"GNU.sparse.map": "0,3", "GNU.sparse.size": str(1 << 40)},
        {"comment": "x", "mtime": "1.5", "GNU.sparse.numblocks": "1"},
    ],
)
def test_extensions_say_nothing_of_sizes(kind: bytes, records: dict[str, str]) -> None:
    for step in (1, 511, 1 << 20):
        with pytest.raises(CorruptShardError, match=r"^x\.tar: an extension header .* gives a size of its own"):
            walk(extended(kind, records) + archive(("a.arrow", b"abc")), step)


def test_extensions_do_not_pile_up() -> None:
    whole = archive(("a.arrow", b"abc"))
    few, many = extended(b"x", {"comment": "x"}) * 8, extended(b"x", {"comment": "x"}) * 9
    assert walk(few + whole[:1024] + few + whole).members == 2
    with pytest.raises(CorruptShardError, match="too many extension headers behind member 0"):
        walk(many + whole)
    large = extended(b"x", {"comment": "x" * 600_000})
    assert walk(large + whole[:1024] + large + whole).members == 2  # each holds for one member
    with pytest.raises(CorruptShardError, match="too many extension headers behind member 0"):
        walk(large * 2 + whole)
    of_all = extended(b"g", {"comment": "x" * 600_000})
    with pytest.raises(CorruptShardError, match="too many extension headers behind member 1"):
        walk(of_all + whole[:1024] + of_all + whole)


def test_what_archivers_write_for_times_and_names_passes() -> None:
    info = tarfile.TarInfo("m.arrow")
    info.pax_headers = {"comment": "a size=3 and a GNU.sparse.size", "path": "größe=1.arrow", "SCHILY.xattr.user": "x"}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}) as tar:
        tar.addfile(info)
    assert walk(target.getvalue()).members == 1
