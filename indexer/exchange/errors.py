"""What goes wrong between ranks; each error names the ranks that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def rank_names(ranks: Sequence[int]) -> str:
    """ "rank 1", "ranks 0, 2", "ranks 0, 2-9": of ascending numbers."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 3 else ", ".join(map(str, run)) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)


class RankTimeoutError(TimeoutError):
    """Ranks from which nothing came in time: `ranks`. `others` is what is known of them."""

    def __init__(self, here: int, ranks: Iterable[int], timeout_s: float, what: str, others: str = "") -> None:
        self.ranks = tuple(sorted(set(ranks)))
        super().__init__(f"rank {here} waited {timeout_s:g} s for {what} of {rank_names(self.ranks)}{others}")


class RankStandstillError(RankTimeoutError):
    """Ranks that wait for this one, for something else than it waits for of them: `ranks`."""

    def __init__(self, here: int, ranks: Iterable[int], what: str, others: str) -> None:
        self.ranks = tuple(sorted(set(ranks)))
        TimeoutError.__init__(
            self,
            f"rank {here} waits for {what} of {rank_names(self.ranks)}{others}: neither can go on; all ranks make the "
            "same calls, in the same order",
        )


class RankLostError(ConnectionError):
    """Ranks whose connection broke: `ranks`."""

    def __init__(self, here: int, ranks: Iterable[int], what: str, reason: str) -> None:
        self.ranks = tuple(sorted(set(ranks)))
        super().__init__(f"rank {here} lost {rank_names(self.ranks)} while waiting for {what}: {reason}")


class RankLeftError(RankLostError):
    """Ranks that have ended their part while this one waits for them: `ranks`; `said` is what each said."""

    def __init__(self, here: int, said: Mapping[int, str], what: str) -> None:
        words = "; ".join(f"rank {rank} {text}" for rank, text in sorted(said.items()))
        ConnectionError.__init__(
            self,
            f"rank {here} waits for {what} of {rank_names(sorted(said))}, but {words}: all ranks make the same steps "
            "and calls",
        )
        self.ranks = tuple(sorted(said))


class RankFailedError(RuntimeError):
    """Another rank said that it failed: `rank`."""

    def __init__(self, rank: int, message: str) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} failed: {message}")


class RankMismatchError(ValueError):
    """Ranks were started with what must not differ."""


class ExchangeClosedError(RuntimeError):
    """A wait was ended by this rank itself, which closes."""
