"""What goes wrong between ranks; each error names the ranks that it is about."""

from __future__ import annotations

from collections.abc import Iterable


def _names(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class RankTimeoutError(TimeoutError):
    """Ranks from which nothing came in time: `ranks`."""

    def __init__(self, here: int, ranks: Iterable[int], timeout_s: float, what: str) -> None:
        self.ranks = tuple(sorted(set(ranks)))
        super().__init__(f"rank {here} waited {timeout_s:g} s for {what} of {_names(self.ranks)}")


class RankLostError(ConnectionError):
    """Ranks whose connection broke: `ranks`."""

    def __init__(self, here: int, ranks: Iterable[int], what: str, reason: str) -> None:
        self.ranks = tuple(sorted(set(ranks)))
        super().__init__(f"rank {here} lost {_names(self.ranks)} while waiting for {what}: {reason}")


class RankFailedError(RuntimeError):
    """Another rank said that it failed: `rank`."""

    def __init__(self, rank: int, message: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} failed: {message}")


class RankMismatchError(ValueError):
    """Ranks were started with what must not differ."""


class ExchangeClosedError(RuntimeError):
    """A wait was ended by this rank itself, which closes."""
