"""A queue whose jobs one thread runs in batches of equal keys.

1. A job waits in the group of its key, for a short window or until its group fills a batch.
2. The thread takes the group whose first job has waited longest, and runs a batch of it; meanwhile other jobs gather.
3. A job that is cancelled while it waits leaves the queue and costs nothing.
4. While no job waits, the thread does a piece of its spare work, if there is any.
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
    """Error: the queue has no room for the jobs."""


class Closed(PadirError):
    """Error for a job that comes after `Batcher.close`."""


@dataclasses.dataclass(eq=False)
class _Job:
    work: Any
    since: float
    future: Future[Any] = dataclasses.field(default_factory=Future)


class Batcher:
    """Runs jobs in batches of equal keys, in one thread.

    Args:
      run: function from (key, works) to one result for each work; only the thread calls it. After an exception the jobs
        of the batch run again one by one, so that only the failed job gets the exception.
      max_batch: maximum number of jobs in a batch.
      max_wait: seconds that a job waits for other jobs of its key.
      max_queue: maximum number of waiting jobs.
      clock: function that returns the time in seconds; tests replace it.
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
        self._groups: dict[Hashable, dict[_Job, None]] = {}  # jobs in order of arrival; no group is empty
        self._waiting = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, prepare: Callable[[], None] = lambda: None, spare: Callable[[], bool] = lambda: False) -> None:
        """Starts the thread.

        Args:
          prepare: called before the first job.
          spare: called while no job waits, as long as it returns True for more work to do.
        """

        def work() -> None:
            prepare()
            self._loop(spare)

        self._thread = threading.Thread(target=work, name="padir-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of jobs that wait."""
        return self._waiting

    def submit(self, jobs: Sequence[tuple[Hashable, Any]]) -> list[Future[Any]]:
        """Puts jobs, (key, work) each, into the queue, all or none; cancelling a future removes its job.

        Raises:
          QueueFull: the queue has no room for all of them.
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
        """Refuses further jobs, runs those that wait, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _take_out(self, key: Hashable, job: _Job) -> None:
        """Removes a cancelled job from its group; a job that has run is in no group."""
        with self._changed:
            if self._groups.get(key, {}).pop(job, job) is None:
                self._waiting -= 1
                if not self._groups[key]:
                    del self._groups[key]

    def _loop(self, spare: Callable[[], bool]) -> None:
        more = True  # False once all spare work is done
        while (batch := self._next_batch(idle=more)) is not None:
            key, jobs = batch
            if jobs:
                self._answer(key, jobs)
            else:
                more = spare()

    def _next_batch(self, idle: bool) -> tuple[Hashable, list[_Job]] | None:
        """Waits for the next batch; None if closed and empty. With `idle`, returns no jobs as soon as none wait."""
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
                    # A job is left out if it was cancelled and its callback still waits for the lock.
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
        """(key of the next batch, 0), or else (None, seconds to wait); None seconds wait for another job."""
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
