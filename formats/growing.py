"""A folder in which files appear while it is read: a live stream as files."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass

from headrace.formats.checks import check_seconds, check_text, check_type
from headrace.formats.files import MANIFEST_NAME


@dataclass(frozen=True, kw_only=True)
class GrowingFolder:
    """A folder (or a URI of one) to give to a reader in the place of paths.

    Files get their names when they are whole (written as ``.NAME.tmp``, then renamed), and never change. They are read
    in the natural order of their names, which must be the order in which they appear: one that sorts before a file
    that was begun is an error. A file named `end_marker` says that no other one follows; it is empty, or its contents
    are nobody's business. Hidden files (``.x``, ``_x``) and manifests are left out, as in every folder.

    When all files are read, the folder is looked at again after `poll_s` seconds, for at most `max_idle_s` (None: for
    ever) without a new file; then TimeoutError. Files stay where they are until the stream is over: a resume looks for
    those that were read before.
    """

    path: str | os.PathLike[str]
    end_marker: str = "_END"
    poll_s: float = 0.5
    max_idle_s: float | None = 3600.0

    def __post_init__(self) -> None:
        check_type("path", self.path, (str, os.PathLike), "the path of a folder")
        check_seconds("poll_s", self.poll_s, 0.001, 3600)
        if self.max_idle_s is not None and not check_seconds("max_idle_s", self.max_idle_s, 0, math.inf) > 0:
            raise ValueError(f"max_idle_s={self.max_idle_s!r} is not a number of seconds over 0, or None")
        name = check_text("end_marker", self.end_marker)
        if not name or "/" in name or name in (".", "..", MANIFEST_NAME):
            raise ValueError(f"end_marker={name!r} is not the name of a file")


class Waiting:
    """The waits of one pass over a growing folder; :meth:`interrupt` ends them from any thread, for good."""

    def __init__(self, folder: GrowingFolder) -> None:
        self._folder = folder
        self._wake = threading.Event()
        self._idle_since: float | None = None

    def found(self) -> None:
        """There was something new."""
        self._idle_since = None

    def wait(self) -> bool:
        """Wait until it is time to look again; False when interrupted. TimeoutError past the folder's `max_idle_s`."""
        now = time.monotonic()
        since = self._idle_since = now if self._idle_since is None else self._idle_since
        limit = self._folder.max_idle_s
        if limit is not None and now - since >= limit:
            raise TimeoutError(f"{self._folder.path}: no new file for {limit:g} s, and no {self._folder.end_marker!r}")
        left = self._folder.poll_s if limit is None else min(self._folder.poll_s, limit - (now - since))
        return not self._wake.wait(left)

    def interrupt(self) -> None:
        self._wake.set()
