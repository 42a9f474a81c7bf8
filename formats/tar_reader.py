"""Tar shards of Arrow record batches as decoded rows (see `reader.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyarrow import fs

from headrace.formats.arrow_batches import ArrowFile
from headrace.formats.arrow_reader import DEFAULT_BATCH_ROWS, ArrowFiles
from headrace.formats.bad_records import BadRecords
from headrace.formats.checks import check_integer, check_types
from headrace.formats.command_store import CommandStore
from headrace.formats.file_reader import Paths
from headrace.formats.growing import GrowingFolder
from headrace.formats.manifest import Verify
from headrace.formats.schema import Schema
from headrace.formats.store import Store
from headrace.formats.tar_shard import TarShard

DEFAULT_MAX_MEMBER_BYTES = 1 << 30


class TarFiles(ArrowFiles):
    """Tar archives (plain, ``.gz`` or ``.zst``) whose members are Arrow IPC streams or files; see :class:`ArrowFiles`.

    A shard ends with the mark of tar's end, or its size is the one in a manifest: anything else is cut, and a
    :class:`CorruptShardError`. Members are read in the order of the archive; a resume reads through those before.

    URLs that run a command (``pipe:...``, and what webdataset fetches by ``curl`` or ``gsutil``) are refused, unless
    their scheme is named in `allow_commands`: ``allow_commands=("pipe",)`` hands what follows ``pipe:`` to a shell.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema,
        *,
        columns: Mapping[str, str] | None = None,
        bad_records: BadRecords | str = "raise",
        batch_rows: int = DEFAULT_BATCH_ROWS,
        wrap_negative_ids: bool = False,
        max_member_bytes: int = DEFAULT_MAX_MEMBER_BYTES,
        allow_commands: Sequence[str] = (),
        verify_manifest: Verify = "size",
        filesystem: fs.FileSystem | Store | None = None,
    ) -> None:
        self._max_member_bytes = check_integer("max_member_bytes", max_member_bytes, 1, 1 << 40)
        check_types("allow_commands", allow_commands, str, "names of schemes whose commands may run, as ('pipe',)")
        if allow_commands and filesystem is None and not isinstance(paths, GrowingFolder):
            filesystem = CommandStore.of(paths, allow_commands)
        super().__init__(
            paths,
            schema,
            columns=columns,
            bad_records=bad_records,
            batch_rows=batch_rows,
            wrap_negative_ids=wrap_negative_ids,
            verify_manifest=verify_manifest,
            filesystem=filesystem,
        )

    def _rows_of(self, file: int) -> int | None:
        """By its manifest alone."""
        entry: Any = self._entries[file]
        return None if entry is None else int(entry.rows)

    def _open(self, file: int) -> ArrowFile:
        self._check_unchanged(file, 0)
        return TarShard(
            self.files[file],
            self.store,
            end_required=self._entries[file] is None,
            max_member_bytes=self._max_member_bytes,
        )
