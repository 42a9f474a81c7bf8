"""Who copies the rows of movements: the trainer itself, when it asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.embed.arena import Move
from headrace.embed.step_times import StepTimes


class Job:
    """Movement `number` of a run: its moves, one an arena.

    `last_wait` is the number of the last write-back that must have landed before the rows are fetched.
    """

    def __init__(self, number: int, moves: Sequence[Move], times: StepTimes) -> None:
        self.number = number
        self.last_wait = max(move.last_wait for move in moves)
        self._moves = moves
        self._times = times
        times.rows_fetched += sum(move.num_fetched for move in moves)
        times.rows_written_back += sum(move.num_written_back for move in moves)

    def vacate(self) -> None:
        """Copy the rows that leave out of their slots."""
        with self._times.of("write_back"):
            for move in self._moves:
                move.vacate()

    def fetch(self) -> None:
        """Bring the rows that enter into their slots."""
        with self._times.of("fetch"):
            for move in self._moves:
                move.fetch()

    def land(self) -> None:
        """Write the rows that left to their chunks."""
        with self._times.of("write_back"):
            for move in self._moves:
                move.land()

    def hold(self) -> None:
        """What the trainer asks for next finds the rows that were fetched."""
        for move in self._moves:
            move.hold()


class Mover(Protocol):
    """Runs jobs in the order in which they are submitted; one caller.

    An error of a job is raised by this call or a later one, and from then on by each until :meth:`drop`.
    """

    def submit(self, job: Job) -> None:
        """The job is to be run."""

    def wait(self, number: int) -> None:
        """Until the rows of every submitted job up to movement `number` have been fetched."""

    def drain(self) -> None:
        """Until every submitted job has been fetched and landed."""

    def rest(self) -> None:
        """Until nothing runs, and nothing will before the next `submit`: the chunks are the caller's alone. An error is
        kept, and not raised."""

    def drop(self) -> None:
        """Forget the jobs that have not begun, and an error. Between two runs: numbers may begin anew.

        Where it is interrupted (Ctrl-C), the next call takes it up again.
        """

    def close(self, timeout_s: float) -> None:
        """End what runs in the background; it begins anew when a job is submitted."""


class InlineMover:
    """Runs jobs when they are submitted, in the trainer's thread."""

    def submit(self, job: Job) -> None:
        job.vacate()
        job.land()
        job.fetch()
        job.hold()

    def wait(self, number: int) -> None:
        """It is done."""

    def drain(self) -> None:
        """It is done."""

    def rest(self) -> None:
        """Nothing runs."""

    def drop(self) -> None:
        """Nothing is kept."""

    def close(self, timeout_s: float) -> None:
        """Nothing runs."""
