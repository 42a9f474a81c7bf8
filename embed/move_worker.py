"""A thread that moves rows beside the trainer.

Jobs run in the order in which they were submitted: rows that leave are copied out of their slots, then rows are
fetched. What was copied out waits in memory of its own and *lands* in the chunks when no job waits to be run, so that
the trainer is never kept waiting by a write-back that its plan does not name. It lands earlier where

- a job's plan says so: before the fetches of a job, all write-backs up to its `last_wait`;
- it is `LONGEST_STAGED` movements old. This bounds the memory, and keeps the duty of whoever runs plans, that a
  write-back of move m has landed by the end of move m + horizon (`ingest/plan/README.md`): no horizon is shorter, and
  plans name no write-back that is older than theirs.

The rows of a slot are read before its next row is written, because a job vacates before it fetches.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable

from headrace.embed.movers import Job
from headrace.formats.monitor import Monitor

_Test = Callable[[], bool]

LONGEST_STAGED = 4
"""Before the fetches of movement n, all write-backs of movements up to n - LONGEST_STAGED have landed."""

PATIENCE_S = 600.0
"""How long the trainer waits for a job before it raises TimeoutError."""

EXIT_TIMEOUT_S = 5.0
"""How long the end of the interpreter, or of the mover, waits for the job that runs."""


class MoveWorker:
    """A :class:`~headrace.embed.movers.Mover` with a thread, which starts with the first job.

    ``submitted --thread--> fetched --thread, when it may--> landed``. An error of a job ends the thread; it is raised
    by the caller's present or next call, and by each until :meth:`drop`. `wait` and `drain` can be interrupted (Ctrl-C)
    and called again; a `drop` or `close` that was interrupted is finished by the next call, whichever it is. The thread
    keeps neither the mover nor the process alive.
    """

    def __init__(self) -> None:
        self._desk = _Desk()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._dropped = False  # and not finished
        self._ending = False
        self._end: weakref.finalize[..., MoveWorker] | None = None

    def submit(self, job: Job) -> None:
        self._ready()
        self._desk.submit(job)
        if self._thread is None:
            self._start()

    def wait(self, number: int) -> None:
        self._ready()
        for job in self._desk.wait(number):
            job.hold()

    def drain(self) -> None:
        self._ready()
        self._desk.drain()

    def rest(self) -> None:
        if self._thread is None or self._pid != os.getpid():  # in a forked child there is no thread
            return
        self._finish_end()
        if not self._desk.rests(PATIENCE_S):
            raise TimeoutError(f"rows are still being moved after {PATIENCE_S:g} s")

    def drop(self) -> None:
        self._dropped = True
        self._finish_end()

    def close(self, timeout_s: float) -> None:
        """Waits for all jobs, `timeout_s` at most, and ends the thread; a RuntimeWarning says so if it does not end."""
        if self._pid != os.getpid():
            return
        if self._dropped or self._ending or self._desk.rests(timeout_s):
            self._stop(EXIT_TIMEOUT_S)
            return
        warnings.warn(
            f"the thread that moves embedding rows is still busy after {timeout_s:g} s, and is left alone",
            RuntimeWarning,
            stacklevel=2,
        )

    def _start(self) -> None:
        self._pid = os.getpid()
        thread = threading.Thread(target=_work, args=(self._desk,), name="headrace-move-rows", daemon=True)
        thread.start()
        self._thread = thread
        self._end = weakref.finalize(self, _end, self._desk, thread, self._pid)

    def _stop(self, timeout_s: float) -> None:
        self._ending = True
        thread, end = self._thread, self._end
        if thread is not None and self._pid == os.getpid():
            self._desk.stop()
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError(f"the thread that moves embedding rows did not end within {timeout_s:g} s")
            if end is not None:
                end.detach()
        self._thread = None
        self._desk.restart()
        self._ending = False

    def _finish_end(self) -> None:
        if self._dropped or self._ending:
            self._stop(PATIENCE_S)
        if self._dropped:
            self._desk = _Desk()
            self._dropped = False

    def _ready(self) -> None:
        self._check_process()
        self._finish_end()

    def _check_process(self) -> None:
        if self._thread is not None and self._pid != os.getpid():
            raise RuntimeError(
                "this process was forked from one that trains with overlap=True, whose thread is not here: make the "
                "stage in the process that uses it"
            )


class _Desk:
    """What the trainer and the thread exchange."""

    def __init__(self) -> None:
        self._monitor = Monitor()  # of what follows
        self._waiting: deque[Job] = deque()
        self._staged: deque[Job] = deque()  # vacated, not landed
        self._fetched: deque[Job] = deque()  # since the last `wait`
        self._running = False
        self._stopped = False
        self._error: BaseException | None = None

    def submit(self, job: Job) -> None:
        with self._monitor.lock:
            self._raise_error()
            self._waiting.append(job)
            self._monitor.changed()

    def wait(self, number: int) -> list[Job]:
        """Until all jobs up to `number` have been fetched; those of them that were not given by an earlier call."""
        self._until(lambda: not self._owes(number), f"movement {number}")
        with self._monitor.lock:
            found = []
            while self._fetched and self._fetched[0].number <= number:
                found.append(self._fetched.popleft())
            return found

    def drain(self) -> None:
        self._until(lambda: not self._busy, "all movements")

    def rests(self, timeout_s: float) -> bool:
        """Whether, after `timeout_s` at most, all jobs are done, or one has failed."""
        return self._monitor.wait_for(lambda: self._error is not None or not self._busy, timeout_s)

    def stop(self) -> None:
        with self._monitor.lock:
            self._stopped = True
            self._monitor.changed()

    def restart(self) -> None:
        self._stopped = False

    def work(self) -> None:
        """Run jobs until the desk is stopped."""
        while self._next_is_there():
            if self._waiting:
                self._run(self._waiting[0])
            else:
                self._land_oldest()
            with self._monitor.lock:
                self._running = False
                self._monitor.changed()

    def fail(self, error: BaseException) -> None:
        """The thread ends with `error`."""
        with self._monitor.lock:
            self._error = error
            self._running = False
            self._monitor.changed()

    def _next_is_there(self) -> bool:
        """Waits until there is something to do, or the desk is stopped."""
        self._monitor.wait_for(lambda: self._stopped or self._is_to_run)
        with self._monitor.lock:
            self._running = not self._stopped
            return self._running

    def _run(self, job: Job) -> None:
        job.vacate()
        self._staged.append(job)
        must_have_landed = max(job.last_wait, job.number - LONGEST_STAGED)
        while self._staged and self._staged[0].number <= must_have_landed:
            self._land_oldest()
        job.fetch()
        with self._monitor.lock:
            self._waiting.popleft()
            self._fetched.append(job)
            self._monitor.changed()

    def _land_oldest(self) -> None:
        self._staged[0].land()
        self._staged.popleft()

    @property
    def _is_to_run(self) -> bool:
        return bool(self._waiting or self._staged)

    def _owes(self, number: int) -> bool:
        return bool(self._waiting) and self._waiting[0].number <= number

    @property
    def _busy(self) -> bool:
        return self._is_to_run or self._running

    def _until(self, reached: _Test, what: str) -> None:
        def is_over() -> bool:
            self._raise_error()
            return reached()

        timeout_s = PATIENCE_S
        if not self._monitor.wait_for(is_over, timeout_s):
            raise TimeoutError(f"{what}: rows are still being moved after {timeout_s:g} s")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _work(desk: _Desk) -> None:
    try:
        desk.work()
    except BaseException as error:
        desk.fail(error)


def _end(desk: _Desk, thread: threading.Thread, pid: int) -> None:
    """The mover is gone, or the interpreter ends: what has not been moved goes with it."""
    if os.getpid() != pid:
        return  # a forked child has not the thread, and may not touch its lock
    desk.stop()
    if thread is not threading.current_thread():  # where the garbage is collected
        thread.join(EXIT_TIMEOUT_S)
