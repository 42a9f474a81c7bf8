"""Which index the rows of a stage are found by: a place means something with that one only."""

from __future__ import annotations


def serial_of(index: object) -> int | None:
    """The number of an index object in this process, None where it has none."""
    serial = getattr(index, "serial", None)
    return serial if isinstance(serial, int) else None


class IndexBinding:
    """State: free (a new stage, or one whose rows were replaced) --`bind`--> bound to the index of that serial.

    What does not know its index (None) is taken as it is.
    """

    def __init__(self) -> None:
        self._serial: int | None = None

    def check(self, serial: int | None, what: str) -> None:
        """ValueError if `what` is of another index than the one that the rows are bound to."""
        if serial is not None and self._serial is not None and serial != self._serial:
            raise ValueError(
                f"{what} is of another index than the rows of this stage, where the same places are other ids': one "
                "stage goes with one index. Make every later loader with index=loader.index of the first one; for an "
                "index of its own make a new stage, or restore both (SavedRun.restore(index=..., stage=...))"
            )

    def bind(self, serial: int | None, what: str) -> None:
        """:meth:`check`, and from now on nothing but this index."""
        self.check(serial, what)
        if serial is not None:
            self._serial = serial

    def free(self) -> None:
        """The rows were replaced: the next index that comes is theirs."""
        self._serial = None
