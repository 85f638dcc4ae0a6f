"""A queue whose jobs are run in batches of a kind, by one thread.

1. A job waits in the group of its key, for a short window or until its group fills a batch.
2. The thread takes the group whose first job has waited longest, and runs a batch of it; meanwhile others gather.
3. A job that is cancelled while it waits is taken out, and costs nothing.
4. While no job waits at all, it does a piece of its spare work, if it has been given any.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from padir.errors import PadirError


class QueueFull(PadirError):
    """More jobs than may wait."""


class Closed(PadirError):
    """The thread takes no more jobs."""


@dataclasses.dataclass(eq=False)
class _Job:
    work: Any
    since: float
    future: Future[Any] = dataclasses.field(default_factory=Future)


class Batcher:
    """Runs jobs in batches.

    Args:
      run: (key, works) -> a result for each, called in the one thread. What it raises is the failed job's alone: the
        others of its batch run again without it.
      max_batch: jobs of a batch.
      max_wait: seconds that a job waits for others of its key.
      max_queue: jobs that wait.
    """

    def __init__(
        self,
        run: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._run, self._clock = run, clock
        self._max_batch, self._max_wait, self._max_queue = max_batch, max_wait, max_queue
        self._groups: dict[Hashable, dict[_Job, None]] = {}  # jobs in the order that they came; none is empty
        self._waiting = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, prepare: Callable[[], None] = lambda: None, spare: Callable[[], bool] = lambda: False) -> None:
        """Starts the thread.

        Args:
          prepare: is called before anything is run.
          spare: is called while no job waits, as long as it says that it has more to do.
        """

        def work() -> None:
            prepare()
            self._loop(spare)

        self._thread = threading.Thread(target=work, name="padir-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return self._waiting

    def submit(self, jobs: Sequence[tuple[Hashable, Any]]) -> list[Future[Any]]:
        """Puts (key, work) into the queue, all or none; cancel a future to take its job out again.

        Raises:
          QueueFull: they do not all fit.
          Closed: `close` was called.
        """
        with self._changed:
            if self._closed:
                raise Closed("no more work is taken")
            if self._waiting + len(jobs) > self._max_queue:
                raise QueueFull(f"{self._waiting} sentences wait, {len(jobs)} more do not fit into {self._max_queue}")
            futures = []
            for key, work in jobs:
                job = _Job(work, self._clock())
                self._groups.setdefault(key, {})[job] = None
                job.future.add_done_callback(lambda _, key=key, job=job: self._take_out(key, job))
                futures.append(job.future)
            self._waiting += len(jobs)
            self._changed.notify()
        return futures

    def close(self) -> None:
        """Takes no more jobs, runs those that wait, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _take_out(self, key: Hashable, job: _Job) -> None:
        """Forgets a job that was cancelled; one that has run is gone already."""
        with self._changed:
            if self._groups.get(key, {}).pop(job, job) is None:
                self._waiting -= 1
                if not self._groups[key]:
                    del self._groups[key]

    def _loop(self, spare: Callable[[], bool]) -> None:
        more = True  # spare work
        while (batch := self._next_batch(idle=more)) is not None:
            key, jobs = batch
            if jobs:
                self._answer(key, jobs)
            else:
                more = spare()

    def _next_batch(self, idle: bool) -> tuple[Hashable, list[_Job]] | None:
        """Waits for jobs whose time has come; None: there will be none. With `idle`, no jobs where none wait."""
        with self._changed:
            while True:
                key, seconds = self._ripe()
                if key is not None:
                    group = self._groups[key]
                    taken = list(itertools.islice(group, self._max_batch))
                    for job in taken:
                        del group[job]
                    if not group:
                        del self._groups[key]
                    self._waiting -= len(taken)
                    # False: cancelled, and its callback has not had the lock yet.
                    taken = [job for job in taken if job.future.set_running_or_notify_cancel()]
                    if taken:
                        return key, taken
                elif self._closed:
                    return None
                elif idle and not self._groups:
                    return None, []
                else:
                    self._changed.wait(seconds)

    def _ripe(self) -> tuple[Hashable | None, float | None]:
        """The key whose turn it is, or else in how many seconds that may be; None: when another job comes."""
        if not self._groups:
            return None, None
        first = {key: next(iter(group)).since for key, group in self._groups.items()}
        oldest = min(first, key=first.__getitem__)
        left = first[oldest] + self._max_wait - self._clock()
        if left <= 0 or self._closed:
            return oldest, 0.0
        full = [key for key, group in self._groups.items() if len(group) >= self._max_batch]
        return (min(full, key=first.__getitem__), 0.0) if full else (None, left)

    def _answer(self, key: Hashable, jobs: list[_Job]) -> None:
        try:
            results = list(zip(jobs, self._run(key, [job.work for job in jobs]), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._answer(key, [job])
            return
        for job, result in results:
            job.future.set_result(result)
