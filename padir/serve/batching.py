"""A queue whose jobs one thread runs in batches of equal keys, with a fair share for each client.

1. A job waits in the group of its key, for a short window or until its group fills a batch.
2. A client's jobs have successive turns, from the turn of the newest batch on (start-time fair queueing). The thread
   takes the group with the lowest turn, and runs a batch of its lowest turns; meanwhile other jobs gather.
3. A batch that has to compile a program says so (`Batcher.hand_over`). Another thread then runs batches of keys and
   sizes that have run before; others wait, so that one program is compiled at a time.
4. A job that is cancelled while it waits leaves the queue and costs nothing.
5. No client has more waiting jobs than there are free places, so that one client leaves half of the queue to others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from padir.serve.messages import Refused


@dataclasses.dataclass(eq=False)
class _Job:
    key: Hashable
    work: Any
    client: str
    turn: int
    since: float
    future: Future[Any] = dataclasses.field(default_factory=Future)


_order = operator.attrgetter("turn", "since")


@dataclasses.dataclass
class _Client:
    """A client with waiting jobs: their number, and the turn of its newest job."""

    waiting: int = 0
    turn: int = 0


class Batcher:
    """Runs jobs in batches of equal keys: in one thread, and in each thread that goes on with a batch it handed over.

    Args:
      run: function from (key, works) to one result for each work; these threads call it. After an exception the jobs
        of the batch run again one by one, so that only the failed job gets the exception.
      sizes: function from a key to the increasing sizes of its batches. A batch gets the largest size of which the
        waiting jobs fill more than half.
      max_wait: seconds that a job waits for other jobs of its key.
      max_queue: maximum number of waiting jobs; a single client has at most half of them.
      clock: function that returns the time in seconds; tests replace it.
    """

    def __init__(
        self,
        run: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        sizes: Callable[[Any], Sequence[int]],
        max_wait: float,
        max_queue: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._run = run
        self._sizes = sizes
        self._max_wait = max_wait
        self._max_queue = max_queue
        self._clock = clock
        self._groups: dict[Hashable, dict[_Job, None]] = {}  # jobs in order of arrival; no group is empty
        self._clients: dict[str, _Client] = {}  # clients with waiting jobs
        self._waiting = 0
        self._turn = 0  # the highest one of the newest batch
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._batch = threading.local()  # `key` is the key of the batch that the thread runs
        self._slow: set[Hashable] = set()  # keys whose batch was handed over
        self.known: set[tuple[Hashable, int]] = set()  # keys and sizes of batches that need no further program

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Starts the thread, which calls `prepare` before the first job."""

        def work() -> None:
            prepare()
            self._work()

        self._begin(work)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="padir-batches", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _work(self) -> None:
        """Runs batches until the queue is closed and empty, or until a batch was handed over."""
        while (found := self._next_batch()) is not None:
            batch, size = found
            key = self._batch.key = batch[0].key
            self._answer(batch)
            with self._changed:
                self.known.add((key, size))
                if key in self._slow:
                    self._slow.remove(key)
                    self._renew_turns()
                    self._changed.notify_all()
                    return

    def _renew_turns(self) -> None:
        """Gives jobs turns from now on: those that had to wait for a program have not saved up their turns."""
        turns: dict[str, int] = {}
        for job in sorted((job for group in self._groups.values() for job in group), key=_order):
            turns[job.client] = turns.get(job.client, self._turn - 1) + 1
            job.turn = self._clients[job.client].turn = turns[job.client]

    def hand_over(self) -> None:
        """Lets another thread run the batches of known keys, while the batch of this thread goes on."""
        key = getattr(self._batch, "key", None)
        with self._changed:
            if key is None or key in self._slow:
                return
            self._slow.add(key)
            self._begin(self._work)
        if sys.platform == "linux":  # Only there a thread has its own priority; this thread ends with its batch.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)

    @property
    def waiting(self) -> int:
        """Number of jobs that wait."""
        return self._waiting

    def submit(self, jobs: Sequence[tuple[Hashable, Any]], client: str = "") -> list[Future[Any]]:
        """Puts a client's jobs, (key, work) each, into the queue, all or none; cancelling a future removes its job.

        Raises:
          Refused: 429 if fewer places would be left than the client has jobs; 503 after `close`.
        """
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is stopping: try another server, or try again later", retry_after=5)
            mine = self._clients.get(client, _Client(turn=self._turn - 1))
            if mine.waiting + len(jobs) > self._max_queue - self._waiting - len(jobs):
                busy = f"{self._waiting} jobs wait, {mine.waiting} of this client: {len(jobs)} more exceed its share"
                raise Refused(429, f"{busy}; try again later", retry_after=1)
            futures = []
            for key, work in jobs:
                self._clients[client] = mine
                mine.waiting += 1
                mine.turn = max(mine.turn + 1, self._turn)
                job = _Job(key, work, client, mine.turn, self._clock())
                self._groups.setdefault(key, {})[job] = None
                job.future.add_done_callback(lambda _, job=job: self._take_out(job))
                futures.append(job.future)
            self._waiting += len(jobs)
            self._changed.notify()
        return futures

    def close(self) -> None:
        """Refuses further jobs, runs the waiting jobs, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            alive[0].join()

    def _take_out(self, job: _Job) -> None:
        """Removes a cancelled job; a job that has run is in no group."""
        with self._changed:
            if job in self._groups.get(job.key, ()):
                self._remove(job)

    def _remove(self, job: _Job) -> None:
        """Removes a job from its group and from its client's share."""
        group = self._groups[job.key]
        del group[job]
        if not group:
            del self._groups[job.key]
        self._waiting -= 1
        client = self._clients[job.client]
        client.waiting -= 1
        if not client.waiting:
            del self._clients[job.client]

    def _next_batch(self) -> tuple[list[_Job], int] | None:
        """Waits for the next batch, and gives its size; None if closed and empty."""
        with self._changed:
            while True:
                key, seconds = self._ripe()
                if key is not None:
                    group = self._groups[key]
                    sizes = [size for size in self._sizes(key) if not self._slow or (key, size) in self.known]
                    most = max((size for size in sizes if len(group) > size // 2), default=sizes[0])
                    taken = sorted(group, key=_order)[:most]
                    self._turn = max(self._turn, taken[-1].turn)
                    for job in taken:
                        self._remove(job)
                    # A job is left out if it was cancelled and its callback still waits for the lock.
                    taken = [job for job in taken if job.future.set_running_or_notify_cancel()]
                    if taken:
                        return taken, most
                elif self._closed and not self._groups:
                    return None
                else:
                    self._changed.wait(seconds)

    def _ripe(self) -> tuple[Hashable | None, float | None]:
        """(key of the next batch, 0) or, if no batch is ready, (None, seconds to wait or None without jobs)."""
        able = {key for key, _ in self.known} - self._slow if self._slow else {*self._groups}
        groups = {key: group for key, group in self._groups.items() if key in able}
        left = {key: next(iter(group)).since + self._max_wait - self._clock() for key, group in groups.items()}
        ripe = {
            key: min(map(_order, group))
            for key, group in groups.items()
            if left[key] <= 0 or self._closed or len(group) >= self._sizes(key)[-1]
        }
        if ripe:
            return min(ripe, key=ripe.__getitem__), 0.0
        return None, min(left.values(), default=None)

    def _answer(self, jobs: list[_Job]) -> None:
        try:
            results = list(zip(jobs, self._run(jobs[0].key, [job.work for job in jobs]), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._answer([job])
            return
        for job, result in results:
            job.future.set_result(result)
