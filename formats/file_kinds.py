"""What a file is that was read as another kind, by its first bytes, in words for the one who chose it."""

from __future__ import annotations

HEAD_BYTES = 512
"""First bytes that tell all kinds."""

_ARROW = 'Arrow: open_dataset("parquet", ...) or --dataset parquet reads it'
_MARKS = {
    b"PAR1": 'Parquet: open_dataset("parquet", ...) or --dataset parquet reads it',
    b"ARROW1": _ARROW,
    b"\xff\xff\xff\xff": _ARROW,
    b"PK\x03\x04": "a zip archive or .npz arrays: unpack it, or name its dataset (open_dataset, --dataset)",
    b"\x93NUMPY": "a NumPy array: name its dataset (open_dataset, --dataset)",
    b"\x1f\x8b": "gzip data: text, or tar shards (--dataset tar), whose name has to end in .gz",
    b"\x28\xb5\x2f\xfd": "Zstandard data: text, or tar shards (--dataset tar), whose name has to end in .zst",
}


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so is a tar archive."""
    return head[257:262] == b"ustar"


def kind_of(head: bytes) -> str:
    """What a file is that begins with `head`, and what reads it; "" for text, and for what nobody knows."""
    for mark, kind in _MARKS.items():
        if head.startswith(mark):
            return kind
    if is_tar(head):
        return 'a tar archive: open_dataset("tar", ...) or --dataset tar reads it'
    return ""


def with_kind(reason: str, head: bytes) -> str:
    """The reason, and what the file is where that is known."""
    kind = kind_of(head)
    return f"{reason} (this is {kind})" if kind else reason
